import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from liftedstruct.data import PackedImages, prepare
from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.products import product_images
from liftedstruct.embedder import EMBEDDER, Embedder
from liftedstruct.embeddings import embed
from liftedstruct.losses import lifted_struct_loss
from liftedstruct.retrieval import map_at_r, recall_at_k
from liftedstruct.runtime import seeds
from liftedstruct.training import PRESETS, Run, load_config, train, truncate_run
from liftedstruct.training.learner import Learner
from liftedstruct.training.loop import Training
from liftedstruct.training.machine import stop_signals
from liftedstruct.training.optimizers import training_mode
from liftedstruct.training.run_folder import CONFIG, LOG, RECORD, STATE, RunFolder
from liftedstruct.trunks import make_trunk
from training.sets import products, run, settings

Interrupt = Callable[[Path, int], None]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedImages:
    return products(tmp_path_factory.mktemp("products"))


def learned(run: Run) -> bytes:
    return (run.folder / EMBEDDER).read_bytes()


def recall(run: Run, packed: PackedImages) -> float:
    """Return Recall@1 on the test classes of the rendered products."""
    embeddings = embed(run.embedder(), packed, packed.test).embeddings
    return float(recall_at_k(embeddings, packed.labels[packed.test], (1,))[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "changes"),
    [
        ("lifted_struct", {}),
        ("contrastive", {}),
        ("triplet", {}),
        ("structured_hinge", {"batch_size": 16, "steps": 600, "lr": 3e-4}),  # collapses with the settings of the others
    ],
)
def test_learning_happens(loss: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Recall@1 improves on test classes."""
    packed = products(tmp_path / "products", classes=200, validation=0)
    same: dict[str, Any] = {"dim": 64, "steps": 150, "validate_every": 0, "log_every": 50, "batch_size": 128}
    untrained = recall(run(packed, tmp_path / "untrained", **same | {"steps": 1, "lr": 0.0}), packed)
    assert 5 / (len(packed.test) - 1) < untrained < 0.12
    assert recall(run(packed, tmp_path / loss, loss=loss, **same | changes), packed) > 1.3 * untrained


def test_files_and_log_of_a_run(packed: PackedImages, tmp_path: Path) -> None:
    one = run(packed, tmp_path / "a" / "run")
    assert {each.name for each in one.folder.iterdir()} == {CONFIG, LOG, RECORD, STATE, EMBEDDER}
    config = load_config(one.folder / CONFIG)
    assert config == one.config
    assert (config.sampler.name, config.crop, config.train_crop, config.device, config.threads) == (
        "balanced",
        28,
        28,
        "cpu",
        1,
    )
    assert (config.freeze, config.pool, config.warmup, config.pretrained_mix) == (0, "avg", 0, 0.0)
    assert config.data == str(packed.folder)
    assert json.loads((one.folder / RECORD).read_text())["checksum"] == packed.checksum
    steps = [line for line in one.log() if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 4, 6, 8, 10, 12]
    assert steps[0]["lr"] == 1e-3
    assert steps[-1]["lr"] == pytest.approx(1e-3 * (1 + np.cos(np.pi * 11 / 12)) / 2)
    assert all(0 <= line["active_images"] <= 1 and line["images_per_second"] > 0 for line in steps)
    validations = [line for line in one.log() if "recall_at_1" in line]
    assert [line["step"] for line in validations] == [0, 4, 8, 12]
    best = max(validations, key=lambda line: (line["map_at_r"], -line["step"]))
    assert (one.best_step, one.recall_at_1) == (best["step"], best["recall_at_1"])
    X = embed(one.embedder(), packed, packed.validation).embeddings
    assert (
        recall_at_k(X, packed.labels[packed.validation], (1,))[1] == best["recall_at_1"]
    )  # the saved embedder is from that step


def test_the_test_classes_are_never_read(packed: PackedImages, tmp_path: Path) -> None:
    shutil.copytree(packed.folder, tmp_path / "other")
    pixels = np.load(tmp_path / "other" / "images.npy", mmap_mode="r+")
    pixels[packed.test] = 255 - pixels[packed.test]
    pixels.flush()
    other = PackedImages(tmp_path / "other")
    changes: dict[str, Any] = {"sampler": {"name": "hard_negatives", "refresh_every": 4}, "head": "pca", "train_dim": 24}
    assert learned(run(packed, tmp_path / "one", **changes)) == learned(run(other, tmp_path / "two", **changes))


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_every_preset_runs(preset: str | None, packed: PackedImages, tmp_path: Path) -> None:
    small: dict[str, Any] = {"weights": "random", "crop": 32, "batch_size": 8, "dim": 8, "steps": 2, "threads": 1}
    one = train(load_config(preset=preset, data=packed.folder, out=tmp_path / "run", **small), progress=False)
    assert one.config.trunk.name == ("googlenet" if preset == "paper" else "efficientnet_lite0")
    assert (one.folder / EMBEDDER).exists()


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sgd": {"optimizer": "caffe_sgd", "schedule": "step", "clip_norm": 1.0, "sampler": "pairs", "head": "uniform"},
    "mined": {
        "sampler": {"name": "hard_negatives", "refresh_every": 3},
        "dropout": 0.3,
        "cache_chunk": 5,
        "warmup": 2,
        "ema_decay": 0.8,
    },
    "frozen": {"freeze": "trunk", "dropout": 0.3, "train_dim": 12, "dim": 5, "validate_every": 0},
    "nested": {"min_dim": 3, "ema_decay": 0.8, "pretrained_mix": 0.4, "train_dim": 24, "dim": 5, "normalize": True},
    "views": {
        "pool": "avg",
        "train_crop": 24,
        "loss": {"temperature": 0.5},
        "augmentation": {"name": "random_resized_crop", "color_jitter": 0.2},
    },
    "triplet": {"loss": {"name": "triplet", "triplets": "semi-hard"}, "freeze": 2, "validate_every": 0},
    "pooled": {"dim": 0, "normalize": True, "schedule": "constant"},
}


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    """Send this process a signal when the log of a run has reached a step."""
    threads = []

    def start(log: Path, step: int, number: int = signal.SIGINT) -> None:
        def wait() -> None:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                if log.exists() and f'"step": {step},' in log.read_text():
                    os.kill(os.getpid(), number)
                    return
                time.sleep(0.001)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stopped_run_resumes_to_the_same_bytes(
    variant: str, packed: PackedImages, tmp_path: Path, interrupt: Interrupt, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = {"log_every": 1, "steps": 40, **VARIANTS[variant]}
    whole = run(packed, tmp_path / "whole", **changes)
    out = tmp_path / "stopped"
    interrupt(out / LOG, 5)
    with pytest.raises(KeyboardInterrupt):
        run(packed, out, **changes)
    said = capfd.readouterr().err
    at = int(said.split("stopped by Ctrl-C after step ")[1].split(".")[0])
    assert 5 <= at < 40
    assert "Run the same command to resume" in said
    assert (out / EMBEDDER).exists()
    moved = tmp_path / "moved"
    out.rename(moved)
    RunFolder(moved).log({"step": at + 1, "loss": 1.0})  # a line after the checkpoint
    one = run(packed, moved, **changes)
    assert learned(one) == learned(whole)
    assert (one.best_step, one.recall_at_1) == (whole.best_step, whole.recall_at_1)

    def timeless(run: Run) -> list[dict[str, Any]]:
        return [{key: value for key, value in line.items() if key != "images_per_second"} for line in run.log()]

    assert timeless(one) == timeless(whole)
    before = {file.name: file.stat().st_mtime_ns for file in moved.iterdir() if file.name != LOG}
    assert learned(train(settings(packed, moved, **changes))) == learned(whole)
    assert "moved has finished all 40 steps, nothing to do" in capfd.readouterr().err
    assert before == {file.name: file.stat().st_mtime_ns for file in moved.iterdir() if file.name != LOG}


@pytest.fixture
def hangups() -> Iterator[None]:
    """Reset SIGHUP to its default; tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_too(
    number: signal.Signals, packed: PackedImages, tmp_path: Path, interrupt: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    interrupt(tmp_path / "run" / LOG, 1, number)
    with pytest.raises(KeyboardInterrupt):
        run(packed, tmp_path / "run", steps=1000, log_every=1)
    assert f"stopped by {number.name} after step" in capfd.readouterr().err
    assert signal.getsignal(number) is before
    assert RunFolder(tmp_path / "run").load_state()


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """SIGHUP is ignored under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as came:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not came
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
def test_two_different_signals_are_not_a_repeat() -> None:
    """systemd sends SIGTERM and SIGHUP together: the step still finishes and a checkpoint is saved."""
    with stop_signals() as came:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        assert came == ["SIGTERM", "SIGHUP"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.slow
def test_training_survives_a_closed_stderr(packed: PackedImages, tmp_path: Path) -> None:
    """As in `train ... 2>&1 | head -1`: the pipe is closed after one line, and the run still finishes."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from liftedstruct.data import PackedImages
from liftedstruct.training import monitor, train
from training.sets import settings
monitor.LINE_SECONDS = 0
train(settings(PackedImages({str(packed.folder)!r}), Path({str(tmp_path / "run")!r}), steps=30, log_every=1))
""")
    process = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stderr
    assert process.stderr.readline()
    process.stderr.close()
    assert process.wait(timeout=120) == 0
    state = RunFolder(tmp_path / "run").progress()
    assert state
    assert state["step"] == 30


def test_a_kill_between_embedder_and_checkpoint(packed: PackedImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedder records its own step, independent of the checkpoint, and the run resumes to the same bytes."""

    class KilledError(BaseException):
        pass

    def keep_and_die(self: Training, kept: Embedder | None = None) -> None:
        keep(self, kept)
        raise KilledError

    whole = run(packed, tmp_path / "whole", validate_every=0)
    config = settings(packed, tmp_path / "run", validate_every=0)
    keep = Training._keep
    monkeypatch.setattr(Training, "_keep", keep_and_die)
    with pytest.raises(KilledError):
        train(config, progress=False)
    monkeypatch.undo()
    state, embedder = RunFolder(tmp_path / "run").progress(), Embedder.load(tmp_path / "run")
    assert state
    assert (state["step"], embedder.trained_on and embedder.trained_on.step) == (0, 12)
    assert "step 12; test images of" in embed(embedder, packed, packed.test).protocol["embeddings of"]
    assert learned(train(config, progress=False)) == learned(whole)


def test_training_in_another_thread(packed: PackedImages, tmp_path: Path) -> None:
    runs: list[Run] = []
    thread = threading.Thread(target=lambda: runs.append(run(packed, tmp_path / "run", steps=2)))
    thread.start()
    thread.join()
    assert runs[0].steps == 2


def test_random_state_and_threads_of_the_caller_are_restored(packed: PackedImages, tmp_path: Path) -> None:
    torch.manual_seed(5)
    threads, expected = torch.get_num_threads(), torch.rand(3)
    torch.manual_seed(5)
    one = run(packed, tmp_path / "a", steps=2)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads
    assert learned(run(packed, tmp_path / "b", steps=2)) == learned(one)
    assert learned(run(packed, tmp_path / "c", steps=2, seed=1)) != learned(one)


def test_gradient_caching_trains_the_same(packed: PackedImages, tmp_path: Path) -> None:
    weights = []
    for chunk in (0, 6):
        one = run(packed, tmp_path / str(chunk), steps=3, cache_chunk=chunk, optimizer="sgd", lr=1e-3, validate_every=0)
        weights.append(one.embedder().state_dict())
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-4, atol=1e-6)


def test_frozen_stages(packed: PackedImages, tmp_path: Path) -> None:
    start = run(packed, tmp_path / "start", steps=1, lr=0.0, validate_every=0).embedder().state_dict()
    one = run(packed, tmp_path / "run", steps=4, freeze=2, validate_every=0).embedder().state_dict()
    same = {name for name in start if torch.equal(start[name], one[name])}
    frozen = {name for name in start if name.startswith(("trunk.layers.stem.", "trunk.layers.stage1."))}
    assert same == frozen


def test_validation_classes_held_out_by_the_run(
    packed: PackedImages, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    without = products(tmp_path / "without", validation=0)
    one = train(settings(without, tmp_path / "none", steps=4))
    assert "no validation classes, so the last embedder is saved, not the best. Pass validation" in capfd.readouterr().err
    assert (one.recall_at_1, one.best_step) == (None, 4)
    assert json.loads((one.folder / RECORD).read_text())["images"] == len(without.train)
    two = train(settings(without, tmp_path / "some", steps=4, validation=0.3))
    record = json.loads((two.folder / RECORD).read_text())
    assert (record["images"], record["validation_images"]) == (8 * 6, 4 * 6)  # a third of twelve classes
    assert two.recall_at_1 is not None
    said = capfd.readouterr().err
    assert "Recall@1 " in said
    assert "on 24 images of validation classes" in said
    assert "step 4 of 4: loss " in said


def test_collapse_is_reported_once(packed: PackedImages, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = run(packed, tmp_path / "run", head={"name": "orthogonal", "scale": 1e-3}, lr=1e-7)
    said = capfd.readouterr().err
    assert said.count("warning: the embedding is collapsed at step 1: images of different classes are 0.00") == 1
    assert said.count("warning") == 1
    assert all(line["collapsed"] for line in one.log() if "loss" in line)
    healthy = run(packed, tmp_path / "healthy")
    assert not any(line["collapsed"] for line in healthy.log() if "loss" in line)


@pytest.mark.parametrize("loss", ["lifted_struct", "contrastive"])
def test_divergence_stops_the_run(loss: str, packed: PackedImages, tmp_path: Path) -> None:
    config = settings(packed, tmp_path / "run", loss=loss, lr=1e25, optimizer="sgd", schedule="constant", validate_every=0)
    with pytest.raises(ValueError, match=r"step \d+: .*first image '.*png'\); the checkpoint of step 0 is kept") as caught:
        train(config, progress=False)
    assert "\n" not in str(caught.value)
    step = int(str(caught.value).split(":")[0].removeprefix("step "))
    folder = RunFolder(tmp_path / "run")
    last = folder.read_log()[-1]
    assert last["step"] == step
    assert len(last["images"]) == 16
    state = folder.load_state()
    assert state is not None
    assert all(tensor.isfinite().all() for tensor in state[0].values())
    with pytest.raises(ValueError, match=rf"step {step}: "):  # the same batch, from the same checkpoint
        train(config, progress=False)


def test_a_full_disk_keeps_the_last_checkpoint(packed: PackedImages, tmp_path: Path) -> None:
    out = tmp_path / "run"
    whole = run(packed, tmp_path / "whole", validate_every=0)
    config = settings(packed, out, validate_every=0, checkpoint_minutes=0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (whole.folder / EMBEDDER).stat().st_size
    try:
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (int(1.5 * size), limits[1])
        )  # enough for the weights, not for the optimizer state
        with pytest.raises(OSError, match=r"the disk of .*run is full; the checkpoint of step 0 is kept"):
            train(config, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(out.glob("*.tmp"))
    with safe_open(out / STATE, "pt") as state:
        assert json.loads(state.metadata()["liftedstruct"])["step"] == 0
    assert learned(train(config, progress=False)) == learned(whole)


def test_a_run_is_started_resumed_or_returned(
    packed: PackedImages, tmp_path: Path, interrupt: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = run(packed, tmp_path / "whole")
    config = settings(packed, tmp_path / "run")
    interrupt(tmp_path / "run/log.jsonl", 4)
    with pytest.raises(KeyboardInterrupt):
        train(config, progress=False)
    finished = train(config, progress=False)
    assert learned(finished) == learned(whole)
    before = (finished.folder / EMBEDDER).stat().st_mtime_ns
    assert train(replace(config, log_every=5, threads=2), progress=False) == finished  # these settings may change
    assert (finished.folder / EMBEDDER).stat().st_mtime_ns == before
    with pytest.raises(
        ValueError, match=r"run must hold a run with the same settings, but its lr is 0\.001, got 0\.5\. Choose another"
    ):
        train(replace(config, lr=0.5))
    with pytest.raises(ValueError, match=r"its weights is None, got random\."):
        train(replace(config, weights="random"))
    other = products(tmp_path / "other", classes=12)
    with pytest.raises(ValueError, match=r"must be unchanged since the run started, but its checksum was"):
        train(replace(config, data=str(other.folder)))


def test_nothing_is_overwritten(packed: PackedImages, tmp_path: Path) -> None:
    one = run(packed, tmp_path / "run", steps=3)
    before = {file.name: file.read_bytes() for file in one.folder.iterdir()}
    with pytest.raises(ValueError, match=r"run must hold a run with the same settings, but its dim is 16, got 8"):
        run(packed, tmp_path / "run", steps=3, dim=8)
    assert before == {file.name: file.read_bytes() for file in one.folder.iterdir()}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"full must be empty to start a run, but it contains 'thesis\.txt'\. Choose another"):
        run(packed, tmp_path / "full")
    with pytest.raises(ValueError, match=r"thesis\.txt must be a folder, but it is a file\. Choose another"):
        run(packed, tmp_path / "full" / "thesis.txt")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / RECORD).write_text("{")  # killed before it wrote config.yaml
    assert run(packed, tmp_path / "begun", steps=1).steps == 1


def test_killed_before_the_first_checkpoint(packed: PackedImages, tmp_path: Path) -> None:
    one = run(packed, tmp_path / "run")
    (one.folder / STATE).unlink()
    before = learned(one)
    (one.folder / EMBEDDER).unlink()
    assert learned(run(packed, tmp_path / "run")) == before


def test_one_training_at_a_time(packed: PackedImages, tmp_path: Path) -> None:
    run(packed, tmp_path / "run", steps=2)
    (tmp_path / "run" / EMBEDDER).unlink()
    message = r"run must be used by one training at a time, but is in use by process \d+\. Wait for it"
    with RunFolder(tmp_path / "run").locked(), pytest.raises(ValueError, match=message):
        run(packed, tmp_path / "run", steps=2)


def test_changed_data(packed: PackedImages, tmp_path: Path) -> None:
    run(packed, tmp_path / "run", steps=2)
    other = products(tmp_path / "other", images=5)
    with pytest.raises(
        ValueError, match=r"other must be unchanged since the run started, but its checksum was \w{12} and is \w{12} now\."
    ):
        run(other, tmp_path / "run", steps=2)
    copied = PackedImages(shutil.copytree(packed.folder, tmp_path / "copied"))
    assert run(copied, tmp_path / "run", steps=2).steps == 2


def test_warning_for_another_torch_version(packed: PackedImages, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = run(packed, tmp_path / "run", steps=2)
    record = json.loads((one.folder / RECORD).read_text())
    (one.folder / RECORD).write_text(json.dumps(record | {"torch": "1.0"}))
    (one.folder / EMBEDDER).unlink()
    train(settings(packed, tmp_path / "run", steps=2))
    assert "warning: torch was 1.0 when the run started and is now 2." in capfd.readouterr().err


def test_broken_files_of_a_run(packed: PackedImages, tmp_path: Path) -> None:
    one = run(packed, tmp_path / "run", steps=2)
    (one.folder / STATE).write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"state\.safetensors must be a file written by train, got: "):
        run(packed, tmp_path / "run", steps=2)
    (one.folder / RECORD).write_text('{"version": 1}')
    with pytest.raises(ValueError, match=r"run must be a run of format 4, got format 1") as caught:
        run(packed, tmp_path / "run", steps=2)
    assert "\n" not in str(caught.value)
    (one.folder / RECORD).unlink()
    with pytest.raises(ValueError, match=r"state\.json must be a file written by train, got: "):
        run(packed, tmp_path / "run", steps=2)
    with pytest.raises(ValueError, match=r"nowhere must be a run folder, but it has no config\.yaml"):
        RunFolder(tmp_path / "nowhere").config()


def few(tmp_path: Path, classes: int, images: int) -> PackedImages:
    """Prepare a dataset without test classes."""
    image_set: ImageSet = replace(product_images(classes, images, 32), test_classes=np.empty(0, dtype=np.int64))
    return prepare(image_set, tmp_path / "few", size=32, progress=False)


@pytest.mark.parametrize(
    ("classes", "images", "changes", "message"),
    [
        (4, 1, {"batch_size": 4}, r"a batch needs a class with at least two images, got 4 classes with one image each"),
        (4, 3, {"crop": 4}, r"images for small must be at least 8 x 8 pixels, got 4 x 4\. Use larger crops"),
        (4, 3, {"dim": 0, "freeze": 4}, r"at least one parameter must be trainable, got freeze 4 with dim 0\. Lower freeze"),
        (
            4,
            3,
            {"trunk": "googlenet", "crop": 32},
            r"googlenet must be given a weights file, .*\. Pass weigh",
        ),
        (3, 3, {"batch_size": 3}, r"batch_size"),
        (4, 3, {"sampler": {"samples_per_clas": 2}}, r"'samples_per_clas'\. Did you mean 'samples_per_class'\?"),
        (4, 3, {"sampler": "balancd"}, r"sampler must be one of .*, got 'balancd'\. Did you mean 'balanced'\?"),
        (
            2,
            3,
            {"batch_size": 4, "validation": 0.5},
            r"got 2",
        ),
        (4, 3, {"trunk": "smal"}, r"trunk must be one of .*, got 'smal'\. Did you mean 'small'\?"),
        (4, 3, {"crop": 40}, r"crop must be at most the size of the prepared images, 32, got 40\. Pass a smaller crop"),
        (
            4,
            3,
            {"train_crop": 40},
            r"train_crop must be at most the size of the prepared images, 32, got 40\. Pass a smaller tr",
        ),
        (4, 3, {"train_crop": 4}, r"images for small must be at least 8 x 8 pixels, got 4 x 4\. Use larger crops"),
        (4, 3, {"freeze": 9}, r"freeze must be 0 to 4, the number of stages of small"),
        (4, 3, {"device": "cuda:7"}, r"device must be available, got 'cuda:7' with \d+ CUDA devices\. Pass cpu"),
        (4, 3, {"device": "gpu"}, r"device must be cpu, cuda or cuda:N, got 'gpu'\. Omit it"),
        (4, 3, {"precision": "float16"}, r"precision float16 requires a CUDA device, got cpu"),
        (4, 3, {"weights": "nothing.npz"}, r"nothing\.npz"),
    ],
)
def test_bad_input(classes: int, images: int, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    packed = few(tmp_path, classes, images)
    with pytest.raises((ValueError, OSError), match=message) as caught:
        run(packed, tmp_path / "run", **{"batch_size": 8, **changes})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("loss", ["lifted_struct", "contrastive", "triplet"])
def test_a_batch_is_limited_by_the_data(loss: str, tmp_path: Path) -> None:
    rows: dict[str, dict[str, Any]] = {
        "lifted_struct": {},
        "contrastive": {"loss": {"name": "contrastive", "pairs": "rows"}, "sampler": "pairs"},
        "triplet": {"loss": {"name": "triplet", "triplets": "rows"}, "sampler": "triplets"},
    }
    assert run(few(tmp_path, 5, 3), tmp_path / "run", batch_size=64, steps=1, **rows[loss]).steps == 1


def test_an_update_that_overflows_is_not_saved(packed: PackedImages, tmp_path: Path) -> None:
    """The last update is checked too, and hard-negative mining reports the batch of the update before it."""
    for name, changes in {"last": {"steps": 1}, "saved": {"steps": 9, "checkpoint_minutes": 0}}.items():
        with pytest.raises(ValueError, match=r"step 1: the embeddings must be finite, .* the checkpoint of step 0 is kept\."):
            run(packed, tmp_path / name, optimizer="sgd", lr=1e36, validate_every=0, **changes)
        assert not (tmp_path / name / EMBEDDER).exists()
    with pytest.raises(
        ValueError, match=r"step 1: the embeddings must be finite, .*first image '.*png'\); the checkpoint of step 0"
    ):
        run(
            packed,
            tmp_path / "mined",
            optimizer="sgd",
            lr=1e36,
            sampler={"name": "hard_negatives", "refresh_every": 1},
            validate_every=0,
        )
    lines = [json.loads(line) for line in (tmp_path / "mined" / LOG).read_text().splitlines()]
    assert len(lines[-1]["images"]) == 16


def test_float16_scales_its_gradient(packed: PackedImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on the CPU, where torch also supports float16 autocast and gradient scaling."""
    monkeypatch.setattr("liftedstruct.training.config._check_together", lambda config: None)
    half: dict[str, Any] = {"precision": "float16", "steps": 4, "checkpoint_minutes": 0, "validate_every": 0, "threads": 1}
    whole = run(packed, tmp_path / "whole", **half)
    losses = [line["loss"] for line in whole.log()]
    single = [line["loss"] for line in run(packed, tmp_path / "single", **half | {"precision": "float32"}).log()]
    assert losses == pytest.approx(single, rel=0.02)
    assert losses != single


def test_bfloat16_on_a_cpu(packed: PackedImages, tmp_path: Path) -> None:
    short: dict[str, Any] = {"steps": 3, "log_every": 1, "validate_every": 0}
    one = run(packed, tmp_path / "half", precision="bfloat16", **short)
    half, single = ([line["loss"] for line in each.log()] for each in (one, run(packed, tmp_path / "single", **short)))
    assert np.isfinite(half).all()
    assert half[0] == pytest.approx(single[0], rel=0.02)
    assert half[0] != single[0]
    assert {tensor.dtype for tensor in one.embedder().state_dict().values()} == {torch.float32}  # only the passes use bfloat16


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_temperature_divides_the_embeddings(temperature: float, packed: PackedImages, tmp_path: Path) -> None:
    """Check the first step by hand: a learning rate of 0 leaves the embedder unchanged."""
    augmentation = {"name": "random_resized_crop", "min_crop_scale": 0.5, "color_jitter": 0.1}
    views: dict[str, Any] = {"train_crop": 24, "augmentation": augmentation, "pool": "max"}
    one = run(packed, tmp_path / "run", steps=1, lr=0.0, validate_every=0, loss={"temperature": temperature}, **views)
    rows = packed.train[one.config.sampler.make(packed.labels[packed.train], 16, seed=0).batch(0)]
    embedder, labels = one.embedder().requires_grad_(True), torch.from_numpy(packed.labels[rows])
    crops = one.config.augmentation.make(packed, rows, 24, np.random.default_rng([0, 0, seeds.CROPS]))
    assert crops.shape == (16, 24, 24, 3)
    X = embedder(crops)
    J = lifted_struct_loss(X / temperature, labels, 1.0)
    J.backward()
    norm = torch.stack([p.grad.square().sum() for p in embedder.parameters() if p.grad is not None]).sum().sqrt()
    first = one.log()[0]
    assert first["loss"] == pytest.approx(J.item(), rel=1e-4)
    assert first["gradient_norm"] == pytest.approx(norm.item(), rel=1e-3)
    others = torch.cdist(X, X)[labels[:, None] != labels]
    assert first["negative_distance"] == pytest.approx(others.mean().item(), rel=1e-3)


def test_the_ema_of_the_weights_is_saved(packed: PackedImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[dict[str, torch.Tensor]] = []
    save_state = RunFolder.save_state

    def save(self: RunFolder, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        states.append({name: tensor.detach().clone() for name, tensor in tensors.items()})
        save_state(self, tensors, state)

    monkeypatch.setattr(RunFolder, "save_state", save)
    one = run(packed, tmp_path / "run", ema_decay=0.5, lr=5e-3, schedule="constant", checkpoint_minutes=0)
    assert len(states) == 13
    embedder = one.embedder()
    for name, learnt in embedder.state_dict().items():
        mean = states[0]["embedder." + name].double()
        for step, state in enumerate(states):
            share = min(0.5, step / (step + 10))  # 0, 1/11, 2/12, ..., 10/20, 0.5: the start is soon forgotten
            mean = share * mean + (1 - share) * state["embedder." + name].double()
            torch.testing.assert_close(state["ema." + name].double(), mean, rtol=1e-4, atol=1e-6)
        assert torch.equal(learnt, states[one.best_step]["ema." + name])
    for line in (line for line in one.log() if "recall_at_1" in line):  # the EMA is evaluated too
        embedder.load_state_dict({name: states[line["step"]]["ema." + name] for name in embedder.state_dict()})
        X = embed(embedder, packed, packed.validation).embeddings
        assert recall_at_k(X, packed.labels[packed.validation], (1,))[1] == line["recall_at_1"]
        assert map_at_r(X, packed.labels[packed.validation]) == line["map_at_r"]
    last = run(packed, tmp_path / "last", ema_decay=0.5, steps=2, validate_every=0).embedder()
    assert last.trunk.weights == "trained from random weights"
    assert isinstance(last.linear, torch.nn.Linear)
    assert torch.equal(last.linear.weight, states[-1]["ema.linear.weight"])
    assert not torch.equal(last.linear.weight, states[-1]["embedder.linear.weight"])


@pytest.mark.parametrize("ema_decay", [0.0, 0.5])
def test_pretrained_weights_are_mixed_into_the_saved_weights(ema_decay: float, packed: PackedImages, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"lr": 5e-3, "ema_decay": ema_decay, "validate_every": 4}
    start = run(packed, tmp_path / "start", **settings | {"lr": 0.0, "steps": 4}).embedder().state_dict()
    one = run(packed, tmp_path / "run", pretrained_mix=0.4, **settings)
    state = RunFolder(one.folder).load_state()
    assert state is not None
    trained = "ema." if ema_decay else "embedder."
    one = run(packed, tmp_path / "last", pretrained_mix=0.4, **settings | {"validate_every": 0})
    moved = 0
    for name, kept in one.embedder().state_dict().items():
        mix = 0.4 if name.startswith("trunk.") else 0.0
        torch.testing.assert_close(kept, mix * start[name] + (1 - mix) * state[0][trained + name])
        moved += not torch.equal(kept, start[name])
    assert moved > 10
    measured = run(packed, tmp_path / "measured", pretrained_mix=0.4, **settings)
    X = embed(measured.embedder(), packed, packed.validation)
    assert recall_at_k(X.embeddings, X.labels, (1,))[1] == measured.recall_at_1


def test_truncated_leaves_the_trunk_as_it_is(packed: PackedImages) -> None:
    """Batch norms with frozen statistics stay in evaluation mode while the network is trained."""
    embedder = Embedder(make_trunk("efficientnet_lite0", pretrained=False), 16, crop=32).train()
    training_mode(embedder, True)
    narrow = embedder.truncated(4)
    assert narrow.training
    assert not any(module.training for module in embedder.modules() if isinstance(module, torch.nn.BatchNorm2d))


def test_a_small_dim_is_trained_with_any_loss(packed: PackedImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix that is saved was in the loss, or is all that was trained."""
    small: dict[str, Any] = {"train_dim": None, "dim": 5, "min_dim": 64, "steps": 1, "validate_every": 0}
    dims: list[tuple[int, ...]] = []
    monkeypatch.setattr(Learner, "refresh_due", lambda self, step: dims.append(self.dims))
    assert run(packed, tmp_path / "nested", **small).config.train_dim == 512
    assert dims.pop() == (5, 64, 128, 256)
    run(packed, tmp_path / "wide", **small | {"train_dim": 24, "min_dim": 0})
    assert dims.pop() == (5,)
    others: dict[str, dict[str, Any]] = {"none": {"min_dim": 0}, "proxies": {"loss": "pml:ProxyAnchorLoss"}}
    for name, changes in others.items():
        assert run(packed, tmp_path / name, **small | changes).config.train_dim == 0


@pytest.mark.parametrize("normalize", [False, True])
def test_the_first_dimensions_are_trained_and_saved(normalize: bool, packed: PackedImages, tmp_path: Path) -> None:
    """The loss is the mean over the prefixes, and a run with a smaller dim saves the prefix of one with the full dim."""
    both: dict[str, Any] = {"normalize": normalize, "train_dim": 24, "min_dim": 5, "lr": 5e-3, "log_every": 1}
    wide, narrow = (run(packed, tmp_path / f"{dim}", dim=dim, validate_every=0, **both) for dim in (24, 5))
    assert [line["loss"] for line in wide.log()] == [line["loss"] for line in narrow.log()]
    ours, cut = (embed(each, packed, packed.test) for each in (narrow.embedder(), wide.embedder().truncated(5)))
    np.testing.assert_array_equal(ours.embeddings, cut.embeddings)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "log.jsonl").write_text("left by a process that was killed")
    truncate_run(wide, settings(packed, tmp_path / "cut", dim=5, validate_every=0, **both))
    assert learned(run(packed, tmp_path / "cut", dim=5, validate_every=0, **both)) == learned(narrow)  # nothing is left to do
    first = embed(wide.embedder(), packed, packed.test).embeddings[:, :5]
    first /= np.linalg.norm(first, axis=1, keepdims=True) if normalize else 1
    np.testing.assert_allclose(ours.embeddings, first, rtol=1e-5, atol=1e-6)

    start = run(packed, tmp_path / "start", dim=24, validate_every=0, **both | {"steps": 1, "lr": 0.0})
    rows = packed.train[start.config.sampler.make(packed.labels[packed.train], 16, seed=0).batch(0)]
    crops = start.config.augmentation.make(packed, rows, 28, np.random.default_rng([0, 0, seeds.CROPS]))
    X, labels = start.embedder()(crops), torch.from_numpy(packed.labels[rows])
    prefixes = [X[:, :dim] for dim in (5, 10, 20, 24)]
    each = [lifted_struct_loss(torch.nn.functional.normalize(Y) if normalize else Y, labels, 1.0) for Y in prefixes]
    assert start.log()[0]["loss"] == pytest.approx(sum(each).item() / 4, rel=1e-4)  # type: ignore[union-attr]
    checked = run(packed, tmp_path / "validated", dim=5, validate_every=4, **both)
    X5 = embed(checked.embedder(), packed, packed.validation)
    assert recall_at_k(X5.embeddings, X5.labels, (1,))[1] == checked.recall_at_1
    for wrong in (0, 25):
        with pytest.raises(ValueError, match=rf"dim must be .*, got {wrong}"):
            wide.embedder().truncated(wrong)


def test_a_deleted_embedder_is_restored(packed: PackedImages, tmp_path: Path) -> None:
    """With validation the last embedder is restored, since the best one is lost."""
    for every in (0, 4):
        one = run(packed, tmp_path / f"every {every}", validate_every=every, lr=5e-3)
        last = run(packed, tmp_path / f"last of {every}", validate_every=0, lr=5e-3)
        (one.folder / EMBEDDER).unlink()
        back = run(packed, tmp_path / f"every {every}", validate_every=every, lr=5e-3)
        weights = [each.embedder().state_dict() for each in (back, last)]  # the records differ: one was validated
        assert all(weights[0][name].equal(tensor) for name, tensor in weights[1].items())
        assert back.best_step == one.steps


def test_a_trained_trunk_is_named_so(packed: PackedImages, tmp_path: Path) -> None:
    one = run(packed, tmp_path / "one", steps=1)
    assert one.embedder().trunk.weights == "trained from random weights"
    assert json.loads((one.folder / RECORD).read_text())["trunk"] == "small, random weights"
    assert run(packed, tmp_path / "two", steps=1, freeze="trunk").embedder().trunk.weights == "random weights"


def test_number_of_images_changed(packed: PackedImages, tmp_path: Path) -> None:
    one = run(packed, tmp_path / "run", steps=2)
    (one.folder / EMBEDDER).unlink()
    record = json.loads((one.folder / RECORD).read_text())
    (one.folder / RECORD).write_text(json.dumps(record | {"images": record["images"] - 1}))
    with pytest.raises(ValueError, match=r"must be unchanged since the run started, with 53 training .* got 54 and "):
        run(packed, tmp_path / "run", steps=2)


def test_weights_of_another_trunk(packed: PackedImages, tmp_path: Path) -> None:
    file = run(packed, tmp_path / "other", steps=1).folder / EMBEDDER
    with pytest.raises(ValueError, match=r"embedder\.safetensors") as caught:
        run(packed, tmp_path / "run", trunk="efficientnet_lite0", weights=file, crop=32)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_one_class(tmp_path: Path) -> None:
    image_set = replace(product_images(2, 6, 32), test_classes=np.array([1]))
    packed = prepare(image_set, tmp_path / "one", size=32, progress=False)
    for sampler in ("balanced", "hard_negatives", "pairs", "triplets"):
        with pytest.raises(ValueError, match=r"two classes"):
            run(packed, tmp_path / "run", batch_size=4, sampler=sampler)
    assert not (tmp_path / "run").exists()


def test_data_that_is_not_prepared(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"photos must be a prepared dataset, got no valid meta\.json"):
        train(load_config(data=tmp_path / "photos", out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()

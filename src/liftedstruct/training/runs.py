"""Runs: begin one or go on with one, after everything that can be wrong with it has been checked."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from liftedstruct.data import PackedImages
from liftedstruct.embedder import EMBEDDER, Embedder
from liftedstruct.runtime.progress import say
from liftedstruct.training.config import TrainConfig, batches_of
from liftedstruct.training.inputs import fitting_size, split
from liftedstruct.training.loop import WEIGHTS, Training
from liftedstruct.training.machine import find_device, find_threads, prepared, seed_torch, warn_of_emulation
from liftedstruct.training.run_folder import CONFIG, RunFolder
from liftedstruct.trunks import Trunk, make_trunk

__all__ = ["Run", "check_run", "resume", "starting_trunk", "train", "train_or_resume", "trained_alike"]

FREE = ("data", "out", "device", "threads", "checkpoint_minutes", "log_every")  # may change without another embedding
OPEN = ("batches", "batch_size", "crop", "train_crop")  # may be left to what the loss, the data and the trunk suggest


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    config: TrainConfig
    steps: int
    best_step: int  # after which step the embedder was saved
    recall_at_1: float | None  # of the embedder on the held-out training classes, where there are any

    def embedder(self) -> Embedder:
        """What was learned."""
        return Embedder.load(self.folder)

    def log(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return RunFolder(self.folder).read_log()


def train(config: TrainConfig, *, progress: bool = True) -> Run:
    """Train an embedding into a new folder.

    Ctrl-C and SIGTERM end it after the step that it is at, with a state to go on from, and before the first step at once;
    anything harder loses no more than the work since the last checkpoint. The test classes are never read.

    Args:
        config: all settings.
        progress: show how far it is, on the terminal or as lines of text.

    """
    return _train(config, RunFolder(config.out), True, progress)


def resume(run: str | Path, *, data: str | Path | None = None, progress: bool = True) -> Run:
    """Go on with a run where its last state was saved.

    Args:
        run: its folder.
        data: the prepared data set, if it is no longer where it was.
        progress: show how far it is, on the terminal or as lines of text.

    """
    folder = RunFolder(run)
    config = replace(folder.config(), out=str(folder.path))
    if data is not None:
        config = replace(config, data=str(data))
    return _train(config, folder, False, progress)


def train_or_resume(config: TrainConfig, *, others: Sequence[str | Path] = (), progress: bool = True) -> Run:
    """The finished run of these settings, from whatever is in its folder: nothing, a part of the run, or all of it.

    Args:
        config: all settings; those of a run that is there already must be the same.
        others: folders of runs. Of one that is finished and was trained alike, for another dim, nothing is trained again.
        progress: show how far it is, on the terminal or as lines of text.

    """
    folder = RunFolder(config.out)
    if not (folder / CONFIG).exists():
        alike = next((other for other in map(RunFolder, others) if _lends_state(config, other)), None)
        if alike is None:
            return train(config, progress=progress)
        _take_over(config, folder, alike)
    check_run(config)
    begun, state = folder.config(), folder.progress()
    if state is None or state["step"] < begun.steps or not (folder / EMBEDDER).exists():
        return resume(folder.path, data=config.data, progress=progress)
    return Run(folder.path, begun, state["step"], state["best_step"], state["best"] if state["best"] >= 0 else None)


def check_run(config: TrainConfig) -> None:
    """Raise if the folder of these settings holds a run of other ones, or of other data where that is there already."""
    folder = RunFolder(config.out)
    if not (folder / CONFIG).exists():
        return
    for name, (was, now) in _differing(config, folder.config()).items():
        raise ValueError(
            f"{folder.path} must hold a run of these settings, its {name} is {was} and not {now}. "
            "Choose another folder, or remove that one."
        )
    if Path(config.data).exists():
        _check_same(folder.record(), PackedImages(config.data))


def trained_alike(config: TrainConfig, other: TrainConfig) -> bool:
    """Whether two runs are the same training, of which each keeps so many dimensions and neither asks held-out classes."""
    same = config.train_dim is not None and config.validate_every == 0
    return same and _differing(config, other).keys() <= {"dim"}


def _differing(config: TrainConfig, begun: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """What the settings of a run are, and would be by these, where that makes another embedding."""
    crop = config.crop or begun.crop  # where it is left open, the trunk's
    begun, config = (
        replace(each, weights=_absolute(each.weights), batches=batches_of(each), train_crop=each.train_crop or crop)
        for each in (begun, config)
    )
    found = {}
    for field in fields(TrainConfig):
        was, now = getattr(begun, field.name), getattr(config, field.name)
        if field.name not in FREE and now != was and not (now is None and field.name in OPEN):
            found[field.name] = was, now
    return found


def _lends_state(config: TrainConfig, other: RunFolder) -> bool:
    """Whether a run was trained alike, to its end, so that its last state is that of these settings too."""
    if not (other / CONFIG).exists():
        return False
    begun, state = other.config(), other.progress()
    done = state is not None and state["step"] == begun.steps
    return done and trained_alike(config, begun) and other.record()["checksum"] == PackedImages(config.data).checksum


def _take_over(config: TrainConfig, folder: RunFolder, other: RunFolder) -> None:
    """Begin a run with the last state of one that was trained alike; killed on the way, it is trained from the start."""
    state = other.load_state()
    assert state is not None
    with folder.locked():
        folder.check_new()
        folder.begin(replace(other.config(), out=str(folder.path), dim=config.dim), other.record())
        for line in other.read_log():
            folder.log(line)
        folder.save_state(*state)


def _absolute(weights: str | None) -> str | None:
    """Weights by their whole path, if they are a file."""
    return weights if weights in (None, "random") else str(Path(weights).absolute())


def _train(config: TrainConfig, folder: RunFolder, new: bool, progress: bool) -> Run:
    """Check everything, then begin or go on."""
    packed, device = PackedImages(config.data), find_device(config.device)
    warn_of_emulation(device, config.precision)
    with prepared(device, config.threads or find_threads()), folder.locked():
        if new:
            folder.check_new()
            record, state = {}, None
        else:
            record, state = folder.record(), folder.load_state()
            _check_same(record, packed)
        embedder = _make_embedder(config, packed, state[1] if state else None)
        config = _resolved(config, packed, embedder, device)
        training = Training(config, folder, packed, embedder.to(device), progress)
        training.check()
        if new:
            folder.begin(config, _record(training))
        else:
            _check_counts(record, training)
        training.start(state)
        training.run()
    recall = training.best if training.validates else None
    return Run(folder.path, config, training.step, training.best_step, recall)


def _check_same(record: dict[str, Any], packed: PackedImages) -> None:
    """Raise if the data changed since the run began; say so if the machine did."""
    if record["checksum"] != packed.checksum:
        raise ValueError(
            f"{packed.folder} must be as it was when the run began, its checksum was {record['checksum'][:12]} and is "
            f"{packed.checksum[:12]}. Bring it back, or begin another run."
        )
    for key, now in _machine().items():
        if record[key] != now:
            say(f"warning: {key} was {record[key]} when the run began and is {now}; the last digits may differ")


def _check_counts(record: dict[str, Any], training: Training) -> None:
    """Raise if there are other images than when the run began: a checksum does not see one that could not be read then."""
    now = len(training.train_rows), len(training.validation_rows)
    before = record["images"], record["validation_images"]
    if now != before:
        raise ValueError(
            f"{training.packed.folder} must be as it was when the run began, with {before[0]} images to train on and "
            f"{before[1]} to validate on; it has {now[0]} and {now[1]}. Bring it back, or begin another run."
        )


def _record(training: Training) -> dict[str, Any]:
    """What the run depends on beside its settings."""
    return {
        "checksum": training.packed.checksum,
        "images": len(training.train_rows),
        "validation_images": len(training.validation_rows),
        "trunk": training.started_from,
        **_machine(),
    }


def _machine() -> dict[str, str]:
    """What the last digits depend on, beside the number of threads."""
    return {"torch": torch.__version__, "processor": torch.backends.cpu.get_cpu_capability()}


def starting_trunk(config: TrainConfig) -> Trunk:
    """The trunk that a run of these settings starts from."""
    seed_torch(config.seed, 0, WEIGHTS)
    drawn = config.weights == "random"
    trunk = make_trunk(config.trunk, None if drawn else config.weights, pretrained=not drawn)
    return trunk.set_pool(config.pool)


def _make_embedder(config: TrainConfig, packed: PackedImages, state: dict[str, Any] | None) -> Embedder:
    """The network as it starts; of a run that goes on, only its form, which needs no file of weights."""
    if state is not None:
        trunk = make_trunk(config.trunk, pretrained=False, form=state["form"]).set_pool(config.pool)
        trunk.weights = state["weights"]
    else:
        trunk = starting_trunk(config)
    embedder = Embedder(trunk, config.train_dim or config.dim, config.dropout, config.normalize, config.crop)
    for name, side in (("crop", embedder.crop), ("train_crop", config.train_crop or 0)):
        if side > packed.size:
            raise ValueError(
                f"{name} must be at most the size of the prepared images, {packed.size}, got {side}. "
                f"Pass a smaller {name}, or prepare them larger, --size."
            )
    return embedder


def _resolved(config: TrainConfig, packed: PackedImages, embedder: Embedder, device: torch.device) -> TrainConfig:
    """The settings with nothing left open."""
    batches = batches_of(config)
    labels = packed.labels[split(packed, config.validation, config.seed)[0]]
    return replace(
        config,
        data=str(packed.folder),
        out=str(Path(config.out).absolute()),
        weights=_absolute(config.weights),
        batches=batches,
        batch_size=config.batch_size or fitting_size(batches, config.images, labels),
        crop=embedder.crop,
        train_crop=config.train_crop or embedder.crop,
        device=str(device),
        threads=torch.get_num_threads(),
    )

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from liftedstruct import __version__
from liftedstruct.cli import COMMANDS, main
from liftedstruct.data import READERS, PackedImages
from liftedstruct.data.decoding import RESIZE_MODES
from liftedstruct.evaluation import Scores, count_test_evaluations
from liftedstruct.figures import FIGURES
from liftedstruct.losses import LOSSES
from liftedstruct.recipes import demonstration
from liftedstruct.recipes.demonstration import Scale
from liftedstruct.training import PRESETS, REGISTRIES
from recipes.sets import tiny_cub

SMALL = ["--trunk", "small", "--size", "48", "--crop", "40", "--steps", "2"]
TINY = shlex.split("--trunk small --weights random --freeze 0 --steps 3 --crop 48 --batch-size 16 --dim 8")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with the images, the run and the embeddings that the examples use."""
    folder = tmp_path_factory.mktemp("workplace")
    rng = np.random.default_rng(0)
    labels = np.arange(120) // 6
    X = rng.normal(size=(20, 8))[labels] + 0.3 * rng.normal(size=(120, 8))
    paths = [f"{i}.jpg" for i in range(120)]
    np.savez(folder / "embeddings.npz", embeddings=X, labels=labels, paths=paths, protocol=json.dumps({"trunk": "none at all"}))
    np.savez(folder / "worse.npz", embeddings=X + rng.normal(size=X.shape), labels=labels, paths=paths)
    np.savez(folder / "others.npz", embeddings=X, labels=labels, paths=[f"other/{path}" for path in paths])
    np.savez(folder / "nameless.npz", embeddings=X, labels=labels)
    assert (
        main(["products", "--out", str(folder / "photos"), "--n-classes", "20", "--images-per-class", "4", "--size", "48"]) == 0
    )
    assert main(["prepare", str(folder / "photos"), "--out", str(folder / "prepared"), "--resize-mode", "letterbox"]) == 0
    assert main(["train", str(folder / "prepared"), "--out", str(folder / "run"), *TINY]) == 0
    assert main(["embed", str(folder / "run"), str(folder / "prepared")]) == 0
    assert main(["embed", "small", str(folder / "prepared"), "--out", str(folder / "pool5.npz"), "--crop", "48"]) == 0
    for source in ("run", "pool5.npz"):
        assert main(["evaluate", str(folder / source)]) == 0
    assert main(["catalog", "add", str(folder / "catalog"), str(folder / "photos"), "--run", str(folder / "run")]) == 0
    return folder


@pytest.mark.parametrize(
    ("what", "registry"),
    [
        *((f"{name}s".replace("losss", "losses"), registry) for name, registry in REGISTRIES.items()),
        ("datasets", READERS),
        ("figures", FIGURES),
        ("resize-modes", RESIZE_MODES),
        ("presets", PRESETS),
    ],
)
def test_list(what: str, registry: dict[str, type], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what]) == 0
    lines = capsys.readouterr().out.splitlines()
    found_by_name = {"pml:LOSS", "timm:MODEL", "transformers:MODEL"}
    assert {line.split()[0] for line in lines if not line.startswith(" ")} - found_by_name == set(registry)
    assert all(len(line.split()) > 3 for line in lines if what != "presets")


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_runs(
    command: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), "--help"])
    assert stop.value.code == 0
    example = shlex.split(capsys.readouterr().out.rsplit("example: ", 1)[1])
    assert " ".join([*example, ""]).startswith(f"liftedstruct {'search' if command.endswith('search') else command} ")
    if command.startswith("catalog") or command == "search":
        photo = next(file for file in sorted(Path("photos").rglob("*")) if file.is_file())
        example = [
            {"photo.jpg": str(photo), "chairs/12.jpg": str(photo.relative_to("photos")), "0.01": "0.1"}.get(each, each)
            for each in example
        ]
    if command == "products":
        example = [part.replace("photos/", "more/") for part in example] + ["--size", "32"]
    if command == "train":
        example = [part.replace("run/", "another-run/") for part in example] + TINY
    if command == "fit":
        example += SMALL
    if command == "reproduce":
        with tarfile.open("CUB_200_2011.tgz", "w:gz") as archive:
            archive.add(tiny_cub(Path("CUB_200_2011")))
        example += ["--trunk", "small", "--crop", "40", "--steps", "2", "--force", "--dry-run"]
    if command == "demo":
        monkeypatch.setattr(demonstration, "SHORT", Scale("tiny", products=12, steps=2, sizes=(8,), trunk="small", batch=12))
    if command in ("serve", "explore"):
        check_server([*example[1:], *(["--no-browser"] if command == "explore" else [])])
        return
    assert main(example[1:]) == 0


def check_server(arguments: list[str]) -> None:
    """Run a server in a process of its own until it answers, then press Ctrl-C."""
    command = [sys.executable, "-m", "liftedstruct", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://127.0.0.1:\d+", server.stdout.readline())
        assert found
        assert httpx.get(f"{found[0]}/health", timeout=60).is_success
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


def test_help_shows_defaults_and_types(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {}
    for command in ("fit", "train", "embed"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        lines[command] = " ".join(capsys.readouterr().out.split())
    assert "--dim N dimension of the embedding (default: 64)" in lines["fit"]
    assert "--seed N seed of every random choice (default: 0)" in lines["fit"]
    assert '(see "liftedstruct list presets"; default: the default recipe)' in lines["fit"]
    assert "--normalize [true|false] " in lines["train"]
    assert "--pool {avg,max,avg+max} " in lines["train"]
    assert "--out PATH .npz file to write (default: embeddings.npz in the run folder)" in lines["embed"]


def test_prepare(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "prepared"
    command = ["prepare", str(workplace / "photos"), "--out", str(out), "--size", "64", "--validation", "0.2"]
    assert main(command) == 0
    assert "80 images of 20 classes" in capsys.readouterr().out
    packed = PackedImages(out)
    assert len(packed.test) == 40
    assert len(packed.validation) == 8
    assert len(packed.train) == 32
    assert main(command) == 0
    assert main([*command, "--resize-mode", "letterbox"]) == 1
    assert "--force" in capsys.readouterr().err
    assert main([*command, "--resize-mode", "letterbox", "--force"]) == 0


def test_test_classes(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = tmp_path / "photos"
    shutil.copytree(workplace / "photos", photos)
    (photos / "products.json").unlink()
    names = PackedImages(packed_to(tmp_path / "half", photos)).class_names
    assert len(PackedImages(packed_to(tmp_path / "some", photos, "--test-classes", "0.25")).test) == 20
    chosen = PackedImages(packed_to(tmp_path / "named", photos, "--test-classes", f"{names[0]},{names[3]}"))
    assert set(chosen.labels[chosen.test]) == {0, 3}
    assert main(["prepare", str(photos), "--out", str(tmp_path / "none"), "--test-classes", "001"]) == 1
    assert "001" in capsys.readouterr().err
    for data, option in (("products:4", ["--test-classes", "0.3"]), ("products:4", ["--kind", "cub"])):
        assert main(["prepare", data, "--out", str(tmp_path / "none"), *option]) == 1
        assert "has its own layout and split" in capsys.readouterr().err


def packed_to(out: Path, photos: Path, *options: str) -> Path:
    assert main(["prepare", str(photos), "--out", str(out), "--size", "16", *options]) == 0
    return out


def test_a_folder_named_products(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(workplace / "photos", tmp_path / "products")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "products"]) == 0
    assert "80 images of 20 classes" in capsys.readouterr().out


def test_the_list_never_replaces_an_image(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = workplace / "photos"
    image = next(photos.rglob("*.png"))
    before = image.read_bytes()
    (tmp_path / "notes.csv").write_text("my notes")
    for file in (image, photos, tmp_path / "list.txt", tmp_path / "notes.csv"):
        assert main(["check", str(photos), "--fix", str(file)]) == 2
        assert "the list must" in capsys.readouterr().err
    assert image.read_bytes() == before
    assert (tmp_path / "notes.csv").read_text() == "my notes"
    assert main(["check", "products:4", "--fix", str(tmp_path / "list.csv")]) == 2
    assert "files in a folder, got products" in capsys.readouterr().err
    assert main(["check", str(photos), "--fix", str(tmp_path / "list.csv")]) == 0
    assert main(["check", str(tmp_path / "list.csv"), "--fix", str(tmp_path / "list.csv")]) == 2
    assert "must not overwrite the input list" in capsys.readouterr().err


def test_prepare_rendered_products(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "products:12", "--out", str(tmp_path / "out"), "--size", "32"]) == 0
    assert "of 12 classes" in capsys.readouterr().out
    assert main(["prepare", "products:many", "--out", str(tmp_path / "out")]) == 1
    assert "products:N must have a number of classes, got 'products:many'." in capsys.readouterr().err


def test_check(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = tmp_path / "photos"
    shutil.copytree(workplace / "photos", photos)
    first, *_, last = sorted(path for path in photos.rglob("*.png"))
    (last.parent / "copy.png").write_bytes(first.read_bytes())
    (last.parent / "empty.png").write_bytes(b"")
    assert main(["check", str(photos), "--fix", str(tmp_path / "fixed.csv")]) == 1
    printed = capsys.readouterr().out
    assert "empty file" in printed
    assert "exact duplicates" in printed
    assert main(["check", str(tmp_path / "fixed.csv"), "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["n_images"] == 79
    assert not read["serious"]


def test_evaluate(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = str(workplace / "embeddings.npz"), tmp_path / "scores.json"
    assert main(["evaluate", file, "--ks", "1, 3", "--out", str(out), "--seed", "3"]) == 0
    printed = capsys.readouterr().out
    names = [line.split("  ")[0] for line in printed.splitlines()]
    assert names[:4] == ["Recall@1", "Recall@3", "NMI, affinity", "F1, affinity"]
    assert "none at all" in printed
    assert printed == f"{Scores.load(out)}\n"
    assert main(["evaluate", file, "--clustering", "none", "--ks", "1"]) == 0
    assert "NMI" not in capsys.readouterr().out
    assert main(["evaluate", file, "--clustering", "kmeans", "--n-clusters", "7", "--singles", "miss"]) == 0
    assert "7 by k-means" in capsys.readouterr().out


def test_evaluate_does_not_replace_other_files(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(workplace / "embeddings.npz", tmp_path / "mine.npz")
    (tmp_path / "mine.json").write_text('{"notes": 1}')
    assert main(["evaluate", str(tmp_path / "mine.npz"), "--clustering", "none"]) == 1
    assert "mine.json must be a scores file" in capsys.readouterr().err
    assert (tmp_path / "mine.json").read_text() == '{"notes": 1}'


def test_evaluate_with_a_labels_file(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(workplace / "embeddings.npz"), "--clustering", "none"]) == 0
    expected = capsys.readouterr().out.splitlines()[:4]
    with np.load(workplace / "embeddings.npz") as arrays:
        np.save(tmp_path / "alone.npy", arrays["embeddings"])
        (tmp_path / "labels.txt").write_text("".join(f"class {label}\n" for label in arrays["labels"]))
    alone = str(tmp_path / "alone.npy")
    assert main(["evaluate", alone, "--labels", str(tmp_path / "labels.txt"), "--clustering", "none"]) == 0
    assert capsys.readouterr().out.splitlines()[:4] == expected
    assert main(["evaluate", alone]) == 1
    assert "must come with labels, got 'embeddings'. Add the labels" in capsys.readouterr().err


def test_evaluate_compares(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", str(workplace / "embeddings.npz"), "--clustering", "kmeans"]
    assert main([*command, "--compare", str(workplace / "worse.npz"), "--out", str(tmp_path / "scores.json")]) == 0
    printed = capsys.readouterr().out
    assert "embeddings is better" in printed
    assert "paired by class: 20 classes, 120 images\n" in printed
    assert main([*command, "--compare", str(tmp_path / "scores.json")]) == 0
    assert "no significant difference" in capsys.readouterr().out


def test_evaluate_errors_are_one_line(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "objects.npz", embeddings=np.eye(2), labels=np.array(["a", None], dtype=object))
    file = str(workplace / "embeddings.npz")
    for arguments, text in (
        ([file, "--ks", "1;2"], "--ks must be comma-separated whole numbers, got '1;2'. Pass, for example, --ks 1,2,4,8."),
        ([file, "--ks", ""], "--ks must be comma-separated whole numbers, got ''."),
        ([file, "--ks", "0"], "each of ks must be a whole number >= 1, got 0."),
        ([file, "--n-clusters", "500", "--clustering", "kmeans"], "n_clusters must be at most the number of images, got 500"),
        ([file, "--out", str(tmp_path / "nowhere" / "scores.json")], "--out must be a file in a folder that exists"),
        ([file, "--out", str(tmp_path)], "--out must be a file in a folder that exists"),
        ([file, "--compare", str(tmp_path / "none.npz")], "--compare must be a file or a run folder, got"),
        ([file, "--compare", str(workplace / "others.npz")], "must be of the same images in the same order, "),
        ([file, "--compare", str(workplace / "nameless.npz")], "must identify their images, got "),
        ([str(tmp_path / "scores.json")], "must be an existing file or run folder, got "),
        ([str(tmp_path / "objects.npz")], "must hold arrays of numbers or text, got: 'labels' holds Python objects."),
        ([str(tmp_path / "none.npz")], "must be an existing file or run folder, got "),
        (
            [str(tmp_path)],
            f"must hold embeddings.npz, got a folder without it. Write it with: liftedstruct embed {tmp_path} DATA",
        ),
    ):
        assert main(["evaluate", *arguments]) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("liftedstruct evaluate: ")
        assert text in error


def test_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("check", "prepare"):
        out = ["--out", str(tmp_path / "out")] if command == "prepare" else []
        assert main([command, str(tmp_path / "nowhere"), *out]) == COMMANDS[command].failed
        error = capsys.readouterr().err
        assert "nowhere" in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["list", "loses"], "liftedstruct list: argument what: invalid choice: 'loses'"),
        (["nothing"], "liftedstruct: argument COMMAND: invalid choice: 'nothing'"),
        (["demo", "--seed", "many"], "liftedstruct demo: argument --seed: invalid int value: 'many'"),
        (["train", "x", "--lr", "abc"], "liftedstruct train: argument --lr: lr must be a number, got 'abc'."),
        (["train", "x", "--lr", "-1"], "liftedstruct train: argument --lr: lr must be a number >= 0, got -1."),
        (["train", "x", "--normalize", "maybe"], "liftedstruct train: argument --normalize: normalize must be true or false"),
        (["train", "x", "--loss.margin", "big"], "liftedstruct train: argument --loss.margin: loss.margin must be a number"),
        (["train", "x", "--loss.marin", "1"], "liftedstruct: unrecognized arguments: --loss.marin 1"),
        ([], "liftedstruct: the following arguments are required: COMMAND"),
        (["prepare", "photos"], "liftedstruct prepare: the following arguments are required: --out"),
        (["report", "--out", "report.html"], "liftedstruct report: the following arguments are required: runs"),
        (["figure", "map"], "liftedstruct figure: the following arguments are required: --out"),
        (["products", "--out", "x", "--format", "gif"], "liftedstruct products: argument --format: invalid choice: 'gif'"),
    ],
)
def test_wrong_usage_prints_one_line_and_exits_with_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(text)
    assert error.count("\n") == 1


def test_a_failure_prints_one_line_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seed", "-1"]) == 1
    assert capsys.readouterr().err == "liftedstruct demo: seed must be a whole number >= 0, got -1. Pass 0 or more.\n"
    with pytest.raises(ValueError, match="seed must be"):
        main(["--debug", "demo", "--seed", "-1"])


def test_python_dash_m() -> None:
    done = subprocess.run([sys.executable, "-m", "liftedstruct", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(__version__)


def test_train_embed_evaluate(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared, out = str(workplace / "prepared"), str(tmp_path / "test.npz")
    assert main(["train", prepared, "--out", str(workplace / "run"), *TINY]) == 0
    assert "of 3" in capsys.readouterr().out
    assert main(["train", prepared]) == 1
    assert "out must be given" in capsys.readouterr().err
    assert main(["train", prepared, "--out", str(tmp_path / "other"), "--loss", "lifted"]) == 1
    assert "Did you mean 'lifted_struct'?" in capsys.readouterr().err
    assert main(["embed", str(workplace / "run"), prepared, "--out", out]) == 0
    assert "40 embeddings of 8 dimensions" in capsys.readouterr().out
    assert (
        main(["embed", str(workplace / "run"), prepared, "--out", str(tmp_path / "pooled.npz"), "--dim", "0", "--part", "all"])
        == 0
    )
    assert "80 embeddings of 128 dimensions" in capsys.readouterr().out
    assert main(["embed", str(workplace / "run"), prepared, "--out", str(tmp_path / "seven.npz"), "--dim", "7"]) == 0
    assert "40 embeddings of 7 dimensions" in capsys.readouterr().out
    assert main(["embed", str(workplace / "run"), prepared, "--out", out, "--dim", "9"]) == 1
    assert "dim must be at most 8, the dimension of the embedder's linear layer, got 9" in capsys.readouterr().err
    assert main(["embed", "smal", prepared, "--out", out]) == 1
    assert "Did you mean 'small'?" in capsys.readouterr().err
    before = count_test_evaluations(workplace / "prepared", PackedImages(workplace / "prepared").checksum) or 0
    assert main(["evaluate", out, "--clustering", "none"]) == 0
    assert f"{before + 1} so far, including this one" in capsys.readouterr().out
    assert len((workplace / "prepared" / "test-evaluations.jsonl").read_text().splitlines()) == before + 1


def test_a_run_keeps_its_embeddings_and_scores(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared, run = str(workplace / "prepared"), tmp_path / "run"
    shutil.copytree(workplace / "run", run, ignore=shutil.ignore_patterns("scores.json", "embeddings.npz"))
    assert main(["evaluate", str(run)]) == 1
    assert "must hold embeddings.npz" in capsys.readouterr().err
    assert main(["embed", str(run), prepared]) == 0
    assert str(run / "embeddings.npz") in capsys.readouterr().out
    assert main(["evaluate", str(run), "--compare", str(workplace / "pool5.npz")]) == 0
    printed = capsys.readouterr().out
    assert f"{Scores.load(run / 'scores.json')}\n" in printed
    assert "paired by class: 10 classes, 40 images" in printed
    again = ["evaluate", str(workplace / "pool5.npz"), "--compare", str(run), "--clustering", "none"]
    assert main([*again, "--out", str(tmp_path / "again.json")]) == 0
    assert main(["train", prepared, "--out", str(run), *TINY]) == 0  # the same command finds its run
    assert main(["train", "--config", str(run / "config.yaml"), "--out", str(run)]) == 0
    assert main(["train", prepared, "--out", str(run), *TINY, "--lr", "1"]) == 1  # another run cannot use the folder
    assert "its lr is 0.0001, got 1.0" in capsys.readouterr().err
    for source, *options in (("small",), (str(run / "embedder.safetensors"),), (str(run), "--dim", "0")):
        assert main(["embed", source, prepared, *options]) == 1
        assert (
            "--out must be given with image files, --dim or --hflip, or if the source is not a run folder, got none. "
            "Pass --out FILE.npz." in capsys.readouterr().err
        )


@pytest.mark.parametrize("absent", ["matplotlib", "jinja2"])
def test_missing_packages_for_figures(absent: str, workplace: Path, tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["{absent}"] = sys.modules["markupsafe"] = None
from liftedstruct.cli import main
codes = main(["list", "losses"]), main(["report", {str(workplace / "run")!r}, "--out", {str(tmp_path / "report.html")!r}])
print(*codes, main(["demo", "--out", {str(tmp_path / "demo")!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 1 1"
    rule = f"{absent} must be installed with its dependencies, but {absent} is missing. "
    rule += "Run: pip install 'liftedstruct[figures]'"
    assert done.stderr == f"liftedstruct report: {rule}\nliftedstruct demo: {rule}\n"
    assert not (tmp_path / "demo").exists()


def test_report(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.html"
    runs = [str(workplace / "run"), str(workplace / "pool5.npz")]
    assert main(["report", *runs, "--out", str(out), "--title", "Mugs & lamps", "--max-mb", "20"]) == 0
    assert capsys.readouterr().out == f"{out}: {out.stat().st_size / 1e6:.1f} MB\n"
    assert "<title>Mugs &amp; lamps</title>" in out.read_text(encoding="utf-8")
    for arguments, text in (
        ([str(tmp_path), "--out", str(out)], "must hold embeddings.npz"),
        ([str(workplace / "worse.npz"), "--out", str(out)], "Run: liftedstruct evaluate"),
        ([*runs, "--out", str(tmp_path / "nowhere" / "report.html")], "out must be a file in a folder that exists"),
        ([*runs, "--out", str(out), "--max-mb", "0.01"], "max_mb must be above"),
    ):
        assert main(["report", *arguments]) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("liftedstruct report: ")
        assert text in error


@pytest.mark.slow
def test_every_figure(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, pool5 = str(workplace / "run"), str(workplace / "pool5.npz")
    of_none = {"batch-graph", "failure-modes", "mining", "networks"}
    of_several = {"recall", "scores", "training"}
    for kind in FIGURES:
        file = tmp_path / f"{kind}.png"
        runs = [] if kind in of_none else [run, pool5] if kind in of_several else [run]
        options = ["--side", "256"] if kind == "map" else []
        assert main(["figure", kind, *runs, "--out", str(file), "--dpi", "40", *options]) == 0
        assert capsys.readouterr().out == f"{file}\n"
        with Image.open(file) as picture:
            assert picture.size == (256, 256) if kind == "map" else min(picture.size) > 60


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["recal", "run"], "the kind of figure must be one of batch-graph, "),
        (["recal", "run"], "got 'recal'. Did you mean 'recall'?"),
        (["recall"], "recall must be given one or more runs, got 0."),
        (["map", "run", "run"], "map must be given one run, got 2."),
        (["mining", "run"], "runs must be empty for mining, which shows no run, got run. Pass the output file with --out."),
        (["map", "run", "--count", "3"], "--count must be an option of the figure, but map has --side. Leave it out."),
        (["mining", "--seed", "3"], "--seed must be an option of the figure, but mining has none. Leave it out."),
        (["training", "pool5.npz"], "must have a training log, got none."),
        (["scores", "run", "run"], "got two of lifted_struct with 8 dimensions."),
        (["successes", "nowhere"], "must be an existing file or run folder, got nowhere. Check the path."),
        (["failures", "run", "--count", "0"], "count must be a whole number >= 1, got 0."),
        (["mining", "--dpi", "0"], "dpi must be a whole number >= 1, got 0."),
    ],
)
def test_figure_errors_are_one_line(
    arguments: list[str], text: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    assert main(["figure", *arguments, "--out", "figure.png"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("liftedstruct figure: ")
    assert text in error
    assert not Path("figure.png").exists()


def test_the_output_file_of_a_figure(workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, name, text in (
        ("mining", "figure.jpg", "the suffix of --out must be one of .pdf, .png, .svg, got '.jpg'."),
        ("mining", "nowhere/figure.png", "--out must be a file in a folder that exists"),
        ("map", "figure.svg", "a map must be saved as .png or .pdf, got"),
    ):
        runs = [str(workplace / "run")] if kind == "map" else []
        assert main(["figure", kind, *runs, "--out", str(tmp_path / name)]) == 1
        assert text in capsys.readouterr().err
    for name, head in (("figure.pdf", b"%PDF"), ("figure.SVG", b"<?xml")):
        assert main(["figure", "networks", "--out", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(head)


def test_trained_classes_are_not_scored_as_test_classes(
    workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Split a folder twice: some test classes of the second split are training classes of the run."""
    shutil.copytree(workplace / "photos", tmp_path / "photos")
    (tmp_path / "photos" / "products.json").unlink()  # it defines a split
    for seed in ("0", "1"):
        prepare = ["prepare", str(tmp_path / "photos"), "--out", str(tmp_path / seed), "--seed", seed, "--size", "56"]
        assert main(prepare) == 0
    run, other = tmp_path / "run", PackedImages(tmp_path / "1")
    assert main(["train", str(tmp_path / "0"), "--out", str(run), *TINY]) == 0
    first = PackedImages(tmp_path / "0")
    names = [
        {each.class_names[label] for label in each.labels[rows]} for each, rows in ((first, first.train), (other, other.test))
    ]
    both = len(names[0] & names[1])
    assert 0 < both < 10
    capsys.readouterr()
    assert main(["embed", str(run), str(tmp_path / "1")]) == 1
    error = capsys.readouterr().err
    assert (
        f"was trained on {4 * both} of 40 images, {both} of 10 classes. Prepare the dataset with the split of the run" in error
    )
    assert not (run / "embeddings.npz").exists()
    assert main(["embed", str(run), str(tmp_path / "1"), "--part", "all"]) == 0
    assert "warning: seen in training: 40 of 80 images, 10 of 20 classes" in capsys.readouterr().err
    assert main(["evaluate", str(run)]) == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    assert lines["seen in training"].strip() == "40 of 80 images, 10 of 20 classes"
    assert lines["embeddings of"].strip().endswith(f"run, step 3; all images of 1 (checksum {other.checksum[:12]})")
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "(seen in training: 40 of 80 images, 10 of 20 classes)" in page
    assert f"run, step 3; all images of 1 (checksum {other.checksum[:12]})" in page
    assert main(["embed", str(run), str(tmp_path / "0")]) == 0
    assert f"run, step 3; test images of 0 (checksum {first.checksum[:12]})" in capsys.readouterr().out


def test_embeddings_of_an_earlier_step_are_rejected(
    workplace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared, run = workplace / "prepared", tmp_path / "run"
    shutil.copytree(workplace / "run", run)
    assert main(["evaluate", str(run), "--clustering", "none"]) == 0
    longer = tmp_path / "longer"
    assert main(["train", str(prepared), "--out", str(longer), *TINY, "--steps", "5"]) == 0
    shutil.copy(longer / "embedder.safetensors", run / "embedder.safetensors")  # as if the run had continued
    before = (run / "scores.json").read_bytes()
    capsys.readouterr()
    report = ["report", str(run), "--out", str(tmp_path / "report.html")]
    for command in (["evaluate", str(run)], ["evaluate", str(run / "embeddings.npz")], report):
        assert main(command) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert "got another one (step 3, the run's is from step 5)" in error
        assert error.endswith(f"Run: liftedstruct embed {run} {prepared}")
    assert (run / "scores.json").read_bytes() == before
    assert main(["embed", str(run), str(prepared)]) == 0
    assert main(["evaluate", str(run), "--clustering", "none"]) == 0


def test_out_follows_links_and_writes_to_devices(workplace: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "target.json")
    evaluate = ["evaluate", str(workplace / "embeddings.npz"), "--clustering", "none", "--out"]
    assert main([*evaluate, str(tmp_path / "link.json")]) == 0
    assert (tmp_path / "link.json").is_symlink()
    assert Scores.load(tmp_path / "target.json").recall
    assert main([*evaluate, "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()


def finished(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line in another process, with buffered output as for users."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    kept: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True, "check": False, "env": environment}
    return subprocess.run([sys.executable, "-m", "liftedstruct", *arguments], **kept | options)


@pytest.mark.slow
def test_output_that_cannot_be_written() -> None:
    with Path("/dev/full").open("wb") as full:
        done = finished("list", "losses", stdout=full)
    assert (done.returncode, done.stderr) == (1, "liftedstruct list: [Errno 28] No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    for arguments, code in ((("list", "losses"), 1), (("--help",), 0)):
        done = finished(*arguments, stdout=writer)
        assert (done.returncode, done.stderr) == (code, "")
    for stderr in (writer, subprocess.DEVNULL):
        assert finished("bogus", stdout=subprocess.DEVNULL, stderr=stderr).returncode == 2
    os.close(writer)
    with Path("/dev/full").open("wb") as full:
        assert finished("bogus", stdout=subprocess.DEVNULL, stderr=full).returncode == 2
        assert finished("--debug", "list", "losses", stdout=full).returncode == 1


@pytest.mark.slow
def test_without_docstrings() -> None:
    done = finished("list", "losses", stdout=subprocess.PIPE, env=os.environ | {"PYTHONOPTIMIZE": "2"})
    assert done.returncode == 0, done.stderr
    *names, found_by_name = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert names == sorted(LOSSES)
    assert found_by_name.startswith("pml:LOSS ")


def test_null_is_an_ordinary_value(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", str(workplace / "photos"), "--fix", "null"]) == 2
    assert "the list must be a .csv file, got null. Choose another name." in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", str(workplace / "embeddings.npz"), "--n-clusters", "null"])
    assert "argument --n-clusters: invalid int value: 'null'" in capsys.readouterr().err
    assert main(["evaluate", str(workplace / "embeddings.npz"), "--clustering", "none", "--out", "null"]) == 0
    assert Scores.load("null").recall


def test_untrained_trunks_give_the_same_scores_twice(workplace: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.npz" for name in ("one", "two", "other")]
    for file, seed in zip(files, ([], [], ["--seed", "1"]), strict=True):
        assert main(["embed", "small", str(workplace / "prepared"), "--out", str(file), "--crop", "48", *seed]) == 0
    one, two, other = (file.read_bytes() for file in files)
    assert one == two
    assert one != other

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from liftedstruct.cli import main
from liftedstruct.data import read_images
from liftedstruct.embedder import Embedder
from liftedstruct.recipes import fit
from liftedstruct.recipes.plan import check_requirements
from liftedstruct.recipes.prepared import prepare_in
from liftedstruct.training import load_config
from recipes.sets import folder_of

SMALL = {"trunk": "small", "dim": 8, "size": 48, "crop": 40}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write fifty images of ten classes."""
    return folder_of(tmp_path_factory.mktemp("photos"), classes=10, images=5)


def test_fifty_images(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = fit(read_images(photos), tmp_path / "out", **SMALL)  # type: ignore[arg-type] # values of several types
    said = capsys.readouterr().err
    assert [line for line in said.splitlines() if line.startswith("[")] == [
        "[1/5] prepare 50 images of 10 classes",
        "[2/5] check the images",
        "[3/5] evaluate the untrained trunk",  # the weights of `small` are random
        "[4/5] train lifted structured, 8 dimensions",
        "[5/5] write the report",
    ]
    config = load_config(tmp_path / "out/run/config.yaml")
    assert "50 steps: 30 epochs, at most 400, since there are too few classes" in said
    assert (config.steps, config.validation, config.loss.options["margin"]) == (50, 0.0, 4.0)
    assert "25 test images of 5 classes not seen in training" in text
    assert (tmp_path / "out/report.html").is_file()
    assert Embedder.load(tmp_path / "out/run/embedder.safetensors").dim == 8


def test_serious_issues(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    images = read_images(tmp_path / "photos")
    train, test = images.paths[images.train[0]], images.paths[images.test[0]]
    shutil.copyfile(tmp_path / "photos" / train, tmp_path / "photos" / test)  # one image on both sides of the split
    images = read_images(tmp_path / "photos")
    rule = r"must have no serious issues, see above\. .* or pass --force\.$"
    with pytest.raises(ValueError, match=rule):
        fit(images, tmp_path / "out", steps=2, **SMALL)  # type: ignore[arg-type]
    assert "serious" in capsys.readouterr().err
    assert not (tmp_path / "out/run").exists()
    fit(images, tmp_path / "out", steps=2, force=True, **SMALL)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "serious" in said
    assert "check: " not in said  # the images have not changed, so they are not checked again
    assert (tmp_path / "out/report.html").is_file()


@pytest.mark.slow
def test_other_settings_in_the_same_folder(photos: Path, tmp_path: Path) -> None:
    images = read_images(photos)
    fit(images, tmp_path / "out", steps=2, **SMALL)  # type: ignore[arg-type]
    rule = (
        r"run must hold a run with the same settings, but its steps is 2, got 3\. Choose another folder, or delete this one\.$"
    )
    with pytest.raises(ValueError, match=rule):
        fit(images, tmp_path / "out", steps=3, **SMALL)  # type: ignore[arg-type]


def test_images_added_later(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    prepare_in(tmp_path / "out", read_images(tmp_path / "photos"), size=48, progress=False)
    shutil.copytree(tmp_path / "photos/thing-000", tmp_path / "photos/thing-010")
    rule = r"prepared contains a dataset with different images or settings: .*\. Choose another --out, or remove .*out\.$"
    with pytest.raises(ValueError, match=rule):
        fit(read_images(tmp_path / "photos"), tmp_path / "out", **SMALL)  # type: ignore[arg-type]


@pytest.mark.slow
def test_ctrl_c_and_resume(photos: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "steps": 150}
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "liftedstruct", "fit", str(photos), "--out", str(tmp_path / "out"), *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        log, until = tmp_path / "out/run/log.jsonl", time.monotonic() + 60
        while time.monotonic() < until and not (log.exists() and log.read_text()):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "stopped in step 4 of 5. Finished work is kept: run the same command again to resume." in said
    assert "Traceback" not in said
    fit(read_images(photos), tmp_path / "out", **settings)  # type: ignore[arg-type]
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps == sorted(set(steps))  # none twice
    assert steps[-1] == 150
    assert (tmp_path / "out/report.html").is_file()


def test_missing_weights(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.npz"):
        fit(read_images(photos), tmp_path / "out", trunk="googlenet", weights="none.npz")
    assert not (tmp_path / "out").exists()  # raised before any image is decoded


@pytest.mark.parametrize(("classes", "images"), [(6, 1), (3, 4)])
def test_too_few_classes_or_images(classes: int, images: int, tmp_path: Path) -> None:
    photos = read_images(folder_of(tmp_path / "photos", classes, images))
    rule = r"must have at least 2 (training|test) classes, \d of them with two or more images, got \d and \d\. Add images"
    with pytest.raises(ValueError, match=rule):
        fit(photos, tmp_path / "out", **SMALL)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("crop", "size"), [(40, 256), (227, 256), (256, 256), (288, 329)])
def test_default_image_size(crop: int, size: int) -> None:
    config = load_config(data="photos", out="run", trunk="small", crop=crop)
    assert check_requirements(config) == size
    assert check_requirements(config, 300) == 300


def test_images_smaller_than_the_crop(photos: Path, tmp_path: Path) -> None:
    rule = r"image size must be at least the crop, 64 px, got 48 px\. Pass a larger --size, or a smaller --crop\.$"
    with pytest.raises(ValueError, match=rule):
        fit(read_images(photos), tmp_path / "out", trunk="small", size=48, crop=64)
    assert not (tmp_path / "out").exists()


def test_a_prepared_dataset(tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare_in(tmp_path, read_images(photos), size=48, progress=False)
    assert main(["fit", str(tmp_path / "prepared")]) == 1
    assert "data must be images, got the prepared dataset" in capsys.readouterr().err

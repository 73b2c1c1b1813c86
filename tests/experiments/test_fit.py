import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.sets import folder_of
from liftedstruct.embedder import Embedder
from liftedstruct.experiments import fit
from liftedstruct.experiments.data import prepare_in
from liftedstruct.images import read_images
from liftedstruct.training import load_config

SMALL = {"trunk": "small", "dim": 8, "size": 48, "crop": 40}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty pictures of ten things."""
    return folder_of(tmp_path_factory.mktemp("photos"), classes=10, images=5)


def test_fifty_images(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = fit(read_images(photos), tmp_path / "out", **SMALL)  # type: ignore[arg-type] # a mapping of several types
    said = capsys.readouterr().err
    assert [line for line in said.splitlines() if line.startswith("[")] == [
        "[1/5] prepare 50 images of 10 classes",
        "[2/5] have the doctor look at them",
        "[3/5] measure the untrained trunk",
        "[4/5] train lifted structured, 8 dimensions, 75 steps",  # thirty times 25 images in batches of 10
        "[5/5] write the page",
    ]
    config = load_config(tmp_path / "out/run/config.yaml")
    assert (config.steps, config.batch_size, config.validation) == (75, 10, 0.0)
    assert "25 test images of 5 classes that no training has read" in text
    assert (tmp_path / "out/report.html").is_file()
    assert Embedder.load(tmp_path / "out/run/embedder.safetensors").dim == 8


def test_more_classes_have_some_held_out(tmp_path: Path) -> None:
    images = read_images(folder_of(tmp_path / "photos", classes=44, images=3))
    fit(images, tmp_path / "out", steps=2, **SMALL)  # type: ignore[arg-type]
    config = load_config(tmp_path / "out/run/config.yaml")
    assert (config.steps, config.validation) == (2, 0.1)


def test_what_is_serious_stops_it(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    images = read_images(tmp_path / "photos")
    train, test = images.paths[images.train[0]], images.paths[images.test[0]]
    shutil.copyfile(tmp_path / "photos" / train, tmp_path / "photos" / test)  # one picture on both sides of the split
    images = read_images(tmp_path / "photos")
    rule = r"must be free of what the doctor calls serious, see above\. Mend it, take the list of .* or pass --anyway\.$"
    with pytest.raises(ValueError, match=rule):
        fit(images, tmp_path / "out", steps=2, **SMALL)  # type: ignore[arg-type]
    assert "serious" in capsys.readouterr().err
    assert not (tmp_path / "out/run").exists()
    fit(images, tmp_path / "out", steps=2, anyway=True, **SMALL)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "serious" in said
    assert "doctor: " not in said  # the images have not changed, so they are not looked at again
    assert (tmp_path / "out/report.html").is_file()


def test_other_settings_in_the_same_folder(photos: Path, tmp_path: Path) -> None:
    images = read_images(photos)
    fit(images, tmp_path / "out", steps=2, **SMALL)  # type: ignore[arg-type]
    rule = r"run must hold a run of these settings, its steps is 2 and not 3\. Choose another folder, or remove that one\.$"
    with pytest.raises(ValueError, match=rule):
        fit(images, tmp_path / "out", steps=3, **SMALL)  # type: ignore[arg-type]


def test_pictures_that_came_later(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    prepare_in(tmp_path / "out", read_images(tmp_path / "photos"), size=48, progress=False)
    shutil.copytree(tmp_path / "photos/thing-000", tmp_path / "photos/thing-010")
    rule = r"prepared holds a set of other sources or settings: .*\. Choose another --out, or remove .*out\.$"
    with pytest.raises(ValueError, match=rule):
        fit(read_images(tmp_path / "photos"), tmp_path / "out", **SMALL)  # type: ignore[arg-type]


def test_ctrl_c_and_again(photos: Path, tmp_path: Path) -> None:
    flags = [
        "--trunk",
        "small",
        "--dim",
        "8",
        "--size",
        "48",
        "--crop",
        "40",
        "--steps",
        "3000",
        "--out",
        str(tmp_path / "out"),
    ]
    command = [sys.executable, "-m", "liftedstruct", "fit", str(photos), "--out", str(tmp_path / "out"), *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        log, until = tmp_path / "out/run/log.jsonl", time.monotonic() + 60
        while time.monotonic() < until and not (log.exists() and log.read_text().count("\n") > 1):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "stopped in step 4 of 5. What is done is kept: the same command again goes on from here." in said
    assert "Traceback" not in said
    state = load_config(tmp_path / "out/run/config.yaml")
    assert state.steps == 3000
    assert (tmp_path / "out/run/state.safetensors").is_file()


def test_weights_that_are_not_there(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.npz"):
        fit(read_images(photos), tmp_path / "out", trunk="googlenet", weights="none.npz")
    assert not (tmp_path / "out").exists()  # found before any image was decoded


def test_one_class_cannot_be_split(tmp_path: Path) -> None:
    (tmp_path / "photos/only").mkdir(parents=True)
    for number in range(3):
        pixels = np.random.default_rng(number).integers(256, size=(48, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"photos/only/{number}.png")
    with pytest.raises(ValueError, match="class"):
        fit(read_images(tmp_path / "photos"), tmp_path / "out", **SMALL)  # type: ignore[arg-type]

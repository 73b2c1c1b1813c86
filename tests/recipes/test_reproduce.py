import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from liftedstruct.cli import main
from liftedstruct.data import PackedImages, prepare, read_images
from liftedstruct.embeddings import Embeddings
from liftedstruct.recipes import reproduce
from liftedstruct.recipes.reproduction import PAPER_ON, _check_prepared
from liftedstruct.training import PRESETS
from recipes.sets import folder_of, tiny_cub

QUICK: dict[str, Any] = {"preset": "quick", "trunk": "small", "steps": 2, "crop": 40, "force": True}


@pytest.fixture(scope="module")
def cub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare a tiny CUB-200-2011 with small images."""
    root = tmp_path_factory.mktemp("cub")
    prepare(read_images(tiny_cub(root / "CUB_200_2011"), "cub"), root / "prepared", size=48, progress=False)
    return root


def test_dry_run(cub: Path, tmp_path: Path) -> None:
    text = reproduce("cub", cub / "CUB_200_2011", tmp_path / "out", sizes=(8, 16), seeds=(0, 3), dry_run=True, **QUICK)
    lines = text.splitlines()
    assert lines[0] == f"plan: CUB-200-2011, preset quick, output in {tmp_path / 'out'}"
    assert [line.split()[0] for line in lines[1:-1]] == [
        *("contrastive-8", "triplet-8", "lifted_struct-8", "contrastive-16", "triplet-16", "lifted_struct-16"),
        *("contrastive-8-seed-3", "triplet-8-seed-3", "lifted_struct-8-seed-3"),
        *("contrastive-16-seed-3", "triplet-16-seed-3", "lifted_struct-16-seed-3"),
    ]
    assert all("2 steps: train, about " in line for line in lines[1:-1])
    assert re.match(
        r"about .* in total on this machine \([\d.e+]+ images/s training and [\d.e+]+ images/s embedding", lines[-1]
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_some_runs_then_all(cub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**QUICK, "losses": ("triplet", "lifted_struct"), "sizes": (512,)}
    first = reproduce("cub", cub / "prepared", tmp_path, only=["lifted_struct-512"], **settings)
    assert "triplet" not in first
    head, untrained, lifted = first.splitlines()[:3]
    assert head.split() == ["dim", "Recall@1", "NMI", "F1", "published", "Recall@1"]
    assert untrained.startswith("untrained")
    assert untrained.endswith("  none")
    assert lifted.endswith("  47.2 % (GoogLeNet; Rolínek et al., CVPR 2020)")
    said = capsys.readouterr().err
    assert "warning: CUB-200-2011 should have 5,864 training and 5,924 test images, got 200 and 200" in said
    assert "triplet-512        triplet, 512 dimensions, 2 steps: not selected" in said
    warning = "These are 200 test images of CUB-200-2011, which has 5,924: the scores cannot be compared with published scores."
    assert f"Warning: {warning}" in first
    page = (tmp_path / "report.html").read_text()
    assert warning in page
    assert "Published Recall@1" in page
    assert "none for this loss and dimension" in page

    trained = (tmp_path / "lifted_struct-512/embedder.safetensors").stat().st_mtime_ns
    second = reproduce("cub", cub / "prepared", tmp_path, **{**settings, "seeds": (0, 1)})
    assert "lifted_struct-512         lifted structured, 512 dimensions, 2 steps: done" in capsys.readouterr().err
    assert (tmp_path / "lifted_struct-512/embedder.safetensors").stat().st_mtime_ns == trained
    rows = second.splitlines()[1:4]
    assert [row.split("  ")[0] for row in rows] == ["untrained", "triplet", "lifted structured"]
    for row in rows[1:]:  # the mean and range of two seeds
        mean, low, high = (float(each) for each in re.findall(r"[\d.]+", row.split(" 512 ")[1])[:3])
        assert low <= mean <= high
        assert mean == pytest.approx((low + high) / 2, abs=0.11)
    # errors in any run of the plan are found before the first training
    for change, rule in (({"steps": 3}, "its steps is 2, got 3"), ({"crop": 32}, "its crop is 40, got 32")):
        with pytest.raises(ValueError, match=rule):
            reproduce("cub", cub / "prepared", tmp_path, **{**settings, "seeds": (7, 0)} | change)
    assert not (tmp_path / "triplet-512-seed-7").exists()


@pytest.mark.slow
def test_one_training_gives_all_sizes(cub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = QUICK | {"preset": None, "losses": ["lifted_struct"]}
    table = reproduce("cub", cub / "prepared", tmp_path / "both", sizes=(64, 512), **settings)
    said = capsys.readouterr().err
    assert "train lifted structured, 512 dimensions, 2 steps" in said
    assert "truncate lifted structured, 64 dimensions, 2 steps" in said
    reproduce("cub", cub / "prepared", tmp_path / "alone", sizes=(64,), **settings)
    ours, theirs = (Embeddings.load(tmp_path / folder / "lifted_struct-64") for folder in ("both", "alone"))
    assert np.array_equal(ours.embeddings, theirs.embeddings)
    assert (
        reproduce("cub", cub / "prepared", tmp_path / "both", sizes=(64, 512), **settings).splitlines()[:-1]
        == table.splitlines()[:-1]
    )
    assert "all 2 runs are done" in capsys.readouterr().err
    (tmp_path / "both/lifted_struct-512/embedder.safetensors").unlink()
    reproduce("cub", cub / "prepared", tmp_path / "both", sizes=(64, 512), **settings)
    assert "lifted_struct-64   lifted structured, 64 dimensions, 2 steps: done" in capsys.readouterr().err
    assert (tmp_path / "both/lifted_struct-512/embedder.safetensors").is_file()
    for only in ("lifted_struct-512", "lifted_struct-64"):  # a finished wide run is used by a later call too
        reproduce("cub", cub / "prepared", tmp_path / "later", sizes=(64, 512), only=[only], **settings)
    assert "truncate lifted structured, 64 dimensions, 2 steps" in capsys.readouterr().err
    assert np.array_equal(Embeddings.load(tmp_path / "later" / "lifted_struct-64").embeddings, ours.embeddings)


def test_incomplete_or_other_data(cub: Path, tmp_path: Path) -> None:
    quick = {**QUICK, "force": False, "dry_run": True}
    with pytest.raises(ValueError, match=r"must be prepared with --size 256 --resize-mode squash, got 48 px and squash\."):
        _check_prepared(PackedImages(cub / "prepared"), 256, "squash", force=False)
    rule = r"CUB-200-2011 must have 5,864 training and 5,924 test images, got 200 and 200 in .*\. Download it again, or"
    for data in (cub / "CUB_200_2011", cub / "prepared"):
        with pytest.raises(ValueError, match=rule):
            reproduce("cub", data, tmp_path, **quick)
    with pytest.raises(ValueError, match=r"data must be CARS196, got 'CUB-200-2011' in .*\. Pass the right folder"):
        reproduce("cars", cub / "prepared", tmp_path, **quick)
    with pytest.raises(ValueError, match="CUB-200-2011"):
        reproduce("cub", folder_of(tmp_path / "photos", 2, 2), tmp_path / "out", **quick)
    half = tmp_path / "half"
    shutil.copytree(cub / "CUB_200_2011", half)
    shutil.rmtree(half / "images")
    with pytest.raises(ValueError, match=r"must have its images beside its lists"):
        reproduce("cub", half, tmp_path / "out", **quick)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"only": ["triplet-9"]},
            r"a run of the plan must be one of .*got 'triplet-9'\. Did you mean 'triplet-8'\?",
        ),
        ({"losses": ["hinge"]}, r"loss must be one of .*, got 'hinge'"),
        ({"sizes": [0]}, r"sizes must be a whole number >= 1, got 0"),
        ({"preset": "fast"}, r"preset must be one of paper, quick, got 'fast'"),
        ({"trunk": "googlenet"}, r"googlenet"),  # without its weights
    ],
)
def test_bad_plans(cub: Path, tmp_path: Path, change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        reproduce("cub", cub / "prepared", tmp_path / "out", **{**QUICK, "sizes": (8,), "dry_run": True} | change)
    assert not (tmp_path / "out").exists()


def test_the_preset_paper_follows_the_authors_code_on_cub(cub: Path, tmp_path: Path) -> None:
    assert PAPER_ON == {"cub": {"lr": 1e-6, "steps": 40_000}}
    paper: dict[str, Any] = {"preset": "paper", "trunk": "small", "crop": 40, "force": True, "dry_run": True, "sizes": (8,)}
    text = reproduce("cub", cub / "prepared", tmp_path, **paper)
    assert "lifted structured, 8 dimensions, 40,000 steps" in text


def test_a_registered_preset(
    cub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "cub", "--data", str(cub / "prepared"), "--out", str(tmp_path), "--sizes", "8", "--force"]
    command += ["--trunk", "small", "--crop", "40", "--dry-run", "--preset", "mine"]
    assert main(command) == 1
    assert "--preset must be one of default, paper, quick, got 'mine'" in capsys.readouterr().err
    monkeypatch.setitem(PRESETS, "mine", {**PRESETS["quick"], "steps": 7})
    assert main(command) == 0
    assert "lifted structured, 8 dimensions, 7 steps" in capsys.readouterr().out

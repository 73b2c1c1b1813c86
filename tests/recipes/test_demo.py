import json
import re
from pathlib import Path

import pytest
from PIL import Image

from liftedstruct.catalog import Catalog
from liftedstruct.data import read_images
from liftedstruct.evaluation import Scores
from liftedstruct.recipes.demonstration import FULL, SHORT, Scale, demo
from liftedstruct.training import load_config

TINY = Scale("tiny", products=24, steps=3, sizes=(8,), trunk="small", batch=12)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo")
    return out / "tiny-seed-0", demo(out, scale=TINY)


@pytest.mark.slow
def test_the_table_has_the_scores_of_every_loss_and_of_the_trunk_before_training(made: tuple[Path, str]) -> None:
    folder, text = made
    names = {
        "untrained": folder / "pool5.json",
        "contrastive": folder / "contrastive-8/scores.json",
        "triplet": folder / "triplet-8/scores.json",
        "lifted structured": folder / "lifted_struct-8/scores.json",
    }
    lines = text.splitlines()
    assert [line.split("  ")[0] for line in lines[1:5]] == list(names)
    for line, file in zip(lines[1:5], names.values(), strict=True):
        metrics = Scores.load(file).metrics
        for metric in ("Recall@1", "NMI, affinity", "F1, affinity"):
            assert f"{100 * metrics[metric].value:.1f} %" in line
    best = max(list(names)[:0:-1], key=lambda name: Scores.load(names[name]).recall[1].value).capitalize()
    assert f"{best} reaches" in text
    assert "test images of 12 classes not seen in training, 144 px (squash), one center crop of 128 px" in text
    assert str(folder / "report.html") in text
    assert f"<h1>{best} reaches" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_the_catalog_is_searched(made: tuple[Path, str]) -> None:
    folder, text = made
    shown = re.search(r"For (\S+)% of the queries, the nearest image shows the same product", text)
    images = read_images(folder / "photos")
    labeled = zip(images.paths, images.labels, strict=True)
    test = [(images.class_names[label], path) for path, label in labeled if images.parts[label] == "test"]
    queries = dict(reversed(test))
    with Catalog.open(folder / "catalog") as catalog:
        assert catalog.count() == len(test) - len(queries)
        answers = catalog.search([str(folder / "photos" / path) for path in queries.values()], k=1)
    hits = sum(answer.product == product for product, answer in zip(queries, answers, strict=True))
    assert shown
    assert float(shown[1]) == pytest.approx(100 * hits / len(queries), abs=0.06)
    assert f"liftedstruct explore {folder / 'catalog'}" in text
    with Image.open(folder / "search.png") as picture:
        assert picture.width > picture.height / 2


@pytest.mark.slow
def test_every_loss_trains_the_same_trunk_on_as_many_images(made: tuple[Path, str]) -> None:
    folder, _ = made
    seen = []
    for loss in ("contrastive", "triplet", "lifted_struct"):
        config = load_config(folder / f"{loss}-8" / "config.yaml")
        seen.append([getattr(config, key) for key in ("trunk", "steps", "batch_size", "dim", "crop", "freeze", "seed")])
        assert config.sampler.name == {"contrastive": "pairs", "triplet": "triplets"}.get(loss, "balanced")
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.slow
def test_a_second_run_reuses_results(made: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, text = made
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".lock"]
    searched = {folder / "catalog.csv", folder / "search.png", *(folder / "catalog").iterdir()}
    before = {file: file.stat().st_mtime_ns for file in files if file not in searched}
    again = demo(folder.parent, scale=TINY)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert again.split("Finished in")[0] == text.split("Finished in")[0]
    assert "[9/9] search a catalog" in capsys.readouterr().err


@pytest.mark.slow
def test_lost_reports_and_scores_are_created_again(made: tuple[Path, str]) -> None:
    folder, text = made
    (folder / "report.html").unlink()
    (folder / "triplet-8" / "scores.json").write_text("{}")
    (folder / "check.json").write_text(json.dumps({"checksum": "another"}))
    again = demo(folder.parent, scale=TINY)
    assert again.split("Finished in")[0] == text.split("Finished in")[0]
    assert (folder / "report.html").is_file()
    Scores.load(folder / "triplet-8/scores.json")


@pytest.mark.slow
def test_a_report_of_other_runs_is_written_again(made: tuple[Path, str]) -> None:
    folder, _ = made
    shown = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps(shown[:-1]))  # as if it showed one run less
    before = (folder / "report.html").stat().st_mtime_ns
    demo(folder.parent, scale=TINY)
    assert (folder / "report.html").stat().st_mtime_ns > before
    assert json.loads((folder / "report.json").read_text()) == shown


def test_scales() -> None:
    assert (SHORT.sizes, FULL.sizes) == ((64,), (64, 128, 256, 512))
    assert SHORT.trunk == FULL.trunk == "efficientnet_lite0"
    assert SHORT.batch % 4 == SHORT.batch % 3 == 0  # so that pairs and triplets have batches of the same size


def test_bad_seed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"seed must be a whole number >= 0, got -1\. Pass 0 or more\."):
        demo(tmp_path, seed=-1)
    assert not list(tmp_path.iterdir())

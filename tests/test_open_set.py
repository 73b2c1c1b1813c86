"""Open-set scores against their definitions, and datasets that declare queries and a gallery."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import liftedstruct as ls
from liftedstruct.cli import main
from liftedstruct.embedder import Embedder
from liftedstruct.embeddings import embed_files
from liftedstruct.evaluation import Scores
from liftedstruct.trunks import make_trunk

Array = NDArray[np.float64]


def points(n_classes: int, size: int, noise: float, seed: int) -> tuple[Array, NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(n_classes), size)
    return rng.normal(size=(n_classes, 5))[y] + noise * rng.normal(size=(len(y), 5)), y


def distances(A: Array, B: Array) -> Array:
    D: Array = np.sqrt(((A[:, None] - B[None]) ** 2).sum(axis=2))
    return D


def border(D: Array, rate: float) -> float:
    """Return the distance that is just too far: one more accepted distance would be more than the rate."""
    return float(np.sort(D)[int(rate * len(D))])


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.2])
def test_equal_to_the_definition(rate: float) -> None:
    X, y = points(12, 9, 0.6, seed=0)
    scores = ls.evaluate(X, y, clustering=None, open_set=[rate], samples=50)
    D, same = distances(X, X), y[:, None] == y
    itself = np.eye(len(X), dtype=bool)
    tar = scores.metrics[f"TAR at FAR {100 * rate:g} %"]
    assert tar.value == pytest.approx((D[same & ~itself] < border(D[~same], rate)).mean(), abs=2e-3)
    nearest_same, nearest_other = (np.where(mask, D, np.inf).min(axis=1) for mask in (same & ~itself, ~same))
    found = scores.metrics[f"identification rate at FMR {100 * rate:g} %"]
    expected = (nearest_same < nearest_other) & (nearest_same < border(nearest_other, rate))
    assert found.value == pytest.approx(expected.mean())
    for estimate in (tar, found):
        assert estimate.low <= estimate.value <= estimate.high


def test_queries_of_absent_classes() -> None:
    X, y = points(20, 8, 0.3, seed=1)
    query = np.arange(len(X)) % 4 == 0
    gallery = ~query & (y < 12)  # the other classes are absent
    scores = ls.evaluate(X[gallery], y[gallery], queries=X[query], query_labels=y[query], open_set=[0.1], samples=50)
    D = distances(X[query], X[gallery])
    present = y[query] < 12
    same = y[query][:, None] == y[gallery]
    best_same, best_other = np.where(same, D, np.inf).min(axis=1), np.where(~same, D, np.inf).min(axis=1)
    hits = (best_same < best_other) & (best_same < border(best_other[~present], 0.1))
    assert hits[present].mean() == pytest.approx(scores.metrics["identification rate at FMR 10 %"].value)


@pytest.mark.slow
def test_interval_covers_the_mean_over_many_sets() -> None:
    sets = [
        ls.evaluate(*points(40, 6, 0.5, seed), clustering=None, open_set=[0.05], samples=200).open_set for seed in range(30)
    ]
    for name in sets[0]:
        mean = np.mean([each[name].value for each in sets])
        assert sum(each[name].low <= mean <= each[name].high for each in sets) >= 24


def test_far_pairs_are_found_in_large_sets() -> None:
    X, y = points(60, 30, 0.4, seed=5)
    D, same = distances(X, X), y[:, None] == y
    for rate in (1e-5, 0.5, 0.999):
        found = ls.evaluate(X, y, clustering=None, open_set=[rate], samples=2).metrics[f"TAR at FAR {100 * rate:g} %"].value
        assert found == pytest.approx((D[same & ~np.eye(len(X), dtype=bool)] < border(D[~same], rate)).mean(), abs=1e-3)


def test_saved_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = points(6, 5, 0.3, seed=2)
    np.savez(tmp_path / "x.npz", embeddings=X, labels=y)
    assert main(["evaluate", str(tmp_path / "x.npz"), "--clustering", "none", "--open-set", "0.05,0.01"]) == 0
    text = capsys.readouterr().out
    saved = Scores.load(tmp_path / "x.json")
    for name in ("TAR at FAR 1 %", "TAR at FAR 5 %", "identification rate at FMR 1 %"):
        assert name in text
        assert name in saved.open_set
    assert main(["evaluate", str(tmp_path / "x.npz"), "--open-set", "1"]) == 1
    assert "--open-set must be comma-separated numbers between 0 and 1" in capsys.readouterr().err
    with pytest.raises(ValueError, match="a rate of false accepts must be between 0 and 1, got 0"):
        ls.evaluate(X, y, open_set=[0])


def photos(folder: Path) -> Path:
    """Write images and a list that declares queries and a gallery."""
    rng, lines = np.random.default_rng(0), ["path,label,split"]
    for i in range(24):
        label = f"c{i % 6}"
        part = "train" if i % 6 < 2 else "query" if i < 6 else "gallery"
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{label},{part}")
    (folder / "list.csv").write_text("\n".join(lines))
    return folder / "list.csv"


def test_a_dataset_declares_queries(tmp_path: Path) -> None:
    images = ls.read_images(photos(tmp_path))
    assert images.queries == ("2.png", "3.png", "4.png", "5.png")
    assert images.parts == ("train", "train", "test", "test", "test", "test")
    packed = ls.prepare(images, tmp_path / "prepared", size=36, progress=False)
    torch.manual_seed(0)
    embedder = Embedder(make_trunk("small", pretrained=False), 8, crop=32, size=36).eval()
    found = ls.embed(embedder, packed, packed.test)
    found.save(tmp_path / "found.npz")
    scores = ls.evaluate_file(tmp_path / "found.npz", ks=[1])
    query = np.isin(found.paths, images.queries)
    X, y = found.embeddings, found.labels
    expected = ls.recall_at_k(X[~query], y[~query], [1], queries=X[query], query_labels=y[query])
    assert (scores.protocol["queries"], scores.protocol["gallery"]) == ("4", "12")
    assert scores.recall[1].value == expected[1]
    listed, _ = embed_files(embedder, [tmp_path / "list.csv"])
    assert listed.queries.sum() == 4


def test_unknown_part(tmp_path: Path) -> None:
    table = photos(tmp_path)
    table.write_text(table.read_text().replace("gallery", "galery"))
    with pytest.raises(ValueError, match=r"split must be one of train, test, val, query, gallery, got 'galery'\. Correct it"):
        ls.read_images(table)

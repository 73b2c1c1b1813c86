"""The threshold and rates of `calibrate` against their definitions, and what `measure` and the commands print."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from catalog.shop import catalog_of, make_embedder, planted, write_photo, write_photos
from liftedstruct.catalog import Catalog, calibration
from liftedstruct.catalog.calibration import calibrate
from liftedstruct.catalog.measuring import measure
from liftedstruct.cli import main
from liftedstruct.evaluation.scores import rate_of


def nearest(X: Any, of: Any) -> tuple[Any, Any]:
    """Distances of each image to the nearest other one of its product, and of another product."""
    D = np.sqrt(((X[:, None].astype(float) - X[None]) ** 2).sum(axis=2))
    same = of[:, None] == of
    return np.where(same & ~np.eye(len(X), dtype=bool), D, np.inf).min(axis=1), np.where(same, np.inf, D).min(axis=1)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
def test_rates_equal_their_definition(rate: float, tmp_path: Path) -> None:
    X, products = planted(40, 5, seed=2)
    of = np.array(products)
    with catalog_of(tmp_path / "catalog", X, products) as catalog:
        found = calibrate(catalog, rate)
        same, other = nearest(X, of)
        learned = np.isin(of, np.random.default_rng(0).permutation(np.unique(of))[:20])
        assert (other[learned] <= found.threshold).mean() <= rate < (other[learned] <= found.threshold * 1.2).mean()
        assert found.false_match_rate.value == pytest.approx((other[~learned] <= found.threshold).mean())
        hits = (same < other) & (same <= found.threshold)
        assert found.identification_rate.value == pytest.approx(hits[~learned].mean())
        verdicts = [answer.verdict == "match" for answer in catalog.search(X + np.float32(9), 1)]
        expected = np.sqrt(((X[:, None].astype(float) + 9 - X[None]) ** 2).sum(axis=2)).min(axis=1) <= found.threshold
        assert verdicts == expected.tolist()
        assert (
            str(found).splitlines()[0]
            == f"threshold            {found.threshold:.4g} for a requested false-match rate of {100 * rate:g} %"
        )


@pytest.mark.slow
def test_the_interval_covers_the_rate_of_new_products(tmp_path: Path) -> None:
    """Of an absent product of the same kind, as the average over many catalogs says."""
    covered, rates = [], []
    for seed in range(40):
        X, products = planted(60, 4, seed=seed, dim=3)
        more, _ = planted(400, 4, seed=1000 + seed, dim=3)
        with catalog_of(tmp_path / f"{seed}", X, products) as catalog:
            found = calibrate(catalog, 0.02, seed=seed)
            new = [answer.matches[0].distance <= found.threshold for answer in catalog.search(more, 1)]
        rates.append(np.mean(new))
        covered.append(found.false_match_rate.low <= np.mean(new) <= found.false_match_rate.high)
    assert np.mean(covered) >= 0.9
    assert np.mean(rates) < 0.06


def test_rare_events_have_an_interval() -> None:
    none, one = rate_of(np.zeros(200), np.arange(200) // 4, 0), rate_of(np.arange(200) == 7, np.arange(200) // 4, 0)
    assert (none.value, none.low) == (0, 0)
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 50))  # of 50 products, as for as many single trials
    assert one.low == 0 or one.low < 0.005
    assert one.high >= 0.05
    every = rate_of(np.ones(200), np.arange(200) // 4, 0)
    assert (every.value, every.high) == (1, 1)
    assert every.low == pytest.approx(0.025 ** (1 / 50))


def test_queries_of_other_photos(tmp_path: Path) -> None:
    embedder, photos = make_embedder(), tmp_path / "photos"
    for product in range(10):
        for i in range(4):
            write_photo(photos / f"p{product}/{i}.png", product * 4 + i)
    write_photos(tmp_path / "other")
    with Catalog.open(tmp_path / "catalog", embedder) as catalog:
        catalog.add(photos)
        found = calibrate(catalog, 0.1, [photos])
        assert found.queries == "40 photos"
        assert found.identification_rate.value > 0  # each photo finds itself
        with pytest.raises(ValueError, match=r"at least 4 products to calibrate, got 3\. Add products"):
            calibrate(catalog, 0.5, [tmp_path / "other"])
        (photos / "p0").rename(tmp_path / "x0")
        for product in range(4):
            write_photo(tmp_path / f"new/q{product}/1.png", product)
        with pytest.raises(ValueError, match="queries must show products of the catalog"):
            calibrate(catalog, 0.5, [tmp_path / "new"])
        with pytest.raises(ValueError, match=r"must be learned on at least 1,000 images of half of the products, got 20\."):
            calibrate(catalog, 0.001)
        for wrong in (0, 1, -0.5):
            with pytest.raises(ValueError, match="must be between 0 and 1"):
                calibrate(catalog, wrong)


def test_products_of_a_large_catalog_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, products = planted(30, 10, seed=4)
    with catalog_of(tmp_path / "catalog", X, products) as catalog:
        monkeypatch.setattr(calibration, "MOST", 100)
        assert calibrate(catalog, 0.1).queries == "100 images of the catalog"
        monkeypatch.setattr(calibration, "MOST", 8)  # every product is larger
        assert calibrate(catalog, 0.5).queries == "8 images of the catalog"


def test_measure(tmp_path: Path) -> None:
    X, products = planted(50, 8)
    with catalog_of(tmp_path / "catalog", X, products) as catalog:
        found = measure(catalog, k=5, n=60)
        assert (found.queries, found.k) == (60, 5)
        assert found.recall.value == pytest.approx(1, abs=0.05)
        assert found.recall.low < found.recall.high
        assert all(0 < median <= slow for median, slow in found.milliseconds.values())
        assert "recall of hnsw, top 5" in str(found)
        with pytest.raises(ValueError, match="index must be one of hnsw"):
            measure(catalog, "ivf")
        with pytest.raises(ValueError, match=r"more than k = 400 items to measure it, got 400"):
            measure(catalog, k=400)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos, store, run = write_photos(tmp_path / "photos"), str(tmp_path / "store"), str(tmp_path / "run")
    (tmp_path / "run").mkdir()
    make_embedder().save(run)
    assert main(["catalog", "add", store, str(photos), "--run", run]) == 0
    assert capsys.readouterr().out == f"6 items in {store}: 6 added\n"
    assert main(["search", store, str(photos / "lamp"), "-k", "2", "--json", "--out", str(tmp_path / "matches.png")]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert [Path(answer["query"]).name for answer in answers] == ["1.png", "2.png"]
    assert (answers[0]["matches"][0]["id"], answers[0]["matches"][0]["rank"]) == ("lamp/1.png", 1)
    assert answers[0]["margin"] > 0
    with Image.open(tmp_path / "matches.png") as picture:
        assert picture.width > picture.height > 100
    assert main(["catalog", "search", store, str(photos / "top.png"), "--where", "product = chair", "-k", "1"]) == 0
    assert "chair/" in capsys.readouterr().out
    assert main(["catalog", "remove", store, "top.png", "nothing"]) == 0
    assert capsys.readouterr().out == f"1 of 2 items removed, 5 left in {store}\n"
    for arguments, message in (
        (["search", store, str(photos), "--where", "price <"], "got the end instead of a value"),
        (["search", str(tmp_path / "none"), str(photos)], "a catalog must exist to be opened"),
        (["search", store, str(photos), "--out", "a.gif"], "--out must be a .png file"),
        (["catalog", "add", store, str(photos), "--run", str(tmp_path / "nowhere")], "an embedder must be an existing file"),
        (["catalog", "calibrate", store], "at least 4 products"),
    ):
        assert main(arguments) == 1
        assert message in (error := capsys.readouterr().err)
        assert error.count("\n") == 1

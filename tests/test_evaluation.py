import json
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from liftedstruct.cli import main
from liftedstruct.clustering import contingency, nmi, pairwise_f1
from liftedstruct.data import ImageSet, MemorySource, PackedImages, prepare
from liftedstruct.embeddings import Embeddings
from liftedstruct.evaluation import (
    Scores,
    are_scores_of,
    check_comparable,
    compare,
    count_test_evaluations,
    evaluate,
    evaluate_file,
    scores_file,
    with_recall_at,
)
from liftedstruct.evaluation.resampling import (
    bootstrap,
    f1_without_each_class,
    interval,
    nmi_without_each_class,
    sign_flip_p,
    weighted_f1,
    weighted_nmi,
    weighted_recall,
)
from liftedstruct.retrieval import recall_at_k

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def classes_of_images(rng: np.random.Generator, classes: int, spread: float = 0.4) -> tuple[Floats, Integers]:
    """Return Gaussian classes of 3 to 11 images with different spreads."""
    y = np.repeat(np.arange(classes), rng.integers(3, 12, size=classes))
    middles, widths = rng.normal(size=(classes, 8)), spread * np.exp(0.6 * rng.normal(size=classes))
    return middles[y] + widths[y, None] * rng.normal(size=(len(y), 8)), y


@pytest.fixture(scope="module")
def data() -> tuple[Floats, Integers]:
    return classes_of_images(np.random.default_rng(0), 25)


@pytest.fixture(scope="module")
def scores(data: tuple[Floats, Integers]) -> Scores:
    return evaluate(*data, clustering="both", protocol={"trunk": "none"})


def random_table(seed: int, n: int = 60, classes: int = 7, clusters: int = 9) -> tuple[Integers, Integers]:
    rng = np.random.default_rng(seed)
    y = np.concatenate((np.arange(classes), rng.integers(classes, size=n - classes)))
    return y, np.where(rng.random(n) < 0.5, y, rng.integers(clusters, size=n))


# Resampling


@pytest.mark.parametrize("seed", range(3))
def test_weighted_nmi_equals_nmi_of_repeated_images(seed: int) -> None:
    y, clusters = random_table(seed)
    W = np.random.default_rng(seed).integers(4, size=(20, 7)).astype(np.float64)
    W[0] = 1
    for w, value in zip(W, weighted_nmi(contingency(y, clusters), W), strict=True):
        times = w[y].astype(int)
        assert value == pytest.approx(nmi(np.repeat(y, times), np.repeat(clusters, times)), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_weighted_f1_equals_a_loop_over_weighted_pairs(seed: int) -> None:
    y, clusters = random_table(seed)
    W = np.random.default_rng(seed).integers(4, size=(5, 7)).astype(np.float64)
    W[0] = 1
    for w, value in zip(W, weighted_f1(contingency(y, clusters), W), strict=True):
        right = said = true = 0.0
        for i, j in combinations(range(len(y)), 2):
            weight = w[y[i]] if y[i] == y[j] else w[y[i]] * w[y[j]]
            right += weight * (y[i] == y[j] and clusters[i] == clusters[j])
            said += weight * (clusters[i] == clusters[j])
            true += weight * (y[i] == y[j])
        assert value == pytest.approx(2 * right / (said + true), abs=1e-12)
    assert weighted_f1(contingency(y, clusters), W)[0] == pytest.approx(pairwise_f1(y, clusters), abs=1e-12)


def test_without_each_class() -> None:
    y, clusters = random_table(5)
    table = contingency(y, clusters)
    for measure, without in ((nmi, nmi_without_each_class), (pairwise_f1, f1_without_each_class)):
        expected = [measure(y[y != j], clusters[y != j]) for j in range(7)]
        np.testing.assert_allclose(without(table), expected, rtol=0, atol=1e-12)


def test_draws_of_one_class_in_one_cluster_and_of_no_pairs() -> None:
    table = contingency([0, 0, 1, 1, 2], [0, 0, 1, 2, 3])
    one = np.array([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]])
    np.testing.assert_allclose(weighted_nmi(table, one), [1.0, 0.0, 1.0], atol=1e-12)
    assert weighted_f1(table, one).tolist() == [1.0, 0.0, 1.0]


def test_bootstrap_draws_classes_deterministically() -> None:
    W = bootstrap(lambda W: W, 5, samples=4000, seed=1)
    assert W.shape == (4000, 5)
    assert (W.sum(axis=1) == 5).all()
    np.testing.assert_allclose(W.mean(axis=0), 1, atol=0.05)
    np.testing.assert_allclose(W.var(axis=0), 0.8, atol=0.08)  # variance of the multinomial distribution, 1 - 1/C
    np.testing.assert_array_equal(W[:7], bootstrap(lambda W: 1 * W, 5, samples=4000, seed=1)[:7])
    assert (bootstrap(lambda W: W, 5, samples=4000, seed=2) != W).any()
    many = bootstrap(lambda W: W.sum(axis=1), 3_000_000, samples=2, seed=0)  # each larger than a chunk
    assert many.tolist() == [3e6, 3e6]


def test_interval_is_bias_corrected_and_clipped() -> None:
    draws = np.linspace(0.30, 0.50, 1001)  # mean 0.40
    many = 10**9  # Student's t equals the normal distribution
    assert interval(0.45, draws, many) == pytest.approx((0.355, 0.545))
    assert interval(0.95, draws, many) == pytest.approx((0.855, 1.0))
    assert interval(0.05, draws - 0.35, many, least=-1.0) == pytest.approx((-0.045, 0.145))
    half = 0.095 * np.sqrt(11 / 10) * 2.228139 / 1.959964  # t and normal quantiles from a table
    assert interval(0.45, draws, 11) == pytest.approx((0.45 - half, 0.45 + half), rel=1e-6)
    assert interval(0.45, draws, 1) == (0.0, 1.0)
    assert interval(0.45, np.full(10, 0.5), 5) == (0.45, 0.45)


def test_recall_interval_equals_a_plain_bootstrap() -> None:
    hits, queries = np.array([[3.0, 4.0], [0.0, 1.0], [5.0, 5.0]]), np.array([4.0, 2.0, 5.0])
    draws = bootstrap(lambda W: weighted_recall(hits, queries, W), 3, samples=3000, seed=0)
    rng = np.random.default_rng(9)
    plain = np.array([hits[drawn].sum(axis=0) / queries[drawn].sum() for drawn in rng.integers(3, size=(3000, 3))])
    np.testing.assert_allclose(np.percentile(draws, (5, 50, 95), axis=0), np.percentile(plain, (5, 50, 95), axis=0), atol=0.03)


def test_sign_flips_by_hand() -> None:
    shares = np.array([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [1.0, 2.0, 0.0]])
    p = sign_flip_p(shares, flips=20_000, seed=0)
    # Of the eight flips, two give +-3; the second column's 2 is reached by +-2 (4 flips) and +-4 (2); the third column always.
    np.testing.assert_allclose(p, [2 / 8, 6 / 8, 1.0], atol=0.02)
    everyone = sign_flip_p(np.ones((40, 1)), flips=1000, seed=0)
    assert everyone[0] == 1 / 1001  # the data counts as one flip: p is never 0


@pytest.mark.slow
def test_coverage_of_intervals_and_false_positives() -> None:
    """Small version of the simulation in the docstring of resampling.py."""
    rng = np.random.default_rng(3)
    first, p = [], []
    for _ in range(40):
        y = np.repeat(np.arange(30), rng.integers(3, 12, size=30))
        middles, widths = rng.normal(size=(30, 8)), 0.4 * np.exp(0.6 * rng.normal(size=30))
        twice = [middles[y] + widths[y, None] * rng.normal(size=(len(y), 8)) for _ in range(2)]
        a, b = (evaluate(X, y, ks=(1,), clustering="kmeans", samples=300) for X in twice)
        first.append([(e.value, e.low, e.high) for e in a.metrics.values()])
        p.append([d.p for d in compare(a, b, samples=2, flips=400).differences.values()])
    values, low, high = np.moveaxis(np.array(first), 2, 0)  # (40, 3) each
    truth = values.mean(axis=0)
    assert (((low <= truth) & (truth <= high)).mean(axis=0) >= 0.8).all()
    assert ((high - low).mean(axis=0) < 8 * values.std(axis=0)).all()  # without being too wide
    assert ((np.array(p) <= 0.05).mean(axis=0) <= 0.15).all()
    assert ((np.array(p) <= 0.5).mean(axis=0) >= 0.2).all()


# Scores


def test_values_equal_the_metric_functions(data: tuple[Floats, Integers], scores: Scores) -> None:
    X, y = data
    assert {k: estimate.value for k, estimate in scores.recall.items()} == recall_at_k(X, y, (1, 2, 4, 8))
    assert set(scores.clusters) == set(scores.nmi) == set(scores.f1) == {"affinity", "kmeans"}
    for name, clusters in scores.clusters.items():
        assert scores.nmi[name].value == nmi(y, clusters)
        assert scores.f1[name].value == pairwise_f1(y, clusters)
    assert len(np.unique(scores.clusters["kmeans"])) == 25
    for estimate in scores.metrics.values():
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
        assert estimate.low < estimate.high


def test_table(scores: Scores) -> None:
    lines = str(scores).splitlines()
    assert [line.split("  ")[0] for line in lines[:8]] == [
        *("Recall@1", "Recall@2", "Recall@4", "Recall@8"),
        *("NMI, affinity", "F1, affinity", "NMI, kmeans", "F1, kmeans"),
    ]
    first = scores.recall[1]
    assert lines[0].split(maxsplit=1)[1] == f"{100 * first.value:.1f} %   {100 * first.low:.1f} to {100 * first.high:.1f}"
    rows = {line[:18].strip(): line[20:] for line in lines[9:]}
    assert rows["trunk"] == "none"
    assert (rows["images"], rows["classes"], rows["distance"]) == (str(len(scores.classes)), "25", "Euclidean")
    assert rows["clusters, kmeans"] == "25 by k-means"
    assert "by affinity propagation on all pairs" in rows["clusters, affinity"]
    assert rows["intervals"] == "95 %, class bootstrap, 1,000 draws"
    assert rows["evaluation seed"] == "0"


def test_labels_of_any_type_and_order(data: tuple[Floats, Integers]) -> None:
    X, y = data
    expected = evaluate(X, y, clustering=None)
    for labels in (2**62 + 7 * (100 - y), [f"class {label * 7 % 25}" for label in y], torch.from_numpy(y)):
        same = evaluate(torch.from_numpy(X), labels, clustering="none")
        assert same.metrics == expected.metrics
        np.testing.assert_array_equal(same.classes, expected.classes)


def test_single_image_classes() -> None:
    X, y = np.array([[0.0], [1.0], [5.0], [6.0], [9.0]]), ["a", "a", "b", "b", "c"]
    left_out, missed = (evaluate(X, y, ks=(1,), clustering=None, singles=singles) for singles in ("leave-out", "miss"))
    assert (left_out.recall[1].value, missed.recall[1].value) == (1.0, 0.8)
    assert (left_out.recall[1].low, left_out.recall[1].high) == (1.0, 1.0)
    assert missed.recall[1].low < 0.8 < missed.recall[1].high
    assert left_out.protocol["single-image classes"] == "1, excluded from Recall@K"
    assert missed.protocol["single-image classes"] == "1, counted as misses in Recall@K"
    with pytest.raises(ValueError, match=r"scores must have the same setting of singles, got 'leave-out' and 'miss'"):
        compare(left_out, missed)


def test_fewer_clusters_than_classes(data: tuple[Floats, Integers]) -> None:
    scores = evaluate(*data, clustering="kmeans", n_clusters=4)
    assert len(np.unique(scores.clusters["kmeans"])) == 4
    assert scores.protocol["clusters, kmeans"] == "4 by k-means"


def test_progress_goes_to_stderr(data: tuple[Floats, Integers], capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(*data, clustering="kmeans")
    assert capsys.readouterr() == ("", "")
    evaluate(*data, clustering="kmeans", progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "recall: " in captured.err
    assert "kmeans, 25 clusters" in captured.err


def test_save_and_load(scores: Scores, tmp_path: Path) -> None:
    file = tmp_path / "scores.json"
    scores.save(file)
    loaded = Scores.load(file)
    assert str(loaded) == str(scores)
    assert loaded.metrics == scores.metrics
    assert loaded.singles == scores.singles
    for name in ("classes", "ranks"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(scores, name))
    np.testing.assert_array_equal(loaded.clusters["affinity"], scores.clusters["affinity"])
    assert [path.name for path in tmp_path.iterdir()] == ["scores.json"]
    assert all(difference.p == 1 for difference in compare(loaded, scores).differences.values())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": "another"}, "must be a scores file, got a different or damaged file"),
        ({"version": 1}, r"must be of format version 2, got 1\. Evaluate again\."),
        ({"ranks": [1, 2]}, "must be a scores file"),
        ({"ranks": 3}, "must be a scores file"),
        ({"ranks": [0.5]}, "must be a scores file"),
        ({"recall": {"1": [0.5]}}, "must be a scores file"),
        ({"recall": {"one": [0.5, 0.4, 0.6]}}, "must be a scores file"),
        ({"nmi": {}}, "must be a scores file"),
        ({"singles": "perhaps"}, "must be a scores file"),
        ({"clusters": None}, "must be a scores file"),
    ],
)
def test_wrong_files(scores: Scores, tmp_path: Path, change: dict[str, Any], text: str) -> None:
    file = tmp_path / "scores.json"
    scores.save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=text) as caught:
        Scores.load(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe", b"{}"])
def test_files_of_another_kind(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "scores.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"scores\.json must be a scores file, got a different or damaged file\. Write it"):
        Scores.load(file)


NAN = np.zeros((4, 2))
NAN[2, 1] = np.nan


def test_own_protocol_lines_take_precedence() -> None:
    scores = evaluate(np.eye(4), [0, 0, 1, 1], clustering=None, protocol={"images": "5", "distance": "cosine"})
    assert (scores.protocol["images"], scores.protocol["distance"]) == ("4", "Euclidean")


@pytest.mark.parametrize(
    ("X", "y", "settings", "text"),
    [
        (
            np.eye(4),
            [0, 0, 1],
            {},
            r"labels must have shape \(m,\), one label per row of the embeddings: got \(3,\) for 4 rows",
        ),
        (np.eye(4), [0, 0, 0, 0], {}, r"labels must have at least two classes, got one\."),
        (
            np.eye(4),
            [0, 1, 2, 3],
            {},
            r"labels must have a class with at least two images, got 4 images of 4 classes\. Add images\.",
        ),
        (np.eye(4), np.zeros(4), {}, r"labels must be integers or strings, got float64"),
        (np.zeros((0, 2)), [], {}, r"embeddings must have shape \(m, d\) with m, d >= 1, got \(0, 2\)"),
        (NAN, [0, 0, 1, 1], {}, r"embeddings must be finite, but row 2 holds nan"),
        (
            np.eye(4),
            [0, 0, 1, 1],
            {"n_clusters": 5, "clustering": "kmeans"},
            r"n_clusters must be at most the number of images",
        ),
        (np.eye(4), [0, 0, 1, 1], {"n_clusters": 5}, r"n_clusters must be"),
        (np.eye(4), [0, 0, 1, 1], {"n_clusters": 0}, r"n_clusters must be a whole number >= 1, got 0"),
        (np.eye(4), [0, 0, 1, 1], {"ks": (0,)}, r"each of ks must be a whole number >= 1, got 0"),
        (np.eye(4), [0, 0, 1, 1], {"ks": ()}, r"ks must \w+ at least one number"),
        (np.eye(4), [0, 0, 1, 1], {"singles": "drop"}, r"singles must be one of leave-out, miss, got 'drop'"),
        (
            np.eye(4),
            [0, 0, 1, 1],
            {"clustering": "kmean"},
            r"clustering must be one of .*got 'kmean'\. Did you mean 'kmeans'\?",
        ),
        (np.eye(4), [0, 0, 1, 1], {"samples": 0}, r"samples must be a whole number >= 1"),
        (np.eye(4), [0, 0, 1, 1], {"seed": -1}, r"seed must be a whole number >= 0"),
    ],
)
def test_bad_input(X: Floats, y: list[int], settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        evaluate(X, y, **settings)
    assert "\n" not in str(caught.value)


# Comparison


def test_the_better_embedding_is_found(data: tuple[Floats, Integers], scores: Scores) -> None:
    X, y = data
    worse = evaluate(X + 1.5 * np.random.default_rng(1).normal(size=X.shape), y, clustering="both")
    comparison = compare(scores, worse, names=("sharp", "noisy"))
    assert set(comparison.differences) == set(scores.metrics)
    for measure, difference in comparison.differences.items():
        assert difference.value == scores.metrics[measure].value - worse.metrics[measure].value
        assert 0 < difference.low <= difference.value <= difference.high <= 1
        assert difference.p < 0.01
        assert comparison.verdict(measure) == "sharp is better"
    turned = compare(worse, scores, names=("noisy", "sharp"))
    for measure, difference in turned.differences.items():
        assert difference.value == -comparison.differences[measure].value
        assert difference.p == comparison.differences[measure].p
        assert turned.verdict(measure) == "sharp is better"
    lines = str(comparison).splitlines()
    assert lines[0].split() == ["sharp", "noisy", "difference", "95", "%", "interval", "p"]
    assert all(line.endswith("sharp is better") for line in lines[1:9])
    assert lines[-1] == f"paired by class: 25 classes, {len(y)} images"


def test_p_of_recall_by_hand() -> None:
    """Two classes of two images: one favors a, the other neither, so all flips reach the difference."""
    y = [0, 0, 1, 1]
    a = evaluate(np.array([[0.0], [1.0], [5.0], [6.0]]), y, ks=(1,), clustering=None)
    b = evaluate(np.array([[0.0], [5.4], [5.0], [5.1]]), y, ks=(1,), clustering=None)
    difference = compare(a, b).differences["Recall@1"]
    assert (difference.a, difference.b, difference.value, difference.p) == (1.0, 0.5, 0.5, 1.0)
    assert "no significant difference" in str(compare(a, b))


def test_scores_that_cannot_be_compared(data: tuple[Floats, Integers], scores: Scores) -> None:
    X, y = data
    shorter = evaluate(X[:-1], y[:-1], clustering=None)
    with pytest.raises(ValueError, match=rf"same images in the same order, got {len(y)} and {len(y) - 1} images whose classes"):
        compare(scores, shorter)
    with pytest.raises(ValueError, match="same images in the same order"):
        compare(scores, evaluate(X, np.roll(y, 1), clustering=None))
    with pytest.raises(ValueError, match=r"scores must have a metric in common, got \['Recall@3'\] and \['Recall@5'\]"):
        compare(*(evaluate(X, y, ks=(k,), clustering=None) for k in (3, 5)))
    assert set(compare(scores, evaluate(X, y, ks=(2, 3), clustering="kmeans")).differences) == {
        *("Recall@2", "NMI, kmeans", "F1, kmeans")
    }


# Files


def test_scores_of_a_file(tmp_path: Path) -> None:
    """evaluate_file equals evaluate on the arrays, adds the protocol of the file, and saves nothing."""
    X, labels = np.random.default_rng(0).normal(size=(12, 3)), np.array(["c", "a", "b"] * 4)
    file = tmp_path / "plain.npz"
    np.savez(file, embeddings=X, labels=labels, protocol=json.dumps({"trunk": "small", "size": 64}))
    scores = evaluate_file(file, clustering=None)
    assert scores.metrics == evaluate(X, labels, clustering=None).metrics
    assert (scores.protocol["trunk"], scores.protocol["size"]) == ("small", "64")
    assert list(tmp_path.iterdir()) == [file]
    assert scores_file(file) == tmp_path / "plain.json"
    assert scores_file(tmp_path) == scores_file(tmp_path / "embeddings.npz") == tmp_path / "scores.json"
    scores.save(scores_file(file))
    again = Scores.load(scores_file(file))
    assert str(again) == str(scores)
    assert are_scores_of(again, Embeddings.load(file))
    for changes in ({"embeddings": X + 1e-9}, {"embeddings": X.astype(np.float32)}, {"labels": np.sort(labels)}):
        np.savez(file, **{"embeddings": X, "labels": labels} | changes)
        assert not are_scores_of(again, Embeddings.load(file))


def test_recall_at_further_k_from_the_ranks(data: tuple[Floats, Integers]) -> None:
    few, many = (evaluate(*data, ks=ks, clustering=None, seed=5) for ks in ((1, 3), (1, 2, 3, 8)))
    assert with_recall_at(few, (2, 8)).recall == many.recall


def test_evaluations_on_test_classes_are_logged(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(40) // 4
    arrays: dict[str, Any] = {"embeddings": rng.normal(size=(10, 3))[labels] + 0.1 * rng.normal(size=(40, 3)), "labels": labels}
    data = prepared(tmp_path)
    arrays["protocol"] = json.dumps({"checksum": data.checksum})
    for name, part in (("train", "train"), ("test", "test")):
        np.savez(tmp_path / f"{name}.npz", part=np.array(part), data=np.array(str(data.folder)), **arrays)
    log = data.folder / "test-evaluations.jsonl"
    assert "evaluations on the test classes" not in evaluate_file(tmp_path / "train.npz", clustering=None).protocol
    assert not log.exists()
    for count in (1, 2):
        scores = evaluate_file(tmp_path / "test.npz", clustering=None)
        assert scores.protocol["evaluations on the test classes"] == f"{count} so far, including this one"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 2
    assert lines[1]["scores"]["Recall@1"] == scores.recall[1].value
    assert lines[1]["protocol"]["images"] == "40"
    log.write_bytes(log.read_bytes()[:-20])  # the last line is truncated, as by a kill
    again = evaluate_file(tmp_path / "test.npz", clustering=None)
    assert again.protocol["evaluations on the test classes"] == "3 so far, including this one"
    assert json.loads(log.read_text().splitlines()[2])["scores"] == lines[1]["scores"]
    assert count_test_evaluations(data.folder, data.checksum) == 3
    shutil.rmtree(data.folder)
    gone = evaluate_file(tmp_path / "test.npz", clustering=None)
    assert "not logged" in gone.protocol["evaluations on the test classes"]
    assert count_test_evaluations(data.folder, data.checksum) is None


def prepared(folder: Path) -> PackedImages:
    images = ImageSet(
        *("noise", folder, MemorySource(np.zeros((4, 8, 8, 3), np.uint8)), tuple("0123"), np.arange(4) // 2, ("a", "b")),
        test_classes=np.array([1]),
    )
    return prepare(images, folder / "prepared", size=8, progress=False)


def test_a_foreign_file_does_not_choose_where_the_log_is_written(tmp_path: Path) -> None:
    data, anywhere = prepared(tmp_path), tmp_path / "anywhere"
    anywhere.mkdir()
    arrays: dict[str, Any] = {"embeddings": np.eye(4), "labels": [0, 0, 1, 1], "part": "test"}
    for folder, checksum in ((anywhere, data.checksum), (data.folder, "0" * 64), (data.folder, None)):
        protocol = json.dumps({"checksum": checksum} if checksum else {})
        np.savez(tmp_path / "foreign.npz", data=str(folder), protocol=protocol, **arrays)
        scores = evaluate_file(tmp_path / "foreign.npz", clustering=None)
        assert scores.protocol["evaluations on the test classes"].startswith("not logged")
        assert not (folder / "test-evaluations.jsonl").exists()
        assert count_test_evaluations(folder, checksum) is (None if folder is anywhere or checksum != data.checksum else 0)


def test_scores_of_other_images_are_not_compared() -> None:
    rng = np.random.default_rng(0)
    labels, paths = np.arange(40) // 4, [f"{i}.jpg" for i in range(40)]
    a, b = (evaluate(rng.normal(size=(40, 3)), labels, ids=ids, clustering=None) for ids in (paths, paths))
    assert compare(a, b).n_images == 40
    for ids in (paths[::-1], [f"other/{path}" for path in paths], None):
        with pytest.raises(ValueError, match=r"same images in the same order, got 40 and 40 images whose ids differ"):
            compare(a, evaluate(rng.normal(size=(40, 3)), labels, ids=ids, clustering=None))
    with pytest.raises(ValueError, match=r"ids must have shape \(n,\), got \(3,\) for 40 images"):
        evaluate(rng.normal(size=(40, 3)), labels, ids=paths[:3])
    numbers = evaluate(rng.normal(size=(40, 3)), labels, ids=np.arange(40, dtype=np.uint64), clustering=None)
    assert numbers.images == evaluate(rng.normal(size=(40, 3)), labels, ids=list(range(40)), clustering=None).images


def test_files_are_compared_by_common_ids(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, labels, paths = rng.normal(size=(8, 3)), np.arange(8) // 2, np.array([f"{i}.jpg" for i in range(8)])
    contents = np.arange(8, dtype=np.uint64)
    files: dict[str, dict[str, Any]] = {
        "run": {"contents": contents, "paths": paths},
        "moved": {"contents": contents, "paths": np.array([f"there/{path}" for path in paths])},
        "own": {"paths": paths},
        "other": {"contents": contents + 1, "paths": paths},
        "nameless": {},
    }
    for name, ids in files.items():
        np.savez(tmp_path / f"{name}.npz", embeddings=X, labels=labels, **ids)
    scores = {name: evaluate_file(tmp_path / f"{name}.npz", clustering=None) for name in files}
    for one, two, same in (("run", "moved", True), ("run", "own", True), ("own", "moved", False), ("run", "other", False)):
        assert scores[one].same_images(scores[two]) is same
        if same:
            check_comparable(tmp_path / f"{one}.npz", tmp_path / f"{two}.npz")
        else:
            with pytest.raises(ValueError, match="must be of the same images"):
                check_comparable(tmp_path / f"{one}.npz", tmp_path / f"{two}.npz")
    assert scores["nameless"].images == {}
    with pytest.raises(ValueError, match="must identify their images"):
        check_comparable(tmp_path / "run.npz", tmp_path / "nameless.npz")
    scores["run"].save(tmp_path / "run.json")
    check_comparable(tmp_path / "own.npz", tmp_path / "run.json")


def test_queries_in_a_gallery(data: tuple[Floats, Integers]) -> None:
    X, y = data
    asked = np.arange(len(y)) % 3 == 0
    own = y[asked].copy()
    own[:4] = 999  # not in the gallery
    scores = evaluate(X[~asked], y[~asked], ks=(1, 5), queries=X[asked], query_labels=own)
    expected = recall_at_k(X[~asked], y[~asked], (1, 5), queries=X[asked], query_labels=own)
    assert {k: each.value for k, each in scores.recall.items()} == pytest.approx(expected)
    assert scores.recall[1].low < scores.recall[1].value < scores.recall[1].high
    assert scores.clusters == {}
    assert len(scores.ranks) == len(scores.classes) == asked.sum()
    lines = scores.protocol
    assert (lines["queries"], lines["gallery"]) == (str(asked.sum()), f"{(~asked).sum():,}")
    assert lines["queries of no class in the gallery"] == "4, excluded from Recall@K"
    with pytest.raises(ValueError, match=r"query_labels must have a class of the gallery, got 2 queries of others"):
        evaluate(X, y, queries=X[:2], query_labels=[999, 998])
    with pytest.raises(ValueError, match=r"ids must have shape \(n,\), got \(3,\) for 2 images"):
        evaluate(X, y, queries=X[:2], query_labels=y[:2], ids=[1, 2, 3])


def test_a_file_of_queries(tmp_path: Path) -> None:
    """Classes are matched by name, and both files must be of one embedder."""
    X = np.array([[0.0], [1.0], [2.0], [3.0]])
    protocol = json.dumps({"embedder SHA-256": "ab", "embeddings of": "run"})
    save: dict[str, Any] = {"protocol": protocol}
    np.savez(tmp_path / "gallery.npz", embeddings=X, labels=["cup", "cup", "lamp", "sofa"], **save)
    np.savez(tmp_path / "queries.npz", embeddings=X[1:3] + 0.1, labels=["lamp", "cup"], paths=["p", "q"], **save)
    files = tmp_path / "gallery.npz", tmp_path / "queries.npz"
    scores = evaluate_file(files[0], queries=files[1], ks=(1, 2, 3))
    assert [scores.recall[k].value for k in (1, 2, 3)] == [0.0, 0.5, 1.0]
    assert scores.images.keys() == {"paths"}  # of the queries
    assert scores.protocol["queries of"] == "run"
    out = tmp_path / "scores.json"
    assert main(["evaluate", str(files[0]), "--queries", str(files[1]), "--out", str(out)]) == 0
    assert Scores.load(out).recall[4].value == 1.0
    assert main(["evaluate", str(files[0]), "--queries", str(files[1])]) == 1
    np.savez(tmp_path / "other.npz", embeddings=X, labels=["cup"] * 4, protocol=json.dumps({"embedder SHA-256": "cd"}))
    with pytest.raises(ValueError, match=r"queries must be embedded like their gallery, run, got .*other\.npz\. Use one"):
        evaluate_file(files[0], queries=tmp_path / "other.npz")

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from liftedstruct.retrieval import map_at_r, precision_at_1, r_precision, recall_at_k, retrieval_recall
from retrieval import brute_force

ALL: list[Callable[..., Any]] = [map_at_r, precision_at_1, r_precision, retrieval_recall]


def example(n: int = 400) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return overlapping classes with one to about fifty images each."""
    rng = np.random.default_rng(0)
    y = rng.geometric(0.1, n)
    return (rng.standard_normal((y.max() + 1, 6))[y] + rng.standard_normal((n, 6))).astype(np.float32), y


def test_equal_to_pytorch_metric_learning() -> None:
    X, y = example()
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    peer = AccuracyCalculator(include=names, k="max_bin_count").get_accuracy(torch.from_numpy(X), torch.from_numpy(y))
    ours = (precision_at_1(X, y), r_precision(X, y), map_at_r(X, y))
    np.testing.assert_allclose(ours, [peer[name] for name in names], rtol=1e-6)


@pytest.mark.parametrize("ties", [False, True])
def test_loops_from_the_definitions(ties: bool) -> None:
    X, y = example()
    if ties:
        X = np.round(X)
    lists = brute_force.neighbors(X)
    at_r, average, recall = [], [], {k: [] for k in (1, 5, 1000)}  # type: ignore[var-annotated]
    for i, nearest in enumerate(lists):
        hits = y[nearest] == y[i]
        R = int(hits.sum())
        if R == 0:
            continue
        at_r.append(hits[:R].sum() / R)
        average.append(sum(hits[: place + 1].mean() for place in range(R) if hits[place]) / R)
        for k, shares in recall.items():
            shares.append(hits[:k].sum() / R)
    assert r_precision(X, y) == pytest.approx(np.mean(at_r), rel=1e-12)
    assert map_at_r(X, y) == pytest.approx(np.mean(average), rel=1e-12)
    assert retrieval_recall(X, y, (1, 5, 1000)) == pytest.approx(
        {k: np.mean(shares) for k, shares in recall.items()}, rel=1e-12
    )


def test_by_hand() -> None:
    X, y = np.array([[0.0], [1.0], [2.0], [-3.0], [5.0], [1000.0], [1001.0]]), np.array([0, 0, 1, 0, 0, 2, 2])
    # hits among the nearest: 0: + - + +, 1: + - + + (0 and 2 tied, 3 and 4 too), 3: + + - +, 4: - + + +, 5 and 6: +; 2: none
    assert precision_at_1(X, y) == pytest.approx(5 / 6)
    assert r_precision(X, y) == pytest.approx((4 * 2 / 3 + 1 + 1) / 6)
    average = [(1 + 2 / 3) / 3, (1 + 2 / 3) / 3, (1 + 1) / 3, (1 / 2 + 2 / 3) / 3, 1, 1]
    assert map_at_r(X, y) == pytest.approx(sum(average) / 6)
    assert retrieval_recall(X, y, [1, 3]) == pytest.approx({1: (3 * 1 / 3 + 0 + 1 + 1) / 6, 3: (4 * 2 / 3 + 1 + 1) / 6})
    assert recall_at_k(X, y, [1, 3]) == pytest.approx({1: 5 / 6, 3: 1})


def test_torch_and_arrays_agree() -> None:
    X, y = example()
    for function in ALL:
        assert function(torch.from_numpy(X).half(), torch.from_numpy(y)) == function(X.astype(np.float16), y.tolist())


@pytest.mark.parametrize("function", ALL)
def test_bad_input(function) -> None:  # type: ignore[no-untyped-def]
    X, y = example(20)
    with pytest.raises(ValueError, match=r"a class with two images, got 20 images of 20 classes\. Add images"):
        function(X, range(20))
    with pytest.raises(ValueError, match=r"got 1 images of 1 classes"):
        function(X[:1], [0])
    with pytest.raises(ValueError, match=r"labels must have shape"):
        function(X, y[:19])
    X[3, 2] = np.nan
    with pytest.raises(ValueError, match=r"embeddings must be finite, but row 3 holds nan"):
        function(X, y)
    with pytest.raises(ValueError, match=r"ks must contain at least one number"):
        retrieval_recall(X, y, ())


def test_one_class_is_all_right() -> None:
    X, _ = example(30)
    assert [function(X, np.zeros(30, int)) for function in ALL[:3]] == [1, 1, 1]
    assert retrieval_recall(X, np.zeros(30, int), (29, 100)) == {29: 1, 100: 1}

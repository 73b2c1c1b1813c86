"""Metrics with queries apart from the gallery, compared with their definitions on all distances."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import liftedstruct as ls
from liftedstruct.retrieval import first_ranks
from liftedstruct.retrieval.recall import _first_ranks
from liftedstruct.runtime.progress import Bar
from retrieval import brute_force
from retrieval.test_recall import Array, images


def hits(X: Array, y: NDArray[Any], Q: Array, own: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each query which of all gallery images, nearest first, are positives."""
    lists = np.argsort(brute_force.squares(Q, X), axis=1, kind="stable")
    found: NDArray[np.bool_] = y[lists] == own[:, None]
    return found


@given(images(), st.integers(1, 22), st.integers(1, 9), st.integers(1, 9))
@settings(deadline=None, max_examples=80)
def test_equal_to_a_stable_argsort(case: tuple[Array, NDArray[np.int64]], n: int, height: int, width: int) -> None:
    X, y = case
    n = min(n, len(X) - 1)
    found = hits(X[:n], y[:n], X[n:], y[n:])
    expected = np.where(found.any(axis=1), found.argmax(axis=1) + 1, 0)
    sets: dict[str, Any] = {"queries": X[n:], "query_labels": y[n:]}
    np.testing.assert_array_equal(first_ranks(X[:n], y[:n], **sets), expected)
    bar = Bar("recall", len(X), wanted=False)
    np.testing.assert_array_equal(_first_ranks(torch.from_numpy(X), y, bar, height, width, gallery=n), expected)
    if not expected.any():
        with pytest.raises(ValueError, match="query_labels must have a class of the gallery, got"):
            ls.recall_at_k(X[:n], y[:n], **sets)
        with pytest.raises(ValueError, match="query_labels must have a class of the gallery"):
            ls.map_at_r(X[:n], y[:n], **sets)
        return
    R = found.sum(axis=1)
    known = R > 0
    recall = ls.recall_at_k(X[:n], y[:n], (1, 2, 5), **sets)
    assert (recall.queries, recall.singles) == (known.sum(), (~known).sum())
    for k, value in recall.items():
        assert value == pytest.approx(((expected > 0) & (expected <= k)).sum() / known.sum())
        assert ls.recall_at_k(X[:n], y[:n], (k,), singles="miss", **sets)[k] == pytest.approx(value * known.mean())
        of_all = ls.retrieval_recall(X[:n], y[:n], (k,), **sets)[k]
        assert of_all == pytest.approx((found[known, :k].sum(axis=1) / R[known]).mean())
    assert ls.precision_at_1(X[:n], y[:n], **sets) == recall[1]
    ap = [(np.cumsum(row[:r]) / np.arange(1, r + 1) * row[:r]).sum() / r for row, r in zip(found[known], R[known], strict=True)]
    assert ls.map_at_r(X[:n], y[:n], **sets) == pytest.approx(np.mean(ap))
    within = [row[:r].mean() for row, r in zip(found[known], R[known], strict=True)]
    assert ls.r_precision(X[:n], y[:n], **sets) == pytest.approx(np.mean(within))


def test_many_blocks_and_threads() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 6)).astype(np.float32)
    y = rng.integers(0, 700, 5000)
    Q, own = X[:1500] + rng.normal(0, 0.2, (1500, 6)).astype(np.float32), y[:1500].copy()
    Q[:300] = X[:300]  # ties at distance 0
    own[::7] = 10_000  # no such class in the gallery
    found = hits(X, y, Q, own)
    expected = np.where(found.any(axis=1), found.argmax(axis=1) + 1, 0)
    np.testing.assert_array_equal(first_ranks(X, y, queries=Q, query_labels=own), expected)
    assert (expected == 0).sum() == (own == 10_000).sum()


def test_labels_of_both_sets_are_the_same_classes() -> None:
    X, Q = np.array([[0.0], [1.0], [2.0]]), torch.tensor([[1.1], [1.9]], dtype=torch.float32)  # types may differ
    assert ls.recall_at_k(X, ["cup", "lamp", "sofa"], (1,), queries=Q, query_labels=["lamp", "sofa"]) == {1: 1.0}
    assert ls.recall_at_k(X, ["cup", "lamp", "sofa"], (1,), queries=Q, query_labels=["sofa", "lamp"]) == {1: 0.0}
    assert ls.recall_at_k(X, torch.tensor([5, 2**40, -3]), (1,), queries=Q, query_labels=[2**40, 7]).singles == 1
    with pytest.raises(ValueError, match="query_labels must be of the type of the labels, got <U4 and int64"):
        ls.recall_at_k(X, [1, 2, 3], queries=Q, query_labels=["lamp", "sofa"])
    with pytest.raises(ValueError, match="queries must come with query_labels, got none"):
        ls.recall_at_k(X, [1, 2, 3], queries=Q)
    with pytest.raises(ValueError, match="query_labels must come with queries, got none"):
        ls.map_at_r(X, [1, 1, 3], query_labels=[1])
    with pytest.raises(ValueError, match=r"labels must have shape \(m,\), one label per row of the embeddings"):
        ls.recall_at_k(X, [1, 2, 3], queries=Q, query_labels=[1])
    with pytest.raises(ValueError, match="queries must have the same dimension as the embeddings, 1, got 2"):
        ls.recall_at_k(X, [1, 2, 3], queries=np.ones((2, 2)), query_labels=[1, 2])
    with pytest.raises(ValueError, match="queries must be finite, but row 1 is not"):
        ls.r_precision(X, [1, 2, 3], queries=np.array([[0.0], [np.nan]]), query_labels=[1, 2])

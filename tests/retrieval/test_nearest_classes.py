"""Nearest images of the same and of other classes, compared with their definition on all distances; thresholds at a rate."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from liftedstruct.retrieval import nearest_by_class, threshold_at
from liftedstruct.retrieval.nearest_classes import _nearest_images
from retrieval import brute_force
from retrieval.test_recall import Array, images


def nearest_of(D2: NDArray[np.float64], allowed: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the distance and index of the nearest allowed image of each row, inf and n if there is none."""
    D2 = np.where(allowed, D2, np.inf)
    return np.sqrt(D2.min(axis=1)), np.where(allowed.any(axis=1), D2.argmin(axis=1), D2.shape[1])


@given(images(), st.integers(1, 22), st.integers(1, 9), st.integers(1, 9))
@settings(deadline=None, max_examples=80)
def test_equal_to_the_definition(case: tuple[Array, NDArray[np.int64]], n: int, height: int, width: int) -> None:
    X, y = case
    D2, own_class = brute_force.squares(X, X), y[:, None] == y
    np.fill_diagonal(D2, np.inf)
    itself = np.eye(len(X), dtype=bool)
    (same, _), (other, _) = nearest_of(D2, own_class & ~itself), nearest_of(D2, ~own_class)
    for found, expected in zip(nearest_by_class(X, y), (same, other), strict=True):
        np.testing.assert_array_equal(found, expected)
    n = min(n, len(X) - 1)
    blocks = _nearest_images(torch.from_numpy(X), y, height, width, gallery=n)
    for allowed, distance, index in (
        (own_class[n:, :n], blocks.same, blocks.same_index),
        (~own_class[n:, :n], blocks.other, blocks.other_index),
    ):
        expected, at = nearest_of(brute_force.squares(X[n:], X[:n]), allowed)
        np.testing.assert_array_equal(distance, expected)
        np.testing.assert_array_equal(index[np.isfinite(expected)], at[np.isfinite(expected)])
    for found, expected in zip(nearest_by_class(X[:n], y[:n], X[n:], y[n:]), (blocks.same, blocks.other), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_many_blocks() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 5, (3000, 4)).astype(np.float32), rng.integers(0, 400, 3000)  # many ties
    X[7] = 1e6  # an outlier
    D2, own_class = brute_force.squares(X, X), y[:, None] == y
    np.fill_diagonal(D2, np.inf)
    same, other = nearest_by_class(X, y)
    np.testing.assert_array_equal(same, nearest_of(D2, own_class & ~np.eye(3000, dtype=bool))[0])
    np.testing.assert_array_equal(other, nearest_of(D2, ~own_class)[0])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(0, 12), st.integers(1, 12))
def test_threshold_is_the_largest(values: list[int], a: int, b: int) -> None:
    distances, rate = np.array(values, dtype=float), min(1.0, a / b)
    t = threshold_at(distances, rate)
    assert (distances <= t).mean() <= rate
    more = math.nextafter(t, math.inf)
    assert t == math.inf or (distances <= more).mean() > rate
    assert threshold_at(distances[::-1], rate) == t


def test_thresholds_by_hand() -> None:
    D = np.array([0.0, 0.0, 1.0, np.inf])
    assert threshold_at(D, 0.25) < 0  # both zeros, or none
    assert threshold_at(D, 0.5) == math.nextafter(1, 0)
    assert threshold_at(D, 0.75) == np.finfo(float).max  # every finite distance
    assert threshold_at(D, 1) == math.inf
    assert threshold_at(np.arange(1, 101.0), 0.29) == math.nextafter(30, 0)  # 0.29 * 100 < 29 in float64
    for rate in (-0.1, 1.1, math.nan, "x", True):
        with pytest.raises(ValueError, match="rate must be between 0 and 1, got"):
            threshold_at(D, rate)  # type: ignore[arg-type]
    for bad in (np.empty(0), np.array([np.nan]), np.array([-1.0]), np.eye(2)):
        with pytest.raises(ValueError, match="distances must be a list of at least one number >= 0"):
            threshold_at(bad, 0.5)

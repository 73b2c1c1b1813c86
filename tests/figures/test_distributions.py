import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import StepPatch
from numpy.typing import NDArray

from figures.figure_checks import HOSTILE, check_drawable, check_tidy, legend_of, lines_of, words_of, x_of, y_of
from liftedstruct.figures.distributions import _pairs, confusion_figure, distance_histogram, inspection_figure
from liftedstruct.figures.style import FAINT, NEGATIVE, POSITIVE
from liftedstruct.losses import inspect_batch

# On a line: classes a = {0, 1}, b = {10, 12}. Distances within 1 and 2, between 10, 12, 9 and 11.
LINE = np.array([[0.0], [10.0], [1.0], [12.0]])
LABELS = ["a", "b", "a", "b"]


def stairs(axes: Axes, color: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return heights and edges of the outline of a color."""
    outlines = [patch for patch in axes.patches if isinstance(patch, StepPatch) and not patch.get_fill()]
    (patch,) = [patch for patch in outlines if to_hex(patch.get_edgecolor()) == color]
    values, edges, _ = patch.get_data()
    return np.asarray(values), np.asarray(edges)


def test_histogram_of_four_points() -> None:
    figure = distance_histogram(LINE, LABELS)
    (axes,) = figure.axes
    for color, distances in ((POSITIVE, [1, 2]), (NEGATIVE, [9, 10, 11, 12])):
        heights, edges = stairs(axes, color)
        assert edges[0] == 0
        assert edges[-1] == 12
        expected = np.zeros(len(heights))
        for distance in distances:
            expected[min(math.floor(distance * len(heights) / 12), len(heights) - 1)] += 100 / len(distances)
        np.testing.assert_allclose(heights, expected)
    assert x_of(lines_of(axes, POSITIVE)[0]) == [1.5, 1.5]
    assert x_of(lines_of(axes, NEGATIVE)[0]) == [10.5, 10.5]
    assert legend_of(figure) == ["same class: 2 pairs, median 1.5", "different classes: 4 pairs, median 10.5"]
    assert axes.get_title() == "A same-class pair is closer than a different-class pair in 100.0 % of cases"
    check_tidy(figure)


def test_the_title_counts_ties_by_half() -> None:
    """Compare with a loop over all pairs of pairs."""
    X, y = np.array([0.0, 2.0, 1.0, 5.0, 3.0]), [0, 0, 1, 1, 2]
    D = {pair: abs(X[pair[0]] - X[pair[1]]) for pair in combinations(range(5), 2)}
    same = [D[pair] for pair in D if y[pair[0]] == y[pair[1]]]
    other = [D[pair] for pair in D if y[pair[0]] != y[pair[1]]]
    share = np.mean([1.0 if s < o else 0.5 if s == o else 0.0 for s in same for o in other])
    (axes,) = distance_histogram(X[:, None], y).axes
    assert f"in {100 * share:.1f} % of cases" in axes.get_title()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=14), st.integers(1, 30), st.integers(0, 10**6))
def test_pairs_are_all_or_a_sample_of_them(labels: list[int], sample: int, seed: int) -> None:
    y = np.array(labels)
    for found, wanted in zip(_pairs(y, sample, np.random.default_rng(seed)), (True, False), strict=True):
        every = {pair for pair in combinations(range(len(y)), 2) if (y[pair[0]] == y[pair[1]]) == wanted}
        pairs = [(min(i, j), max(i, j)) for i, j in zip(*(side.tolist() for side in found), strict=True)]
        assert len(pairs) == len(set(pairs)) == min(sample, len(every))
        assert set(pairs) <= every


def test_a_sample_is_uniform_and_seeded() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 3)), np.arange(400) % 7
    i, j = _pairs(y, 4000, np.random.default_rng(1))[1]
    assert abs(np.concatenate((i, j)).mean() - 199.5) < 5  # standard error 1.3
    title = distance_histogram(X, y, sample=300, seed=1).axes[0].get_title()
    assert distance_histogram(X, y, sample=300, seed=1).axes[0].get_title() == title
    assert distance_histogram(X, y, sample=300, seed=2).axes[0].get_title() != title
    figure = distance_histogram(X, y, sample=300)
    assert all("300 pairs" in text for text in legend_of(figure))


def test_histogram_of_one_class_and_of_single_images() -> None:
    one = distance_histogram(LINE, [7, 7, 7, 7])
    assert one.axes[0].get_title() == "Only one class"
    assert len(legend_of(one)) == 1
    assert distance_histogram(LINE, [1, 2, 3, 4]).axes[0].get_title() == "No class has two images"
    equal = distance_histogram(np.ones((4, 2)), LABELS)
    assert "50.0 %" in equal.axes[0].get_title()
    check_tidy(equal)


def test_histogram_takes_tensors_and_half_types() -> None:
    expected = stairs(distance_histogram(LINE, LABELS).axes[0], NEGATIVE)[0]
    half = torch.from_numpy(LINE).half().requires_grad_()
    np.testing.assert_array_equal(stairs(distance_histogram(half, LABELS).axes[0], NEGATIVE)[0], expected)


@pytest.mark.parametrize(
    ("X", "y", "options", "text"),
    [
        (LINE[:1], ["a"], {}, r"embeddings must have two or more rows to have a distance, got 1\. Pass"),
        (LINE, LABELS[:3], {}, r"labels must have shape \(m,\)"),
        (LINE * np.nan, LABELS, {}, r"embeddings must be finite, but row 0 holds nan"),
        (LINE, LABELS, {"sample": 0}, r"sample must be a whole number >= 1, got 0"),
        (LINE, LABELS, {"seed": -1}, r"seed must be a whole number >= 0, got -1"),
    ],
)
def test_bad_input_of_the_histogram(X: NDArray[np.float64], y: list[str], options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        distance_histogram(X, y, **options)
    assert "\n" not in str(caught.value)


def test_inspection_of_a_batch() -> None:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(12) // 2
    X = 3.5 * torch.randn(6, 3, generator=rng)[y] + torch.randn(12, 3, generator=rng)
    seen = inspect_batch(X, y)
    assert 0 < int(seen.active.sum()) < len(seen.J)  # both active and inactive pairs
    figure = inspection_figure(seen)
    pairs, forces, negatives, weights = figure.axes[:4]
    trained, done = lines_of(pairs, POSITIVE)[0], lines_of(pairs, FAINT)[0]
    J = np.concatenate((y_of(trained), y_of(done)))
    np.testing.assert_allclose(J, seen.J.sort(descending=True).values, rtol=1e-6)
    assert (y_of(trained) > 0).all()
    assert (y_of(done) <= 0).all()
    assert f"{int(seen.active.sum())} of 6 are active" in pairs.get_title()
    cloud = forces.lines[0]
    np.testing.assert_allclose(x_of(cloud), seen.pull, rtol=1e-6)
    np.testing.assert_allclose(y_of(cloud), seen.push, rtol=1e-6)
    assert f"{int((seen.push > seen.pull).sum())} of 12" in forces.get_title()
    steps = lines_of(negatives, NEGATIVE)[0]
    np.testing.assert_allclose(y_of(steps), seen.effective_negatives.sort(descending=True).values, rtol=1e-6)
    assert "all 10 negatives" in words_of(negatives)
    np.testing.assert_allclose(np.asarray(weights.images[0].get_array()), seen.negative_weights, rtol=1e-6)
    assert f"Loss {seen.loss:.3g}; it would be {seen.collapsed_loss:.3g}" in figure.get_suptitle()
    check_tidy(figure)


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (torch.zeros(4, 2), [0, 0, 1, 1]),  # collapsed
        (torch.eye(4), [0, 1, 2, 3]),  # no positive pair
        (torch.eye(4), [0, 0, 0, 0]),  # no negative
        (torch.eye(1), [0]),
    ],
)
def test_inspection_of_odd_batches(X: torch.Tensor, y: list[int]) -> None:
    seen = inspect_batch(X, y)
    figure = inspection_figure(seen)
    check_tidy(figure)
    nothing = not len(seen.J) or not seen.J.isfinite().any()
    assert ("no positive pair with negatives" in words_of(figure.axes[0])) == nothing


NAMES = ["ant", "bee", "cat", "dog"]


def bars(axes: Axes) -> list[tuple[str, float, float]]:
    """Return (name, solid, hatched) of the bars from the top."""
    assert axes.yaxis_inverted()
    solid, hatched = ([bar.get_width() for bar in container] for container in axes.containers)
    assert [bar.get_x() for bar in axes.containers[1]] == solid
    names = [tick.get_text().replace("\u200e", "") for tick in axes.get_yticklabels()]
    return list(zip(names, solid, hatched, strict=True))


def test_confusions_worked_by_hand() -> None:
    """ant -> bee once, bee -> ant twice, cat -> dog once; the other images have a neighbor of their class."""
    labels = np.array([0, 0, 1, 1, 1, 2, 2, 3, 3])
    neighbors = np.array([[2, 1], [0, 2], [0, 3], [1, 2], [2, 3], [7, 6], [5, 7], [8, 5], [7, 6]])
    figure = confusion_figure(labels, neighbors, NAMES)
    assert bars(figure.axes[0]) == [("bee → ant", 2, 1), ("cat → dog", 1, 0)]
    title = figure.get_suptitle()
    assert all(token in title for token in ("4 of 9 images", "44.4 %", "2 of 2 confused pairs", "100 %"))
    one = confusion_figure(labels, neighbors, NAMES, top=1)
    assert bars(one.axes[0]) == [("bee → ant", 2, 1)]
    assert all(token in one.get_suptitle() for token in ("1 of 2 confused pairs", "75 %"))
    check_tidy(figure)
    check_tidy(one)


def test_no_confusions() -> None:
    figure = confusion_figure(np.array([0, 0, 1, 1]), np.array([[1], [0], [3], [2]]), NAMES)
    assert "no confusions" in words_of(figure.axes[0])
    assert "0 of 4 images (0.0 %)" in figure.get_suptitle()
    check_tidy(figure)


def test_class_names_of_any_kind() -> None:
    C = len(HOSTILE)
    labels = np.arange(2 * C) // 2
    neighbors = (np.arange(2 * C)[:, None] + 2) % (2 * C)
    figure = confusion_figure(labels, neighbors, HOSTILE)
    assert len(bars(figure.axes[0])) == C
    check_tidy(figure)
    check_drawable(lambda: confusion_figure(labels, neighbors, HOSTILE))


def test_many_pairs_of_long_names_fit() -> None:
    rng = np.random.default_rng(0)
    names = [f"{number}. a class whose name is longer than there is room for" for number in range(40)]
    figure = confusion_figure(rng.integers(40, size=900), rng.integers(900, size=(900, 3)), names, top=30)
    assert len(bars(figure.axes[0])) == 30
    check_tidy(figure)


@pytest.mark.parametrize(
    ("labels", "neighbors", "options", "text"),
    [
        ([0, 9], [[1], [0]], {}, r"labels must be .* 0 to 3, got .* from 0 to 9"),
        ([-1, 0], [[1], [0]], {}, r"labels must be .* from -1 to 0"),
        ([], [], {}, r"labels must be .* of shape \(0,\)"),
        (["ant", "bee"], [[1], [0]], {}, r"labels must be .*, got <U3"),
        ([0, 1], [1, 0], {}, r"neighbors must have shape \(n, k\).*got int64"),
        ([0, 1], [[1]], {}, r"neighbors must have shape \(n, k\).*got int64 of shape \(1, 1\)"),
        ([0, 1], [[1.0], [0.0]], {}, r"neighbors must have shape \(n, k\).*got float64"),
        ([0, 1], [[1], [2]], {}, r"neighbors must .* 0 to 1.* from 1 to 2"),
        ([0, 1], [[1], [0]], {"top": 0}, r"top must be a whole number >= 1, got 0"),
    ],
)
def test_bad_input_of_confusions(labels: Any, neighbors: Any, options: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        confusion_figure(labels, neighbors, NAMES, **options)
    assert "\n" not in str(caught.value)

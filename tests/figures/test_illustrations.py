import math
import re
from collections.abc import Callable

import matplotlib as mpl
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Arc, FancyBboxPatch, Polygon, Rectangle
from matplotlib.quiver import Quiver
from torch import Tensor

from liftedstruct import inspect_batch, lifted_struct_loss, structured_hinge_loss
from liftedstruct.figures import batch_graph, failure_modes, figure_bytes, mining, network_layouts
from liftedstruct.figures.illustrations.batch_graph import equidistant
from liftedstruct.figures.illustrations.failure_modes import POINTS, paper_moves
from liftedstruct.figures.illustrations.gradients import (
    Loss,
    contrastive_rows,
    distance_gradients,
    negative_gradient,
    pair_gradients,
    triplet_rows,
)
from liftedstruct.figures.illustrations.markers import DISSIMILAR, SIMILAR
from liftedstruct.figures.illustrations.mining import NEGATIVES, PAIR, plus, push_weights
from liftedstruct.figures.illustrations.mining import POINTS as MINING_POINTS
from liftedstruct.figures.style import styled

Y = torch.tensor([0, 0, 1, 1, 1, 2])
ALL = {(i, j) for i in range(6) for j in range(i + 1, 6)}
DRAW = (batch_graph, network_layouts, mining, failure_modes)


def marked(ax: Axes, word: str) -> set[tuple[int, int]]:
    """Return the pairs of rows in the ids of lines that start with a word."""
    names = [str(artist.get_gid()) for artist in (*ax.patches, *ax.lines)]
    found = [re.fullmatch(rf"{word} (\d+) (\d+)", name) for name in names]
    return {(int(match[1]), int(match[2])) for match in found if match}


# Gradients with respect to distances


def test_gradients_by_hand_where_all_distances_are_equal() -> None:
    """With all D = 0.5, margin 1 and |P| = 4, every number follows from counting."""
    X = equidistant(6, 0.5)
    torch.testing.assert_close(torch.pdist(X), torch.full((15,), 0.5, dtype=torch.float64))

    contrastive = distance_gradients(contrastive_rows, X, Y, 1.0)
    assert {pair for pair in ALL if contrastive[pair]} == {(0, 1), (2, 3), (4, 5)}
    assert contrastive[0, 1].item() == pytest.approx(2 * 0.5 / 6)  # D² / 6
    assert contrastive[4, 5].item() == pytest.approx(-2 * (1 - 0.5) / 6)  # (1 - D)² / 6

    triplet = distance_gradients(triplet_rows, X, Y, 1.0)
    assert {pair for pair in ALL if triplet[pair]} == {(0, 1), (0, 2), (3, 4), (3, 5)}
    assert triplet[0, 1].item() == pytest.approx(3 / 12 * 2 * 0.5)
    assert triplet[3, 5].item() == pytest.approx(-3 / 12 * 2 * 0.5)

    lifted = distance_gradients(lifted_struct_loss, X, Y, 1.0)
    assert {pair for pair in ALL if lifted[pair]} == ALL
    J_a, J_b = 1 + math.log(4 + 4), 1 + math.log(3 + 3)  # the pair of class 0 has 4 + 4 negatives, pairs of class 1 have 3 + 3
    assert lifted[0, 1].item() == pytest.approx(J_a / 4)
    assert lifted[2, 4].item() == pytest.approx(J_b / 4)
    assert lifted[0, 5].item() == pytest.approx(-J_a / 4 / 8)  # only in the sum for (0, 1)
    assert lifted[2, 5].item() == pytest.approx(-2 * J_b / 4 / 6)  # in the sums for (2, 3) and (2, 4)
    assert lifted[1, 3].item() == pytest.approx(-J_a / 4 / 8 - 2 * J_b / 4 / 6)


def of_distances(D: Tensor, y: Tensor, name: str) -> Tensor:
    """Compute the three equations directly from distances; only D_ij with i < j is used."""
    m, J = len(y), torch.zeros((), dtype=D.dtype)

    def at(i: int, j: int) -> Tensor:
        return D[min(i, j), max(i, j)]

    if name == "contrastive":
        for t in range(0, m, 2):
            J = J + (at(t, t + 1) ** 2 if y[t] == y[t + 1] else (1 - at(t, t + 1)).clamp_min(0) ** 2) / m
    elif name == "triplet":
        for t in range(0, m, 3):
            J = J + 3 / (2 * m) * (at(t, t + 1) ** 2 - at(t, t + 2) ** 2 + 1).clamp_min(0)
    else:
        P = [(i, j) for i, j in ALL if y[i] == y[j]]
        for i, j in P:
            terms = [(1 - at(a, k)).exp() for a in (i, j) for k in range(m) if y[k] != y[a]]
            J = J + (torch.stack(terms).sum().log() + at(i, j)).clamp_min(0) ** 2 / (2 * len(P))
    return J


@pytest.mark.parametrize(
    ("name", "loss"), [("contrastive", contrastive_rows), ("triplet", triplet_rows), ("lifted", lifted_struct_loss)]
)
@pytest.mark.parametrize("dimensions", [5, 9])
def test_gradients_equal_those_of_the_equations_in_the_distances(name: str, loss: Loss, dimensions: int) -> None:
    X = torch.randn(6, dimensions, generator=torch.Generator().manual_seed(dimensions), dtype=torch.float64) / 4
    D = torch.cdist(X, X).requires_grad_()
    (expected,) = torch.autograd.grad(of_distances(D, Y, name), D)
    torch.testing.assert_close(distance_gradients(loss, X, Y, 1.0).triu(1), expected, rtol=1e-6, atol=1e-8)


def test_gradients_of_a_pair_are_the_weights_of_the_microscope() -> None:
    """Apply Eq. 4 to the pair and its negatives, each in its own class, so that `inspect_batch` has no other pair."""
    seen = inspect_batch(MINING_POINTS[[*PAIR, *NEGATIVES]], [0, 0, 1, 2, 3, 4])
    J, gradients = pair_gradients(lifted_struct_loss, MINING_POINTS, PAIR, NEGATIVES, 1.0)
    assert pytest.approx(seen.J.item()) == J
    torch.testing.assert_close(-gradients / J, seen.pair_weights(0)[:, 2:])


def test_closed_hinges_and_classes_without_a_pair_have_no_gradient() -> None:
    def used(loss: Loss, X: Tensor, y: Tensor = Y) -> set[tuple[int, int]]:
        G = distance_gradients(loss, X, y, 1.0)
        return {pair for pair in ALL if G[pair]}

    y = torch.tensor([0, 0, 1, 2, 2, 3])
    assert ALL - used(lifted_struct_loss, equidistant(6, 0.5), y) == {(2, 5)}  # two single-image classes: in no sum of Eq. 4
    assert used(triplet_rows, equidistant(6, 0.5), y) == {(0, 1), (0, 2), (3, 4), (3, 5)}
    assert used(contrastive_rows, equidistant(6, 1.5)) == {(0, 1), (2, 3)}  # the negative pair is outside the margin
    far = equidistant(6, 0.5)
    far[2] *= 20  # x_3, a negative of the first triplet
    assert used(triplet_rows, far) == {(3, 4), (3, 5)}


# The batch as a graph


def test_batch_graph_draws_the_edges_that_have_a_gradient() -> None:
    figure = batch_graph()
    panels = figure.axes
    expected = [{(0, 1), (2, 3), (4, 5)}, {(0, 1), (0, 2), (3, 4), (3, 5)}, ALL]
    for ax, edges in zip(panels, expected, strict=True):
        assert marked(ax, "edge") == edges
        assert marked(ax, "unused") == ALL - edges
        for arc in (patch for patch in ax.patches if isinstance(patch, Arc) and str(patch.get_gid()).startswith("edge")):
            i, j = map(int, str(arc.get_gid()).split()[1:])
            similar = bool(Y[i] == Y[j])
            assert to_hex(arc.get_edgecolor()) == (SIMILAR if similar else DISSIMILAR)
            assert (arc.get_linestyle() in ("-", "solid")) == similar  # distinguishable without color
            assert (arc.theta1 == 0) == similar  # and by the side
    widths = {str(arc.get_gid()): arc.get_linewidth() for arc in panels[2].patches}
    assert widths["edge 0 1"] > widths["edge 2 3"] > widths["edge 1 3"] > widths["edge 2 5"] > widths["edge 0 5"]
    for ax, counts in zip(panels, ([3, 15, 2, 1], [4, 15, 2, 2], [15, 15, 4, 11]), strict=True):
        first, second = ax.get_xlabel().split(", at most ")
        assert [int(number) for number in re.findall(r"\d+", first + second.split("\n")[1])] == counts


# The network layouts


def test_network_layouts() -> None:
    (ax,) = network_layouts().axes
    said = [text.get_text() for text in ax.texts]
    assert said.count("CNN") == sum(isinstance(patch, Polygon) for patch in ax.patches) == 2 + 3 + 1
    assert said.count("=") == 1 + 2
    assert [text.get_text() for text in ax.texts if text.get_gid() == "label"] == list("110" + "112223")
    assert sorted(text for text in said if re.fullmatch("x[₁-₆]", text)) == sorted(f"x{c}" for c in "₁₂₃₄₅₆" * 3)
    places = [(text.get_position(), text.get_text()) for text in ax.texts]
    boxes = [patch for patch in ax.patches if isinstance(patch, FancyBboxPatch) and patch.get_gid() == "example"]
    inside = [
        {
            text
            for (x, y), text in places
            if box.get_x() < x < box.get_x() + box.get_width() and box.get_y() < y < box.get_y() + box.get_height()
        }
        for box in boxes
    ]
    assert inside == [set(), {"x₁", "x₂"}, {"x₁", "x₂", "x₃"}, {"x₁"}]  # the first is the key


# Mining


def test_mining_by_hand() -> None:
    """Nearest negatives: x_2 = (-0.55, -0.65) of x_3 = (0, 0), x_5 = (1.35, -0.6) of x_4 = (0.9, 0.25); 0.8515 < 0.9618."""
    X = MINING_POINTS
    nested = push_weights(structured_hinge_loss, X, PAIR, NEGATIVES, 1.0)
    torch.testing.assert_close(nested, torch.tensor([[0.0, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.float64))
    each = push_weights(plus, X, PAIR, NEGATIVES, 1.0)
    torch.testing.assert_close(each, torch.tensor([[0.0, 1, 0, 0], [0, 0, 1, 0]], dtype=torch.float64))
    smooth = push_weights(lifted_struct_loss, X, PAIR, NEGATIVES, 1.0)
    expected = torch.tensor([[math.exp(-math.dist(X[a], X[k])) for k in NEGATIVES] for a in PAIR], dtype=torch.float64)
    torch.testing.assert_close(smooth, expected / expected.sum())

    left, right, bars = mining().axes
    assert marked(left, "mined") == {(2, 1)}
    assert marked(left, "seen") == {(2, 0), (2, 4), (2, 5)}
    assert marked(right, "mined") == {(3, 4)}
    assert marked(right, "seen") == {(3, 0), (3, 1), (3, 5)}
    for ax, tokens in ((left, ("x₂", "0.85", "keeps it")), (right, ("x₅", "0.96", "keeps the other"))):
        assert all(token in ax.get_xlabel() for token in tokens)
    drawn = torch.tensor([bar.get_width() for bar in bars.patches if isinstance(bar, Rectangle)], dtype=torch.float64)
    torch.testing.assert_close(drawn.reshape(3, 2, 4), torch.stack((nested, each, smooth)))
    assert [label.get_text() for label in bars.get_yticklabels()][:5] == ["x₃–x₁", "x₃–x₂", "x₃–x₅", "x₃–x₆", "x₄–x₁"]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9))
def test_the_gradient_mines_the_nearest_of_either_side(seed: int, n: int) -> None:
    X = torch.randn(n + 2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights = push_weights(plus, X, (0, 1), list(range(2, n + 2)), 20.0)
    assert weights.argmax(dim=1).tolist() == torch.cdist(X[:2], X[2:]).argmin(dim=1).tolist()
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(2, dtype=torch.float64), rtol=1e-5, atol=1e-5)


# The failure modes


def test_failure_modes_by_hand() -> None:
    """x_i = (0, 0), its positive (0.4, 0.45), the negative (-0.75, -0.05), margin 1."""
    contrastive, triplet, lifted = paper_moves()
    D = math.hypot(0.75, 0.05)
    torch.testing.assert_close(contrastive.arrows[0], (1 - D) / D * torch.tensor([0.75, 0.05], dtype=torch.float64))  # m = 2
    assert contrastive.norm == pytest.approx(1 - D)
    torch.testing.assert_close(triplet.arrows[0], torch.tensor([0.4 + 0.75, 0.45 + 0.05], dtype=torch.float64))  # x_p - x_n
    torch.testing.assert_close(triplet.arrows[1], torch.tensor([-0.4, -0.45], dtype=torch.float64))  # x_a - x_p
    seen = inspect_batch(POINTS, torch.arange(9) // 3)  # pull and push by the law of cosines
    squares = seen.pull[0] ** 2 + seen.push[0] ** 2 + 2 * seen.pull[0] * seen.push[0] * seen.opposition[0]
    assert lifted.norm == pytest.approx(squares.sqrt().item())


@pytest.mark.parametrize("step", [0.001, 0.05])
def test_failure_modes_fail_and_succeed_as_claimed(step: float) -> None:
    """Move along the arrow and compute the distances, independently of the rates in the figure."""
    X = POINTS
    changes = []
    for seen in paper_moves():
        there = X[0] + step * seen.arrows[0] / seen.norm
        changes.append((there - X[1:]).norm(dim=1) - (X[0] - X[1:]).norm(dim=1))
        torch.testing.assert_close(changes[-1].sign(), seen.rates[1:].sign())
    contrastive, triplet, lifted = changes
    own, squares, diamonds = slice(0, 2), slice(2, 5), slice(5, 8)
    for failed in (contrastive, triplet):
        assert (failed[squares] > 0).all()  # away from the sampled class ...
        assert (failed[diamonds] < -0.5 * step).all()  # ... straight toward the third
    assert contrastive[1] > 0  # and away from one of its own
    assert (lifted[own] < -0.5 * step).all()
    assert (lifted[squares] > 0).all()
    assert (lifted[diamonds] > 0).all()


def test_every_pair_and_triplet_that_moves_it_at_all_fails() -> None:
    """Check the captions' numbers: batch, points, norm, angle, closer to its own class and to others; then all samples."""
    captions = [ax.get_xlabel().replace("\n", " ") for ax in failure_modes().axes]
    numbers = [[float(number) for number in re.findall(r"\d+(?:\.\d+)?", caption)] for caption in captions]
    assert numbers[0] == [2, 9, 0.25, 20, 1, 2, 3, 6, 4, 6, 2]  # 4 of 6 pairs go wrong, 2 do not move it
    assert numbers[1][:4] == [3, 9, 1.25, 40]
    assert numbers[1][-2:] == [12, 12]  # triplets
    assert numbers[2] == [9, 9, 0.75, 104, 2, 2, 0, 6]


def test_arrows_are_the_gradients() -> None:
    """Compare the drawn arrows with autograd."""
    X = POINTS
    y = torch.arange(9) // 3
    losses: tuple[tuple[Callable[..., Tensor], list[int], int], ...] = (
        (contrastive_rows, [0, 3], 1),
        (triplet_rows, [0, 1, 3], 2),
        (lifted_struct_loss, list(range(9)), 3),
    )
    for ax, (loss, rows, positives) in zip(failure_modes().axes, losses, strict=True):
        points = X[rows].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(points, y[rows]), points)
        (arrows,) = (artist for artist in ax.collections if isinstance(artist, Quiver))
        drawn = torch.tensor(np.stack((arrows.U, arrows.V), axis=1))
        torch.testing.assert_close(drawn, -gradient[:positives])
        torch.testing.assert_close(torch.tensor(np.asarray(arrows.XY)), X[rows[:positives]])
        assert arrows.angles == arrows.scale_units == "xy"
        torch.testing.assert_close(negative_gradient(loss, X[rows], y[rows], 1.0), -gradient)


# All four


@pytest.mark.parametrize("draw", DRAW)
def test_every_format_the_same_bytes_each_time_and_settings_untouched(draw: Callable[[], Figure]) -> None:
    before = mpl.rcParams.copy()
    figure = draw()
    svg = figure_bytes(figure, "svg")
    assert svg == figure_bytes(draw(), "svg")
    assert svg.startswith(b"<?xml")
    assert figure_bytes(figure, "pdf").startswith(b"%PDF")
    assert mpl.rcParams == before


@pytest.mark.parametrize("draw", DRAW)
def test_all_text_is_inside_the_figure(draw: Callable[[], Figure]) -> None:
    figure = draw()
    with styled():
        FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
    texts = [text for legend in figure.legends for text in (*legend.get_texts(), legend.get_title())]
    for ax in figure.axes:
        texts += [*ax.texts, ax.title, ax.xaxis.label, *ax.get_yticklabels()]
    for text in texts:
        if text.get_text():
            place = text.get_window_extent()
            assert -1 <= place.x0 < place.x1 <= figure.bbox.x1 + 1, text.get_text()
            assert -1 <= place.y0 < place.y1 <= figure.bbox.y1 + 1, text.get_text()

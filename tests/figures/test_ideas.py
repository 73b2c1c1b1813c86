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
from liftedstruct.figures.canvas import drawing, picture_bytes
from liftedstruct.figures.ideas import batch_graph, failure_modes, mining, network_layouts
from liftedstruct.figures.ideas import failures as fail
from liftedstruct.figures.ideas import hard_negatives as hard
from liftedstruct.figures.ideas.batch_edges import equidistant
from liftedstruct.figures.ideas.marks import DISSIMILAR, SIMILAR
from liftedstruct.figures.ideas.slopes import Loss, contrastive_rows, descent, distance_slopes, pair_slopes, triplet_rows

Y = torch.tensor([0, 0, 1, 1, 1, 2])
ALL = {(i, j) for i in range(6) for j in range(i + 1, 6)}
DRAW = (batch_graph, network_layouts, mining, failure_modes)


def marked(ax: Axes, word: str) -> set[tuple[int, int]]:
    """The pairs of rows in the names of the lines that start with a word."""
    names = [str(artist.get_gid()) for artist in (*ax.patches, *ax.lines)]
    found = [re.fullmatch(rf"{word} (\d+) (\d+)", name) for name in names]
    return {(int(match[1]), int(match[2])) for match in found if match}


# The slopes


def test_slopes_by_hand_where_all_distances_are_equal() -> None:
    """All D = 0.5, margin 1, |P| = 4, so every number follows from counting."""
    X = equidistant(6)
    torch.testing.assert_close(torch.pdist(X), torch.full((15,), 0.5, dtype=torch.float64))

    contrastive = distance_slopes(contrastive_rows, X, Y, 1.0)
    assert {pair for pair in ALL if contrastive[pair]} == {(0, 1), (2, 3), (4, 5)}
    assert contrastive[0, 1].item() == pytest.approx(2 * 0.5 / 6)  # D² / 6
    assert contrastive[4, 5].item() == pytest.approx(-2 * (1 - 0.5) / 6)  # (1 - D)² / 6

    triplet = distance_slopes(triplet_rows, X, Y, 1.0)
    assert {pair for pair in ALL if triplet[pair]} == {(0, 1), (0, 2), (3, 4), (3, 5)}
    assert triplet[0, 1].item() == pytest.approx(3 / 12 * 2 * 0.5)
    assert triplet[3, 5].item() == pytest.approx(-3 / 12 * 2 * 0.5)

    lifted = distance_slopes(lifted_struct_loss, X, Y, 1.0)
    assert {pair for pair in ALL if lifted[pair]} == ALL
    J_a, J_b = 1 + math.log(4 + 4), 1 + math.log(3 + 3)  # the pair of class 0 has 4 + 4 negatives, those of class 1 have 3 + 3
    assert lifted[0, 1].item() == pytest.approx(J_a / 4)
    assert lifted[2, 4].item() == pytest.approx(J_b / 4)
    assert lifted[0, 5].item() == pytest.approx(-J_a / 4 / 8)  # only in the sum of (0, 1)
    assert lifted[2, 5].item() == pytest.approx(-2 * J_b / 4 / 6)  # in those of (2, 3) and (2, 4)
    assert lifted[1, 3].item() == pytest.approx(-J_a / 4 / 8 - 2 * J_b / 4 / 6)


def of_distances(D: Tensor, y: Tensor, name: str) -> Tensor:
    """The three equations with the distances themselves as their input; D_ij is read where i < j."""
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
def test_slopes_equal_those_of_the_equations_in_the_distances(name: str, loss: Loss, dimensions: int) -> None:
    X = torch.randn(6, dimensions, generator=torch.Generator().manual_seed(dimensions), dtype=torch.float64) / 4
    D = torch.cdist(X, X).requires_grad_()
    (expected,) = torch.autograd.grad(of_distances(D, Y, name), D)
    torch.testing.assert_close(distance_slopes(loss, X, Y, 1.0).triu(1), expected, rtol=1e-6, atol=1e-8)


def test_slopes_of_a_pair_are_the_weights_of_the_microscope() -> None:
    """Eq. 4 over the pair and its negatives, each of a class of its own, where the microscope has no other pair to look at."""
    X = hard.POINTS
    seen = inspect_batch(X[[2, 3, 0, 1, 4, 5]], [0, 0, 1, 2, 3, 4])
    J, slopes = pair_slopes(lifted_struct_loss, X, (2, 3), [0, 1, 4, 5], 1.0)
    assert pytest.approx(seen.J.item()) == J
    torch.testing.assert_close(-slopes / J, seen.pair_weights(0)[:, 2:])


# The batch as a graph


def test_batch_graph_draws_the_edges_that_have_a_slope() -> None:
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
            assert (arc.get_linestyle() in ("-", "solid")) == similar  # told apart without the colour, too
            assert (arc.theta1 == 0) == similar  # and by the side
    widths = {str(arc.get_gid()): arc.get_linewidth() for arc in panels[2].patches}
    assert widths["edge 0 1"] > widths["edge 2 3"] > widths["edge 1 3"] > widths["edge 2 5"] > widths["edge 0 5"]
    said = [ax.get_xlabel() for ax in panels]
    assert said[0].startswith("3 of 15 edges have a gradient, at most m/2.\n2 similar, 1 dissimilar")
    assert said[1].startswith("4 of 15 edges have a gradient, at most 2m/3.\n2 similar, 2 dissimilar")
    assert said[2].startswith("15 of 15 edges have a gradient, at most m(m − 1)/2.\n4 similar, 11 dissimilar")


def test_batch_graph_sees_hinges_that_are_closed_and_classes_without_a_pair() -> None:
    contrastive, triplet, lifted = batch_graph(labels=list("aabccd")).axes
    assert marked(lifted, "unused") == {(2, 5)}  # two classes of one image: in no sum of Eq. 4
    assert marked(triplet, "edge") == {(0, 1), (0, 2), (3, 4), (3, 5)}
    contrastive, triplet, lifted = batch_graph(equidistant(6, 1.5)).axes
    assert marked(contrastive, "edge") == {(0, 1), (2, 3)}  # the negative pair is outside the margin
    far = equidistant(6)
    far[2] *= 20  # x_3, a negative of the first triplet
    assert marked(batch_graph(far).axes[1], "edge") == {(3, 4), (3, 5)}


@pytest.mark.parametrize(
    ("points", "labels", "error"),
    [
        (None, "aabbb", r"the paper's batch has six images, got 5 labels\. Pass six"),
        (None, "ababab", r"triplet_loss needs anchor and positive of one class"),
        (equidistant(5), "aabbbc", r"one label per row of the embeddings: got \(6,\) for 5 rows"),
        (torch.rand(6, 2), "aabbbc", r"6 points must span 5 dimensions, got 2\. Pass embeddings of more dimensions"),
        (torch.ones(6, 9), "aabbbc", r"6 points must span 5 dimensions, got 0"),
        (torch.full((6, 9), torch.nan), "aabbbc", r"embeddings must be finite, row 0 holds nan"),
    ],
)
def test_batch_graph_says_what_it_needs(points: Tensor | None, labels: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        batch_graph(points, list(labels))
    with pytest.raises(ValueError, match="margin must be a finite number"):
        batch_graph(margin=-1)


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


def test_network_layouts_of_other_labels_and_of_pictures() -> None:
    pictures = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 4, 3), dtype=np.uint8)
    (ax,) = network_layouts(["b", "b", "a", "c", "c", "a"], pictures).axes
    assert [text.get_text() for text in ax.texts if text.get_gid() == "label"] == list("100" + "221331")
    shown = [int(np.asarray(image.get_array())[0, 0, 0]) for image in ax.images]
    assert shown == [*(0, 2, 4, 1, 3, 5), *(0, 3, 1, 4, 2, 5), *range(6)]  # branch by branch
    assert sum(isinstance(patch, Rectangle) and patch.get_height() == 0.46 for patch in ax.patches) == 18
    with pytest.raises(ValueError, match=r"images must be uint8 of shape \(6, h, w, 3\), got float64 of \(6, 4, 4, 3\)"):
        network_layouts(images=pictures.astype(float))
    with pytest.raises(ValueError, match=r"got uint8 of \(5, 4, 4, 3\)\. Pass six RGB pictures"):
        network_layouts(images=pictures[:5])
    with pytest.raises(ValueError, match="the paper's batch has six images, got 7 labels"):
        network_layouts(list("aabbbcd"))


# Mining


def test_mining_by_hand() -> None:
    """x_3 = (0, 0) has x_2 = (-0.55, -0.65) nearest, x_4 = (0.9, 0.25) has x_5 = (1.35, -0.6); 0.8515 < 0.9618."""
    X, negatives = hard.POINTS, [0, 1, 4, 5]
    nested = hard.push_weights(structured_hinge_loss, X, (2, 3), negatives, 1.0)
    torch.testing.assert_close(nested, torch.tensor([[0.0, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.float64))
    each = hard.push_weights(hard.plus, X, (2, 3), negatives, 1.0)
    torch.testing.assert_close(each, torch.tensor([[0.0, 1, 0, 0], [0, 0, 1, 0]], dtype=torch.float64))
    smooth = hard.push_weights(lifted_struct_loss, X, (2, 3), negatives, 1.0)
    expected = torch.tensor([[math.exp(-math.dist(X[a], X[k])) for k in negatives] for a in (2, 3)], dtype=torch.float64)
    torch.testing.assert_close(smooth, expected / expected.sum())

    left, right, bars = mining().axes
    assert marked(left, "mined") == {(2, 1)}
    assert marked(left, "seen") == {(2, 0), (2, 4), (2, 5)}
    assert marked(right, "mined") == {(3, 4)}
    assert marked(right, "seen") == {(3, 0), (3, 1), (3, 5)}
    assert left.get_xlabel() == "Mined: x₂, the nearest, at 0.85.\nEq. 3 keeps it."
    assert right.get_xlabel() == "Mined: x₅, the nearest, at 0.96.\nEq. 3 keeps the other one."
    drawn = torch.tensor([bar.get_width() for bar in bars.patches if isinstance(bar, Rectangle)], dtype=torch.float64)
    torch.testing.assert_close(drawn.reshape(3, 2, 4), torch.stack((nested, each, smooth)))
    assert [label.get_text() for label in bars.get_yticklabels()][:5] == ["x₃–x₁", "x₃–x₂", "x₃–x₅", "x₃–x₆", "x₄–x₁"]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9))
def test_the_gradient_mines_the_nearest_of_either_side(seed: int, n: int) -> None:
    X = torch.randn(n + 2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights = hard.push_weights(hard.plus, X, (0, 1), list(range(2, n + 2)), 20.0)
    assert weights.argmax(dim=1).tolist() == torch.cdist(X[:2], X[2:]).argmin(dim=1).tolist()
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(2, dtype=torch.float64), rtol=1e-5, atol=1e-5)


def test_mining_where_no_hinge_is_open() -> None:
    far = torch.tensor([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0], [9.0, -8.0]])
    figure = mining(far, [4, 4, 7, 8], (0, 1))
    assert marked(figure.axes[0], "mined") == {(0, 3)}
    assert figure.axes[0].get_xlabel().endswith("J is not above 0, and so there is no gradient.")
    assert all(bar.get_width() == 0 for bar in figure.axes[2].patches if isinstance(bar, Rectangle))


def test_mining_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match=r"pair must be two rows of one class, got \(1, 2\)\. Pass the rows"):
        mining(pair=(1, 2))
    with pytest.raises(ValueError, match=r"pair must be two rows of one class, got \(2, 9\)"):
        mining(pair=(2, 9))
    with pytest.raises(ValueError, match=r"pair must be two rows of one class, got \(2,\)"):
        mining(pair=(2,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a row of the pair must be a whole number >= 0, got -1"):
        mining(pair=(-1, 4))
    with pytest.raises(ValueError, match=r"no negative may lie on the line through the pair, .*, got row 2\. Move it aside"):
        mining(torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]]), [0, 0, 1], (0, 1))
    with pytest.raises(ValueError, match="a pair needs negatives to mine, got points of one class"):
        mining(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), [0, 0], (0, 1))
    with pytest.raises(ValueError, match=r"points must be of the plane, shape \(m, 2\), got \(6, 3\)"):
        mining(torch.rand(6, 3))
    with pytest.raises(ValueError, match="points must lie apart, got rows 0 and 2 at one place"):
        mining(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]), [0, 0, 1], (0, 1))
    with pytest.raises(ValueError, match=r"at most 6 classes, which is how many marks there are, got 7 in shape \(7,\)"):
        mining(torch.rand(7, 2), list(range(7)))


# The failure modes


def three() -> tuple[fail.Move, fail.Move, fail.Move]:
    return fail.moves(fail.POINTS, torch.arange(9) // 3, 0, 1, 3, 1.0)


def test_failure_modes_by_hand() -> None:
    """x_i = (0, 0), its positive (0.4, 0.45), the negative (-0.75, -0.05), margin 1."""
    contrastive, triplet, lifted = three()
    D = math.hypot(0.75, 0.05)
    torch.testing.assert_close(contrastive.arrows[0], (1 - D) / D * torch.tensor([0.75, 0.05], dtype=torch.float64))  # m = 2
    assert contrastive.norm == pytest.approx(1 - D)
    torch.testing.assert_close(triplet.arrows[0], torch.tensor([0.4 + 0.75, 0.45 + 0.05], dtype=torch.float64))  # x_p - x_n
    torch.testing.assert_close(triplet.arrows[1], torch.tensor([-0.4, -0.45], dtype=torch.float64))  # x_a - x_p
    seen = inspect_batch(fail.POINTS, torch.arange(9) // 3)  # pull and push by the law of cosines
    squares = seen.pull[0] ** 2 + seen.push[0] ** 2 + 2 * seen.pull[0] * seen.push[0] * seen.opposition[0]
    assert lifted.norm == pytest.approx(squares.sqrt().item())


@pytest.mark.parametrize("step", [0.001, 0.05])
def test_failure_modes_fail_and_succeed_as_claimed(step: float) -> None:
    """Walk along the arrow and measure the distances: nothing here comes from the rates that the figure states."""
    X = fail.POINTS
    changes = []
    for seen in three():
        there = X[0] + step * seen.arrows[0] / seen.norm
        changes.append((there - X[1:]).norm(dim=1) - (X[0] - X[1:]).norm(dim=1))
        torch.testing.assert_close(changes[-1].sign(), seen.rates[1:].sign())
    contrastive, triplet, lifted = changes
    own, squares, diamonds = slice(0, 2), slice(2, 5), slice(5, 8)
    for failed in (contrastive, triplet):
        assert (failed[squares] > 0).all()  # away from the class that was drawn ...
        assert (failed[diamonds] < -0.5 * step).all()  # ... straight towards the third
    assert contrastive[1] > 0  # and away from one of its own
    assert (lifted[own] < -0.5 * step).all()
    assert (lifted[squares] > 0).all()
    assert (lifted[diamonds] > 0).all()


def test_every_pair_and_triplet_that_moves_it_at_all_fails() -> None:
    said = [ax.get_xlabel().replace("\n", " ") for ax in failure_modes().axes]
    assert "2 of 9 points in the batch. ∂J/∂xᵢ has norm 0.25; the arrow is 20° off the way to the diamonds." in said[0]
    assert "xᵢ comes nearer to 1 of 2 of its own class and to 3 of 6 of the other classes." in said[0]
    assert said[0].endswith(
        "4 of the 6 pairs that can be drawn for it bring it nearer to a point of another class; 2 do not move it."
    )
    assert "3 of 9 points in the batch. ∂J/∂xₐ has norm 1.25; the arrow is 40° off the way to the diamonds." in said[1]
    assert said[1].endswith("12 of the 12 triplets that can be drawn for it bring it nearer to a point of another class.")
    assert "9 of 9 points in the batch. ∂J/∂xᵢ has norm 0.75; the arrow is 104° off the way to the diamonds." in said[2]
    assert said[2].endswith("xᵢ comes nearer to 2 of 2 of its own class and to 0 of 6 of the other classes.")
    assert fail.angle_between(torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])) == pytest.approx(135)


def test_arrows_are_the_gradients() -> None:
    """What stands in the drawing, against autograd called here."""
    X = fail.POINTS
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
        torch.testing.assert_close(descent(loss, X[rows], y[rows], 1.0), -gradient)


def test_failure_modes_out_of_reach() -> None:
    contrastive, triplet, lifted = failure_modes(3 * fail.POINTS).axes
    assert (
        contrastive.get_xlabel()
        .replace("\n", " ")
        .startswith("2 of 9 points in the batch, none that counts within the margin: ∂J/∂xᵢ is 0.")
    )
    assert not any(isinstance(artist, Quiver) for artist in (*contrastive.collections, *triplet.collections))
    assert any(isinstance(artist, Quiver) for artist in lifted.collections)


def test_failure_modes_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match=r"got rows 0, 3, 1 of classes \[0, 1, 0\]\. Choose rows by their labels"):
        failure_modes(positive=3, negative=1)
    with pytest.raises(ValueError, match=r"positive must be another row of i's class"):
        failure_modes(i=1)
    with pytest.raises(ValueError, match=r"negative must be a row of the points, 0 to 8, got 9\. Rows count from 0"):
        failure_modes(negative=9)
    with pytest.raises(ValueError, match=r"failure_modes needs three classes, got 2"):
        failure_modes(labels=list("aaabbbbbb"))
    with pytest.raises(ValueError, match=r"labels must have shape \(m,\), one label per row"):
        failure_modes(labels=list("aaab"))


# All four


@pytest.mark.parametrize("draw", DRAW)
def test_every_format_the_same_bytes_each_time_and_settings_untouched(draw: Callable[[], Figure]) -> None:
    before = mpl.rcParams.copy()
    figure = draw()
    svg = picture_bytes(figure, "svg")
    assert svg == picture_bytes(draw(), "svg")
    assert svg.startswith(b"<?xml")
    assert picture_bytes(figure, "pdf").startswith(b"%PDF")
    assert mpl.rcParams == before


@pytest.mark.parametrize("draw", DRAW)
def test_all_text_is_inside_the_figure(draw: Callable[[], Figure]) -> None:
    figure = draw()
    with drawing():
        FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
    texts = [text for legend in figure.legends for text in (*legend.get_texts(), legend.get_title())]
    for ax in figure.axes:
        texts += [*ax.texts, ax.title, ax.xaxis.label, *ax.get_yticklabels()]
    for text in texts:
        if text.get_text():
            place = text.get_window_extent()
            assert -1 <= place.x0 < place.x1 <= figure.bbox.x1 + 1, text.get_text()
            assert -1 <= place.y0 < place.y1 <= figure.bbox.y1 + 1, text.get_text()

"""Three networks side by side: inputs, branches, and the labels that each loss needs (Figure 3 of the paper)."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon, Rectangle

from liftedstruct.figures.illustrations.batch_graph import LABELS
from liftedstruct.figures.illustrations.markers import MARKERS, TITLES, draw_marker, hide_axes, point_name
from liftedstruct.figures.style import COLORS, INK, METHOD_NAMES, PAPER, styled

__all__ = ["network_layouts"]

EXAMPLE = "#1f9d55"  # the green rounded box
WIDTH, HEIGHT = 10.5, 5.3  # inches; also the units of all coordinates below
CARD, STEP = 0.46, 0.56  # side of an image, and spacing of images
CENTERS = (2.4, 5.75, 8.72)  # x of the networks
BRANCH = 1.02  # spacing of branches
CELL = 0.26  # side of a label
IMAGES, CNN, EMBEDDING, LOSS, NOTE = 4.52, 2.54, 1.72, 0.98, 0.56  # heights of the layers, from top to bottom
LAYERS = {"images": IMAGES - STEP, "network\n= shared weights": CNN, "embedding": EMBEDDING, "loss": LOSS}
SHADES = ("#4b5563", "#c5cad1", "#8a929c", "#eceef1", "#6b7280")  # of an embedding's cells
CENTERED: dict[str, Any] = {"ha": "center", "va": "center"}


@styled()
def network_layouts() -> Figure:
    """Draw the path from images through network and embedding to each of the three losses.

    The batch of six images is the same for all three. The green rounded box marks one example.
    """
    figure = Figure(figsize=(WIDTH, HEIGHT), facecolor=PAPER)
    ax = figure.add_axes((0, 0, 1, 1))
    hide_axes(ax)
    ax.set(xlim=(0, WIDTH), ylim=(0, HEIGHT), aspect="equal")
    for text, height in LAYERS.items():
        ax.text(0.2, height, text, fontsize=9, va="center", fontstyle="italic", linespacing=1.4)
    _round_box(ax, [(0.33, IMAGES - 2 * STEP)], side=0.16)
    ax.text(0.56, IMAGES - 2 * STEP, "one example", fontsize=9, va="center", fontstyle="italic")
    # rows in the order that each loss expects: 2t, 2t + 1; then 3t, 3t + 1, 3t + 2; then all
    pairs = LABELS.reshape(3, 2).tolist()
    _draw_branches(ax, CENTERS[0], TITLES[0], {"first": [[0], [2], [4]], "second": [[1], [3], [5]]}, "m/2 × c", example=[0, 1])
    _draw_loss(ax, CENTERS[0], "contrastive", "m/2 distances, one per pair.\nLabels: same class or not.")
    _draw_labels(ax, CENTERS[0], 1.44, "binary", [[int(a == b)] for a, b in pairs])
    branches = {"anchor": [[0], [3]], "positive": [[1], [4]], "negative": [[2], [5]]}
    _draw_branches(ax, CENTERS[1], TITLES[1], branches, "m/3 × c", example=[0, 1, 2])
    _draw_loss(ax, CENTERS[1], "triplet", "2m/3 distances, two per triplet.\nLabels: none (implied by the row order).")
    _draw_branches(ax, CENTERS[2], TITLES[2], {"whole batch": [[0, 1], [2, 3], [4, 5]]}, "m × c", example=[0])
    _draw_loss(ax, CENTERS[2], "lifted_struct", "All m(m − 1)/2 distances, one branch.\nLabels: the class of each image.")
    _draw_labels(ax, CENTERS[2], 1.13, "multiclass", [[a + 1, b + 1] for a, b in pairs])
    return figure


def _draw_branches(
    ax: Axes, middle: float, title: str, branches: dict[str, list[list[int]]], size: str, example: list[int]
) -> None:
    """Draw the branches of one network, each with the grid of its rows; `example` rows are boxed."""
    ax.text(middle, HEIGHT - 0.22, title, fontsize=10, fontweight="bold", **CENTERED)
    places: dict[int, tuple[float, float]] = {}
    for number, (name, grid) in enumerate(branches.items()):
        x = middle + (number - (len(branches) - 1) / 2) * BRANCH
        for line, rows in enumerate(grid):
            for column, row in enumerate(rows):
                places[row] = x + (column - (len(rows) - 1) / 2) * STEP, IMAGES - line * STEP - (3 - len(grid)) * STEP / 2
        ax.text(x, IMAGES - 2.62 * STEP, name, fontsize=8, color=INK, **CENTERED)
        _draw_branch(ax, x, size)
        _arrow(ax, (x, EMBEDDING - 0.17), (middle + (x - middle) * 0.55, LOSS + 0.24))
        if number:
            ax.text(x - BRANCH / 2, CNN, "=", fontsize=13, fontweight="bold", **CENTERED)
    for row, place in places.items():
        label = int(LABELS[row])
        draw_marker(ax, place, label, 24, point_name(row))
        _square(ax, place, CARD, fc="none", ec=MARKERS[label].color, lw=1.1, zorder=4)
    _round_box(ax, [places[row] for row in example])


def _draw_branch(ax: Axes, x: float, size: str) -> None:
    """Draw network and embedding of one branch."""
    _arrow(ax, (x, IMAGES - 2.85 * STEP), (x, CNN + 0.29))
    top, bottom = CNN + 0.28, CNN - 0.28
    corners = [(x - 0.4, top), (x + 0.4, top), (x + 0.24, bottom), (x - 0.24, bottom)]
    ax.add_patch(Polygon(corners, fc="#e7eaee", ec=INK, lw=1.1))
    ax.text(x, CNN, "CNN", fontsize=9, fontweight="bold", **CENTERED)
    _arrow(ax, (x, CNN - 0.29), (x, EMBEDDING + 0.17))
    for cell, shade in enumerate(SHADES):
        ax.add_patch(Rectangle((x - 0.35 + 0.14 * cell, EMBEDDING - 0.07), 0.14, 0.22, fc=shade, ec=INK, lw=0.7))
    box = {"fc": PAPER, "ec": "none", "pad": 0.6}
    ax.text(x + 0.02, EMBEDDING - 0.13, size, ha="center", va="top", fontsize=7.5, bbox=box, zorder=4)


def _draw_loss(ax: Axes, middle: float, method: str, note: str) -> None:
    box: dict[str, Any] = {"fc": PAPER, "ec": COLORS[method], "lw": 2.2, "zorder": 3}
    ax.add_patch(FancyBboxPatch((middle - 0.95, LOSS - 0.22), 1.9, 0.44, "round,pad=0,rounding_size=0.08", **box))
    loss = f"{METHOD_NAMES.get(method, method)} loss"
    ax.text(middle, LOSS, loss, fontsize=9, fontweight="bold", zorder=4, **CENTERED)
    ax.text(middle, NOTE, note, ha="center", va="top", fontsize=8, linespacing=1.4)


def _draw_labels(ax: Axes, middle: float, offset: float, kind: str, labels: list[list[int]]) -> None:
    """Draw the grid of labels beside the images, and their path to the loss."""
    x = middle + offset
    for line, values in enumerate(labels):
        for column, value in enumerate(values):
            at = x + (column - (len(values) - 1) / 2) * CELL, IMAGES - line * STEP
            _square(ax, at, CELL, fc="#fff7e0", ec=INK, lw=0.8)
            ax.text(*at, str(value), ha="center", va="center_baseline", fontsize=8.5, gid="label")
    ax.text(x, IMAGES - 2.72 * STEP, f"{kind}\nlabels", fontsize=8, linespacing=1.1, **CENTERED)
    ax.plot([x, x], [IMAGES - 3.1 * STEP, LOSS], color=INK, lw=1.1, solid_capstyle="butt")
    _arrow(ax, (x, LOSS), (middle + 0.95, LOSS))


def _square(ax: Axes, center: tuple[float, float], side: float, **style: Any) -> None:
    ax.add_patch(Rectangle((center[0] - side / 2, center[1] - side / 2), side, side, **style))


def _round_box(ax: Axes, places: Sequence[tuple[float, float]], side: float = CARD) -> None:
    """Draw the green rounded box around one example."""
    (left, right), (low, high) = ((min(along), max(along)) for along in zip(*places, strict=True))
    corner, size = (left - side / 2, low - side / 2), (right - left + side, high - low + side)
    shape = f"round,pad=0.06,rounding_size={0.3 * side}"
    ax.add_patch(FancyBboxPatch(corner, *size, shape, fc="none", ec=EXAMPLE, lw=2.6, zorder=6, gid="example"))


def _arrow(ax: Axes, tail: tuple[float, float], head: tuple[float, float]) -> None:
    style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 9, "lw": 1.1, "color": INK, "zorder": 2}
    ax.add_patch(FancyArrowPatch(tail, head, shrinkA=0, shrinkB=0, **style))

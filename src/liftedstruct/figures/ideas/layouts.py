"""The three networks side by side: what goes in, how many branches, and which labels the loss wants (Figure 3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon, Rectangle
from numpy.typing import NDArray
from torch import Tensor

from liftedstruct.figures.canvas import INK, PAPER, colour_of, drawing
from liftedstruct.figures.ideas.batch_edges import LABELS, six_images
from liftedstruct.figures.ideas.marks import MARKS, bare, mark, subscript
from liftedstruct.runtime.checks import LabelsLike

__all__ = ["network_layouts"]

EXAMPLE = "#1f9d55"  # the green round box
WIDTH, HEIGHT = 10.5, 5.3  # inches, and the units of everything below
CARD, STEP = 0.46, 0.56  # side of an image, and from one to the next
BRANCH = 1.02  # from one branch to the next
IMAGES, CNN, EMBEDDING, LOSS, NOTE = 4.52, 2.54, 1.72, 0.98, 0.56  # heights of the layers, from top to bottom
LAYERS = (
    ("images", IMAGES - STEP),
    ("network\n= same weights", CNN),
    ("embedding", EMBEDDING),
    ("loss", LOSS),
)


@dataclass(frozen=True)
class Layout:
    """One of the networks. Rows are those of the batch of six."""

    title: str
    method: str  # gives the colour of its loss
    loss: str
    centre: float
    branches: tuple[tuple[tuple[int, ...], ...], ...]  # the grid of images that each branch takes
    names: tuple[str, ...]  # of the branches
    example: tuple[int, ...]  # the rows that are one example
    size: str  # images of a branch
    label_names: str
    labels: tuple[tuple[str, ...], ...]  # a grid, () for none
    note: str


def network_layouts(labels: LabelsLike = LABELS, images: NDArray[np.uint8] | None = None) -> Figure:
    """Images, network, embedding, loss: the same batch of six for the three losses. The green round box is one example.

    Args:
        labels: (6,), laid out both in pairs and in triplets.
        images: (6, h, w, 3) in uint8, shown instead of the marks of their classes.

    """
    y = six_images(labels)
    if images is not None and (
        images.dtype != np.uint8 or images.shape[:1] != (6,) or images.ndim != 4 or images.shape[3] != 3
    ):
        raise ValueError(
            f"images must be uint8 of shape (6, h, w, 3), got {images.dtype} of {images.shape}. Pass six RGB pictures."
        )
    with drawing():
        figure = Figure(figsize=(WIDTH, HEIGHT), facecolor=PAPER)
        ax = figure.add_axes((0, 0, 1, 1))
        bare(ax)
        ax.set(xlim=(0, WIDTH), ylim=(0, HEIGHT), aspect="equal")
        for text, height in LAYERS:
            ax.text(0.2, height, text, fontsize=9, va="center", fontstyle="italic", linespacing=1.4)
        _round_box(ax, [(0.33, IMAGES - 2 * STEP)], side=0.16)
        ax.text(0.56, IMAGES - 2 * STEP, "one example", fontsize=9, va="center", fontstyle="italic")
        for layout in _layouts(y):
            _draw(ax, layout, y, images)
        return figure


def _layouts(y: Tensor) -> tuple[Layout, Layout, Layout]:
    """The rows as the losses take them: 2t and 2t + 1, then 3t, 3t + 1, 3t + 2, then all."""
    binary = tuple((str(int(y[t] == y[t + 1])),) for t in range(0, 6, 2))
    numbers = [str(number + 1) for number in y.tolist()]
    return (
        Layout(
            "(a) Contrastive embedding",
            "contrastive",
            "contrastive loss",
            2.4,
            (((0,), (2,), (4,)), ((1,), (3,), (5,))),
            ("first", "second"),
            (0, 1),
            "m/2 × c",
            "binary\nlabels",
            binary,
            "m/2 distances, one for each pair.\nLabels: same class or not.",
        ),
        Layout(
            "(b) Triplet embedding",
            "triplet",
            "triplet loss",
            5.75,
            (((0,), (3,)), ((1,), (4,)), ((2,), (5,))),
            ("anchor", "positive", "negative"),
            (0, 1, 2),
            "m/3 × c",
            "",
            (),
            "2m/3 distances, two for each triplet.\nNo labels: the order tells them.",
        ),
        Layout(
            "(c) Lifted structured embedding",
            "lifted_struct",
            "lifted structured loss",
            8.72,
            (((0, 1), (2, 3), (4, 5)),),
            ("whole batch",),
            (0,),
            "m × c",
            "multiclass\nlabels",
            tuple((a, b) for a, b in zip(numbers[0::2], numbers[1::2], strict=True)),
            "All m(m − 1)/2 distances, one branch.\nLabels: the class of each image.",
        ),
    )


def _draw(ax: Axes, layout: Layout, y: Tensor, images: NDArray[np.uint8] | None) -> None:
    colour, middle, n = colour_of(layout.method), layout.centre, len(layout.branches)
    ax.text(middle, HEIGHT - 0.22, layout.title, ha="center", va="center", fontsize=10, fontweight="bold")
    places: dict[int, tuple[float, float]] = {}
    for number, (grid, name) in enumerate(zip(layout.branches, layout.names, strict=True)):
        x = middle + (number - (n - 1) / 2) * BRANCH
        for line, rows in enumerate(grid):
            for column, row in enumerate(rows):
                places[row] = x + (column - (len(rows) - 1) / 2) * STEP, IMAGES - line * STEP - (3 - len(grid)) * STEP / 2
        ax.text(x, IMAGES - 2.62 * STEP, name, ha="center", va="center", fontsize=8, color=INK)
        _branch(ax, x, layout.size)
        _arrow(ax, (x, EMBEDDING - 0.17), (middle + (x - middle) * 0.55, LOSS + 0.24))
        if number:
            ax.text(x - BRANCH / 2, CNN, "=", ha="center", va="center", fontsize=13, fontweight="bold")
    for row, (x, height) in places.items():
        _card(ax, x, height, row, y, images)
    _round_box(ax, [places[row] for row in layout.example])
    box = (middle - 0.95, LOSS - 0.22)
    ax.add_patch(FancyBboxPatch(box, 1.9, 0.44, "round,pad=0,rounding_size=0.08", fc=PAPER, ec=colour, lw=2.2, zorder=3))
    ax.text(middle, LOSS, layout.loss, ha="center", va="center", fontsize=9, fontweight="bold", zorder=4)
    ax.text(middle, NOTE, layout.note, ha="center", va="top", fontsize=8, linespacing=1.4)
    if layout.labels:
        _labels(ax, middle + n * BRANCH / 2 + (0.42 if n > 1 else 0.62), layout)


def _branch(ax: Axes, x: float, size: str) -> None:
    """Network and embedding of one branch."""
    _arrow(ax, (x, IMAGES - 2.85 * STEP), (x, CNN + 0.29))
    ax.add_patch(
        Polygon(
            [(x - 0.4, CNN + 0.28), (x + 0.4, CNN + 0.28), (x + 0.24, CNN - 0.28), (x - 0.24, CNN - 0.28)],
            fc="#e7eaee",
            ec=INK,
            lw=1.1,
        )
    )
    ax.text(x, CNN, "CNN", ha="center", va="center", fontsize=9, fontweight="bold")
    _arrow(ax, (x, CNN - 0.29), (x, EMBEDDING + 0.17))
    for cell in range(5):
        shade = ("#4b5563", "#c5cad1", "#8a929c", "#eceef1", "#6b7280")[cell]
        ax.add_patch(Rectangle((x - 0.35 + 0.14 * cell, EMBEDDING - 0.07), 0.14, 0.22, fc=shade, ec=INK, lw=0.7))
    ax.text(
        x + 0.02,
        EMBEDDING - 0.13,
        size,
        ha="center",
        va="top",
        fontsize=7.5,
        bbox={"fc": PAPER, "ec": "none", "pad": 0.6},
        zorder=4,
    )


def _card(ax: Axes, x: float, height: float, row: int, y: Tensor, images: NDArray[np.uint8] | None) -> None:
    """One image of the batch."""
    half, number = CARD / 2, int(y[row])
    if images is None:
        mark(ax, (x, height), number, 24, subscript(row))
    else:
        ax.imshow(images[row], extent=(x - half, x + half, height - half, height + half), aspect="auto", zorder=3)
    ax.add_patch(Rectangle((x - half, height - half), CARD, CARD, fc="none", ec=MARKS[number][1], lw=1.1, zorder=4))


def _round_box(ax: Axes, places: Sequence[tuple[float, float]], side: float = CARD) -> None:
    """The green round box around one example."""
    (left, right), (low, high) = ((min(along), max(along)) for along in zip(*places, strict=True))
    corner, size = (left - side / 2, low - side / 2), (right - left + side, high - low + side)
    shape = f"round,pad=0.06,rounding_size={0.3 * side}"
    ax.add_patch(FancyBboxPatch(corner, *size, shape, fc="none", ec=EXAMPLE, lw=2.6, zorder=6, gid="example"))


def _labels(ax: Axes, x: float, layout: Layout) -> None:
    """The grid of labels beside the images, and their way to the loss."""
    cell = 0.26
    for line, values in enumerate(layout.labels):
        for column, value in enumerate(values):
            at = x + (column - (len(values) - 1) / 2) * cell, IMAGES - line * STEP
            ax.add_patch(Rectangle((at[0] - cell / 2, at[1] - cell / 2), cell, cell, fc="#fff7e0", ec=INK, lw=0.8))
            ax.text(*at, value, ha="center", va="center_baseline", fontsize=8.5, gid="label")
    ax.text(x, IMAGES - 2.72 * STEP, layout.label_names, ha="center", va="center", fontsize=8, linespacing=1.1)
    ax.plot([x, x], [IMAGES - 3.1 * STEP, LOSS], color=INK, lw=1.1, solid_capstyle="butt")
    _arrow(ax, (x, LOSS), (layout.centre + 0.95, LOSS))


def _arrow(ax: Axes, tail: tuple[float, float], head: tuple[float, float]) -> None:
    ax.add_patch(
        FancyArrowPatch(tail, head, arrowstyle="-|>", mutation_scale=9, lw=1.1, color=INK, shrinkA=0, shrinkB=0, zorder=2)
    )

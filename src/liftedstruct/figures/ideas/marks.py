"""How the explanatory figures show images, classes and edges, and what they accept."""

import textwrap
from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from torch import Tensor

from liftedstruct.figures.canvas import FAINT, INK, PAPER
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_classes, as_embeddings, as_labels, check_finite

__all__ = [
    "ARROW",
    "DISSIMILAR",
    "MARKS",
    "MARK_NAMES",
    "SIMILAR",
    "bare",
    "caption",
    "class_key",
    "class_numbers",
    "edge_key",
    "edge_style",
    "extent",
    "frame",
    "mark",
    "plane",
    "spot",
    "subscript",
]

SIMILAR, DISSIMILAR = "#c2281d", "#1f6fb5"  # red and solid, blue and dashed, as in the paper
ARROW = "#d4007a"  # magenta, as in the paper
# Brown circles, green squares and purple diamonds are the paper's; the form alone tells them apart.
MARKS = (("o", "#8a5a2b"), ("s", "#2f8f5b"), ("D", "#6b3fa0"), ("^", "#2f4b9c"), ("v", "#b5446e"), ("h", "#5a6b00"))
MARK_NAMES = ("circle", "square", "diamond", "triangle", "inverted triangle", "hexagon")
SCALE = {"o": 1.0, "s": 0.89, "D": 0.8, "^": 1.05, "v": 1.05, "h": 1.05}  # to look equally large
DIGITS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def class_numbers(labels: LabelsLike) -> Tensor:
    """The class of each image, (m,), by the order of the labels; each has its mark."""
    y, distinct = as_classes(labels)
    if y.ndim != 1 or len(distinct) > len(MARKS):
        raise ValueError(
            f"labels must be a list of at most {len(MARKS)} classes, which is how many marks there are, "
            f"got {len(distinct)} in shape {y.shape}. Show fewer classes."
        )
    return torch.from_numpy(y)


def plane(points: EmbeddingsLike, labels: LabelsLike) -> tuple[Tensor, Tensor]:
    """Points of the plane, (m, 2) in float64, all of them apart, and the class of each."""
    X = as_embeddings(points).detach().cpu().double()
    y = as_labels(class_numbers(labels), X)
    if X.shape[1] != 2:
        raise ValueError(f"points must be of the plane, shape (m, 2), got {tuple(X.shape)}. Pass two coordinates for each.")
    check_finite(X, X.square().sum().item())
    same = (torch.cdist(X, X) + torch.eye(len(X))) == 0
    if same.any():
        i, j = same.nonzero()[0].tolist()
        raise ValueError(f"points must lie apart, got rows {i} and {j} at one place. Move one of them.")
    return X, y


def subscript(number: int) -> str:
    """The letter x with a number below the line, counted from 1 as in the paper."""
    return f"x{str(number + 1).translate(DIGITS)}"


def spot(point: Tensor) -> tuple[float, float]:
    """A point of the plane as matplotlib likes it."""
    x, y = point.tolist()
    return x, y


def bare(ax: Axes) -> None:
    """No frame, ticks or grid: there is nothing to measure along the sides."""
    ax.grid(False)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def frame(ax: Axes, low: Tensor, high: Tensor) -> None:
    """Room for all that lies between two corners, at one scale in both directions."""
    ax.set_xlim(low[0].item(), high[0].item(), auto=True)  # may become wider, if the axes are
    ax.set_ylim(low[1].item(), high[1].item(), auto=True)
    ax.set_aspect("equal", adjustable="datalim")


def extent(X: Tensor) -> float:
    """The longer side of the smallest box around the points."""
    return float((X.max(dim=0).values - X.min(dim=0).values).max())


def caption(ax: Axes, sentences: Sequence[str], width: int) -> None:
    """Sentences below the axes, each from a new line."""
    lines = "\n".join(textwrap.fill(text, width) for text in sentences if text)
    ax.set_xlabel(lines, fontsize=8, loc="left", linespacing=1.35)


def mark(ax: Axes, at: tuple[float, float], number: int, size: float, text: str = "", filled: bool = True) -> None:
    """One image, by the mark of its class; hollow where the loss does not have it."""
    form, colour = MARKS[number]
    face, width = (colour, 0.8) if filled else (PAPER, 1.2)
    size *= SCALE[form]
    ax.plot(*at, form, ms=size, mfc=face, mec=PAPER if filled else colour, mew=width, zorder=5)
    if text:
        ax.text(*at, text, color=PAPER, fontsize=8.5, ha="center", va="center_baseline", zorder=6, fontweight="bold")


def edge_style(similar: bool, width: float) -> dict[str, Any]:
    """Width, colour and dashes of an edge; the dashes are equally long at any width."""
    dashes = (0, (5.5 / width, 2.8 / width))
    return {"lw": width, "color": SIMILAR if similar else DISSIMILAR, "ls": "-" if similar else dashes}


def edge_key(similar: str, dissimilar: str, unseen: str = "") -> list[Line2D]:
    """The edges' entries of a legend."""
    entries = [
        Line2D([], [], label=similar, **edge_style(True, 2)),
        Line2D([], [], label=dissimilar, **edge_style(False, 2)),
    ]
    return entries + ([Line2D([], [], label=unseen, lw=0.8, color=FAINT, alpha=0.6)] if unseen else [])


def class_key(numbers: Sequence[int], names: Sequence[str]) -> list[Line2D]:
    """The classes' entries of a legend."""
    return [
        Line2D([], [], ls="", marker=MARKS[n][0], color=MARKS[n][1], mec=INK, mew=0, ms=8 * SCALE[MARKS[n][0]], label=name)
        for n, name in zip(numbers, names, strict=True)
    ]

"""Markers, edges, captions and legend entries shared by the illustrations."""

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from torch import Tensor

from liftedstruct.figures.style import INK, PAPER

__all__ = [
    "DISSIMILAR",
    "MARGIN",
    "MARKERS",
    "SIMILAR",
    "TITLES",
    "class_handles",
    "draw_marker",
    "edge_handles",
    "edge_style",
    "extent",
    "fit_axes",
    "hide_axes",
    "point_name",
    "write_caption",
]

MARGIN = 1.0  # the paper's alpha
TITLES = ("(a) Contrastive embedding", "(b) Triplet embedding", "(c) Lifted structured embedding")
SIMILAR, DISSIMILAR = "#c2281d", "#1f6fb5"  # red and solid, blue and dashed, as in the paper
DIGITS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


class Marker(NamedTuple):
    """Marker style of a class; the shape alone distinguishes the classes."""

    shape: str
    color: str
    scale: float  # makes all shapes look equally large
    plural: str


MARKERS = (  # as in the paper
    Marker("o", "#8a5a2b", 1.0, "circles"),
    Marker("s", "#2f8f5b", 0.89, "squares"),
    Marker("D", "#6b3fa0", 0.8, "diamonds"),
)


def point_name(row: int) -> str:
    """Return x with a subscript, counted from 1 as in the paper.

    Examples:
        >>> point_name(0)
        'x₁'
    """
    return f"x{str(row + 1).translate(DIGITS)}"


def hide_axes(ax: Axes) -> None:
    """Hide frame, ticks and grid."""
    ax.grid(False)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def fit_axes(ax: Axes, corners: Tensor, room: float = 0.0) -> None:
    """Hide the axes and fit them to all points, (m, 2), at equal scales; `room` is the margin relative to their extent."""
    hide_axes(ax)
    space = room * extent(corners)
    low, high = corners.min(dim=0).values - space, corners.max(dim=0).values + space
    ax.set_xlim(low[0].item(), high[0].item(), auto=True)  # may widen to fill the axes
    ax.set_ylim(low[1].item(), high[1].item(), auto=True)
    ax.set_aspect("equal", adjustable="datalim")


def extent(X: Tensor) -> float:
    """Return the longer side of the points' bounding box."""
    return float((X.max(dim=0).values - X.min(dim=0).values).max())


def write_caption(ax: Axes, sentences: Sequence[str], width: int) -> None:
    """Write sentences below the axes, each on a new line."""
    lines = "\n".join(textwrap.fill(text, width) for text in sentences if text)
    ax.set_xlabel(lines, fontsize=8, loc="left", linespacing=1.35)


def draw_marker(ax: Axes, at: Sequence[float], label: int, size: float, text: str = "", filled: bool = True) -> None:
    """Draw one image as the marker of its class, with text on it if given; hollow unless `filled`."""
    marker = MARKERS[label]
    face, edge, width = (marker.color, PAPER, 0.8) if filled else (PAPER, marker.color, 1.2)
    ax.plot(*at, marker.shape, ms=size * marker.scale, mfc=face, mec=edge, mew=width, zorder=5)
    if text:
        x, y = at
        ax.text(x, y, text, color=PAPER, fontsize=8.5, ha="center", va="center_baseline", zorder=6, fontweight="bold")


def edge_style(similar: bool, width: float) -> dict[str, Any]:
    """Return width, color and dashes of an edge; dash length does not depend on the width."""
    dashes = (0, (5.5 / width, 2.8 / width))
    return {"lw": width, "color": SIMILAR if similar else DISSIMILAR, "ls": "-" if similar else dashes}


def edge_handles(similar: str, dissimilar: str) -> list[Line2D]:
    """Return legend entries for the edges."""
    return [Line2D([], [], label=name, **edge_style(name == similar, 2)) for name in (similar, dissimilar)]


def class_handles(names: Sequence[str]) -> list[Line2D]:
    """Return legend entries for the classes."""
    return [
        Line2D([], [], ls="", marker=shape, color=color, mec=INK, mew=0, ms=8 * scale, label=name)
        for name, (shape, color, scale, _) in zip(names, MARKERS, strict=True)
    ]

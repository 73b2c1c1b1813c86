"""Checks that the tests of all figures share."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from numpy.typing import NDArray

from liftedstruct.figures.style import figure_bytes, styled

HOSTILE = [
    "$x_1^{2$ \\frac",
    "<script>alert('x')</script>",
    "🎉 bird 😀 鳥 \x07\n\t",
    "n" * 300,
    "_hidden",
    "שלום (טائر) 42",
    "\ud800",
    "",
]


def check_drawable(draw: Callable[[], Figure]) -> None:
    """Check that a figure saves as PNG, SVG and PDF, reproducibly. Warnings about missing glyphs are errors in pytest."""
    first, again = draw(), draw()
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        content = figure_bytes(first, kind, dpi=60)
        assert content.startswith(start)
        assert content == figure_bytes(again, kind, dpi=60)


def check_tidy(figure: Figure) -> None:
    """Check that all text is inside the figure and no legend overlaps the axes."""
    with styled():
        figure.draw_without_rendering()
        whole, hidden = figure.bbox.padded(2), _out_of_sight(figure)
        for text in figure.findobj(Text):
            if text.get_visible() and text.get_text().strip() and id(text) not in hidden:
                box = text.get_window_extent()
                assert whole.containsx(box.x0), text.get_text()
                assert whole.containsx(box.x1), text.get_text()
                assert whole.containsy(box.y0), text.get_text()
                assert whole.containsy(box.y1), text.get_text()
        for legend in figure.legends:
            box = legend.get_window_extent()
            for axes in figure.axes:
                tight = axes.get_tightbbox()
                assert tight is None or not box.padded(-2).overlaps(tight), "the legend covers the axes"


def lines_of(axes: Axes, color: str) -> list[Line2D]:
    return [line for line in axes.lines if to_hex(line.get_color()) == color]


def x_of(line: Line2D) -> list[float]:
    return [float(x) for x in np.asarray(line.get_xdata())]


def y_of(line: Line2D) -> NDArray[np.float64]:
    return np.asarray(line.get_ydata(), dtype=np.float64)


def intervals_of(axes: Axes, color: str) -> list[tuple[float, float, float]]:
    """Return (x, low, high) of the bars of a color."""
    found = [each for each in axes.collections if isinstance(each, LineCollection)]
    return [
        (segment[0, 0], segment[0, 1], segment[1, 1])
        for each in found
        if to_hex(np.asarray(each.get_color())[0]) == color
        for segment in each.get_segments()
    ]


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def words_of(axes: Axes) -> str:
    return " ".join(text.get_text() for text in axes.findobj(Text))


def _out_of_sight(figure: Figure) -> set[int]:
    """Return the ids of tick labels outside the limits of their axis, which are not drawn."""
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                if not low <= tick.get_loc() <= high:
                    hidden |= {id(tick.label1), id(tick.label2)}
    return hidden

"""Shared axes and legends: log axes, percent axes, ticks, and a note on empty axes."""

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from liftedstruct.figures.style import FAINT

__all__ = ["DASHED", "PERCENT", "figure_legend", "log_axis", "note_empty", "percent_axis", "round_ticks"]

DASHED = (0, (3, 1.5))  # line style
PERCENT = FuncFormatter(lambda value, _: f"{value:g} %")
MIN_GAP = 0.055  # fraction of the axis; ticks closer than this to the last labeled tick have no label


def round_ticks(most: int, integer: bool = False) -> MaxNLocator:
    """Return a locator of at most `most` ticks at round numbers."""
    return MaxNLocator(most, integer=integer, steps=[1, 2, 5, 10])


def figure_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Add a legend below the axes, in as many columns as fit. Matplotlib fills it column by column."""
    lengths = [len(str(handle.get_label())) for handle in handles]
    for columns in range(len(handles), 0, -1):
        width = sum(5.3 * max(part) + 48 for part in np.array_split(lengths, columns))
        if width <= 72 * figure.get_figwidth() or columns == 1:
            figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.8)
            return


def log_axis(axes: Axes, values: Sequence[int], label: str) -> None:
    """Set up a log axis for K or the embedding dimension, with a tick at each value. Labels that do not fit are left out."""
    axes.set_xlabel(label)
    if not values:
        axes.set_xticks([])
        return
    axes.set_xscale("log", base=2)
    pad = 2 ** max(0.06 * np.log2(values[-1] / values[0]), 0.25)
    axes.set_xlim(values[0] / pad, values[-1] * pad)
    width, last, labels = np.log2(values[-1] / values[0] * pad**2), -np.inf, []
    for value in values:
        room = np.log2(value) - last >= MIN_GAP * width
        labels.append(f"{value:,}" if room else "")
        last = np.log2(value) if room else last
    axes.set_xticks(values, labels)
    axes.xaxis.set_minor_locator(NullLocator())


def percent_axis(axes: Axes) -> None:
    """Set up an axis of scores from 0 to 100 with padding, or note that there are none."""
    axes.yaxis.set_major_formatter(PERCENT)
    if not axes.has_data():
        note_empty(axes, "not evaluated")
        return
    low, high = axes.dataLim.intervaly
    space = max(0.06 * (high - low), 1.5)
    axes.set_ylim(max(low - space, -1), min(high + space, 101))
    axes.yaxis.set_major_locator(round_ticks(7))


def note_empty(axes: Axes, text: str) -> None:
    """Write a note in the middle of empty axes."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT)
    axes.set(xticks=[], yticks=[])

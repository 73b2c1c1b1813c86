"""Style of all figures, and reproducible saving as PNG, SVG or PDF."""

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from liftedstruct.runtime.atomic import replacing
from liftedstruct.runtime.checks import pick
from liftedstruct.runtime.extras import require
from liftedstruct.trunks import RANDOM

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ModuleNotFoundError:
    require("matplotlib", "figures")  # its error says what to install
    raise

__all__ = [
    "COLORS",
    "FAINT",
    "FORMATS",
    "INK",
    "METHOD_NAMES",
    "NEGATIVE",
    "OTHER_COLORS",
    "PAPER",
    "POSITIVE",
    "RC_PARAMS",
    "AnyFigure",
    "figure_bytes",
    "method_color",
    "method_name",
    "new_figure",
    "save_figure",
    "styled",
]

AnyFigure = Figure | Image.Image

FORMATS = {".pdf": "pdf", ".png": "png", ".svg": "svg"}
INK, PAPER, FAINT = "#1b1f24", "#ffffff", "#8a929c"  # text and axes; background; grids and secondary marks
POSITIVE, NEGATIVE = "#0b7a53", "#c8381e"  # same class and other class; markers differ too, so color is never the only cue
# One color per method, the same in every figure; distinguishable in grayscale and by color-blind readers.
COLORS = {"pool5": "#6b7280", "contrastive": "#d98a00", "triplet": "#3f8fd2", "lifted_struct": "#7a1fa2"}
OTHER_COLORS = ("#00796b", "#b5446e", "#5a6b00", "#8b4a2b", "#2f4b9c", "#c2185b")  # for other methods and runs
METHOD_NAMES = {"lifted_struct": "lifted structured", "pool5": "pretrained"}  # in legends; other names are unchanged
RC_PARAMS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],  # ships with matplotlib, so figures are the same everywhere
    "font.size": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.parse_math": False,  # a class may be called $x$
    "svg.hashsalt": "liftedstruct",  # reproducible ids
    "pdf.fonttype": 42,  # text stays text
}


@contextmanager
def styled() -> Iterator[None]:
    """Context manager or decorator that applies the style and restores the user's settings afterward."""
    with mpl.rc_context({**mpl.rcParamsDefault, **RC_PARAMS}):
        yield


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **settings: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure of this size in inches, without a window, and its axes row by row. Call it within `styled`."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **settings).flat)


def method_color(method: str, number: int = 0) -> str:
    """Return the color of one of the paper's methods, or color number `number` for another method."""
    return COLORS.get(method, OTHER_COLORS[number % len(OTHER_COLORS)])


def method_name(method: str, weights: str = "") -> str:
    """Return the name of a method in legends and tables.

    Args:
        method: name of a loss, or "pool5" for the pooled features of a trunk that was not fine-tuned.
        weights: origin of the trunk's weights, as recorded in the protocol.

    Examples:
        >>> method_name("lifted_struct"), method_name("pool5"), method_name("pool5", "random weights, seed 0")
        ('lifted structured', 'pretrained', 'untrained')

    """
    return "untrained" if method == "pool5" and weights.startswith(RANDOM) else METHOD_NAMES.get(method, method)


def figure_bytes(figure: AnyFigure, format: str, dpi: int = 200) -> bytes:
    """Return a figure as the bytes of a PNG, SVG or PDF file, without a date: equal figures give equal bytes."""
    stream = io.BytesIO()
    if isinstance(figure, Image.Image):
        if format == "svg":
            raise ValueError("this figure is an image and must be saved as .png or .pdf, got .svg. Choose one of the two.")
        epoch = time.gmtime(0)  # the default is the current time
        pdf = {"resolution": dpi, "creationDate": epoch, "modDate": epoch}
        figure.save(stream, format, **(pdf if format == "pdf" else {"dpi": (dpi, dpi)}))
        return stream.getvalue()
    dates = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with styled():
        if figure.get_layout_engine() is not None:
            figure.set_dpi(dpi)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # it would move the axes slightly on each draw
        figure.savefig(stream, format=format, dpi=dpi, metadata=dates[format])
    return stream.getvalue()


def save_figure(figure: AnyFigure, path: str | Path, dpi: int = 200) -> Path:
    """Write a figure to a file, as PNG, SVG or PDF by its suffix."""
    path = Path(path)
    content = figure_bytes(figure, pick(FORMATS, path.suffix.lower(), "the suffix of a figure's file"), dpi)
    with replacing(path) as stream:
        stream.write(content)
    return path

"""The style of every figure, and saving one as PNG, SVG or PDF, the same bytes each time."""

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

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ModuleNotFoundError:
    require("matplotlib", "figures")  # says what to install
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
    "new_figure",
    "save_figure",
    "styled",
]

AnyFigure = Figure | Image.Image

FORMATS = {".pdf": "pdf", ".png": "png", ".svg": "svg"}
INK, PAPER, FAINT = "#1b1f24", "#ffffff", "#8a929c"  # text and axes; background; grids and what is less important
POSITIVE, NEGATIVE = "#0b7a53", "#c8381e"  # same class and other class; told apart also by markers, never by color alone
# One color for each method, the same in every figure; far apart also for color-blind eyes and in gray.
COLORS = {"pool5": "#6b7280", "contrastive": "#d98a00", "triplet": "#3f8fd2", "lifted_struct": "#7a1fa2"}
OTHER_COLORS = ("#00796b", "#b5446e", "#5a6b00", "#8b4a2b", "#2f4b9c", "#c2185b")  # of any other method or run
METHOD_NAMES = {"lifted_struct": "lifted structured", "pool5": "untrained"}  # in legends; others are as they are
RC_PARAMS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so a figure is the same everywhere
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
    "svg.hashsalt": "liftedstruct",  # ids inside the file, the same each time
    "pdf.fonttype": 42,  # text stays text
}


@contextmanager
def styled() -> Iterator[None]:
    """Context, or decorator of a function, in which a figure is drawn; the user's own settings return afterwards."""
    with mpl.rc_context({**mpl.rcParamsDefault, **RC_PARAMS}):
        yield


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **settings: Any) -> tuple[Figure, list[Axes]]:
    """A figure of this size in inches and its axes, row by row, without a window. Call it within :func:`styled`."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **settings).flat)


def method_color(method: str, number: int = 0) -> str:
    """The color of a method of the paper; of any other method, the other color of this number."""
    return COLORS.get(method, OTHER_COLORS[number % len(OTHER_COLORS)])


def figure_bytes(figure: AnyFigure, format: str, dpi: int = 200) -> bytes:
    """A figure as the bytes of a PNG, SVG or PDF file, without a date: equal figures give equal bytes."""
    stream = io.BytesIO()
    if isinstance(figure, Image.Image):
        if format == "svg":
            raise ValueError("this figure is made of pixels and must be a .png or .pdf file, got .svg. Choose one of the two.")
        epoch = time.gmtime(0)  # without a date it would be now
        pdf = {"resolution": dpi, "creationDate": epoch, "modDate": epoch}
        figure.save(stream, format, **(pdf if format == "pdf" else {"dpi": (dpi, dpi)}))
        return stream.getvalue()
    dates = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with styled():
        if figure.get_layout_engine() is not None:
            figure.set_dpi(dpi)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # it would move the axes a little each time
        figure.savefig(stream, format=format, dpi=dpi, metadata=dates[format])
    return stream.getvalue()


def save_figure(figure: AnyFigure, path: str | Path, dpi: int = 200) -> Path:
    """Write a figure to a file; its ending says whether PNG, SVG or PDF."""
    path = Path(path)
    content = figure_bytes(figure, pick(FORMATS, path.suffix.lower(), "the ending of a figure's file"), dpi)
    with replacing(path) as stream:
        stream.write(content)
    return path

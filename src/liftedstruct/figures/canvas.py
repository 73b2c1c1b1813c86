"""How every figure looks, and how it becomes a file: PNG, SVG or PDF, the same bytes each time."""

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
    "COLOURS",
    "FAINT",
    "FORMATS",
    "INK",
    "LOOK",
    "NEGATIVE",
    "OTHERS",
    "PAPER",
    "POSITIVE",
    "Picture",
    "colour_of",
    "drawing",
    "new_figure",
    "picture_bytes",
    "save_picture",
]

Picture = Figure | Image.Image

FORMATS = {".pdf": "pdf", ".png": "png", ".svg": "svg"}
INK, PAPER, FAINT = "#1b1f24", "#ffffff", "#8a929c"  # text and axes; the ground; grids and what is beside the point
POSITIVE, NEGATIVE = "#0b7a53", "#c8381e"  # same class and other class; told apart also by marks, never by colour alone
# One colour for each method, the same in every figure; far apart also for colour-blind eyes and in grey.
COLOURS = {"pool5": "#6b7280", "contrastive": "#d98a00", "triplet": "#3f8fd2", "lifted_struct": "#7a1fa2"}
OTHERS = ("#00796b", "#b5446e", "#5a6b00", "#8b4a2b", "#2f4b9c", "#c2185b")  # of whatever else is drawn
LOOK: dict[str, Any] = {
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
    "svg.hashsalt": "liftedstruct",  # names inside the file, the same each time
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # text stays text
}


@contextmanager
def drawing() -> Iterator[None]:
    """Everything is drawn in here: our look, and the user's own settings untouched afterwards."""
    settings: dict[Any, Any] = {**mpl.rcParamsDefault, **LOOK}
    with mpl.rc_context(settings):
        yield


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **settings: Any) -> tuple[Figure, list[Axes]]:
    """A figure of so many inches and its axes, row by row; no window and no global state. Call it within :func:`drawing`."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **settings).flat)


def colour_of(method: str, number: int = 0) -> str:
    """The colour of a method; one that is not of the paper gets the next of the others."""
    return COLOURS.get(method, OTHERS[number % len(OTHERS)])


def picture_bytes(picture: Picture, format: str, dpi: int = 200) -> bytes:
    """A picture as the bytes of a PNG, SVG or PDF file, without a date: equal pictures give equal bytes."""
    stream = io.BytesIO()
    if isinstance(picture, Image.Image):
        if format == "svg":
            raise ValueError("this picture is made of pixels and must be a .png or .pdf file, got .svg. Choose one of the two.")
        then = time.gmtime(0)  # no date would be that of now
        dated = {"resolution": dpi, "creationDate": then, "modDate": then} if format == "pdf" else {}
        picture.save(stream, format.upper(), **(dated or {"dpi": (dpi, dpi)}))
        return stream.getvalue()
    dates = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with drawing():
        if picture.get_layout_engine() is not None:
            picture.set_dpi(dpi)
            picture.draw_without_rendering()
            picture.set_layout_engine("none")  # it would move the axes a little each time
        picture.savefig(stream, format=format, dpi=dpi, metadata=dates[format])
    return stream.getvalue()


def save_picture(picture: Picture, path: str | Path, dpi: int = 200) -> Path:
    """Write a picture to a file; its ending says whether PNG, SVG or PDF."""
    path = Path(path)
    content = picture_bytes(picture, pick(FORMATS, path.suffix.lower(), "the ending of a figure's file"), dpi)
    with replacing(path) as stream:
        stream.write(content)
    return path

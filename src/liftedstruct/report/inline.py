"""Pictures and names as part of a page: figures as SVG that takes on the page's colours, photographs as text."""

import base64
import io
import re

import numpy as np
from PIL import Image

from liftedstruct.data.image_set import Indices
from liftedstruct.figures.style import INK, PAPER, AnyFigure, figure_bytes
from liftedstruct.figures.thumbnails import Pixels, Thumbnails
from liftedstruct.runtime.extras import require

try:
    from markupsafe import Markup, escape
except ModuleNotFoundError:
    require("jinja2", "figures")  # which brings it; says what to install
    raise

__all__ = ["breakable", "hue", "inline_svg", "photographs"]

QUALITY = 80


def breakable(name: str) -> Markup:
    """A name as HTML, with leave to break a line after a sign that joins words.

    >>> breakable("Cape_May <Warbler>")
    Markup('Cape_<wbr>May &lt;Warbler&gt;')
    """
    return Markup(re.sub(r"([_/.-])", r"\1<wbr>", str(escape(name))))


def hue(colour: str) -> str:
    """A colour by a name that page.css can change: on a dark page it is a lighter one.

    >>> hue("#7a1fa2")
    'var(--hue-7a1fa2, #7a1fa2)'
    """
    return f"var(--hue-{colour[1:]}, {colour})"


def inline_svg(figure: AnyFigure, prefix: str) -> str:
    """A figure as an ``<svg>`` of a page: ink and ground are the page's, and its names are its own.

    Two figures may name their parts alike, and a page has one space of names, so each name gets a prefix.
    """
    text = figure_bytes(figure, "svg").decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = _with_own_names(text, prefix)
    text = re.sub(r"(?<=: )#[0-9a-f]{6}\b", _of_the_page, text)
    width, height = (float(size) for size in re.findall(r'\b(?:width|height)="([\d.]+)pt"', text)[:2])
    head = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" aria-hidden="true"'
    place = f'viewBox="0 0 {width:g} {height:g}" style="--width: {width * 4 / 3:.0f}px"'
    return re.sub(r"^<svg[^>]*>", f"<svg {head} {place}>", text, count=1)


def _with_own_names(text: str, prefix: str) -> str:
    """The parts that are referred to get the prefix, and the others lose their names, as do repetitions of a part."""
    reference = r'((?:xlink:)?href="#|url\(#)([^")]+)'
    wanted = {name for _, name in re.findall(reference, text)}

    def named(found: re.Match[str]) -> str:
        if found[1] not in wanted:
            return ""
        wanted.remove(found[1])
        return f' id="{prefix}-{found[1]}"'

    return re.sub(r'\s+id="([^"]*)"', named, re.sub(reference, rf"\1{prefix}-\2", text))


def _of_the_page(found: re.Match[str]) -> str:
    return {INK: "currentColor", PAPER: "var(--figure, #ffffff)"}.get(found[0], hue(found[0]))


def photographs(thumbnails: Thumbnails, rows: Indices, side: int) -> dict[int, str]:
    """Small pictures of these rows as ``data:`` addresses, each row once."""
    wanted = np.unique(rows)
    return {int(row): _address(pixels) for row, pixels in zip(wanted, thumbnails(wanted, side), strict=True)}


def _address(pixels: Pixels) -> str:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "WEBP", quality=QUALITY, method=4)
    return f"data:image/webp;base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"

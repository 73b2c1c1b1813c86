"""Inline content of the report: figures as SVG in the colors of the page, thumbnails as data URLs, names as HTML."""

import base64
import html
import io
import re
from importlib.resources import files

import numpy as np
from PIL import Image

from liftedstruct.data import Indices
from liftedstruct.figures import Pixels, Thumbnails
from liftedstruct.figures.style import INK, PAPER, AnyFigure, figure_bytes

__all__ = ["breakable", "css_color", "image_urls", "inline_svg", "resource", "webp"]


def resource(name: str) -> str:
    """Return the text of a file of this package, such as a template."""
    return files("liftedstruct.report").joinpath(name).read_text(encoding="utf-8")


def breakable(name: str) -> str:
    """Return a name as HTML that can break after underscores, slashes, dots and hyphens.

    Examples:
        >>> breakable("Cape_May <Warbler>")
        'Cape_<wbr>May &lt;Warbler&gt;'
    """
    return re.sub(r"([_/.-])", r"\1<wbr>", html.escape(name))


def css_color(color: str) -> str:
    """Return a color as a CSS variable, for which page.css has a lighter value in dark mode.

    Examples:
        >>> css_color("#7a1fa2")
        'var(--hue-7a1fa2, #7a1fa2)'
    """
    return f"var(--hue-{color[1:]}, {color})"


def inline_svg(figure: AnyFigure, prefix: str) -> str:
    """Return a figure as an inline `<svg>` in the text and background colors of the page.

    Figures may share ids, so each referenced id gets a prefix; the others are dropped.
    """
    text = figure_bytes(figure, "svg").decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = _prefix_ids(text, prefix)
    of_page = {INK: "currentColor", PAPER: "var(--figure, #ffffff)"}
    text = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda found: of_page.get(found[0], css_color(found[0])), text)
    width, height = (float(size) for size in re.findall(r'\b(?:width|height)="([\d.]+)pt"', text)[:2])
    head = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" aria-hidden="true"'
    place = f'viewBox="0 0 {width:g} {height:g}" style="--width: {width * 4 / 3:.0f}px"'
    return re.sub(r"^<svg[^>]*>", f"<svg {head} {place}>", text, count=1)


def _prefix_ids(text: str, prefix: str) -> str:
    """Add a prefix to referenced ids, keep the first of duplicates, and remove all other ids."""
    reference = r'((?:xlink:)?href="#|url\(#)([^")]+)'
    wanted = {name for _, name in re.findall(reference, text)}

    def renamed(found: re.Match[str]) -> str:
        if found[1] not in wanted:
            return ""
        wanted.remove(found[1])
        return f' id="{prefix}-{found[1]}"'

    return re.sub(r'\s+id="([^"]*)"', renamed, re.sub(reference, rf"\1{prefix}-\2", text))


def image_urls(thumbnails: Thumbnails, rows: Indices, side: int) -> dict[int, str]:
    """Return thumbnails of these rows as `data:` URLs, {row: URL}."""
    wanted = np.unique(rows)
    images = zip(wanted.tolist(), thumbnails(wanted, side), strict=True)
    return {row: f"data:image/webp;base64,{webp(pixels, quality=80)}" for row, pixels in images}


def webp(pixels: Pixels, quality: int) -> str:
    """Encode an image as WebP in base64."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "WEBP", quality=quality, method=4)
    return base64.b64encode(stream.getvalue()).decode("ascii")

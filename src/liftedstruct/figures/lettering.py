"""Names of any length and script, made to fit the place that a figure has for them."""

import unicodedata
from bisect import bisect_right
from functools import cache

from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.textpath import text_to_path

from liftedstruct.figures.canvas import LOOK

__all__ = ["fitted", "printable"]

BREAKS = " _-/"  # a line may end after one of these
MISSING = "□"  # what stands for a character that the font does not have


def printable(text: str) -> str:
    r"""The text on one line, in characters that the font of the figures has; each other one becomes a small box.

    >>> printable("two\nlines, 中文 and $x$")
    'two lines, □□ and $x$'
    """
    known = _characters()
    plain = "".join(" " if unicodedata.category(each) in ("Cc", "Zl", "Zp") else each for each in text)
    return "".join(each if ord(each) in known else MISSING for each in " ".join(plain.split()))


def fitted(text: str, width: float, size: float, lines: int = 1) -> str:
    """The text, made printable, in at most so many lines of so many points; what is too long ends with three dots.

    Args:
        text: a name, or a sentence.
        width: of a line, in points.
        size: of the letters, in points.
        lines: how many there may be.

    >>> print(fitted("Black_footed_Albatross", 60, 7, lines=2))
    Black_footed_
    Albatross
    >>> print(fitted("Black_footed_Albatross", 60, 7))
    Black_footed…
    """
    done: list[str] = []
    rest = printable(text)
    font = FontProperties(family=LOOK["font.family"], size=size)

    def fits(ending: str) -> int:
        """How many of the characters that are left have room, at least one."""
        lengths = range(1, len(rest) + 1)
        return max(1, bisect_right(lengths, width, key=lambda length: _width(rest[:length].rstrip() + ending, font)))

    while len(done) + 1 < lines and _width(rest, font) > width:
        most = fits("")
        at = 1 + max(rest.rfind(each, 0, most) for each in BREAKS)
        if rest[most : most + 1] == " ":
            at = most
        done.append(rest[: at or most].rstrip())
        rest = rest[at or most :].lstrip()
    if _width(rest, font) > width:
        rest = rest[: fits("…")].rstrip(BREAKS) + "…"
    return "\n".join((*done, rest))


@cache
def _characters() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family=LOOK["font.family"]))).get_charmap())


def _width(text: str, font: FontProperties) -> float:
    width: float = text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]
    return width

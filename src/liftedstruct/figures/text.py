"""Names of any length and script, fitted into the space that a figure has for them."""

import unicodedata
from bisect import bisect_right
from functools import cache

from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.textpath import text_to_path

from liftedstruct.figures.style import RC_PARAMS

__all__ = ["fit_text", "printable", "shorten"]

BREAKS = " _-/"  # lines may break after these
MISSING, DOTS = "□", "…"  # replaces a character that the font lacks; marks omitted text
INVISIBLE = {"Cc", "Cf", "Me", "Mn"}  # Unicode categories of control characters, direction marks and combining accents


def printable(text: str) -> str:
    r"""Return the text on one line, with a box for each character that the font lacks.

    Invisible characters, combining characters and direction marks are removed. Right-to-left text is unchanged, since
    matplotlib reorders it.

    Examples:
        >>> printable("two\nlines, 中文 and $x$")
        'two lines, □□ and $x$'
    """
    spaced = "".join(" " if each.isspace() else each for each in unicodedata.normalize("NFC", text))
    seen = (each for each in spaced if unicodedata.category(each) not in INVISIBLE)
    return " ".join("".join(each if ord(each) in _characters() else MISSING for each in seen).split())


def shorten(text: str, most: int = 40) -> str:
    """Return the printable text in at most `most` characters, with the middle of longer text left out.

    Examples:
        >>> shorten("a rather long name of a species", most=15)
        'a rathe…species'
    """
    line, tail = printable(text), (most - 1) // 2
    return line if len(line) <= most else line[: most - 1 - tail] + DOTS + line[len(line) - tail :]


def fit_text(text: str, width: float, size: float, lines: int = 1) -> str:
    """Break the printable text into lines of a given width, with an ellipsis if it is too long.

    Args:
        text: a name or a sentence.
        width: width of a line in points.
        size: font size in points.
        lines: maximum number of lines.

    Examples:
        >>> print(fit_text("Black_footed_Albatross", 60, 7, lines=2))
        Black_footed_
        Albatross
        >>> print(fit_text("Black_footed_Albatross", 60, 7))
        Black_footed…
    """
    done: list[str] = []
    rest = printable(text)
    font = FontProperties(family=RC_PARAMS["font.family"], size=size)

    def fits(ending: str) -> int:
        """Return how many of the remaining characters fit on a line, at least one."""
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
        rest = rest[: fits(DOTS)].rstrip(BREAKS) + DOTS
    return "\n".join((*done, rest))


@cache
def _characters() -> frozenset[int]:
    """Return the characters that the font has in both normal and bold weight."""
    fonts = (FontProperties(family=RC_PARAMS["font.family"], weight=weight) for weight in ("normal", "bold"))
    plain, bold = (frozenset(get_font(findfont(font)).get_charmap()) for font in fonts)
    return plain & bold


def _width(text: str, font: FontProperties) -> float:
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]

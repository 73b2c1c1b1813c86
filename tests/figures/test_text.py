import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font
from matplotlib.textpath import TextPath

from figures.figure_checks import HOSTILE
from liftedstruct.figures.style import figure_bytes, new_figure, styled
from liftedstruct.figures.text import fit_text, printable, shorten


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("001.Black_footed_Albatross", "001.Black_footed_Albatross"),
        ("$x$ & <b>", "$x$ & <b>"),
        (" two\r\nlines\u2028and\u00a0a\ttab ", "two lines and a tab"),
        ("e\u0301te\u0301", "été"),  # accents that compose with their letter stay
        ("z\u0351\u0352\u0353a\u0321\u0322l\u0489go", "zalgo"),  # other combining characters are removed
        ("鳥 🎉 bird", "□ □ bird"),
        ("a\u202etxt.exe\u202c\u200b\u00ad", "atxt.exe"),  # direction marks and invisible characters
        ("lone \ud800 half", "lone □ half"),
        ("null\x00bell\x07", "nullbell"),
        ("שלום", "שלום"),
        ("", ""),
        ("\u200b\n", ""),
        ("x" * 40, "x" * 40),
        ("a" * 30 + "b" * 30, "a" * 20 + "…" + "b" * 19),
    ],
)
def test_shorten(text: str, plain: str) -> None:
    assert shorten(text) == plain


@given(st.text(st.characters(), max_size=120), st.integers(1, 60))
def test_shortened_is_one_short_line_that_the_font_has(text: str, most: int) -> None:
    plain = shorten(text, most)
    assert len(plain) <= most
    assert plain == plain.strip()
    for weight in ("normal", "bold"):
        font = FT2Font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))
        assert all(font.get_char_index(ord(each)) for each in plain)
    assert not any(unicodedata.category(each) in ("Cc", "Cf") for each in plain)
    assert shorten(plain, most) == plain


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_any_text_is_drawn_without_a_warning(kind: str) -> None:
    every = [chr(code) for code in range(0x20, 0x20000, 37)]
    texts = [*HOSTILE, *("".join(every[at : at + 40]) for at in range(0, len(every), 40))]
    with styled():
        figure, (axes,) = new_figure(4, 4)
        for number, text in enumerate(texts):
            axes.text(0, number / len(texts), shorten(text), weight="bold" if number % 2 else "normal")
    assert figure_bytes(figure, kind, dpi=50)


def drawn_width(text: str, size: float) -> float:
    """Return the width in points from the outlines of the letters, independent of the font metrics that the code uses."""
    return float(TextPath((0, 0), text, size=size, prop=FontProperties(family="DejaVu Sans")).get_extents().width)


def test_printable() -> None:
    assert printable("  two\nlines\tand a\x07 bell ") == "two lines and a bell"
    assert printable("$x$ <b> שלום كرسي") == "$x$ <b> שלום كرسي"
    assert printable("鳥 \ud800") == "□ □", "a missing glyph and a lone surrogate"
    assert printable("") == ""


@given(st.text(max_size=60), st.integers(1, 4), st.sampled_from([5.0, 6.5, 9.0]))
@settings(deadline=None, max_examples=60)
def test_never_wider_nor_more_lines_than_asked(text: str, lines: int, size: float) -> None:
    result = fit_text(text, 80, size, lines).split("\n")
    assert len(result) <= lines
    for line in result:
        assert line == line.strip()
        assert len(line) <= 2 or drawn_width(line, size) <= 80 + size / 2  # outlines may exceed the advance width slightly


@pytest.mark.parametrize("name", ["short", "101.White_Pelican", "many words in a rather long name of a product"])
def test_nothing_is_lost_where_there_is_room(name: str) -> None:
    result = fit_text(name, 60, 7, lines=9)
    assert result.replace("\n", " ").replace("_ ", "_") == name
    assert "…" not in result


def test_lines_end_between_words_where_they_can() -> None:
    assert fit_text("Black_footed_Albatross", 60, 7, lines=2) == "Black_footed_\nAlbatross"
    assert fit_text("one two", 1000, 7, lines=2) == "one two"
    long = fit_text("a" * 300, 60, 7, lines=2)
    assert long.count("\n") == 1
    assert long.endswith("a…")
    assert set(long) == {"a", "\n", "…"}

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font

from figures.looking import HOSTILE
from liftedstruct.figures.canvas import drawing, new_figure, picture_bytes, plain_text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("001.Black_footed_Albatross", "001.Black_footed_Albatross"),
        ("$x$ & <b>", "$x$ & <b>"),
        (" two\r\nlines\u2028and\u00a0a\ttab ", "two lines and a tab"),
        ("e\u0301te\u0301", "été"),  # accents that make one character with their letter stay
        ("z\u0351\u0352\u0353a\u0321\u0322l\u0489go", "zalgo"),  # and others do not pile up
        ("鳥 🎉 bird", "□ □ bird"),
        ("a\u202etxt.exe\u202c\u200b\u00ad", "atxt.exe"),  # what reverses or hides
        ("lone \ud800 half", "lone □ half"),
        ("null\x00bell\x07", "nullbell"),
        ("שלום", "שלום"),
        ("", ""),
        ("\u200b\n", ""),
        ("x" * 40, "x" * 40),
        ("a" * 30 + "b" * 30, "a" * 20 + "…" + "b" * 19),
    ],
)
def test_plain_text(text: str, plain: str) -> None:
    assert plain_text(text) == plain


@given(st.text(st.characters(), max_size=120), st.integers(1, 60))
def test_plain_text_is_one_short_line_that_the_font_has(text: str, most: int) -> None:
    plain = plain_text(text, most)
    assert len(plain) <= most
    assert plain == plain.strip()
    for weight in ("normal", "bold"):
        font = FT2Font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))
        assert all(font.get_char_index(ord(each)) for each in plain)
    assert not any(unicodedata.category(each) in ("Cc", "Cf") for each in plain)
    assert plain_text(plain, most) == plain


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_any_text_is_drawn_without_a_warning(kind: str) -> None:
    every = [chr(code) for code in range(0x20, 0x20000, 37)]
    texts = [*HOSTILE, *("".join(every[at : at + 40]) for at in range(0, len(every), 40))]
    with drawing():
        figure, (axes,) = new_figure(4, 4)
        for number, text in enumerate(texts):
            axes.text(0, number / len(texts), plain_text(text), weight="bold" if number % 2 else "normal")
    assert picture_bytes(figure, kind, dpi=50)

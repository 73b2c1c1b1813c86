import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from liftedstruct.figures.lettering import fitted, printable


def drawn_width(text: str, size: float) -> float:
    """From the outlines of the letters, in points; not from the metrics that the code goes by."""
    return float(TextPath((0, 0), text, size=size, prop=FontProperties(family="DejaVu Sans")).get_extents().width)


def test_printable() -> None:
    assert printable("  two\nlines\tand\x07 a bell ") == "two lines and a bell"
    assert printable("$x$ <b> שלום كرسي") == "$x$ <b> שלום كرسي"
    assert printable("鳥 \ud800") == "□ □", "what the font has not, and half of a pair"
    assert printable("") == ""


@given(st.text(max_size=60), st.integers(1, 4), st.sampled_from([5.0, 6.5, 9.0]))
@settings(deadline=None, max_examples=60)
def test_never_wider_nor_more_lines_than_asked(text: str, lines: int, size: float) -> None:
    result = fitted(text, 80, size, lines).split("\n")
    assert len(result) <= lines
    for line in result:
        assert line == line.strip()
        assert len(line) <= 2 or drawn_width(line, size) <= 80 + size / 2  # a letter may reach a little beyond its width


@pytest.mark.parametrize("name", ["short", "101.White_Pelican", "many words in a rather long name of a product"])
def test_nothing_is_lost_where_there_is_room(name: str) -> None:
    result = fitted(name, 60, 7, lines=9)
    assert result.replace("\n", " ").replace("_ ", "_") == name
    assert "…" not in result


def test_lines_end_between_words_where_they_can() -> None:
    assert fitted("Black_footed_Albatross", 60, 7, lines=2) == "Black_footed_\nAlbatross"
    assert fitted("one two", 1000, 7, lines=2) == "one two"
    long = fitted("a" * 300, 60, 7, lines=2)
    assert long.count("\n") == 1
    assert long.endswith("a…")
    assert set(long) == {"a", "\n", "…"}

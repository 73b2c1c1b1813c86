from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from liftedstruct.figures.canvas import COLOURS, LOOK, colour_of, drawing, new_figure, picture_bytes, save_picture
from liftedstruct.figures.ideas import batch_graph


@pytest.mark.parametrize("format", ["png", "svg", "pdf"])
def test_a_figure_is_the_same_bytes_each_time(format: str) -> None:
    figure = batch_graph()
    first = picture_bytes(figure, format, dpi=60)
    assert picture_bytes(figure, format, dpi=60) == first
    assert picture_bytes(batch_graph(), format, dpi=60) == first


def test_pixels_too(tmp_path: Path) -> None:
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    for kind in ("png", "pdf"):
        assert picture_bytes(picture, kind) == picture_bytes(picture, kind)
    read = Image.open(save_picture(picture, tmp_path / "a.png"))
    assert np.array_equal(np.asarray(read), np.asarray(picture))
    with pytest.raises(
        ValueError, match=r"made of pixels and must be a \.png or \.pdf file, got \.svg\. Choose one of the two"
    ):
        save_picture(picture, tmp_path / "a.svg")
    with pytest.raises(ValueError, match=r"the ending of a figure's file must be one of \.pdf, \.png, \.svg, got '\.jpg'"):
        save_picture(picture, tmp_path / "a.jpg")
    assert [each.name for each in tmp_path.iterdir()] == ["a.png"]


def test_the_settings_of_the_caller_are_left() -> None:
    mpl.rcParams["font.size"] = 31.0
    try:
        with drawing():
            assert mpl.rcParams["font.size"] == LOOK["font.size"]
            figure, axes = new_figure(2, 1, columns=2)
        assert mpl.rcParams["font.size"] == 31.0
        assert (len(axes), figure.get_size_inches().tolist()) == (2, [2, 1])
    finally:
        mpl.rcdefaults()


def test_colours() -> None:
    assert len(set(COLOURS.values())) == 4
    assert colour_of("triplet", 3) == COLOURS["triplet"]
    assert colour_of("mine", 0) != colour_of("mine", 1)

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from liftedstruct.figures.illustrations import batch_graph
from liftedstruct.figures.style import COLORS, RC_PARAMS, figure_bytes, method_color, new_figure, save_figure, styled


@pytest.mark.parametrize("format", ["png", "svg", "pdf"])
def test_a_figure_is_the_same_bytes_each_time(format: str) -> None:
    figure = batch_graph()
    first = figure_bytes(figure, format, dpi=60)
    assert figure_bytes(figure, format, dpi=60) == first
    assert figure_bytes(batch_graph(), format, dpi=60) == first


def test_pixels_too(tmp_path: Path) -> None:
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    for kind in ("png", "pdf"):
        assert figure_bytes(picture, kind) == figure_bytes(picture, kind)
    read = Image.open(save_figure(picture, tmp_path / "a.png"))
    assert np.array_equal(np.asarray(read), np.asarray(picture))
    with pytest.raises(ValueError, match=r"must be saved as \.png or \.pdf, got \.svg"):
        save_figure(picture, tmp_path / "a.svg")
    with pytest.raises(ValueError, match=r"the suffix of a figure's file must be one of \.pdf, \.png, \.svg, got '\.jpg'"):
        save_figure(picture, tmp_path / "a.jpg")
    assert [each.name for each in tmp_path.iterdir()] == ["a.png"]


def test_the_settings_of_the_caller_are_left() -> None:
    mpl.rcParams["font.size"] = 31.0
    try:
        with styled():
            assert mpl.rcParams["font.size"] == RC_PARAMS["font.size"]
            figure, axes = new_figure(2, 1, columns=2)
        assert mpl.rcParams["font.size"] == 31.0
        assert (len(axes), figure.get_size_inches().tolist()) == (2, [2, 1])
    finally:
        mpl.rcdefaults()


def test_colors() -> None:
    assert len(set(COLORS.values())) == 4
    assert method_color("triplet", 3) == COLORS["triplet"]
    assert method_color("mine", 0) != method_color("mine", 1)

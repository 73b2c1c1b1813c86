import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from liftedstruct.data.image_set import Indices
from liftedstruct.figures.maps import class_colors, grid_of, thumbnail_map
from liftedstruct.figures.style import save_figure

Pixels = NDArray[np.uint8]
WHITE = [255, 255, 255]


def flat(rows: Indices, side: int) -> Pixels:
    """Return images of one color each, which encodes the row and is never white."""
    colors = np.stack((rows % 200, rows // 200 % 200, np.full(len(rows), 77)), axis=1).astype(np.uint8)
    return np.broadcast_to(colors[:, None, None], (len(rows), side, side, 3)).copy()


def drawn(positions: object, **settings: object) -> Pixels:
    return np.asarray(thumbnail_map(np.asarray(positions), flat, **settings))  # type: ignore[arg-type]


def test_four_corners_and_the_middle() -> None:
    """Ten cells of 16 pixels on 164, with a margin of two pixels; y points up."""
    picture = drawn([[-1, -1], [-1, 1], [1, -1], [1, 1], [0.05, -0.05]], side=164, tile=16)
    assert picture.shape == (164, 164, 3)
    expected = np.full((164, 164, 3), 255, np.uint8)
    for row, (column, line) in enumerate([(0, 9), (0, 0), (9, 9), (9, 0), (5, 5)]):
        left, top = 2 + 16 * column, 2 + 16 * line
        expected[top + 1 : top + 15, left + 1 : left + 15] = (row, 0, 77)
    np.testing.assert_array_equal(picture, expected)


def test_the_nearest_to_the_middle_of_a_cell_is_shown() -> None:
    """The corners give ten cells of side 1. Rows 3 and 4 are equally close to (3.5, 6.5); the first is shown."""
    P = np.array([[0, 0], [10, 10], [3.1, 6.9], [3.5, 6.4], [3.5, 6.6], [4.1, 6.5]])
    rows, columns, lines = grid_of(P, 10)
    assert rows.tolist() == [0, 1, 3, 5]
    assert columns.tolist() == [0, 9, 3, 4]
    assert lines.tolist() == [9, 0, 3, 3]


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 40), st.just(2)), elements=st.floats(-5, 5)), st.integers(1, 12))
@settings(deadline=None)
def test_every_occupied_cell_shows_one_of_its_own(P: NDArray[np.float64], cells: int) -> None:
    """Compare with a loop over the images."""
    rows, columns, lines = grid_of(P, cells)
    low, high = P.min(axis=0), P.max(axis=0)
    width = (high / 2 - low / 2).max() * 2 or 1.0
    best: dict[tuple[int, int], tuple[float, int]] = {}
    for row, point in enumerate(P):
        x, y = (point - (low / 2 + high / 2)) / width
        place = np.array([(x + 0.5) * cells, (0.5 - y) * cells])
        column, line = np.minimum(np.maximum(np.floor(place), 0), cells - 1).astype(int)
        off = float(((place - [column, line] - 0.5) ** 2).sum())
        best[column, line] = min(best.get((column, line), (np.inf, -1)), (off, row))
    found = {(column, line): row for row, column, line in zip(rows.tolist(), columns.tolist(), lines.tolist(), strict=True)}
    assert found == {cell: row for cell, (_, row) in best.items()}
    assert rows.tolist() == sorted(set(rows.tolist()))


def test_both_axes_have_one_scale() -> None:
    """Positions twice as wide as high occupy the middle half of the lines."""
    P = np.random.default_rng(0).uniform(size=(4000, 2)) * [2, 1]
    _, columns, lines = grid_of(P, 16)
    assert (columns.min(), columns.max()) == (0, 15)
    assert (lines.min(), lines.max()) == (4, 11)


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1.0, 1e300])
def test_units_do_not_matter(scale: float) -> None:
    P = np.random.default_rng(1).normal(size=(200, 2))
    for one, other in zip(grid_of(P, 9), grid_of(P * scale, 9), strict=True):
        np.testing.assert_array_equal(one, other)


def test_one_image_and_images_in_one_place() -> None:
    for P in (np.zeros((1, 2)), np.full((7, 2), 3.5)):
        picture = drawn(P, side=128)
        assert picture[80, 80].tolist() == [0, 0, 77], "near the center"
        assert grid_of(P, 3)[0].tolist() == [0]


def test_frames_have_the_colors_of_the_classes() -> None:
    labels = ["robin", "wren", "robin", "crow"]
    picture = drawn([[-1, -1], [-1, 1], [1, -1], [1, 1]], side=132, tile=32, labels=labels)  # four cells, margin of two pixels
    colors = class_colors(3)[[1, 2, 1, 0]]  # in the order of the sorted names
    for row, (left, top) in enumerate([(2, 98), (2, 2), (98, 98), (98, 2)]):
        tile = picture[top : top + 32, left : left + 32]
        assert tile[1:-1, 1:-1].reshape(-1, 3).tolist() == [[row, 0, 77]] * 900
        edge = np.concatenate((tile[0], tile[-1], tile[:, 0], tile[:, -1]))
        assert edge.tolist() == [colors[row].tolist()] * 128
    assert picture[0].tolist() == [WHITE] * 132


def test_class_colors_differ() -> None:
    colors = class_colors(100).astype(int)
    assert colors.shape == (100, 3)
    apart = np.abs(colors[:, None] - colors[None]).sum(axis=2) + 1000 * np.eye(100, dtype=int)
    assert apart.min() >= 12
    assert apart[np.arange(99), np.arange(1, 100)].min() >= 100, "consecutive classes have very different colors"
    assert (class_colors(5) == class_colors(100)[:5]).all()
    assert class_colors(0).shape == (0, 3)


def test_more_is_shown_on_a_larger_map_and_the_tile_suits_the_number() -> None:
    P = np.random.default_rng(0).normal(size=(500, 2))

    def shown(**settings: int) -> int:
        picture = drawn(P, **settings).astype(int)
        return len(np.unique(picture @ [1, 256, 65536])) - 1  # without white

    assert shown(side=256, tile=16) < shown(side=512, tile=16) < shown(side=1024, tile=16) <= 500
    assert shown(side=1024) == len(grid_of(P, 1008 // 45)[0]), "1,024 / 45 is about the root of 500"


def test_thumbnails_come_in_parts_and_once() -> None:
    asked: list[int] = []

    def counting(rows: Indices, side: int) -> Pixels:
        asked.extend(rows.tolist())
        assert rows.size * side**2 <= 1 << 23
        return flat(rows, side)

    P = np.random.default_rng(0).uniform(size=(900, 2))
    thumbnail_map(P, counting, side=4096, tile=128)
    assert asked == grid_of(P, 4032 // 128)[0].tolist()


def test_the_same_each_time_and_written_to_a_file(tmp_path: Path) -> None:
    P = np.random.default_rng(0).normal(size=(50, 2))
    files = [save_figure(thumbnail_map(P, flat, side=200, labels=np.arange(50) % 3), tmp_path / f"{i}.png") for i in (1, 2)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    thumbnail_map(np.random.default_rng(0).normal(size=(50, 2)), flat, side=64, tile=4, progress=True)
    assert "map: " in capsys.readouterr().err


def test_bad_input() -> None:
    P = np.zeros((3, 2))
    with pytest.raises(ValueError, match=r"positions must be numbers of shape \(n, 2\), n >= 1, got float64 \(3, 3\)"):
        drawn(np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"got float64 \(0, 2\)"):
        drawn(np.zeros((0, 2)))
    with pytest.raises(ValueError, match=r"got float64 \(\)"):
        drawn(1.0)
    with pytest.raises(ValueError, match=r"positions must be finite, row 1 is \[nan, 0\.0\]"):
        drawn([[0, 0], [np.nan, 0], [np.inf, 1]])
    with pytest.raises(ValueError, match=r"side must be at most 16,384 pixels, got 16,385"):
        drawn(P, side=16385)
    with pytest.raises(ValueError, match=r"side must be a whole number >= 64, got 10"):
        drawn(P, side=10)
    with pytest.raises(ValueError, match=r"tile must be at most the side of the map, 64, got 65"):
        drawn(P, side=64, tile=65)
    with pytest.raises(ValueError, match=r"tile must be a whole number >= 4, got 3"):
        drawn(P, side=64, tile=3)
    with pytest.raises(ValueError, match=r"labels must have shape \(n,\), one per position: got \(2,\) for 3"):
        drawn(P, labels=[1, 2])
    with pytest.raises(ValueError, match=r"thumbnails must return uint8 of shape \(1, 34, 34, 3\), got float64 \(5,\)"):
        thumbnail_map(P, lambda rows, side: np.zeros(5), side=64)  # type: ignore[arg-type, return-value]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
def test_memory_is_that_of_the_picture() -> None:
    code = """
import numpy as np
from pathlib import Path
from liftedstruct.figures.maps import thumbnail_map
def megabytes(field):
    return next(int(line.split()[1]) / 1024 for line in Path("/proc/self/status").read_text().splitlines() if field in line)
flat = lambda rows, side: np.full((len(rows), side, side, 3), 9, np.uint8)
P = np.random.default_rng(0).uniform(size=(5_000, 2))
thumbnail_map(P[:10], flat, side=64)
before = megabytes("VmRSS")
picture = thumbnail_map(P, flat, side=4000, tile=50)
print(megabytes("VmHWM") - before)
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert child.returncode == 0, child.stderr
    assert float(child.stdout) < 4000**2 * 4 / 2**20 + 60  # Pillow uses four bytes per pixel; thumbnails are requested in parts

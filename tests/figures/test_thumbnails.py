from pathlib import Path

import numpy as np
import pytest

from liftedstruct.figures.thumbnails import checked_thumbnails, placeholders, thumbnails_of

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)


def test_the_whole_image_at_its_own_side() -> None:
    small = thumbnails_of(IMAGES)(np.array([4, 0, 4]), 32)
    np.testing.assert_array_equal(small, IMAGES[[4, 0, 4]])


def test_rows_of_a_part() -> None:
    small = thumbnails_of(IMAGES, rows=np.array([5, 2, 3]))(np.array([2, 0]), 32)
    np.testing.assert_array_equal(small, IMAGES[[3, 5]])


@pytest.mark.parametrize("side", [3, 5, 8, 16, 31])
def test_smaller_pictures_keep_the_average_color(side: int) -> None:
    ramp = np.linspace(20, 230, 256)[None, :, None] * np.array([1.0, 0.5, 0.25]) * np.ones((256, 1, 1))
    small = thumbnails_of(ramp.astype(np.uint8)[None])(np.array([0]), side)
    assert small.shape == (1, side, side, 3)
    np.testing.assert_allclose(small.mean(axis=(0, 1, 2)), ramp.mean(axis=(0, 1)), atol=2)
    assert (np.diff(small[0, :, :, 0].astype(int), axis=1) >= 0).all()


def test_edges_do_not_ring() -> None:
    """Around a dark square on a light background, no gray is darker or lighter than these two."""
    image = np.full((1, 256, 256, 3), 200, np.uint8)
    image[:, 64:192, 64:192] = 40
    small = thumbnails_of(image)(np.array([0]), 48)
    assert (small.min(), small.max()) == (40, 200)
    np.testing.assert_array_equal(small[0], small[0, ::-1, ::-1])


def test_larger_pictures() -> None:
    flat = np.full((1, 8, 8, 3), 77, np.uint8)
    assert (thumbnails_of(flat)(np.array([0]), 50) == 77).all()


def test_a_file_is_read_only_where_asked(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    rows = np.array([3, 1])
    np.testing.assert_array_equal(thumbnails_of(mapped)(rows, 7), thumbnails_of(IMAGES)(rows, 7))


def test_placeholders() -> None:
    gray = placeholders(np.arange(3), 48)
    assert gray.shape == (3, 48, 48, 3)
    assert gray.dtype == np.uint8
    assert np.ptp(gray[..., :], axis=-1).max() == 0, "gray"
    assert gray[0, 0, 0, 0] != gray[0, 24, 24, 0], "with a cross at the center"
    assert placeholders(np.arange(0), 5).shape == (0, 5, 5, 3)
    assert placeholders(np.arange(1), 1).shape == (1, 1, 1, 3)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"images must be uint8 of shape \(n, s, s, 3\), got float64 \(6, 32, 32, 3\)"):
        thumbnails_of(IMAGES.astype(float))
    with pytest.raises(ValueError, match=r"got uint8 \(6, 32, 16, 3\)"):
        thumbnails_of(IMAGES[:, :, :16])
    with pytest.raises(ValueError, match=r"rows must be .* 0 to 5, got .* from 2 to 6"):
        thumbnails_of(IMAGES, rows=[2, 6])
    with pytest.raises(ValueError, match=r"rows must be .* 0 to 1, got .* from -1 to 0"):
        thumbnails_of(IMAGES, rows=[3, 4])(np.array([-1, 0]), 8)
    with pytest.raises(ValueError, match=r"rows must be a list of rows 0 to \d+, got float64 of shape \(1,\)"):
        thumbnails_of(IMAGES)(np.array([0.0]), 8)
    with pytest.raises(ValueError, match=r"side must be a whole number >= 1, got 0"):
        thumbnails_of(IMAGES)(np.array([0]), 0)
    with pytest.raises(ValueError, match=r"thumbnails must return uint8 of shape \(2, 8, 8, 3\), got float64 \(2, 8, 8\)"):
        checked_thumbnails(lambda rows, side: np.zeros((len(rows), side, side)), np.arange(2), 8)  # type: ignore[arg-type, return-value]

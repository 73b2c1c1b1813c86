"""Thumbnails of any side for galleries and maps, from packed images or as placeholders."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from liftedstruct.data import Indices
from liftedstruct.figures.array_checks import as_rows
from liftedstruct.runtime.checks import check_count

__all__ = ["Pixels", "Thumbnails", "checked_thumbnails", "placeholders", "thumbnails_of"]

Pixels = NDArray[np.uint8]
Thumbnails = Callable[[Indices, int], Pixels]  # rows (q,) and a side -> (q, side, side, 3)

SMALLER = Image.Resampling.HAMMING  # about as sharp as bicubic, without ringing at the edges of products on white
LARGER = Image.Resampling.BICUBIC
GAP = 3.0  # Pillow's reducing_gap: large images are first averaged over blocks, to at least three times the side
GROUND, MARK = 224, 176  # grays of a placeholder


def thumbnails_of(images: Pixels, rows: Sequence[int] | Indices | None = None) -> Thumbnails:
    """Return a function from rows and a side to thumbnails of packed images, (q, side, side, 3).

    Args:
        images: uint8 (n, s, s, 3), such as `PackedImages.images`; from a memory-mapped file, only requested images are read.
        rows: (m,), image of each row, such as `Embeddings.rows`. Default: row i is image i.

    Examples:
        >>> import numpy as np
        >>> chessboard = np.indices((4, 4)).sum(axis=0) % 2 * 200
        >>> thumbnails = thumbnails_of(np.repeat(chessboard.astype(np.uint8)[None, :, :, None], 3, axis=3))
        >>> thumbnails(np.array([0]), 2)[0, :, :, 0].tolist()
        [[100, 100], [100, 100]]
    """
    if images.ndim != 4 or images.shape[1] != images.shape[2] or images.shape[3] != 3 or images.dtype != np.uint8:
        raise ValueError(f"images must be uint8 of shape (n, s, s, 3), got {images.dtype} {images.shape}. Prepare them first.")
    every = np.arange(len(images)) if rows is None else as_rows(rows, len(images))

    def thumbnails(wanted: Indices, side: int) -> Pixels:
        numbers, side = every[as_rows(wanted, len(every))], check_count("side", side)
        small = np.empty((len(numbers), side, side, 3), np.uint8)
        for at in np.argsort(numbers, kind="stable"):  # in file order
            small[at] = _resized(images[numbers[at]], side)
        return small

    return thumbnails


def checked_thumbnails(thumbnails: Thumbnails, rows: Indices, side: int) -> Pixels:
    """Return the thumbnails of these rows, (q, side, side, 3), or raise if the function returns something else."""
    pictures = thumbnails(rows, side)
    if pictures.shape != (len(rows), side, side, 3) or pictures.dtype != np.uint8:
        wanted = f"uint8 of shape {(len(rows), side, side, 3)}"
        raise ValueError(
            f"thumbnails must return {wanted}, got {pictures.dtype} {pictures.shape}. Make them with thumbnails_of."
        )
    return pictures


def placeholders(rows: Indices, side: int) -> Pixels:
    """Return gray images with a cross, (q, side, side, 3), for images that are not available."""
    y, x = np.indices((check_count("side", side), side))
    line = max(1, side // 32)
    near = np.minimum(abs(y - x), abs(y + x - side + 1)) < line
    inside = np.minimum(np.minimum(y, x), side - 1 - np.maximum(y, x)) >= side // 4
    gray = np.where(near & inside, MARK, GROUND).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(gray[None, :, :, None], (len(rows), side, side, 3)))


def _resized(pixels: Pixels, side: int) -> Pixels:
    if len(pixels) == side:
        return pixels
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize((side, side), SMALLER if len(pixels) > side else LARGER, reducing_gap=GAP))

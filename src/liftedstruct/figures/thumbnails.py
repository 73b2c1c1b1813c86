"""Small pictures of images, of any side, from wherever the images are: what galleries and maps are made of."""

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

SMALLER = Image.Resampling.HAMMING  # about as sharp as bicubic, and no ringing along the edges of products on white
LARGER = Image.Resampling.BICUBIC
GAP = 3.0  # a photograph of many times the side is first averaged over whole blocks of pixels, down to three times the side
GROUND, MARK = 224, 176  # grays of a placeholder


def thumbnails_of(images: Pixels, rows: Sequence[int] | Indices | None = None) -> Thumbnails:
    """A function from rows and a side to small pictures of packed images, (q, side, side, 3).

    Args:
        images: (n, s, s, 3) bytes, such as ``PackedImages.images``; a file that is mapped into memory is read only where asked.
        rows: which image each row is, such as ``Embeddings.rows``; without it row i is image i.

    >>> import numpy as np
    >>> chessboard = np.indices((4, 4)).sum(axis=0) % 2 * 200
    >>> thumbnails = thumbnails_of(np.repeat(chessboard.astype(np.uint8)[None, :, :, None], 3, axis=3))
    >>> thumbnails(np.array([0]), 2)[0, :, :, 0].tolist()
    [[100, 100], [100, 100]]
    """
    if images.ndim != 4 or images.shape[1] != images.shape[2] or images.shape[3] != 3 or images.dtype != np.uint8:
        raise ValueError(f"images must be bytes of shape (n, s, s, 3), got {images.dtype} {images.shape}. Pack them first.")
    every = np.arange(len(images)) if rows is None else as_rows(rows, len(images))

    def thumbnails(wanted: Indices, side: int) -> Pixels:
        numbers, side = every[as_rows(wanted, len(every))], check_count("side", side)
        small = np.empty((len(numbers), side, side, 3), np.uint8)
        for at in np.argsort(numbers, kind="stable"):  # in the order of the file, which may be on a disk
            small[at] = _resized(images[numbers[at]], side)
        return small

    return thumbnails


def checked_thumbnails(thumbnails: Thumbnails, rows: Indices, side: int) -> Pixels:
    """The thumbnails of these rows, (q, side, side, 3), from a function that may be anyone's."""
    pictures = thumbnails(rows, side)
    if pictures.shape != (len(rows), side, side, 3) or pictures.dtype != np.uint8:
        wanted = f"bytes of shape {(len(rows), side, side, 3)}"
        raise ValueError(f"thumbnails must give {wanted}, got {pictures.dtype} {pictures.shape}. Make them with thumbnails_of.")
    return pictures


def placeholders(rows: Indices, side: int) -> Pixels:
    """Gray pictures with a cross, (q, side, side, 3), to stand where the images are gone."""
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

"""Map of thumbnails at their t-SNE positions, up to 16,384 x 16,384 pixels."""

import colorsys
import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from liftedstruct.data import Indices
from liftedstruct.figures.style import PAPER
from liftedstruct.figures.thumbnails import Pixels, Thumbnails, checked_thumbnails
from liftedstruct.runtime.checks import LabelsLike, as_classes, check_count
from liftedstruct.runtime.progress import Bar

__all__ = ["LARGEST", "class_colors", "grid_of", "thumbnail_map"]

LARGEST = 16_384  # pixels per side: 805 MB at 3 bytes per pixel; Pillow uses 4
TILES = (24, 256)  # smallest and largest default side of a tile
MARGIN = 1 / 64  # minimum margin, as a fraction of the side
PIXELS_AT_ONCE = 1 << 23  # pixels of thumbnails in memory: 25 MB
GOLDEN = (math.sqrt(5) - 1) / 2  # golden ratio steps around the hue circle stay far from earlier hues


def thumbnail_map(
    positions: NDArray[np.floating],
    thumbnails: Thumbnails,
    *,
    side: int = 4096,
    tile: int | None = None,
    labels: LabelsLike | None = None,
    progress: bool = False,
) -> Image.Image:
    """Draw thumbnails at their positions on a square map.

    The map is a grid of thumbnail-sized cells. Each cell shows the image closest to its center (`grid_of`), so thumbnails do
    not overlap and each is less than a tile away from its position. A larger side or a smaller tile shows more images.

    Args:
        positions: (n, 2), x to the right and y up, from `tsne`. Both axes have the same scale.
        thumbnails: function from rows (q,) and a side to images (q, side, side, 3), such as the result of `thumbnails_of`.
        side: side of the map in pixels, at most 16,384.
        tile: side of a thumbnail in pixels. Default: about one cell per image, 24 to 256 pixels.
        labels: (n,), integers or strings, which color the thin frame of each thumbnail by class. Default: white frames.
        progress: show a progress bar.

    """
    P, side = _checked(positions), check_count("side", side, 64)
    if side > LARGEST:
        raise ValueError(f"side must be at most {LARGEST:,} pixels, got {side:,}. Pass a smaller side with smaller tiles.")
    fitting = min(side, int(np.clip(side / math.sqrt(len(P)), *TILES)))  # about one cell per image
    tile = fitting if tile is None else check_count("tile", tile, 4)
    if tile > side:
        raise ValueError(f"tile must be at most the side of the map, {side}, got {tile}. Pass a smaller tile or a larger side.")
    cells = max(1, int(side * (1 - MARGIN)) // tile)
    rows, columns, lines = grid_of(P, cells)
    frames = _frames(labels, len(P))
    picture = Image.new("RGB", (side, side), PAPER)
    start = (side - cells * tile) // 2
    at_once = max(1, PIXELS_AT_ONCE // tile**2)
    with Bar("map", len(rows), wanted=progress) as bar:
        for begin in range(0, len(rows), at_once):
            part = slice(begin, begin + at_once)
            tiles = _tiles(thumbnails, rows[part], tile, frames[rows[part]])
            for pixels, column, line in zip(tiles, columns[part].tolist(), lines[part].tolist(), strict=True):
                picture.paste(Image.fromarray(pixels), (start + column * tile, start + line * tile))
            bar.advance(len(tiles))
    return picture


def grid_of(positions: NDArray[np.floating], cells: int) -> tuple[Indices, Indices, Indices]:
    """Return the rows of the images that a grid of cells x cells shows, and their columns and lines from the top left.

    Positions are centered and scaled to the square, with the same scale for x and y. Each occupied cell shows the image closest
    to its center, the first one if there are ties.

    Examples:
        >>> import numpy as np
        >>> rows, columns, lines = grid_of(np.array([[0.0, 0.0], [0.1, 0.1], [4.0, 4.0], [2.1, 1.9]]), 4)
        >>> rows.tolist(), columns.tolist(), lines.tolist()
        ([1, 2, 3], [0, 3, 2], [3, 0, 2])
    """
    P, cells = _checked(positions), check_count("cells", cells)
    low, high = P.min(axis=0), P.max(axis=0)
    width = float((high / 2 - low / 2).max()) * 2 or 1.0
    places = ((P - (low / 2 + high / 2)) / width * (1, -1) + 0.5) * cells  # y points up, lines go down
    at = np.clip(np.floor(places), 0, cells - 1).astype(np.int64)  #                                  (n, 2)
    off = np.square(places - at - 0.5).sum(axis=1)
    cell = at[:, 1] * cells + at[:, 0]
    order = np.lexsort((off, cell))  # by cell, then distance from its center, then row
    rows = np.sort(order[np.unique(cell[order], return_index=True)[1]])
    return rows, at[rows, 0], at[rows, 1]


def class_colors(count: int) -> Pixels:
    """Return one color per class, uint8 (count, 3): hues far from earlier ones, cycling through three lightness levels."""
    colors = [colorsys.hls_to_rgb(c * GOLDEN % 1, (0.45, 0.62, 0.3)[c % 3], (0.9, 0.8, 0.75)[c % 3]) for c in range(count)]
    return (np.array(colors).reshape(-1, 3) * 255).round().astype(np.uint8)


def _checked(positions: NDArray[np.floating]) -> NDArray[np.float64]:
    P = np.asarray(positions)
    if P.ndim != 2 or P.shape[1] != 2 or not len(P) or P.dtype.kind not in "fiu":
        raise ValueError(
            f"positions must be numbers of shape (n, 2), n >= 1, got {P.dtype} {P.shape}. Pass the result of tsne."
        )
    if not np.isfinite(P).all():
        row = int(np.argmin(np.isfinite(P).all(axis=1)))
        raise ValueError(f"positions must be finite, row {row} is {P[row].tolist()}. Leave these images out.")
    return P.astype(np.float64)


def _frames(labels: LabelsLike | None, n: int) -> Pixels:
    """Return the color of each image's class, (n, 3), or white."""
    if labels is None:
        return np.full((n, 3), 255, np.uint8)
    y, distinct = as_classes(labels)
    if y.shape != (n,):
        raise ValueError(f"labels must have shape (n,), one per position: got {y.shape} for {n}. Pass one label per position.")
    return class_colors(len(distinct))[y]


def _tiles(thumbnails: Thumbnails, rows: Indices, tile: int, frames: Pixels) -> Pixels:
    """Return thumbnails with frames."""
    line = max(1, tile // 32)
    tiles = np.tile(frames[:, None, None], (1, tile, tile, 1))
    tiles[:, line:-line, line:-line] = checked_thumbnails(thumbnails, rows, tile - 2 * line)
    return tiles

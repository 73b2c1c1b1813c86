"""Interactive map of all images, as a self-contained HTML fragment.

The fragment holds positions, neighbors and names as arrays, and thumbnails in sprite sheets. Each sheet is a WebP image that
the browser decodes when one of its images comes into view. Images that are close in the first view share a sheet, so few sheets
are in view at a time. All data is text inside the page; nothing is fetched.
"""

import base64
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftedstruct.data import Indices
from liftedstruct.figures import Pixels, Thumbnails
from liftedstruct.figures.array_checks import places_in_groups
from liftedstruct.report.inline import resource, webp
from liftedstruct.runtime.progress import Bar

__all__ = ["NoRoomError", "View", "map_html", "moved_apart", "places_on_map"]

SCRIPTS = ("data", "camera", "picture", "names", "panel", "chosen", "input")  # map_*.js, then map.js
SIDES = (96, 64, 48, 32)  # of thumbnails, in pixels; multiples of WebP's 16-pixel blocks
QUALITIES = (75, 60, 45, 30, 15)
PIXELS = 140_000_000  # of all thumbnails: 48 x 48 for the 60,502 test images of Online Products, larger for fewer images
SHEET = 768  # maximum side of a sheet in pixels
SAMPLES = 4  # sheets from which the total size is estimated
APART = 16  # images at the same position are moved apart by 1/16 of the mean distance between images
GOLDEN = np.pi * (3 - 5**0.5)  # golden angle


class NoRoomError(ValueError):
    """Raised if even the smallest map does not fit."""


@dataclass(frozen=True)
class View:
    """Map of one run; all views of a map are of the same n images."""

    name: str
    positions: NDArray[np.floating]  # (n, 2), from t-SNE
    distances: NDArray[np.floating]  # (n, k), of the nearest neighbors, nearest first; k is 5, or n - 1 if that is less
    neighbors: Indices  # (n, k), rows of the neighbors
    ranks: Indices  # (n,), rank of the first image of the same class; 0 for an image that is alone in its class


def map_html(
    views: Sequence[View],
    labels: Indices,
    class_names: Sequence[str],
    captions: Sequence[str],
    thumbnails: Thumbnails,
    *,
    max_bytes: int,
    progress: bool = False,
) -> str:
    """Return an HTML fragment with an interactive map: style, script and data.

    Thumbnails are 96, 64 or 48 px wide, smaller for larger datasets. If the map would exceed `max_bytes`, first their
    quality and then their side is lowered, and a note below the map says so.

    Args:
        views: one per run, of the same n images; the map can switch between them.
        labels: (n,), indices into `class_names`.
        class_names: any text.
        captions: n names or paths; any text.
        thumbnails: function from rows (q,) and a side to uint8 (q, side, side, 3), called with a few hundred rows at a time.
        max_bytes: maximum size of the HTML in UTF-8.
        progress: show a progress bar.
    """
    n = len(labels)
    places = [places_on_map(view.positions) for view in views]
    order = _along_a_curve(places[0])
    used, numbers = np.unique(labels, return_inverse=True)
    record = {
        "classes": [str(class_names[name]) for name in used],
        "captions": [str(caption) for caption in captions],
        "labels": _packed(numbers),
        "slots": _packed(np.argsort(order)),
        "views": [
            {
                "name": view.name,
                "positions": _packed(where),
                "neighbors": _packed(view.neighbors),
                "distances": _packed(np.asarray(view.distances, np.float32)),
                "ranks": _packed(view.ranks),
            }
            for view, where in zip(views, places, strict=True)
        ],
    }
    data = _json(record)
    scripts = [*(f"map_{name}.js" for name in SCRIPTS), "map.js"]
    parts = {"style": resource("map.css"), "script": "\n".join(map(_inlined, scripts))}
    page = Template(resource("map.html"))
    frame = len((page.template + parts["style"] + parts["script"]).encode()) + 1000  # the sizes and the note
    tags = 60 * -(-n // (SHEET // SIDES[0]) ** 2)  # one per sheet
    room = max_bytes - len(data) - frame - tags
    side, quality, sheets = _sheets_within(room, order, thumbnails, progress, max_bytes)
    about = {
        "side": side,
        "columns": SHEET // side,
        "note": _note(side, quality, n, max_bytes),
        "bytes": len(data) + sum(map(len, sheets)),
    }
    text = (f'<script type="text/plain" class="sprites">{sheet}</script>' for sheet in sheets)
    return page.substitute(parts, data=data, about=_json(about), sheets="\n".join(text))


def _inlined(name: str) -> str:
    """Return a JavaScript module without its import and export statements, since all modules share one function."""
    return re.sub(r"^import .*\n|^export ", "", resource(name), flags=re.MULTILINE)


def places_on_map(positions: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return positions in the unit square, y down, with images at the same spot moved apart along a spiral.          (n, 2)"""
    places = _in_unit_square(positions * np.array([1.0, -1.0]))
    return _in_unit_square(moved_apart(places)).astype(np.float32)


def moved_apart(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Move images at the same spot of the unit square apart along a spiral; single images all move by the same offset."""
    step = 1 / (APART * len(places) ** 0.5)
    spot = np.rint(places * (4 / step)).astype(np.int64) @ (1 << 32, 1)
    seed = places_in_groups(spot)  # 0, 1, 2, ... among the images at one spot
    radius = 0.7 * step * np.sqrt(seed + 0.5)
    moved: NDArray[np.float64] = places + radius[:, None] * np.column_stack((np.cos(GOLDEN * seed), np.sin(GOLDEN * seed)))
    return moved


def _in_unit_square(positions: NDArray[np.floating]) -> NDArray[np.float64]:
    low, high = positions.min(axis=0).astype(np.float64), positions.max(axis=0).astype(np.float64)
    side = float((high - low).max()) or 1.0
    placed: NDArray[np.float64] = (positions - (low + high) / 2) / side + 0.5
    return placed


def _along_a_curve(places: NDArray[np.float32]) -> Indices:
    """Return the images in Morton order, in which images close on the map are close.                                   (n,)"""
    cells = (np.clip(places, 0, 1) * 0xFFFF).astype(np.int64)
    code = np.zeros(len(cells), np.int64)
    for bit in range(16):
        code |= ((cells[:, 0] >> bit & 1) << 2 * bit) | ((cells[:, 1] >> bit & 1) << 2 * bit + 1)
    return np.argsort(code, kind="stable")


def _sheets_within(room: int, order: Indices, thumbnails: Thumbnails, progress: bool, most: int) -> tuple[int, int, list[str]]:
    """Return side, quality and sheets of the best thumbnails that fit: first the quality is lowered, then the side."""
    guess = 0
    for side in _sides(len(order)):
        samples = list(_blocks(order, side, SAMPLES))
        sheets_of_samples = [_sheet(rows, side, thumbnails) for rows in samples]
        for quality in QUALITIES:
            size = sum(len(webp(sheet, quality)) for sheet in sheets_of_samples)
            guess = round(size * len(order) / sum(map(len, samples)))
            if guess <= room:
                with Bar("map", len(order), wanted=progress) as bar:
                    sheets = _encoded(order, side, quality, thumbnails, bar)
                if sum(map(len, sheets)) <= room:
                    return side, quality, sheets
    raise NoRoomError(
        f"max_bytes must be about {most - room + guess:,} or more for a map of {len(order):,} images, got {most:,}. "
        "Pass a larger size, or fewer images."
    )


def _sides(n: int) -> tuple[int, ...]:
    first = next((side for side in SIDES if n * side**2 <= PIXELS), SIDES[-2])
    return SIDES[SIDES.index(first) :]


def _encoded(order: Indices, side: int, quality: int, thumbnails: Thumbnails, bar: Bar) -> list[str]:
    """Encode all sheets in threads while the next ones are read; only a few are in memory as pixels."""
    threads = os.cpu_count() or 1
    waiting: list[Future[str]] = []
    with ThreadPoolExecutor(threads) as pool:
        for at, rows in enumerate(_blocks(order, side)):
            if at > 2 * threads:
                waiting[at - 2 * threads].result()
            waiting.append(pool.submit(webp, _sheet(rows, side, thumbnails), quality))
            bar.advance(len(rows))
        return [future.result() for future in waiting]


def _blocks(order: Indices, side: int, samples: int | None = None) -> Iterator[Indices]:
    """Yield the images of each sheet, or of a number of sheets spread over the map."""
    per = (SHEET // side) ** 2
    starts = range(0, len(order), per)
    for at in starts if samples is None else sorted({starts[s * len(starts) // samples] for s in range(samples)}):
        yield order[at : at + per]


def _sheet(rows: Indices, side: int, thumbnails: Thumbnails) -> Pixels:
    """Return a sheet of thumbnails, row by row; the last sheet is cut to its height.                       (h, SHEET, 3)"""
    columns = SHEET // side
    by_file = np.argsort(rows)  # in file order
    height = -(-len(rows) // columns)
    cells = np.full((height * columns, side, side, 3), 255, np.uint8)
    cells[by_file] = thumbnails(rows[by_file], side)
    return cells.reshape(height, columns, side, side, 3).swapaxes(1, 2).reshape(height * side, columns * side, 3)


def _note(side: int, quality: int, n: int, most: int) -> str:
    """State the side and quality of the thumbnails, and whether they were lowered."""
    note, best = f"Thumbnails of {side} px, WebP quality {quality}", (_sides(n)[0], QUALITIES[0])
    if (side, quality) == best:
        return f"{note}."
    return f"{note}, lowered from {best[0]} px and quality {best[1]} to keep the map below {most / 1e6:.1f} MB."


def _packed(array: NDArray[Any]) -> dict[str, str]:
    """Encode an array in base64, integers in the smallest type that fits."""
    if array.dtype.kind in "iu":
        array = array.astype(np.min_scalar_type(int(array.max(initial=0))))
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"type": f"{array.dtype.kind}{array.dtype.itemsize}", "data": base64.b64encode(little.tobytes()).decode()}


def _json(record: object) -> str:
    """Encode as ASCII JSON that cannot end a script element, for names with any characters, even lone surrogates."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")

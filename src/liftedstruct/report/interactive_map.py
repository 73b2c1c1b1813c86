"""The interactive map: every image at its place, as one piece of HTML that needs nothing else.

What is sent: places, neighbors and names as arrays, and the thumbnails in sprite sheets, each a WebP image of its own that
the browser decodes when one of its images comes into view. So that few sheets are in view at a time, images that are near in
the first view stand on the same sheet. All of it is text inside the page: no file is fetched, nothing is asked of a server.
"""

import base64
import json
import os
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

__all__ = ["NoRoomError", "View", "map_html"]

SCRIPTS = ("data", "camera", "picture", "names", "panel", "chosen", "input")  # map_*.js, then map.js
SIDES = (96, 64, 48, 32)  # of thumbnails; whole blocks of 16 pixels, in which WebP works
QUALITIES = (75, 60, 45, 30, 15)
PIXELS = 140_000_000  # of all thumbnails: 48 x 48 for the 60,502 of Online Products, larger ones for smaller sets
SHEET = 768  # pixels a side, at most
SAMPLES = 4  # sheets that the size of all is guessed from
APART = 16  # images at one place are put apart, by this part of the mean distance between images
GOLDEN = np.pi * (3 - 5**0.5)  # the angle of a sunflower's seeds


class NoRoomError(ValueError):
    """Even the least map does not fit."""


@dataclass(frozen=True)
class View:
    """The images as one run has them; all views of a map are of the same n images."""

    name: str
    positions: NDArray[np.floating]  # (n, 2), of t-SNE
    distances: NDArray[np.floating]  # (n, k), to the nearest others, nearest first; k is 5, or all others if there are fewer
    neighbors: Indices  # (n, k), their rows
    ranks: Indices  # (n,), of the first image of the same class; 0 for one that is alone in its class


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
    """An HTML fragment with an interactive map: its own style, script and data, and no need of a network.

    Thumbnails are of 96 px where there are few images and of 48 px where there are many. If the map would be larger than
    ``max_bytes``, first their quality is lowered, then their side, and the map says so.

    Args:
        views: one for each run, of the same n images; the map can be switched between them.
        labels: (n,), indices into ``class_names``.
        class_names: any text.
        captions: n names or paths; any text.
        thumbnails: rows (q,) and a side -> (q, side, side, 3) bytes; asked for a few hundred at a time.
        max_bytes: of the map's HTML, in UTF-8.
        progress: show a progress bar.
    """
    n = len(labels)
    places = [_places(view.positions) for view in views]
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
    parts = {"style": resource("map.css"), "script": "\n".join(map(resource, scripts))}
    page = Template(resource("map.html"))
    frame = len((page.template + parts["style"] + parts["script"]).encode()) + 1000  # and a line about the sheets
    tags = 60 * -(-n // (SHEET // SIDES[0]) ** 2)  # one for each sheet
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


def _places(positions: NDArray[np.floating]) -> NDArray[np.float32]:
    """Positions in the unit square, y down as on a screen; images at one spot are put apart like a sunflower's seeds. (n, 2)"""
    places = _in_unit_square(positions * np.array([1.0, -1.0]))
    step = 1 / (APART * len(positions) ** 0.5)
    _, spot = np.unique(np.rint(places * (4 / step)).astype(np.int64), axis=0, return_inverse=True)
    seed = places_in_groups(spot)  # 0, 1, 2, ... of the images at one spot
    radius = 0.7 * step * np.sqrt(seed + 0.5)  # those that are alone at their spot all move by the same, so they do not
    places += radius[:, None] * np.column_stack((np.cos(GOLDEN * seed), np.sin(GOLDEN * seed)))
    return _in_unit_square(places).astype(np.float32)


def _in_unit_square(positions: NDArray[np.floating]) -> NDArray[np.float64]:
    low, high = positions.min(axis=0).astype(np.float64), positions.max(axis=0).astype(np.float64)
    side = float((high - low).max()) or 1.0
    placed: NDArray[np.float64] = (positions - (low + high) / 2) / side + 0.5
    return placed


def _along_a_curve(places: NDArray[np.float32]) -> Indices:
    """The images in an order in which near ones are near: the bits of x and y take turns (Morton).                     (n,)"""
    cells = (np.clip(places, 0, 1) * 0xFFFF).astype(np.int64)
    code = np.zeros(len(cells), np.int64)
    for bit in range(16):
        code |= ((cells[:, 0] >> bit & 1) << 2 * bit) | ((cells[:, 1] >> bit & 1) << 2 * bit + 1)
    return np.argsort(code, kind="stable")


def _sheets_within(room: int, order: Indices, thumbnails: Thumbnails, progress: bool, most: int) -> tuple[int, int, list[str]]:
    """The best thumbnails that fit, as side, quality and sheets: first the quality is lowered, then the side."""
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
        "Allow more, or show fewer images."
    )


def _sides(n: int) -> tuple[int, ...]:
    first = next((side for side in SIDES if n * side**2 <= PIXELS), SIDES[-2])
    return SIDES[SIDES.index(first) :]


def _encoded(order: Indices, side: int, quality: int, thumbnails: Thumbnails, bar: Bar) -> list[str]:
    """All sheets, compressed while the next ones are read; only a few are in memory as pixels."""
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
    """The images of each sheet, or of so many sheets from all over the map."""
    per = (SHEET // side) ** 2
    starts = range(0, len(order), per)
    for at in starts if samples is None else sorted({starts[s * len(starts) // samples] for s in range(samples)}):
        yield order[at : at + per]


def _sheet(rows: Indices, side: int, thumbnails: Thumbnails) -> Pixels:
    """Thumbnails row by row; the last sheet is as high as it must be.                                      (h, SHEET, 3)"""
    columns = SHEET // side
    by_file = np.argsort(rows)  # images are read in the order of their file
    height = -(-len(rows) // columns)
    cells = np.full((height * columns, side, side, 3), 255, np.uint8)
    cells[by_file] = thumbnails(rows[by_file], side)
    return cells.reshape(height, columns, side, side, 3).swapaxes(1, 2).reshape(height * side, columns * side, 3)


def _note(side: int, quality: int, n: int, most: int) -> str:
    """What the thumbnails are, and what was given up for the size."""
    note, best = f"Thumbnails of {side} px, WebP of quality {quality}", (_sides(n)[0], QUALITIES[0])
    if (side, quality) == best:
        return f"{note}."
    return f"{note}, lowered from {best[0]} px and quality {best[1]} to keep the map below {most / 1e6:.1f} MB."


def _packed(array: NDArray[Any]) -> dict[str, str]:
    """An array as text: floats as they are, whole numbers in as few bytes as they need."""
    if array.dtype.kind in "iu":
        array = array.astype(np.min_scalar_type(int(array.max(initial=0))))
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"type": f"{array.dtype.kind}{array.dtype.itemsize}", "data": base64.b64encode(little.tobytes()).decode()}


def _json(record: object) -> str:
    """JSON in ASCII that ends no script: a name may hold anything, also half a character."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")

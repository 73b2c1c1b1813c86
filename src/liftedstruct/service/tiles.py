"""The map of a whole catalog over HTTP, in tiles: all of it when far, the photos when near.

The tiles are a quadtree over the unit square; tile (z, x, y) is a square of side 2^-z. Each item is in one tile only: the
largest one in which fewer than 256 items precede it in a fixed random order. So the tiles of levels 0 to z together show an
even sample of the items, which only grows as the map is zoomed in. The items that are not shown yet appear as density: the
number of items and their most frequent color in each of 64 x 64 cells of the tile.

A tile is binary, little-endian: five uint32, namely the format, k, c, the number of all items in the square, and whether there
are larger levels; then of k items the row (uint32), x and y (float32), and color (uint32); of c cells that are not empty the
count (uint32), color (uint32) and number y * 64 + x (uint16); then of the items the level from which on each is the first one
of a square (uint8), so that photos can be shown far apart.
"""

import functools
import hashlib
import io
import os
import threading
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, HTTPException, Query
from fastapi.responses import JSONResponse, Response
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageOps
from pydantic import BaseModel, Field

from liftedstruct.data import FolderSource, ImageError, Indices
from liftedstruct.data.decoding import load_rgb
from liftedstruct.figures.array_checks import places_in_groups
from liftedstruct.runtime.limits import available_cores
from liftedstruct.service.layout import OUT_OF_DATE, Layout, arrange, estimated_seconds, read_layout
from liftedstruct.service.rows import Rows, RowsCache

__all__ = ["CAPACITY", "CELLS", "DEPTH", "MapJob", "Tiles", "map_router"]

FORMAT = 1
CAPACITY, DEPTH, CELLS = 256, 16, 6  # items per tile, levels, and the levels that a tile's cells are below it
COLUMNS = 8  # and rows, of a sheet of thumbnails
NONE = 0xFFFFFFFF  # color of an item without a value
RAMP, VALUES, OUTER = 255, 12, (2, 98)  # colors of numbers, named values of a text field, percentiles of the range of numbers
GATHERED = 0.4  # part of a class that is in one place where its name is shown
NAMES = 20_000
MASK = 2048  # pixels of the side of a lasso
FEW, MANY = 1000, 20_000  # items of an answer
IMMUTABLE = {"Cache-Control": "private, max-age=31536000, immutable"}

_pool = ThreadPoolExecutor(available_cores(), "sheet")
Colors = tuple[NDArray[np.uint32], dict[str, Any]]


class Tiles:
    """The tiles of a layout."""

    def __init__(self, rows: Rows, layout: Layout) -> None:
        self.rows, self.places, self.n = rows, layout.places, len(rows)
        self.version = f"{rows.version}{zlib.crc32(layout.places.data):08x}"
        cells = np.minimum((layout.places * (1 << DEPTH)).astype(np.int64), (1 << DEPTH) - 1)
        self.codes = _interleaved(cells[:, 0], cells[:, 1])
        self.by_code = np.argsort(self.codes)
        self.sorted_codes = self.codes[self.by_code]
        order = left = np.argsort(
            layout.seqs.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        )  # keeps its order for new items
        keys, tiles = [], []
        for z in range(DEPTH + 1):
            code = self.codes[left] >> 2 * (DEPTH - z)
            stay = (places_in_groups(code) < CAPACITY) | (z == DEPTH)
            by_tile = np.argsort(code[stay], kind="stable")
            keys.append(_key(z, code[stay][by_tile]))
            tiles.append(left[stay][by_tile])
            left = left[~stay]
            if not len(left):
                break
        self.levels = len(keys)
        self.keys, self.by_tile = np.concatenate(keys), np.concatenate(tiles)
        self.rise = np.full(self.n, DEPTH + 1, np.uint8)
        for z in range(DEPTH, -1, -1):
            _, first = np.unique(self.codes[order] >> 2 * (DEPTH - z), return_index=True)
            self.rise[order[first]] = z
        self.tile = functools.lru_cache(2048)(self._tile)
        self.sheet = functools.lru_cache(1024)(self._sheet)
        self.colors = functools.lru_cache(4)(self._colors)

    def items(self, z: int, x: int, y: int) -> Indices:
        """Return the rows of the items of a tile, in their random order."""
        if not (0 <= z <= DEPTH and 0 <= x < 1 << z and 0 <= y < 1 << z):
            raise HTTPException(404, f"z, x, y must be a tile of the map, z at most {DEPTH}, got {z}, {x}, {y}. See /map")
        key = _key(z, _interleaved(x, y))
        return self.by_tile[np.searchsorted(self.keys, key) : np.searchsorted(self.keys, key, "right")]

    def _tile(self, z: int, x: int, y: int, color: str) -> bytes:
        rows, (codes, _) = self.items(z, x, y), self.colors(color)
        key, shift = _interleaved(x, y), 2 * (DEPTH - z)
        below = np.searchsorted(self.keys, _key(z + 1, np.array([4 * key, 4 * key + 4])))
        start, stop = np.searchsorted(self.sorted_codes, np.array([key, key + 1]) << shift)
        more, inside = bool(below[1] > below[0]), self.by_code[start:stop]
        cells = counts = kinds = np.empty(0, np.int64)
        if more:
            fine = (self.sorted_codes[start:stop] & ((1 << shift) - 1)) >> max(shift - 2 * CELLS, 0)
            pairs, each = np.unique(fine << 32 | codes[inside], return_counts=True)
            best = np.lexsort((each, pairs >> 32))  # the most frequent color last in each cell
            cells, first = np.unique(pairs >> 32, return_index=True)
            counts, kinds = np.add.reduceat(each, first), pairs[best][np.append(first[1:], len(pairs)) - 1] & NONE
        across = sum((cells >> 2 * bit & 1) << bit for bit in range(CELLS))
        down = sum((cells >> 2 * bit + 1 & 1) << bit for bit in range(CELLS))
        head = np.array([FORMAT, len(rows), len(cells), stop - start, more], "<u4")
        parts = [head, rows.astype("<u4"), self.places[rows].astype("<f4"), codes[rows].astype("<u4")]
        parts += [
            counts.astype("<u4"),
            kinds.astype("<u4"),
            (np.asarray(down) << CELLS | across).astype("<u2"),
            self.rise[rows],
        ]
        return b"".join(part.tobytes() for part in parts)

    def _sheet(self, z: int, x: int, y: int, part: int, side: int) -> bytes:
        rows = self.items(z, x, y)[part * COLUMNS**2 : (part + 1) * COLUMNS**2]
        sheet = Image.new("RGBA", (COLUMNS * side, max(1, -(-len(rows) // COLUMNS)) * side))
        for at, image in enumerate(_pool.map(lambda row: _square(self.rows.paths[row], side), rows)):
            if image is not None:
                sheet.paste(image, (at % COLUMNS * side, at // COLUMNS * side))
        stream = io.BytesIO()
        sheet.save(stream, "WEBP", quality=80, method=2)
        return stream.getvalue()

    def _colors(self, color: str) -> Colors:
        """Return the color of each item, a number, and the legend."""
        rows, name = self.rows, color.removeprefix("field:")
        if color == "class":
            return rows.labels.astype(np.uint32), {"kind": "class", "count": len(rows.products)}
        if color == "outcome":
            nearest = rows.neighbors(1)[1] if self.n > 1 else np.zeros((1, 1), np.int64)
            known = np.array([bool(product) for product in rows.products])[rows.labels] & (rows.sizes[rows.labels] > 1)
            kinds = np.where(known, rows.labels[nearest[:, 0]] != rows.labels, 2).astype(np.uint32)
            return kinds, {"kind": "outcome", "counts": np.bincount(kinds, minlength=3).tolist(), "exact": not rows.approximate}
        if color == name or name not in rows.fields:
            raise HTTPException(404, f"color must be class, outcome or field:NAME of a field, got {color[:100]!r}. See /map")
        values = rows.fields[name]
        counts = Counter(value for value in values if value is not None)
        legend: dict[str, Any] = {"field": name, "missing": values.count(None)}
        if all(isinstance(value, str) for value in counts):
            number = {value: at for at, (value, _) in enumerate(counts.most_common(VALUES))}
            found = [NONE if value is None else number.get(value, VALUES) for value in values]
            legend |= {"kind": "text", "values": counts.most_common(VALUES), "others": counts.total()}
            legend["others"] -= sum(count for _, count in legend["values"])
            return np.array(found, np.uint32), legend
        numbers = np.array([value if isinstance(value, int | float) else np.nan for value in values])
        low, high = np.nanpercentile(numbers, OUTER) if np.isfinite(numbers).any() else (0.0, 0.0)
        part = np.clip((numbers - low) / ((high - low) or 1.0), 0, 1)
        ramp = np.where(np.isnan(part), NONE, np.nan_to_num(part) * (RAMP - 1)).astype(np.uint32)
        return ramp, legend | {"kind": "number", "min": float(low), "max": float(high)}

    @functools.cached_property
    def names(self) -> list[tuple[str, float, float, float, int]]:
        """Name, x, y, number of items there and number of the class, of each class that lies mostly in one place."""
        labels, sizes = self.rows.labels, self.rows.sizes
        starts = np.cumsum(sizes) - sizes
        middle = np.stack(
            [
                self.places[np.lexsort((self.places[:, c], labels))[np.minimum(starts + sizes // 2, self.n - 1)], c]
                for c in (0, 1)
            ],
            1,
        )
        reach = 0.9 * np.sqrt(sizes / self.n)[labels]
        near = np.hypot(*(self.places - middle[labels]).T) < np.maximum(0.72 * reach, 1e-6)
        there = np.bincount(labels[near], minlength=len(sizes))
        x, y = (np.bincount(labels[near], self.places[near, c], len(sizes)) / np.maximum(there, 1) for c in (0, 1))
        order = np.argsort(-there, kind="stable")[:NAMES].tolist()
        shown = [i for i in order if self.rows.products[i] and there[i] >= max(3, GATHERED * sizes[i])]
        return [(self.rows.products[i], float(x[i]), float(y[i]), int(there[i]), i) for i in shown]

    def inside(self, polygon: list[tuple[float, float]]) -> Indices:
        """Return the rows of the items inside a polygon, to 1/2048 of its size."""
        corners = np.array(polygon)
        low, size = corners.min(axis=0), np.maximum(np.ptp(corners, axis=0), 1e-9)
        mask = Image.new("1", (MASK, MASK))
        ImageDraw.Draw(mask).polygon([tuple(corner) for corner in (corners - low) / size * (MASK - 1)], fill=1)
        at = np.rint((self.places - low) / size * (MASK - 1))
        near = np.flatnonzero(((at >= 0) & (at < MASK)).all(axis=1))
        cell = at[near].astype(np.int64)
        rows: Indices = near[np.asarray(mask)[cell[:, 1], cell[:, 0]]]
        return rows

    def nearest(self, row: int, k: int) -> list[dict[str, Any]]:
        """Return the k items nearest to an item, with their distances."""
        X, x = self.rows.X, self.rows.X[row]
        near = np.argpartition(self._norms - 2 * (X @ x), min(k + 32, self.n) - 1)[: k + 32]
        D = np.linalg.norm(X[near].astype(np.float64) - x, axis=1)
        order = [at for at in np.lexsort((near, D)) if near[at] != row][:k]
        return [self.details(int(near[at])) | {"distance": float(D[at])} for at in order]

    @functools.cached_property
    def _norms(self) -> NDArray[np.float32]:
        norms: NDArray[np.float32] = np.einsum("nd,nd->n", self.rows.X, self.rows.X)
        return norms

    def details(self, row: int) -> dict[str, Any]:
        """Return what the page shows of an item."""
        rows, path = self.rows, self.rows.paths[row]
        fields = {name: values[row] for name, values in rows.fields.items() if values[row] is not None}
        shown = {"row": row, "id": rows.ids[row], "product": rows.products[rows.labels[row]], "path": path, "metadata": fields}
        x, y = self.places[row].tolist()
        return shown | {"has_image": bool(path) and Path(path).is_file(), "x": x, "y": y}


def _interleaved(x: Any, y: Any) -> Any:
    return sum((x >> bit & 1) << 2 * bit | (y >> bit & 1) << 2 * bit + 1 for bit in range(DEPTH))


def _key(z: int, code: Any) -> Any:
    return code | z << 2 * DEPTH


def _square(path: str, side: int) -> Image.Image | None:
    """Return a square thumbnail, or None without a readable file."""
    try:
        return ImageOps.fit(load_rgb(FolderSource(Path()), path, side), (side, side)) if path else None
    except (ImageError, OSError):
        return None


class MapJob:
    """The current tiles of a catalog, made in a thread."""

    def __init__(self, rows: RowsCache, folder: Path) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "liftedstruct"
        self.folder = folder if folder.is_dir() else cache / hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        self.rows, self.lock = rows, threading.Lock()
        self.tiles: Tiles | None = None
        self.layout: Layout | None = None
        self.thread: threading.Thread | None = None
        self.part, self.begun, self.error = 0.0, 0.0, ""

    def status(self) -> dict[str, Any]:
        """Return the state of the map. If a layout exists but items have changed since, it is brought up to date."""
        rows, tiles = self.rows.current(), self.tiles
        known = self.layout or read_layout(self._file(rows), rows.table)
        stale = tiles is None or tiles.rows.version != rows.version
        if stale and known is not None and len(rows) and not self.error:
            self.start()
        busy = self.thread is not None and self.thread.is_alive()
        tiles = self.tiles  # read after `busy`: the thread sets it before it ends
        state = "ready" if tiles and len(rows) else "building" if busy else "failed" if self.error else "none"
        found = {"state": state, "busy": busy, "items": len(rows), "progress": self.part, "note": self.error}
        found |= {"seconds": estimated_seconds(len(rows)), "elapsed": time.monotonic() - self.begun if busy else 0.0}
        if state == "ready" and tiles and self.layout:
            found |= {"version": tiles.version, "levels": tiles.levels, "items": tiles.n, "classes": len(tiles.rows.products)}
            found |= {"fields": tiles.rows.described_fields}
            if self.layout.changed > OUT_OF_DATE:
                found["note"] = f"out of date: {self.layout.changed:.0%} of the items have changed since the map was made"
        return found

    def start(self, again: bool = False) -> None:
        """Make the map, or bring it up to date, unless that is under way."""
        with self.lock:
            if self.thread is None or not self.thread.is_alive():
                self.part, self.begun, self.error = 0.0, time.monotonic(), ""
                self.thread = threading.Thread(target=self._work, args=(again,), name="map", daemon=True)
                self.thread.start()

    def _file(self, rows: Rows) -> Path:
        return self.folder / f"map-{rows.table}.safetensors"

    def _work(self, again: bool) -> None:
        try:
            rows = self.rows.current()
            file, table = self._file(rows), rows.table
            known = self.layout if self.layout and self.layout.table == table else read_layout(file, table)
            self.folder.mkdir(parents=True, exist_ok=True)
            layout = arrange(rows, None if again else known, file, lambda part: setattr(self, "part", 0.95 * part))
            tiles = Tiles(rows, layout)
            for z in range(min(3, tiles.levels)):  # what is seen first
                for place in range(4**z):
                    tiles.tile(z, place % 2**z, place // 2**z, "class")
            self.layout, self.tiles, self.part = layout, tiles, 1.0
        except Exception as error:
            self.error = " ".join(str(error).split()) or type(error).__name__

    def current(self, version: str | None = None) -> Tiles:
        """Return the tiles, if they are of this version."""
        if self.tiles is None or version not in (None, self.tiles.version):
            raise HTTPException(404, f"the map must be made, and of the current version, got {version!r:.60}. See /map")
        return self.tiles


Part = Annotated[int, Query(ge=0, lt=CAPACITY // COLUMNS**2)]
Side = Annotated[int, Query(ge=8, le=128)]


class Lasso(BaseModel):
    """A polygon on the map."""

    polygon: Annotated[
        list[tuple[Annotated[float, Field(ge=-9, le=9)], Annotated[float, Field(ge=-9, le=9)]]],
        Field(min_length=3, max_length=5000),
    ]


def map_router(rows: RowsCache, folder: Path) -> APIRouter:
    """Return the endpoints of the map.

    Args:
        rows: the items.
        folder: folder of the catalog, in which the layout is kept; if there is none, it is kept in the user's cache.

    """
    router, job = APIRouter(prefix="/map"), MapJob(rows, folder)

    def current(version: str | None = None) -> Tiles:
        return job.current(version)

    Current = Annotated[Tiles, Depends(current)]  # with a version, since the rows of another one are other items

    @router.get("")
    def get_map() -> dict[str, Any]:
        """State of the map: none, building, ready or failed."""
        return job.status()

    @router.post("", status_code=202)
    def make_map(again: bool = False) -> dict[str, Any]:
        """Make the map in the background; with `again`, from the start."""
        if len(rows.current()):
            job.start(again)
        return job.status()

    @router.get("/tiles/{version}/{z}/{x}/{y}", response_class=Response)
    def get_tile(version: str, z: int, x: int, y: int, color: str = "class") -> Response:
        """A tile, binary."""
        content = job.current(version).tile(z, x, y, color)
        return Response(content, media_type="application/octet-stream", headers=IMMUTABLE)

    @router.get("/sheets/{version}/{z}/{x}/{y}.webp", response_class=Response)
    def get_sheet(version: str, z: int, x: int, y: int, part: Part = 0, side: Side = 64) -> Response:
        """Thumbnails of 64 items of a tile in eight columns; transparent where a file cannot be read."""
        return Response(job.current(version).sheet(z, x, y, part, side), media_type="image/webp", headers=IMMUTABLE)

    @router.get("/legend")
    def get_legend(tiles: Current, color: str = "class") -> dict[str, Any]:
        """What the colors of the tiles mean."""
        return tiles.colors(color)[1]

    @router.get("/names")
    def get_names(tiles: Current) -> Any:
        """Places of the names of classes: as lists of name, x, y, and more."""
        return tiles.names

    @router.get("/rows")
    def get_rows(rows: str, tiles: Current) -> list[dict[str, Any]]:
        """Items by row, such as 1,2,3."""
        parts = rows.split(",")
        wanted = [int(part) for part in parts if part.isdecimal() and len(part) < 10 and int(part) < tiles.n]
        if len(wanted) < len(parts) or len(parts) > FEW:
            raise HTTPException(422, f"rows must be at most {FEW} numbers below {tiles.n}, got {rows[:50]!r}. Correct them.")
        return [tiles.details(row) for row in wanted]

    @router.get("/near/{row}")
    def get_near(row: int, tiles: Current, k: Annotated[int, Query(ge=1, le=100)] = 8) -> list[dict[str, Any]]:
        """The nearest other items of an item."""
        if not 0 <= row < tiles.n:
            raise HTTPException(404, f"row must be from 0 to {tiles.n - 1}, got {row}. Find it: /map/find")
        return tiles.nearest(row, k)

    @router.get("/find")
    def find(tiles: Current, product: str | None = None, id: str | None = None) -> dict[str, Any]:
        """Rows and places of an item or of the items of a class, and how many there are."""
        if id is not None:
            found = np.array([tiles.rows.ids.index(id)] if id in tiles.rows.ids else [], np.int64)
        else:
            number = {name: at for at, name in enumerate(tiles.rows.products)}.get(product or "", -1)
            found = np.flatnonzero(tiles.rows.labels == number)
        return {"total": len(found), "rows": found[:MANY].tolist(), "places": tiles.places[found[:MANY]].tolist()}

    @router.post("/lasso")
    def select(lasso: Lasso, tiles: Current) -> JSONResponse:
        """Rows inside a polygon, their most frequent classes, and the id of the item nearest to their mean."""
        found = tiles.inside(lasso.polygon)
        classes = Counter(dict(enumerate(np.bincount(tiles.rows.labels[found]).tolist())))
        top = [(tiles.rows.products[label], count) for label, count in classes.most_common(VALUES) if count]
        content: dict[str, Any] = {"rows": found.tolist(), "classes": top, "different": sum(map(bool, classes.values()))}
        if len(found):
            X = tiles.rows.X[found]
            content["central"] = tiles.rows.ids[found[np.linalg.norm(X - X.mean(axis=0), axis=1).argmin()]]
        return JSONResponse(content)

    return router

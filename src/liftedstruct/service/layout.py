"""The layout of a whole catalog on the plane: t-SNE of landmarks, between which all other items are placed.

It is kept in a file and survives small changes: new and changed items are placed among the landmarks, and removed ones vanish.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from liftedstruct.catalog.store import Vectors
from liftedstruct.figures.array_checks import places_in_groups
from liftedstruct.projection import interpolate, tsne
from liftedstruct.report.interactive_map import moved_apart, places_on_map
from liftedstruct.runtime.atomic import replacing
from liftedstruct.service.rows import Rows

__all__ = ["OUT_OF_DATE", "Layout", "arrange", "choose_landmarks", "estimated_seconds", "read_layout"]

FORMAT = "1"
LANDMARKS = 20_000
CHUNK = 20_000  # items that are placed at a time
OUT_OF_DATE = 0.1  # part of the items that have changed since the layout was made
TSNE_PART = 0.75  # of the progress, for a large catalog
ODD = np.uint32(2654435761)

Report = Callable[[float], object]


@dataclass(eq=False)
class Layout:
    """Positions of items.

    Attributes:
        table: table of the store.
        seqs: (n,), `seq` of each item, ascending.
        stamps: (n,), checksums of their embeddings.
        places: (n, 2), in the unit square.
        landmarks: (n,), whether t-SNE placed the item.
        original: (n,), whether the item is as it was when the layout was made.
        total: number of items when the layout was made.
        newest: highest `seq` then.

    """

    table: int
    seqs: NDArray[np.int64]
    stamps: NDArray[np.uint32]
    places: NDArray[np.float32]
    landmarks: NDArray[np.bool_]
    original: NDArray[np.bool_]
    total: int
    newest: int

    @property
    def changed(self) -> float:
        """The part of the items that were added, changed or removed since the layout was made."""
        return 1 - float(self.original.sum()) / max(self.total, len(self.seqs), 1)

    def write(self, file: Path) -> None:
        """Write a file that `read_layout` reads, if the folder can be written."""
        names = ("seqs", "stamps", "places", "landmarks", "original")
        meta = {"format": FORMAT, **{name: str(getattr(self, name)) for name in ("table", "total", "newest")}}
        with contextlib.suppress(OSError), replacing(file, durable=False) as stream:
            stream.write(save({name: getattr(self, name) for name in names}, meta))


def read_layout(file: Path, table: int) -> Layout | None:
    """Read the layout of a table, or return None if it is missing, damaged or of another table: it is then made again."""
    try:
        with safe_open(file, "numpy") as content:
            meta = content.metadata()
            arrays = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        found = Layout(int(meta["table"]), total=int(meta["total"]), newest=int(meta["newest"]), **arrays)
        return found if meta["format"] == FORMAT and found.table == table else None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None


def estimated_seconds(n: int) -> float:
    """Return about how long a new layout of n items takes, on two cores."""
    return 4 + 0.006 * min(n, LANDMARKS) + 0.0002 * n


def choose_landmarks(labels: NDArray[np.int32], most: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the rows of at most so many items, ascending: half spread evenly over the classes, half at random."""
    order = np.random.default_rng(seed).permutation(len(labels))
    if len(labels) <= most:
        return np.sort(order)
    even = order[np.argsort(places_in_groups(labels[order].astype(np.int64)), kind="stable")][: most // 2]
    others = order[~np.isin(order, even)][: most - len(even)]
    return np.sort(np.concatenate([even, others]))


def arrange(rows: Rows, before: Layout | None, file: Path, on_step: Report = lambda part: None) -> Layout:
    """Return the layout of all items, and write it to the file if it is new.

    An interrupted call resumes: the landmarks are written as soon as they are placed.

    Args:
        rows: the items, at least one.
        before: layout to keep as far as possible; None to make a new one.
        file: where it is kept.
        on_step: called with the part that is done, 0 to 1.

    """
    stamps = _stamps(rows.X)
    share = TSNE_PART if len(rows) > LANDMARKS else 1.0
    at = there = np.empty(0, np.int64)
    if before is not None:
        _, at, there = np.intersect1d(rows.seqs, before.seqs, assume_unique=True, return_indices=True)
        same = before.stamps[there] == stamps[at]
        at, there = at[same], there[same]
    if before is None or not before.landmarks[there].any():
        at = choose_landmarks(rows.labels, LANDMARKS)
        places = places_on_map(tsne(rows.X[at], on_step=lambda part: on_step(share * part))).clip(0, 1)
        every = np.ones(len(at), bool)
        before = Layout(rows.table, rows.seqs[at], stamps[at], places, every, every, len(rows), int(rows.seqs.max()))
        before.write(file)
        there = np.arange(len(at))
    if len(at) == len(rows) == len(before.seqs):
        return before
    found = replace(before, seqs=rows.seqs, stamps=stamps, places=np.empty((len(rows), 2), np.float32))
    known = np.isin(rows.seqs, before.seqs)
    found.landmarks, found.original = np.zeros(len(rows), bool), ~known & (rows.seqs <= before.newest)  # not placed yet
    for name in ("places", "landmarks", "original"):
        getattr(found, name)[at] = getattr(before, name)[there]
    rest = np.setdiff1d(np.arange(len(rows)), at, assume_unique=True)
    marks = np.flatnonzero(found.landmarks)
    X, targets = rows.X[marks], found.places[marks]
    for start in range(0, len(rest), CHUNK):
        some = rest[start : start + CHUNK]
        found.places[some] = interpolate(X, targets, rows.X[some])
        on_step(share + (1 - share) * min(1.0, (start + CHUNK) / len(rest)))
    moved = moved_apart(np.concatenate([found.places[at], found.places[rest]]).astype(np.float64))
    found.places[rest] = np.clip(moved[len(at) :], 0, 1)
    found.write(file)
    return found


def _stamps(X: Vectors) -> NDArray[np.uint32]:
    """Return a checksum of each row.                                                                                    (n,)"""
    weights = ODD * np.arange(1, 2 * X.shape[1], 2, dtype=np.uint32)
    parts = np.array_split(np.ascontiguousarray(X).view(np.uint32), max(1, len(X) // CHUNK))
    return np.concatenate([np.bitwise_xor.reduce(part * weights, axis=1) for part in parts])

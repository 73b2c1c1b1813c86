"""The items of a catalog as arrays, for the map, the review and the list of classes."""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftedstruct.catalog import Catalog, Item
from liftedstruct.catalog.store import Vectors
from liftedstruct.catalog.where import Value
from liftedstruct.retrieval import nearest_neighbors

__all__ = ["Rows", "RowsCache", "read_rows"]

EXACT = 200_000  # items up to which the neighbors of all are exact
CHUNK = 4096
MOST_VALUES = 50  # of a field that are listed
SLOW = 0.5  # seconds of reading from which on the rows may be out of date for
PATIENCE = 20  # times as long


@dataclass(eq=False)
class Rows:
    """The items of a catalog at one time, in the order of insertion; row i is the i-th.

    Attributes:
        table: table of the store.
        version: text that changes with the content of the catalog.
        seqs: (n,), `seq` of each item, ascending.
        ids: n ids.
        paths: n paths of image files; empty if there is none.
        labels: (n,), class of each item, an index into `products`.
        products: names of the classes, sorted; "" is the class of the items without a product.
        X: (n, d), embeddings.
        fields: n values of each metadata field, or None.

    """

    table: int
    version: str
    seqs: NDArray[np.int64]
    ids: list[str]
    paths: list[str]
    labels: NDArray[np.int32]
    products: list[str]
    X: Vectors
    fields: dict[str, list[Value | None]]
    _near: tuple[NDArray[np.float32], NDArray[np.int64]] | None = None
    _lock: Any = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def approximate(self) -> bool:
        """Whether `neighbors` are those of an approximate search."""
        return len(self) > EXACT

    def row_of(self, seq: int) -> int | None:
        """Return the row of the item with this `seq`, or None."""
        i = int(np.searchsorted(self.seqs, seq))
        return i if i < len(self) and self.seqs[i] == seq else None

    def neighbors(self, k: int = 16) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the distances to the k nearest other items of each item, and their rows, (n, k), or all if there are fewer.

        They are computed once and kept.
        """
        k = min(k, max(len(self) - 1, 0))
        with self._lock:
            if self._near is None or self._near[0].shape[1] < k:
                self._near = self._neighbors(k)
            return self._near[0][:, :k], self._near[1][:, :k]

    def _neighbors(self, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        if not k:
            return np.empty((len(self), 0), np.float32), np.empty((len(self), 0), np.int64)
        if not self.approximate:
            D, j = nearest_neighbors(self.X, k)
            return D.astype(np.float32), j
        import faiss

        n, d = self.X.shape
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(d), d, int(2 * n**0.5))
        index.train(self.X[:: max(1, n // (100 * index.nlist))])
        index.add(self.X)
        index.nprobe = 16
        D2, j = index.search(self.X, k + 1)
        own = j == np.arange(n)[:, None]
        own[~own.any(axis=1), -1] = True  # far behind its duplicates
        return np.sqrt(np.maximum(D2[~own].reshape(n, k), 0)), j[~own].reshape(n, k)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of items of each class, (c,)."""
        return np.bincount(self.labels, minlength=len(self.products))

    @cached_property
    def described_fields(self) -> list[dict[str, Any]]:
        """For each metadata field: name, kind, range and the most frequent values."""
        found = []
        for name, values in sorted(self.fields.items()):
            counts = Counter(value for value in values if value is not None)
            number = not any(isinstance(value, str) for value in counts)
            low, high = (min(counts), max(counts)) if number else (None, None)
            shown = [value for value, _ in counts.most_common(MOST_VALUES)]
            found.append({"name": name, "kind": "number" if number else "text", "min": low, "max": high, "values": shown})
        return found


class RowsCache:
    """The current rows of a catalog, read again when it has changed. Threads share it."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog, self.lock = catalog, threading.Lock()
        self.writes = 0  # of this process, since a database cannot say cheaply whether an item was replaced
        self._rows: Rows | None = None
        self._read, self._seconds = 0.0, 0.0

    def current(self) -> Rows:
        """Return the rows. Those of a large catalog that changes all the time may be out of date for a while."""
        with self.lock:
            begin = time.monotonic()
            if self._rows is not None and self._seconds > SLOW and begin - self._read < PATIENCE * self._seconds:
                return self._rows
            table, version = _version(self.catalog, self.writes)
            if self._rows is None or (self._rows.table, self._rows.version) != (table, version):
                self._rows = read_rows(self.catalog, table, version)
                self._read = time.monotonic()
                self._seconds = self._read - begin
            return self._rows


def _version(catalog: Catalog, writes: int) -> tuple[int, str]:
    record = catalog.record
    table, store = int(record["current"]["table"]), catalog.store
    content = store.version(table) if hasattr(store, "version") else f"{store.count(table)} {writes}"
    return table, hashlib.sha256(f"{json.dumps(record)} {content}".encode()).hexdigest()[:16]


def read_rows(catalog: Catalog, table: int, version: str) -> Rows:
    """Read all items of a table. The vectors are the array of the local store itself, where nothing changed meanwhile."""
    seqs, ids, paths, names = list[int](), list[str](), list[str](), list[str]()
    fields: dict[str, list[Value | None]] = {}
    known: dict[Any, Any] = {}  # equal values are one object
    vectors, arrays = list[Vectors](), getattr(catalog.store, "arrays", None)
    for some in _chunks(catalog.store.items(table)):
        if arrays is None:
            found = catalog.store.get(table, [item.seq for item in some])
            some = [item for item in some if item.seq in found]
            vectors += [np.stack([found[item.seq][1] for item in some])] if some else []
        for item in some:
            for name, value in item.metadata.items():
                column = fields.setdefault(name, [])
                column += [None] * (len(ids) - len(column))
                column.append(known.setdefault((type(value), value), value))
            seqs.append(item.seq)
            ids.append(item.id)
            paths.append(item.path)
            names.append(known.setdefault((str, item.product), item.product))
    for column in fields.values():
        column += [None] * (len(ids) - len(column))
    products = sorted(set(names))
    number = {name: i for i, name in enumerate(products)}
    labels = np.fromiter((number[name] for name in names), np.int32, len(names))
    X = np.concatenate(vectors) if vectors else np.empty((0, catalog.record["current"]["model"]["dim"]), np.float32)
    rows = Rows(table, version, np.array(seqs, np.int64), ids, paths, labels, products, X, fields)
    return rows if arrays is None else _joined(rows, *arrays(table)[1:])


def _joined(rows: Rows, seqs: NDArray[np.int64], X: Vectors) -> Rows:
    """Add the vectors of the local store to the rows, and leave out what was added or removed meanwhile."""
    if np.array_equal(rows.seqs, seqs):
        rows.X = X
        return rows
    _, at, there = np.intersect1d(rows.seqs, seqs, assume_unique=True, return_indices=True)
    ids, paths = ([column[i] for i in at] for column in (rows.ids, rows.paths))
    fields = {name: [column[i] for i in at] for name, column in rows.fields.items()}
    return Rows(rows.table, rows.version, rows.seqs[at], ids, paths, rows.labels[at], rows.products, X[there], fields)


def _chunks(items: Iterator[Item]) -> Iterator[list[Item]]:
    some: list[Item] = []
    for item in items:
        some.append(item)
        if len(some) == CHUNK:
            yield some
            some = []
    yield some

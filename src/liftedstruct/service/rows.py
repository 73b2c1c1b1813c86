"""The items of a catalog as arrays, for the map, the review and the list of classes."""

import hashlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftedstruct.catalog import Catalog
from liftedstruct.catalog.store import Store, Vectors
from liftedstruct.catalog.where import Value
from liftedstruct.retrieval import nearest_neighbors

__all__ = ["Rows", "RowsCache"]

EXACT = 200_000  # items up to which the neighbors of all are exact
CHUNK, MOST_VALUES = 4096, 50
SLOW, PATIENCE = 0.5, 20  # rows that took more than so many seconds to read may be out of date for so many times as long


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

    def neighbors(self, k: int = 16) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the distances to the k nearest other items of each item, and their rows, (n, k), or all if there are fewer.

        They are computed once and kept.
        """
        if len(self) < 2:
            return np.empty((len(self), 0), np.float32), np.empty((len(self), 0), np.int64)
        k = min(k, len(self) - 1)
        with self._lock:
            if self._near is None or self._near[0].shape[1] < k:
                D, j = self._approximate_neighbors(k) if self.approximate else nearest_neighbors(self.X, k)
                self._near = D.astype(np.float32), j
            return self._near[0][:, :k], self._near[1][:, :k]

    def _approximate_neighbors(self, k: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        import faiss

        n, d = self.X.shape
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(d), d, int(2 * n**0.5))
        index.train(self.X[:: max(1, n // (50 * index.nlist))])
        index.add(self.X)
        index.nprobe = 16
        D2, j = index.search(self.X, k + 1)
        own = j == np.arange(n)[:, None]
        own[~own.any(axis=1), -1] = True  # an item behind its many duplicates
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
            texts = any(isinstance(value, str) for value in counts)
            span = (
                {"kind": "text", "min": None, "max": None}
                if texts
                else {"kind": "number", "min": min(counts), "max": max(counts)}
            )
            found.append({"name": name, **span, "values": [value for value, _ in counts.most_common(MOST_VALUES)]})
        return found


class RowsCache:
    """The current rows of a catalog, read again when it has changed. Threads share it."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog, self.lock, self.writes = catalog, threading.Lock(), 0  # of this process
        self._rows: Rows | None = None
        self._read, self._seconds = 0.0, 0.0

    def current(self) -> Rows:
        """Return the rows. Those of a large catalog that changes all the time may be out of date for a while."""
        with self.lock:
            begin = time.monotonic()
            if self._rows is None or self._seconds < SLOW or begin - self._read > PATIENCE * self._seconds:
                record, store = self.catalog.record, self.catalog.store
                table = int(record["current"]["table"])
                # a database cannot say cheaply whether another process has replaced an item
                content = store.version(table) if hasattr(store, "version") else (store.count(table), self.writes)
                version = hashlib.sha256(repr((record, content)).encode()).hexdigest()[:16]
                if self._rows is None or self._rows.version != version:
                    self._rows = _read_rows(store, table, version, record["current"]["model"]["dim"])
                    self._read = time.monotonic()
                    self._seconds = self._read - begin
            return self._rows


def _read_rows(store: Store, table: int, version: str, dim: int) -> Rows:
    """Read all items of a table. The vectors of a local store are the array that it keeps itself."""
    every, X = store.arrays(table) if hasattr(store, "arrays") else _arrays(store, table, dim)
    known: dict[Any, Any] = dict.fromkeys(every.tolist())  # these items only, if others are added meanwhile
    seqs, ids, paths, names = list[int](), list[str](), list[str](), list[str]()
    fields: dict[str, list[Value | None]] = {}
    for item in store.items(table):
        if item.seq in known:
            for name, value in item.metadata.items():
                column = fields.setdefault(name, [])
                column += [None] * (len(ids) - len(column))
                column.append(known.setdefault((type(value), value), value))  # equal values are one object
            seqs.append(item.seq)
            ids.append(item.id)
            paths.append(item.path)
            names.append(known.setdefault((str, item.product), item.product))
    for column in fields.values():
        column += [None] * (len(ids) - len(column))
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    labels = np.fromiter((number[name] for name in names), np.int32, len(names))
    X = X if len(X) == len(seqs) else X[np.isin(every, seqs)]  # without those removed meanwhile
    return Rows(table, version, np.array(seqs, np.int64), ids, paths, labels, list(number), X, fields)


def _arrays(store: Store, table: int, dim: int) -> tuple[NDArray[np.int64], Vectors]:
    """Return the seqs and vectors of a database."""
    seqs, found = np.array([item.seq for item in store.items(table)], np.int64), list[int]()
    X = np.empty((len(seqs), dim), np.float32)
    for some in np.array_split(seqs, -(-len(seqs) // CHUNK) or 1):
        for seq, (_, vector) in sorted(store.get(table, some.tolist()).items()):
            X[len(found)] = vector
            found.append(seq)
    return np.array(found, np.int64), X[: len(found)]

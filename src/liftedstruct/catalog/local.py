"""The local store: a folder with an SQLite database, and an array of the vectors that is derived from it.

SQLite is the one truth. The array `vectors.safetensors` makes opening fast; it carries the version of the database that it was
made from, and is made again if it is stale, missing or damaged. A process keeps its array and applies what has changed since.

A damaged database never leads to a wrong answer: each row has a checksum, which is compared whenever the row is read, and all
rows and indexes are checked before the first filter, or when a small database is opened.
"""

import contextlib
import json
import os
import secrets
import shutil
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from liftedstruct.catalog.store import (
    HNSW,
    Item,
    Nearest,
    Vectors,
    item_of,
    items_in_pages,
    metadata_text,
    missing,
    nearest_of_candidates,
    record_of,
    sql_of,
)
from liftedstruct.catalog.where import OWN_FIELDS, Value, Where
from liftedstruct.retrieval.neighbors import NeighborSearch
from liftedstruct.runtime.atomic import locked, replacing
from liftedstruct.runtime.checks import pick

__all__ = ["DATABASE", "LocalStore"]

DATABASE, LOCK = "catalog.sqlite", "lock"
SMALL = 1 << 26  # bytes up to which the whole database is checked when it is opened, and no array of vectors is kept
UNSAVED = 10_000  # rows that may have changed since the array of vectors was last saved, beyond a tenth of all
PAGE = 1 << 16  # bytes that SQLite needs to write anything
REMEMBERED = 1000  # transactions whose changes are remembered, at least
PAGE_ROWS = 10_000  # that are read at once
SUMMED = (*Item._fields[:5], "vector")  # columns that the checksum of a row is of
CHECKSUM = f"checksum({', '.join(SUMMED)})"


class LocalStore:
    """Store in a folder on this machine."""

    INDEXES: tuple[str, ...] = ("hnsw",)

    def __init__(self, address: str, create: bool = False) -> None:
        self.folder = Path(address).absolute()
        file = self.folder / DATABASE
        if not file.is_file():
            if not create:
                raise missing(address)
            if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
                raise ValueError(f"a new catalog must be an empty folder or a new one, got {address}. Pass another folder.")
            self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = threading.RLock()
        self.snapshots: dict[int, _Snapshot] = {}
        self.checked = False  # all rows and indexes
        self.writable = os.access(self.folder, os.W_OK) and (not file.exists() or os.access(file, os.W_OK))
        with self._errors(), contextlib.ExitStack() as stack:
            mode = "mode=rwc"
            if not self.writable:  # a WAL, of a writer at work, needs to be written beside the file
                mode = "mode=ro" if file.with_name(f"{DATABASE}-wal").exists() else "immutable=1"
            self.db = sqlite3.connect(
                f"{file.as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=30
            )
            stack.callback(self.db.close)
            self.db.create_function("checksum", 6, _checksum, deterministic=True)
            if self.writable:
                self.db.execute("PRAGMA journal_mode = WAL")
                self.db.execute("PRAGMA synchronous = FULL")
                self.db.execute("CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value)")
            if self._is_small():
                self._check()
            stack.pop_all()  # opened

    def _is_small(self) -> bool:
        """Return whether the database is checked when it is opened. If so, the vectors are always read from it."""
        return (self.folder / DATABASE).stat().st_size < SMALL

    def _check(self) -> None:
        """Raise an error if a row or an index is damaged. The database is checked once; a million rows take some seconds."""
        if self.checked:
            return
        with self._reading():
            if (found := self.db.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(found)
            record = self.read()
            for each in filter(None, (record.get("current"), record.get("next"))):
                query = f"SELECT id FROM {_name(each['table'])} WHERE {CHECKSUM} IS NOT sum"
                if row := self.db.execute(query).fetchone():
                    raise sqlite3.DatabaseError(f"damaged item {row[0]!r}")
        self.checked = True

    def close(self) -> None:
        with self.lock:
            self.snapshots.clear()
            self.db.close()

    # --- writing ---------------------------------------------------------------------------------------------------------

    def writing(self) -> Any:
        return locked(self.folder / LOCK, "writer")

    def read(self) -> dict[str, Any]:
        with self.lock, self._errors():
            found = dict(self.db.execute("SELECT name, value FROM state WHERE name IN ('record', 'sum')"))
            if found and found.get("sum") != zlib.crc32(str(found.get("record")).encode()):
                raise sqlite3.DatabaseError("damaged record")
        return record_of(found["record"], str(self.folder)) if found else {}

    def write(self, record: Mapping[str, Any]) -> None:
        with self._transaction():
            text = json.dumps(record)
            self.db.execute("REPLACE INTO state VALUES ('record', ?), ('sum', ?)", (text, zlib.crc32(text.encode())))

    def create(self, table: int, dim: int) -> None:
        name = _name(table)
        if self._dim(table) is not None:
            return
        with self._transaction():
            self.db.execute(
                f"CREATE TABLE {name} (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, product TEXT NOT NULL, "
                "path TEXT NOT NULL, content TEXT NOT NULL, metadata TEXT NOT NULL, vector BLOB NOT NULL, sum INTEGER NOT NULL)"
            )
            # one row per transaction, and the rows that were updated or removed in it: what brings an array up to date
            self.db.execute(f"CREATE TABLE {name}_versions (version INTEGER PRIMARY KEY, stamp TEXT NOT NULL)")
            self.db.execute(f"INSERT INTO {name}_versions VALUES (0, ?)", (secrets.token_hex(8),))
            self.db.execute(f"CREATE TABLE {name}_changes (version INTEGER NOT NULL, seq INTEGER NOT NULL)")
            for event in ("UPDATE", "DELETE"):
                self.db.execute(
                    f"CREATE TRIGGER {name}_{event} AFTER {event} ON {name} BEGIN INSERT INTO {name}_changes "
                    f"VALUES ((SELECT max(version) + 1 FROM {name}_versions), OLD.seq); END"
                )
            self.db.execute("INSERT INTO state VALUES (?, ?)", (f"dim {table}", dim))

    def drop(self, table: int) -> None:
        with self._transaction():
            for suffix in ("", "_versions", "_changes"):
                self.db.execute(f"DROP TABLE IF EXISTS {_name(table)}{suffix}")
            self.db.execute("DELETE FROM state WHERE name = ?", (f"dim {table}",))
        self.snapshots.pop(table, None)
        self._vectors_file(table).unlink(missing_ok=True)

    def put(self, table: int, items: Iterable[Item], X: Vectors) -> None:
        rows = (
            (*(texts := (*item[:4], metadata_text(item.metadata))), vector := x.tobytes(), _checksum(*texts, vector))
            for item, x in zip(items, np.ascontiguousarray(X, np.float32), strict=True)
        )
        with self._transaction(table):
            update = "ON CONFLICT (id) DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in [*SUMMED[1:], "sum"])
            if not self.db.execute(f"SELECT 1 FROM {_name(table)} LIMIT 1").fetchone():
                update = ""  # faster, since updates have a trigger
            columns = f"{', '.join(SUMMED)}, sum"
            self.db.executemany(f"INSERT INTO {_name(table)} ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?) {update}", rows)

    def remove(self, table: int, ids: Sequence[str]) -> int:
        with self._transaction(table):
            return self.db.executemany(f"DELETE FROM {_name(table)} WHERE id = ?", [(each,) for each in ids]).rowcount

    def index_field(self, table: int, name: str) -> None:
        if name not in OWN_FIELDS:
            with self._transaction():
                self.db.execute(f"CREATE INDEX IF NOT EXISTS {_name(table)}_{name} ON {_name(table)} ({_field(name)})")
                self.db.execute("ANALYZE")

    @contextlib.contextmanager
    def _transaction(self, table: int | None = None) -> Iterator[None]:
        with self.lock, self._errors():
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                if table is not None:
                    self._add_version(f"{_name(table)}_versions", f"{_name(table)}_changes")
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    # --- reading ---------------------------------------------------------------------------------------------------------

    def _rows(self, table: int, condition: str, values: Sequence[Any]) -> Iterator[list[Any]]:
        """Yield rows of a table, an item's fields and its vector, after comparing the checksum."""
        query = f"SELECT {', '.join(Item._fields)}, vector, {CHECKSUM} IS sum FROM {_name(table)} WHERE {condition}"
        for *row, whole in self.db.execute(query, values):
            if not whole:
                raise sqlite3.DatabaseError(f"damaged item {row[0]!r}")
            yield row

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Read one consistent state."""
        with self.lock, self._errors():
            self.db.execute("BEGIN")
            try:
                yield
            finally:
                self.db.execute("COMMIT")

    def count(self, table: int, where: Where | None = None) -> int:
        text, values = self._sql(where)
        with self.lock, self._errors():
            return int(self.db.execute(f"SELECT count(*) FROM {_name(table)} WHERE {text}", values).fetchone()[0])

    def items(self, table: int, where: Where | None = None, after: int = -1) -> Iterator[Item]:
        text, values = self._sql(where)

        def rows_after(seq: int) -> list[list[Any]]:
            with self.lock, self._errors():
                return list(self._rows(table, f"seq > ? AND ({text}) ORDER BY seq LIMIT {PAGE_ROWS}", [seq, *values]))

        return items_in_pages(rows_after, after)

    def get(self, table: int, seqs: Sequence[int]) -> dict[int, tuple[Item, Vectors]]:
        found: dict[int, tuple[Item, Vectors]] = {}
        for at in range(0, len(seqs), 500):
            some = [int(seq) for seq in seqs[at : at + 500]]
            with self.lock, self._errors():
                for row in self._rows(table, f"seq IN ({', '.join('?' * len(some))})", some):
                    found[row[5]] = item_of(row), np.frombuffer(row[6], np.float32)
        return found

    def nearest(self, table: int, Q: Vectors, k: int, where: Where | None = None, index: str = "exact") -> Nearest:
        snapshot = self._snapshot(table)
        if where is not None:
            subset, seqs = self._subset(table, snapshot, where)
        else:
            subset, seqs = snapshot.search, snapshot.seqs
        k = min(k, len(seqs))
        if subset is None:
            return [(np.empty(0), np.empty(0, np.int64))] * len(Q)
        if index != "exact":
            pick(dict.fromkeys(self.INDEXES), index, "index")
            if where is None:
                return self._approximate(snapshot, subset, Q, k)
        queries, own = torch.from_numpy(Q), torch.full((len(Q),), -1)
        found: Nearest = []
        for at in range(0, len(Q), subset.rows_at_once(k)):
            some = slice(at, at + subset.rows_at_once(k))
            D2, j = subset.nearest(queries[some], k, own[some])
            found += zip(D2.numpy(), seqs[j.numpy()], strict=True)
        return found

    def _sql(self, where: Where | None) -> tuple[str, list[Value]]:
        if where is not None:
            self._check()  # a damaged field would change what is selected
        return sql_of(where, _comparison)

    def version(self, table: int) -> str:
        """Return a text that changes with the content of a table."""
        with self.lock, self._errors():
            query = f"SELECT version, stamp FROM {_name(table)}_versions ORDER BY version DESC LIMIT 1"
            return "-".join(map(str, self.db.execute(query).fetchone()))

    def arrays(self, table: int) -> tuple[NDArray[np.int64], Vectors]:
        """Return the seqs and vectors of all items: the arrays that searches use, not copies."""
        snapshot = self._snapshot(table)
        return snapshot.seqs, snapshot.X

    def _subset(self, table: int, snapshot: "_Snapshot", where: Where) -> tuple[NeighborSearch | None, NDArray[np.int64]]:
        """Return a search among the items that a filter selects, and their seqs. The last one is kept."""
        kept = snapshot.subset
        if kept is None or kept[0] != where:
            text, values = self._sql(where)
            with self.lock, self._errors():
                rows = self.db.execute(f"SELECT seq FROM {_name(table)} WHERE {text}", values).fetchall()
            selected = np.sort(np.fromiter((seq for (seq,) in rows), np.int64, len(rows)))
            at = np.minimum(np.searchsorted(snapshot.seqs, selected), len(snapshot.seqs) - 1)
            at = at[snapshot.seqs[at] == selected] if len(snapshot.seqs) else at[:0]  # without items added since
            seqs, X = snapshot.seqs[at], torch.from_numpy(snapshot.X[at])
            snapshot.subset = kept = where, NeighborSearch(X) if len(X) else None, seqs
        return kept[1], kept[2]

    def _add_version(self, versions: str, changes: str) -> None:
        """Record that the current transaction changes a table. Each thousandth time, forget older changes."""
        stamp = secrets.token_hex(8)
        (version,) = self.db.execute(
            f"INSERT INTO {versions} SELECT max(version) + 1, ? FROM {versions} RETURNING version", (stamp,)
        ).fetchone()
        if version % REMEMBERED == 0:
            for name in (versions, changes):
                self.db.execute(f"DELETE FROM {name} WHERE version <= ?", (version - REMEMBERED,))

    def _dim(self, table: int) -> int | None:
        with self.lock, self._errors():
            row = self.db.execute("SELECT value FROM state WHERE name = ?", (f"dim {table}",)).fetchone()
        return int(row[0]) if row else None

    def _vectors_file(self, table: int) -> Path:
        return self.folder / f"vectors-{table}.safetensors"

    def _snapshot(self, table: int) -> "_Snapshot":
        """Return the current vectors of a table."""
        versions = f"{_name(table)}_versions"
        with self.lock:
            with self._reading():
                dim = self._dim(table)
                if dim is None:
                    raise ValueError(f"{self.folder} must hold table {table}, but another process replaced it. Open it again.")
                now = self.db.execute(f"SELECT version, stamp FROM {versions} ORDER BY version DESC LIMIT 1").fetchone()
                found = self.snapshots.get(table) or (
                    None if self._is_small() else _Snapshot.load(self._vectors_file(table), dim)
                )
                if found is None or found.version != now:
                    known = f"SELECT 1 FROM {versions} WHERE version = ? AND stamp = ?"
                    if found is None or not self.db.execute(known, found.version).fetchone():
                        found = _Snapshot(("", ""), np.empty(0, np.int64), np.empty((0, dim), np.float32))
                    found = self._updated(table, found, now)
            if found.unsaved > 0.1 * len(found.seqs) + UNSAVED and not self._is_small():
                found.save(self._vectors_file(table))
            self.snapshots[table] = found
            return found

    def _updated(self, table: int, before: "_Snapshot", now: tuple[Any, Any]) -> "_Snapshot":
        """Return the current vectors: those of `before` without the rows that have changed since, and the new rows."""
        last, dim = int(before.seqs.max(initial=-1)), before.X.shape[1]
        changes = f"SELECT seq FROM {_name(table)}_changes WHERE version > ?"
        changed = np.array([seq for (seq,) in self.db.execute(changes, before.version[:1])], np.int64)
        seqs, vectors = list[int](), list[bytes]()
        for row in self._rows(table, f"seq > ? OR seq IN ({changes}) ORDER BY seq", (last, *before.version[:1])):
            if len(row[6]) != 4 * dim:
                raise sqlite3.DatabaseError(f"damaged item {row[0]!r}")
            seqs.append(row[5])
            vectors.append(row[6])
        stay = ~np.isin(before.seqs, changed)
        every = np.concatenate([before.seqs[stay], np.array(seqs, np.int64)])
        X = np.concatenate([before.X[stay], np.frombuffer(b"".join(vectors), np.float32).reshape(-1, dim)])
        order = np.argsort(every)
        unsaved = before.unsaved + len(changed) + len(seqs)
        return _Snapshot(now, every[order], X[order] if len(changed) else X, unsaved)

    # --- the approximate index -------------------------------------------------------------------------------------------

    def build(self, table: int, index: str) -> None:
        pick(dict.fromkeys(self.INDEXES), index, "index")
        _ = self._snapshot(table).hnsw

    def size(self, table: int, index: str = "exact") -> int:
        snapshot = self._snapshot(table)
        links = 4 * 2 * HNSW["M"] * len(snapshot.seqs) if index == "hnsw" else 0  # faiss stores them as int32
        return snapshot.X.nbytes * (2 if index == "exact" else 1) + links

    def _approximate(self, snapshot: "_Snapshot", search: NeighborSearch, Q: Vectors, k: int) -> Nearest:
        _, found = snapshot.hnsw.search(search.scaler.transform(torch.from_numpy(Q), np.arange(len(Q))).numpy(), k)
        result: Nearest = []
        for q, each in zip(Q, found, strict=True):
            j = each[each >= 0]
            result.append(nearest_of_candidates(lambda q, count, j=j: (snapshot.X[j], snapshot.seqs[j], None), q, k))  # type: ignore[misc]
        return result

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Report errors of SQLite as ValueError, in one line with a remedy."""
        try:
            yield
        except sqlite3.Error as error:
            text, name = " ".join(str(error).split()), str(getattr(error, "sqlite_errorname", ""))
            text = "damaged item" if text.startswith("user-defined") else text  # `checksum` of a text that is not UTF-8
            if name == "SQLITE_FULL" or ("IOERR" in name and shutil.disk_usage(self.folder).free < PAGE):
                raise OSError(
                    28, f"no space left on the device of {self.folder}. Free some; nothing that was stored is lost"
                ) from error
            remedy = "Try again" if "locked" in text else "Restore it from a backup, or add the images to a new catalog"
            raise ValueError(f"{self.folder / DATABASE} must be a readable catalog, got: {text}. {remedy}.") from error


class _Snapshot:
    """The vectors of a table at one version, in the order of insertion."""

    def __init__(self, version: tuple[Any, Any], seqs: NDArray[np.int64], X: Vectors, unsaved: int = 0) -> None:
        self.version, self.seqs, self.X, self.unsaved = version, seqs, X, unsaved
        self.subset: tuple[Where, NeighborSearch | None, NDArray[np.int64]] | None = None

    @cached_property
    def search(self) -> NeighborSearch | None:
        """Search among all vectors; None if there are none."""
        if not len(self.X):
            return None
        found = NeighborSearch(torch.from_numpy(self.X))
        _ = found.index  # also of few vectors: there will be more queries
        return found

    @cached_property
    def hnsw(self) -> Any:
        """The approximate index of faiss."""
        import faiss

        index = faiss.IndexHNSWFlat(self.X.shape[1], HNSW["M"])
        index.hnsw.efConstruction, index.hnsw.efSearch = HNSW["efConstruction"], HNSW["efSearch"]
        if self.search is not None:
            index.add(self.search.scaler.transform(self.search.X, np.arange(len(self.X))).numpy())
        return index

    def save(self, file: Path) -> None:
        """Write a file that `load` reads, if the folder can be written."""
        meta = {"version": str(self.version[0]), "stamp": self.version[1], "sum": str(self._checksum())}
        self.unsaved = 0
        with contextlib.suppress(OSError), replacing(file, durable=False) as stream:
            stream.write(save({"seqs": self.seqs, "X": self.X}, meta))

    def _checksum(self) -> int:
        return zlib.crc32(np.ascontiguousarray(self.X).data, zlib.crc32(self.seqs.data))

    @staticmethod
    def load(file: Path, dim: int) -> "_Snapshot | None":
        """Read the file, or return None if it is missing or damaged: the array is then made again."""
        try:
            with safe_open(file, "numpy") as content:
                meta = content.metadata() or {}
                seqs, X = content.get_tensor("seqs"), content.get_tensor("X")
            found = _Snapshot((int(meta["version"]), meta["stamp"]), seqs, X)
            whole = X.shape == (len(seqs), dim) and X.dtype == np.float32 and found._checksum() == int(meta["sum"])
            return found if whole else None
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, MemoryError):
            return None


def _name(table: int) -> str:
    return f"items_{int(table)}"


def _checksum(name: str, product: str, path: str, content: str, metadata: str, vector: bytes) -> int:
    return zlib.crc32(vector, zlib.crc32(f"{name}\0{product}\0{path}\0{content}\0{metadata}".encode()))


def _field(name: str) -> str:
    """Return the SQL of a field, whose name the filter or `check_field` has checked."""
    return name if name in OWN_FIELDS else f"json_extract(metadata, '$.\"{name}\"')"


def _comparison(name: str, operator: str, value: Value) -> tuple[str, Value]:
    kinds = "= 'text'" if isinstance(value, str) else "IN ('integer', 'real')"
    kind = "" if operator == "=" else f" AND typeof({_field(name)}) {kinds}"
    return f"{_field(name)} {operator} ?{kind}", value

"""The store in PostgreSQL, with the extension pgvector: `postgresql://user@host:port/database#name`.

A catalog is a schema of the database, `name`, or `catalog` by default. Exact searches scan the table; the approximate index
`hnsw` is pgvector's.
"""

import contextlib
import json
import re
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

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
from liftedstruct.runtime.checks import pick
from liftedstruct.runtime.extras import require

__all__ = ["PostgresStore"]

COLUMNS = ", ".join(Item._fields).replace("metadata", "metadata::text")
NAMED = re.compile(r"#([^#/@]*)$")
PASSWORD = re.compile(r"://[^:/@]*:(.*)@")
SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,40}")
PAGE = 10_000  # rows


class PostgresStore:
    """Store in a schema of a PostgreSQL database."""

    INDEXES: tuple[str, ...] = ("hnsw",)

    def __init__(self, address: str, create: bool = False) -> None:
        self.psycopg, pgvector = require("psycopg", "postgres"), require("pgvector.psycopg", "postgres")
        found = NAMED.search(address)
        url, self.name = (address[: found.start()], found[1]) if found else (address, "catalog")
        self.lock, self.writer = threading.RLock(), threading.Lock()
        password = PASSWORD.search(address)
        self.password = password[1] if password else ""
        if not SCHEMA.fullmatch(self.name):
            raise ValueError(f"a catalog must be named by small letters, digits and underscores, got #{self.name}. Rename it.")
        with self._errors():
            self.db = self.psycopg.connect(url, autocommit=True, client_encoding="UTF8", connect_timeout=30)
        with self._errors(), contextlib.ExitStack() as stack:
            stack.callback(self.db.close)
            found = self.db.execute("SELECT to_regclass(%s)", [f"{self.name}.state"]).fetchone()[0]
            if not found and not create:
                raise missing(address)
            if not found:
                self.db.execute("CREATE EXTENSION IF NOT EXISTS vector")
                self.db.execute(f"CREATE SCHEMA IF NOT EXISTS {self.name}")
                self.db.execute(f"CREATE TABLE IF NOT EXISTS {self.name}.state (name text PRIMARY KEY, value text NOT NULL)")
            pgvector.register_vector(self.db)
            stack.pop_all()  # opened

    def close(self) -> None:
        with self.lock:
            self.db.close()

    # --- writing ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        key = f"hashtextextended('liftedstruct {self.name}', 0)"  # of this database; released if the connection ends
        mine = self.writer.acquire(blocking=False)  # the lock of the database is of the connection, which threads share
        try:
            with self.lock, self._errors():
                if not mine or not self.db.execute(f"SELECT pg_try_advisory_lock({key})").fetchone()[0]:
                    raise ValueError(
                        f"{self.name} must be used by one writer at a time, but is in use by another one. Wait for it."
                    )
            try:
                yield
            finally:
                with self.lock, contextlib.suppress(self.psycopg.Error):
                    self.db.execute(f"SELECT pg_advisory_unlock({key})")
        finally:
            if mine:
                self.writer.release()

    def read(self) -> dict[str, Any]:
        with self.lock, self._errors():
            row = self.db.execute(f"SELECT value FROM {self.name}.state WHERE name = 'record'").fetchone()
        return record_of(row[0], self.name) if row else {}

    def write(self, record: Mapping[str, Any]) -> None:
        with self.lock, self._errors():
            self.db.execute(
                f"INSERT INTO {self.name}.state VALUES ('record', %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                [json.dumps(record)],
            )

    def create(self, table: int, dim: int) -> None:
        with self.lock, self._errors():
            self.db.execute(
                f"CREATE TABLE IF NOT EXISTS {self._name(table)} (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
                'id text COLLATE "C" UNIQUE NOT NULL, product text COLLATE "C" NOT NULL, path text NOT NULL, '
                f"content text NOT NULL, metadata jsonb NOT NULL, vector vector({int(dim)}) NOT NULL)"
            )

    def drop(self, table: int) -> None:
        with self.lock, self._errors():
            self.db.execute(f"DROP TABLE IF EXISTS {self._name(table)}")

    def put(self, table: int, items: Iterable[Item], X: Vectors) -> None:
        columns = "id, product, path, content, metadata, vector"
        with self.lock, self._errors(), self.db.transaction():
            self.db.execute(
                f"CREATE TEMP TABLE added ON COMMIT DROP AS SELECT seq AS place, {columns} FROM {self._name(table)} LIMIT 0"
            )
            with self.db.cursor().copy(f"COPY added (place, {columns}) FROM STDIN WITH (FORMAT BINARY)") as copy:
                copy.set_types(["int8", "text", "text", "text", "text", "jsonb", "vector"])
                for place, (item, x) in enumerate(zip(items, np.asarray(X, np.float32), strict=True)):
                    metadata = self.psycopg.types.json.Jsonb(dict(item.metadata), metadata_text)
                    copy.write_row((place, item.id, item.product, item.path, item.content, metadata, x))
            self.db.execute(
                f"INSERT INTO {self._name(table)} ({columns}) SELECT {columns} FROM added ORDER BY place "
                "ON CONFLICT (id) DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in columns.split(", ")[1:])
            )

    def remove(self, table: int, ids: Sequence[str]) -> int:
        with self.lock, self._errors():
            return int(self.db.execute(f"DELETE FROM {self._name(table)} WHERE id = ANY(%s)", [list(ids)]).rowcount)

    def index_field(self, table: int, name: str) -> None:
        if name not in OWN_FIELDS:
            with self.lock, self._errors():
                for kind, value in (("text", ""), ("number", 0)):
                    column = f'({_field(name, value)}) COLLATE "C"' if kind == "text" else f"({_field(name, value)})"
                    index = f"{table}_{zlib.crc32(name.encode()):08x}_{kind}"  # names of more than 63 bytes would be cut
                    self.db.execute(f'CREATE INDEX IF NOT EXISTS "{index}" ON {self._name(table)} ({column})')
                self.db.execute(f"ANALYZE {self._name(table)}")

    # --- reading ---------------------------------------------------------------------------------------------------------

    def count(self, table: int, where: Where | None = None) -> int:
        text, values = _sql(where)
        with self.lock, self._errors():
            return int(self.db.execute(f"SELECT count(*) FROM {self._name(table)} WHERE {text}", values).fetchone()[0])

    def items(self, table: int, where: Where | None = None, after: int = -1) -> Iterator[Item]:
        text, values = _sql(where)
        query = f"SELECT {COLUMNS} FROM {self._name(table)} WHERE seq > %s AND ({text}) ORDER BY seq LIMIT {PAGE}"

        def rows_after(seq: int) -> list[tuple[Any, ...]]:
            with self.lock, self._errors():
                found: list[tuple[Any, ...]] = self.db.execute(query, [seq, *values]).fetchall()
                return found

        return items_in_pages(rows_after, after)

    def get(self, table: int, seqs: Sequence[int]) -> dict[int, tuple[Item, Vectors]]:
        found: dict[int, tuple[Item, Vectors]] = {}
        for at in range(0, len(seqs), PAGE):
            query = f"SELECT {COLUMNS}, vector FROM {self._name(table)} WHERE seq = ANY(%s)"
            with self.lock, self._errors():
                for row in self.db.execute(query, [[int(seq) for seq in seqs[at : at + PAGE]]]):
                    found[row[5]] = item_of(row), _array(row[6])
        return found

    def nearest(self, table: int, Q: Vectors, k: int, where: Where | None = None, index: str = "exact") -> Nearest:
        if index != "exact":
            pick(dict.fromkeys(self.INDEXES), index, "index")
        text, values = _sql(where)
        query = (
            f"SELECT seq, vector, vector <-> %s AS distance FROM {self._name(table)} WHERE {text} ORDER BY distance LIMIT %s"
        )

        def candidates(q: Vectors, count: int) -> Any:
            rows = self.db.execute(query, [q, *values, count], binary=True).fetchall()
            seqs, vectors, distances = zip(*rows, strict=True) if rows else ((), (), ())
            X = np.stack([_array(each) for each in vectors]) if rows else np.empty((0, len(q)), np.float32)
            return X, np.array(seqs, np.int64), np.array(distances, np.float64) ** 2 if index == "exact" else None

        found: Nearest = []
        with self.lock, self._errors(), self.db.transaction():
            # an exact search must not use the index hnsw, which only a plain index scan can use
            for name, value in (
                ("enable_indexscan", "off" if index == "exact" else "on"),
                ("enable_seqscan", "on" if index == "exact" else "off"),
                ("hnsw.ef_search", str(HNSW["efSearch"])),
                ("hnsw.iterative_scan", "relaxed_order"),  # otherwise a filter leaves too few
                ("hnsw.max_scan_tuples", str(2**31 - 1)),
            ):
                self.db.execute("SELECT set_config(%s, %s, true)", [name, value])
            for q in Q:
                found.append(nearest_of_candidates(candidates, q, k))
        return found

    # --- the approximate index -------------------------------------------------------------------------------------------

    def build(self, table: int, index: str) -> None:
        pick(dict.fromkeys(self.INDEXES), index, "index")
        with self.lock, self._errors():
            self.db.execute(
                f'CREATE INDEX IF NOT EXISTS "{table}_hnsw" ON {self._name(table)} USING hnsw (vector vector_l2_ops) '
                f"WITH (m = {HNSW['M']}, ef_construction = {HNSW['efConstruction']})"
            )

    def size(self, table: int, index: str = "exact") -> int:
        name = self._name(table) if index == "exact" else f'{self.name}."{table}_hnsw"'
        with self.lock, self._errors():
            return int(self.db.execute("SELECT pg_table_size(%s)", [name]).fetchone()[0])

    def _name(self, table: int) -> str:
        return f"{self.name}.items_{int(table)}"

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Report errors of PostgreSQL as ValueError, in one line with a remedy."""
        try:
            yield
        except self.psycopg.Error as error:
            text = " ".join(str(error).split())
            if not hasattr(self, "db"):
                text = text.replace(self.password, "***") if self.password else text
                remedy = "Check that the server runs, and its address, user, password and database"
            elif "2000 dimensions" in text:
                remedy = "Search exactly, or embed with a smaller dim"
            elif "vector" in text and "extension" in text:
                remedy = "Install the extension pgvector, or have an administrator run CREATE EXTENSION vector"
            else:
                remedy = "Check the server and try again; what was stored is kept"
            raise ValueError(f"catalog {self.name} must be usable in PostgreSQL, got: {text.rstrip('.')}. {remedy}.") from error


def _array(vector: Any) -> Vectors:
    """Return a vector of pgvector as an array."""
    return np.asarray(vector if isinstance(vector, np.ndarray) else vector.to_numpy(), np.float32)


def _field(name: str, value: Value) -> str:
    """Return the SQL of a field as text or as a number, by the type of `value`; NULL if it is of the other type or missing."""
    if name in OWN_FIELDS:
        return name
    kind, cast = ("string", "") if isinstance(value, str) else ("number", "::float8")
    return f"CASE WHEN jsonb_typeof(metadata->'{name}') = '{kind}' THEN (metadata->>'{name}'){cast} END"


def _sql(where: Where | None) -> tuple[str, list[Value]]:
    def comparison(name: str, operator: str, value: Value) -> tuple[str, Value]:
        if isinstance(value, str):
            return f'({_field(name, value)}) COLLATE "C" {operator} %s::text', value
        return f"({_field(name, value)}) {operator} %s::float8", float(value)

    return sql_of(where, comparison)

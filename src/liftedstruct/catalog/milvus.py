"""The store in Milvus: `milvus:file.db#name` in a file, or `milvus://host:port#name` on a server or a cluster.

A catalog is a few collections whose names begin with `name`, `catalog` by default: its record, one for each table, and one for
each approximate index. Milvus has no transactions: a call that writes more than a few megabytes is stored in several parts.
Writers on one machine exclude each other; take care of those on others.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from liftedstruct.catalog.store import (
    HNSW,
    Item,
    Nearest,
    Vectors,
    item_of,
    metadata_text,
    missing,
    nearest_of_candidates,
    record_of,
)
from liftedstruct.catalog.where import OWN_FIELDS, And, Condition, Not, Or, Value, Where
from liftedstruct.runtime.atomic import locked
from liftedstruct.runtime.checks import pick
from liftedstruct.runtime.extras import require

__all__ = ["MilvusStore"]

NAME = re.compile(r"[A-Za-z_]\w{0,40}", re.ASCII)
COLUMNS = list(Item._fields)
TEXT = 65_535  # bytes that a text holds at most
PAGE = 4096  # rows of an answer
LARGEST = 16_384  # candidates that Milvus returns at most
PART = 1 << 24  # bytes of vectors that are written at once


class MilvusStore:
    """Store in collections of Milvus."""

    INDEXES: tuple[str, ...] = ("hnsw",)

    def __init__(self, address: str, create: bool = False) -> None:
        pymilvus = require("pymilvus", "milvus")
        self.types, self.errors = pymilvus.DataType, (pymilvus.MilvusException, ConnectionError)
        url, _, name = address.removeprefix("milvus:").partition("#")
        self.name, self.file = name or "catalog", None if url.startswith("//") else Path(url).absolute()
        if not NAME.fullmatch(self.name):
            raise ValueError(f"a catalog must be named by letters, digits and underscores, got #{name}. Rename it.")
        if self.file is not None:
            if self.file.suffix != ".db":
                raise ValueError(f"a file of Milvus must end with .db, got {url}. Rename it.")
            if not self.file.exists() and not create:
                raise missing(address)
            require("milvus_lite", "milvus")
            self.file.parent.mkdir(parents=True, exist_ok=True)
        uri = f"http:{url}" if self.file is None else str(self.file)
        self.lock_file = self.file.with_name(f"{self.file.name}-{self.name}.lock") if self.file else _lock_of(uri, self.name)
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs errors with their traceback, which are raised too
        with self._errors():
            self.db = pymilvus.MilvusClient(uri, timeout=60)
        with self._errors():
            if not self.db.has_collection(f"{self.name}_state"):
                if not create:
                    raise missing(address)
                self._create(f"{self.name}_state", "name", self.types.VARCHAR, 2, "FLAT", {"value": self.types.VARCHAR})
            self.db.load_collection(f"{self.name}_state")

    def close(self) -> None:
        self.db.close()

    # --- writing ---------------------------------------------------------------------------------------------------------

    def writing(self) -> Any:
        return locked(self.lock_file, "writer")

    def read(self) -> dict[str, Any]:
        text = self._state("record")
        return record_of(text, self.name) if text else {}

    def write(self, record: Mapping[str, Any]) -> None:
        self._set_state("record", json.dumps(record))

    def create(self, table: int, dim: int) -> None:
        with self._errors():
            if not self.db.has_collection(self._name(table)):
                text = self.types.VARCHAR
                fields = dict.fromkeys(COLUMNS[:-1], text) | {"filtered": self.types.JSON}
                self._create(self._name(table), "seq", self.types.INT64, dim, "FLAT", fields)
            self.db.load_collection(self._name(table))

    def drop(self, table: int) -> None:
        if self._state(f"hnsw {table}"):
            self._set_state(f"hnsw {table}", "")
        with self._errors():
            for index in ("hnsw", "exact"):
                if self.db.has_collection(self._name(table, index)):
                    self.db.drop_collection(self._name(table, index))

    def put(self, table: int, items: Iterable[Item], X: Vectors) -> None:
        items = list(items)
        known = self._seqs(table, [item.id for item in items])
        upcoming = int(self._state(f"next {table}") or 0)
        new = sum(item.id not in known for item in items)
        if new:
            self._set_state(f"next {table}", str(upcoming + new))  # first, so that a place is never given twice
        fresh = itertools.count(upcoming)
        rows = [
            {
                **item._asdict(),
                "seq": known[item.id] if item.id in known else next(fresh),
                "metadata": metadata_text(item.metadata),
                "filtered": _filtered(item.metadata),
                "vector": x,
            }
            for item, x in zip(items, np.asarray(X, np.float32), strict=True)
        ]
        size = max(1, PART // (X.shape[1] * 4 + 1000))
        with self._errors():
            for at in range(0, len(rows), size):
                some = rows[at : at + size]
                self.db.upsert(self._name(table), some)
                if self.db.has_collection(self._name(table, "hnsw")):
                    self.db.upsert(self._name(table, "hnsw"), [{"seq": row["seq"], "vector": row["vector"]} for row in some])

    def remove(self, table: int, ids: Sequence[str]) -> int:
        seqs = list(self._seqs(table, ids).values())
        with self._errors():
            for at in range(0, len(seqs), PAGE):
                for index in ("exact", "hnsw"):
                    if index == "exact" or self.db.has_collection(self._name(table, index)):
                        self.db.delete(self._name(table, index), ids=seqs[at : at + PAGE])
        return len(seqs)

    def index_field(self, table: int, name: str) -> None:
        """Do nothing: Milvus evaluates filters on whole columns."""

    # --- reading ---------------------------------------------------------------------------------------------------------

    def count(self, table: int, where: Where | None = None) -> int:
        return int(self._query(table, _expression(where), ["count(*)"])[0]["count(*)"])

    def items(self, table: int, where: Where | None = None, after: int = -1) -> Iterator[Item]:
        for at in range(after + 1, int(self._state(f"next {table}") or 0), PAGE):
            text = f"seq >= {at} and seq < {at + PAGE} and ({_expression(where)})"
            yield from sorted(map(_item, self._query(table, text, COLUMNS)), key=lambda item: item.seq)

    def get(self, table: int, seqs: Sequence[int]) -> dict[int, tuple[Item, Vectors]]:
        found: dict[int, tuple[Item, Vectors]] = {}
        for at in range(0, len(seqs), PAGE // 4):
            text = f"seq in {[int(seq) for seq in seqs[at : at + PAGE // 4]]}"
            for row in self._query(table, text, [*COLUMNS, "vector"]):
                found[row["seq"]] = _item(row), np.array(row["vector"], np.float32)
        return found

    def nearest(self, table: int, Q: Vectors, k: int, where: Where | None = None, index: str = "exact") -> Nearest:
        if index != "exact":
            pick(dict.fromkeys(self.INDEXES), index, "index")
        index = "exact" if where is not None else index  # the approximate index knows no fields
        expression = _expression(where) if where is not None else ""

        def candidates(q: Vectors, count: int) -> Any:
            if index == "hnsw" or count > LARGEST:
                if index == "hnsw":  # with vectors of the table, since a kill may have left older ones in the index
                    found = self._search(self._name(table, index), q, min(count, LARGEST), expression)
                    seqs = [row["seq"] for row in found]
                else:  # more than Milvus returns: all
                    seqs = [item.seq for item in self.items(table, where)]
                every = self.get(table, seqs)
                X = np.array([x for _, x in every.values()], np.float32).reshape(-1, len(q))
                return X, np.array(list(every), np.int64), None
            rows = self._search(self._name(table, index), q, count, expression)
            X = np.array([row["vector"] for row in rows], np.float32).reshape(-1, len(q))
            return X, np.array([row["seq"] for row in rows], np.int64), np.array([row["distance"] for row in rows], np.float64)

        return [nearest_of_candidates(candidates, q, k) for q in Q]

    # --- the approximate index -------------------------------------------------------------------------------------------

    def build(self, table: int, index: str) -> None:
        pick(dict.fromkeys(self.INDEXES), index, "index")
        name = self._name(table, index)
        if self._state(f"{index} {table}"):
            return
        with self.writing(), self._errors():
            if self.db.has_collection(name):  # of a call that was killed
                self.db.drop_collection(name)
            self._create(name, "seq", self.types.INT64, self._dim(table), "HNSW", {})
            seqs = [item.seq for item in self.items(table)]
            for at in range(0, len(seqs), PAGE):
                rows = self.get(table, seqs[at : at + PAGE])
                self.db.upsert(name, [{"seq": seq, "vector": x} for seq, (_, x) in rows.items()])
            self.db.flush(name)
            self.db.load_collection(name)
        self._set_state(f"{index} {table}", "built")

    def size(self, table: int, index: str = "exact") -> int:
        return self.count(table) * 4 * (self._dim(table) + (2 * HNSW["M"] if index == "hnsw" else 0))

    def _dim(self, table: int) -> int:
        with self._errors():
            fields = self.db.describe_collection(self._name(table))["fields"]
        return next(int(field["params"]["dim"]) for field in fields if field["name"] == "vector")

    # --- requests --------------------------------------------------------------------------------------------------------

    def _name(self, table: int, index: str = "exact") -> str:
        return f"{self.name}_{int(table)}" + ("" if index == "exact" else f"_{index}")

    def _create(self, name: str, key: str, kind: Any, dim: int, index: str, fields: Mapping[str, Any]) -> None:
        schema = self.db.create_schema(auto_id=False, enable_dynamic_field=False)
        for field, of in ({key: kind} | dict(fields)).items():
            length = {"max_length": TEXT} if of == self.types.VARCHAR else {}
            schema.add_field(field, of, is_primary=field == key, **length)
        schema.add_field("vector", self.types.FLOAT_VECTOR, dim=dim)
        params = self.db.prepare_index_params()
        build = {"M": HNSW["M"], "efConstruction": HNSW["efConstruction"]} if index == "HNSW" else {}
        params.add_index("vector", index_type=index, metric_type="L2", params=build)
        self.db.create_collection(name, schema=schema, index_params=params, consistency_level="Strong")

    def _query(self, table: int, expression: str, fields: list[str]) -> list[dict[str, Any]]:
        with self._errors():
            return list(self.db.query(self._name(table), filter=expression, output_fields=fields, consistency_level="Strong"))

    def _search(self, name: str, q: Vectors, count: int, expression: str) -> list[dict[str, Any]]:
        params = {"metric_type": "L2", "params": {"ef": max(HNSW["efSearch"], count)}}
        with self._errors():
            (hits,) = self.db.search(
                name,
                [q],
                filter=expression,
                limit=count,
                output_fields=["seq", "vector"],
                search_params=params,
                consistency_level="Strong",
            )
        return [{"seq": hit["seq"], "distance": hit["distance"], "vector": hit["entity"]["vector"]} for hit in hits]

    def _seqs(self, table: int, ids: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for at in range(0, len(ids), 512):
            rows = self._query(table, f"id in [{', '.join(map(_quoted, ids[at : at + 512]))}]", ["seq", "id"])
            found |= {row["id"]: row["seq"] for row in rows}
        return found

    def _state(self, name: str) -> str:
        with self._errors():
            rows = self.db.query(
                f"{self.name}_state", filter=f"name == {_quoted(name)}", output_fields=["value"], consistency_level="Strong"
            )
        return str(rows[0]["value"]) if rows else ""

    def _set_state(self, name: str, value: str) -> None:
        with self._errors():
            self.db.upsert(f"{self.name}_state", [{"name": name, "value": value, "vector": [0.0, 0.0]}])

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Report errors of Milvus as ValueError, in one line with a remedy."""
        try:
            yield
        except self.errors as error:
            text = " ".join(str(getattr(error, "message", error)).split())
            where = "the file" if self.file else "the server runs, and its address"
            raise ValueError(
                f"catalog {self.name} must be usable in Milvus, got: {text[:300].rstrip('.')}. Check {where}."
            ) from error


def _lock_of(uri: str, name: str) -> Path:
    """Return the lock file of a catalog on a server, in the cache folder of this user."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "liftedstruct"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / f"{hashlib.sha256(f'{uri}#{name}'.encode()).hexdigest()[:16]}.lock"


def _item(row: Mapping[str, Any]) -> Item:
    return item_of([row[name] for name in COLUMNS])


def _filtered(metadata: Mapping[str, Value]) -> dict[str, Any]:
    """Return what filters see: a text `t_name` or a float `n_name` for each field, so that each name has one type."""
    return {
        f"t_{name}" if isinstance(value, str) else f"n_{name}": value if isinstance(value, str) else float(value)
        for name, value in metadata.items()
    }


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _expression(where: Where | None) -> str:
    """Return a filter in the language of Milvus, in which every value is a JSON literal."""
    match where:
        case None:
            return "seq >= 0"
        case And(parts) | Or(parts):
            return f" {type(where).__name__.lower()} ".join(f"({_expression(part)})" for part in parts)
        case Not(part):
            return f"not ({_expression(part)})"
        case Condition(name, operator, value):
            operator = "==" if operator == "=" else operator
            if name in OWN_FIELDS:
                return f"{name} {operator} {_quoted(str(value))}"
            field = f'filtered["{"t" if isinstance(value, str) else "n"}_{name}"]'
            literal = _quoted(value) if isinstance(value, str) else repr(float(value))
            return f"(exists {field}) and ({field} {operator} {literal})"  # where it is missing, false, not unknown

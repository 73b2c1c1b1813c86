"""The contract of a store, which keeps the items of a catalog, and the table of stores.

A store holds a record and numbered tables of items. An item has an id, unique in its table; a `seq`, its place in the order of
insertion, which an update keeps; a float32 vector, which is stored exactly; and metadata. A call that writes is atomic:
after a kill, all of it is stored, or nothing.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from liftedstruct.catalog.where import EXACT, And, Condition, Not, Or, Value, Where
from liftedstruct.retrieval.exact_distances import Scaler, squares

__all__ = [
    "HNSW",
    "STORES",
    "Item",
    "Nearest",
    "Store",
    "Vectors",
    "item_of",
    "items_in_pages",
    "metadata_text",
    "missing",
    "nearest_of_candidates",
    "open_store",
    "record_of",
    "shown",
    "sql_of",
]

Vectors = NDArray[np.float32]
Nearest = list[tuple[NDArray[np.float64], NDArray[np.int64]]]  # for each query, squared distances and seqs
EXTRA = 32  # candidates beyond those asked for
QUOTED = json.encoder.encode_basestring  # several times as fast as an encoder of any object
HNSW = {"M": 32, "efConstruction": 100, "efSearch": 128}  # of the approximate index


class Item(NamedTuple):  # made several times as fast as a frozen dataclass
    """An item of a catalog. Its fields are the columns of a store.

    Attributes:
        id: unique name.
        product: name of what the image shows, its class; empty if unknown.
        path: path of the image file; empty if there is none.
        content: hash of the image file; empty if there is none.
        metadata: further fields, texts and numbers.
        seq: place in the order of insertion; the store assigns it.

    """

    id: str
    product: str = ""
    path: str = ""
    content: str = ""
    metadata: Mapping[str, Value] = MappingProxyType({})
    seq: int = -1

    @property
    def fields(self) -> dict[str, Value]:
        """The fields that a filter sees."""
        return {**self.metadata, "id": self.id, "product": self.product}


class Store(Protocol):
    """Contract of a store. `tests/catalog/test_stores.py` holds every store to it."""

    INDEXES: tuple[str, ...]  # names of the approximate indexes

    def __init__(self, address: str, create: bool = False) -> None:
        """Connect to an address; unless `create` is set, raise ValueError if there is no catalog."""

    def read(self) -> dict[str, Any]:
        """Return the record, as last written; {} if there is none."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Replace the record, a JSON object."""

    def writing(self) -> Any:
        """Return a context in which this process is the only writer, or raise ValueError."""

    def create(self, table: int, dim: int) -> None:
        """Create an empty table of vectors of this dimension, unless it exists."""

    def drop(self, table: int) -> None:
        """Remove a table, if it exists."""

    def put(self, table: int, items: Iterable[Item], X: Vectors) -> None:
        """Insert items, with distinct ids; replace those whose id exists, which keep their `seq`. An error stores nothing."""

    def remove(self, table: int, ids: Sequence[str]) -> int:
        """Remove items, and return how many there were."""

    def count(self, table: int, where: Where | None = None) -> int:
        """Return the number of items that a filter selects."""

    def items(self, table: int, where: Where | None = None, after: int = -1) -> Iterator[Item]:
        """Yield the items that a filter selects, in the order of insertion, from the first whose `seq` is beyond `after`."""

    def get(self, table: int, seqs: Sequence[int]) -> dict[int, tuple[Item, Vectors]]:
        """Return items and their vectors by `seq`; those that are gone are left out."""

    def nearest(self, table: int, Q: Vectors, k: int, where: Where | None = None, index: str = "exact") -> Nearest:
        """Return the k nearest items of each query, or all if there are fewer; ties in the order of insertion.

        The search is exact unless an approximate index is named: it finds the candidates, and their order is still exact.
        """

    def index_field(self, table: int, name: str) -> None:
        """Make filters by a metadata field fast."""

    def build(self, table: int, index: str) -> None:
        """Build an approximate index of a table, unless there is a current one."""

    def size(self, table: int, index: str = "exact") -> int:
        """Return the bytes of memory or disk that a search needs."""

    def close(self) -> None:
        """Release files and connections."""


# (query, count) -> vectors, seqs and approximate squared distances of about the nearest items, in any order; without distances
# if these are all items, or if the search is approximate
Candidates = Callable[[Vectors, int], tuple[Vectors, NDArray[np.int64], NDArray[np.float64] | None]]


def nearest_of_candidates(candidates: Candidates, q: Vectors, k: int) -> tuple[Any, Any]:
    """Return exact squared distances and seqs of the k nearest items of a query (d,), from an engine's float32 search.

    A few more candidates are requested than needed and ranked by the exact distance. The list is accepted if the bound on the
    rounding error rules out that any other item is as near; otherwise, more are requested, in the end all.

    Args:
        candidates: function that returns at least so many candidates of a query, or all if there are fewer.
        q: query.
        k: number of items.

    """
    wanted = k + EXTRA
    while True:
        X, seqs, approximate = candidates(q, wanted)
        D2 = np.empty(len(seqs))
        squares(q[None], 0, X, np.arange(len(seqs)), len(seqs), D2)
        order = np.lexsort((seqs, D2))[:k]
        if approximate is None or len(seqs) < wanted:
            return D2[order], seqs[order]
        scaler = Scaler(torch.zeros(len(q), dtype=torch.float64), 1.0, len(q) * 2.0**-120)
        norm = torch.linalg.vector_norm(torch.from_numpy(q).double()).reshape(1)
        if float(scaler.floor(torch.tensor([approximate.max()]), norm)) > D2[order[-1]]:
            return D2[order], seqs[order]
        wanted *= 8


def shown(address: str) -> str:
    """Return an address without its password, for messages."""
    return re.sub(r"(://[^:/@]*):.*@", r"\1:***@", address)


def missing(address: str) -> ValueError:
    """Return the error for an address without a catalog."""
    return ValueError(
        f"a catalog must exist to be opened, got none at {shown(address)}. Run: liftedstruct catalog add {shown(address)} "
        "photos/ --run run/"
    )


def record_of(text: str | bytes, where: str) -> dict[str, Any]:
    """Parse the record of a catalog."""
    try:
        record = json.loads(text)
        if isinstance(record, dict):
            return record
    except ValueError:
        pass
    raise ValueError(f"{where} must hold the record of a catalog, got other text. Restore it from a backup.")


def metadata_text(metadata: Mapping[str, Value]) -> str:
    """Write metadata as JSON, which is a flat object of texts and finite numbers."""
    return (
        "{"
        + ", ".join([f"{QUOTED(k)}: {QUOTED(v) if isinstance(v, str) else repr(v)}" for k, v in sorted(metadata.items())])
        + "}"
    )


def item_of(row: Sequence[Any]) -> Item:
    """Return the item in a row of a store, whose metadata is JSON."""
    return Item._make((*row[:4], json.loads(row[4], parse_int=_number), row[5]))


def _number(digits: str) -> int | float:
    """Read a whole number. A database may have written a large float without its exponent."""
    return int(digits) if abs(int(digits)) <= EXACT else float(digits)


def items_in_pages(rows_after: Callable[[int], Sequence[Sequence[Any]]], after: int = -1) -> Iterator[Item]:
    """Yield the items in rows, of which the function returns some that follow a `seq`; so a long iteration blocks no writer."""
    while rows := rows_after(after):
        yield from map(item_of, rows)
        after = rows[-1][5]


def sql_of(where: Where | None, comparison: Callable[[str, str, Value], tuple[str, Value]]) -> tuple[str, list[Value]]:
    """Return a filter as SQL and its values, which are never in the text.

    `comparison` returns the SQL of field, operator and value. It may be NULL, which a filter and NOT take as false.
    """
    match where:
        case None:
            return "true", []
        case And(parts) | Or(parts):
            each = [sql_of(part, comparison) for part in parts]
            texts = [f"({text})" for text, _ in each]
            while len(texts) > 1:  # joined in pairs: SQLite limits the depth of an expression
                pairs = (texts[at : at + 2] for at in range(0, len(texts), 2))
                texts = [f"({f' {type(where).__name__.upper()} '.join(pair)})" if len(pair) > 1 else pair[0] for pair in pairs]
            return texts[0], [value for _, values in each for value in values]
        case Not(part):
            text, values = sql_of(part, comparison)
            return f"NOT COALESCE(({text}), false)", values
        case Condition(name, operator, value):
            text, value = comparison(name, operator, value)
            return text, [value]


def _local() -> type[Store]:
    from liftedstruct.catalog.local import LocalStore

    return LocalStore


def _postgres() -> type[Store]:
    from liftedstruct.catalog.postgres import PostgresStore

    return PostgresStore


def _milvus() -> type[Store]:
    from liftedstruct.catalog.milvus import MilvusStore

    return MilvusStore


# Scheme of the address -> store, imported on use; an address without a scheme is a folder.
STORES: dict[str, Callable[[], type[Store]]] = {"": _local, "postgresql": _postgres, "milvus": _milvus}


def open_store(address: str, create: bool = False) -> Store:
    """Open the store at an address: a folder, `postgresql://...` or `milvus:...`."""
    scheme, colon, _ = address.partition(":")
    if "://" in address and scheme not in STORES:
        raise ValueError(f"an address must be a folder, postgresql://... or milvus:..., got {shown(address)}. Correct it.")
    return STORES[scheme if colon and scheme in STORES else ""]()(address, create)

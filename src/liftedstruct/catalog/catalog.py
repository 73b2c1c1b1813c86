"""Catalog: images of products with their embeddings, and the search for a photo among them."""

import contextlib
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from liftedstruct.catalog.adding import Added, add_images
from liftedstruct.catalog.store import Item, Store, Vectors, missing, open_store, shown
from liftedstruct.catalog.where import OWN_FIELDS, Value, Where, as_value, check_field, check_id, parse_where
from liftedstruct.embedder import Embedder, load
from liftedstruct.encoding import ImageLike
from liftedstruct.evaluation.scores import Estimate
from liftedstruct.runtime.atomic import replacing
from liftedstruct.runtime.checks import EmbeddingsLike, as_embeddings, check_count, check_finite

__all__ = ["Answer", "Catalog", "Match"]

FORMAT, VERSION = "liftedstruct catalog", 1
FIRST = 16  # matches that are asked for at first; more if they do not have enough products
MARGIN = 1024  # images among which another product is looked for, at least
TRIES = 100  # of a search in a catalog that changes at the same time
EXACT = "exact"


@dataclass(frozen=True)
class Match:
    """An image of the catalog that is near a query.

    Attributes:
        rank: 1 for the nearest.
        distance: Euclidean distance of the embeddings.
        id: id of the item.
        product: name of what the image shows; empty if unknown.
        path: path of the image file; empty if there is none.
        metadata: further fields.

    """

    rank: int
    distance: float
    id: str
    product: str
    path: str
    metadata: Mapping[str, Value]


@dataclass(frozen=True)
class Answer:
    """What a search found for a query, nearest first.

    Attributes:
        matches: the nearest images, or the nearest image of each group.
        margin: how much farther the nearest image of another product is than the first match; None if there is no other among
            the nearest images (a thousand or more).
        verdict: "match" if the first match is within the threshold of `calibrate`, otherwise "no match"; None without one.

    """

    matches: tuple[Match, ...]
    margin: float | None
    verdict: str | None

    @property
    def product(self) -> str | None:
        """The product of the first match, unless the verdict is "no match"."""
        return self.matches[0].product if self.matches and self.verdict != "no match" else None


class Catalog:
    """Images of products with their embeddings, in a folder or a database.

    Open one with `Catalog.open`. It remembers the model that its images were embedded with, and embeds queries with it.
    Searches are exact: equal to sorting all images by their float64 distance, then by the order of insertion.

    Examples:
        >>> catalog = Catalog.open("catalog/", model="run/")  # doctest: +SKIP
        >>> catalog.add("photos/")  # doctest: +SKIP
        >>> catalog.search("photo.jpg", k=5)[0].product  # doctest: +SKIP
        'chair 12'

    """

    def __init__(self, address: str, store: Store, embedder: Embedder | None) -> None:
        self.address, self.store, self._embedder = shown(address), store, embedder
        self.folder = Path(address).absolute()  # where a copy of the model is, if it is a folder
        self._own: tuple[str, Embedder] | None = None  # the model of the record, by its hash, if none was passed
        self._verified: Any = None  # state of the embedder when its hash was compared with the one in the record

    @staticmethod
    def open(address: str | Path, model: Embedder | str | Path | None = None) -> "Catalog":
        """Open a catalog, or create it if a model is given and there is none.

        Args:
            address: folder, `postgresql://user@host:port/database#name` or `milvus://host:port#name`, or
                `milvus:file.db#name`.
            model: embedder, or its run folder or file. Default: the model of the catalog.

        """
        embedder = model if isinstance(model, Embedder) or model is None else load(model)
        store = open_store(str(address), create=embedder is not None)
        catalog = Catalog(str(address), store, embedder)
        if embedder is None:
            with contextlib.ExitStack() as stack:
                stack.callback(store.close)
                _ = catalog.record
                stack.pop_all()  # it is a catalog
        return catalog

    def __enter__(self) -> "Catalog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release files and connections."""
        self.store.close()

    # --- the record ------------------------------------------------------------------------------------------------------

    @property
    def record(self) -> dict[str, Any]:
        """What the catalog remembers: its model, indexed fields, and the calibration."""
        record = self.store.read()
        if not record:
            raise missing(self.address)
        if record.get("format") != FORMAT or record.get("version") != VERSION:
            got = f"{record.get('format')!r}, version {record.get('version')!r}"
            raise ValueError(
                f"{self.address} must be a catalog of version {VERSION}, got {got}. Use the release that wrote it."
            )
        return record

    @property
    def table(self) -> int:
        """The table of the store that is searched."""
        return int(self.record["current"]["table"])

    @property
    def embedder(self) -> Embedder:
        """The model that the images were embedded with."""
        return self.embedder_of(self.record["current"]["model"])

    def embedder_of(self, model: Mapping[str, Any]) -> Embedder:
        """Return the embedder that a model in the record describes."""
        if not model["sha"]:
            raise ValueError(f"{self.address} must have a model to embed images, but it holds vectors only. Pass vectors.")
        if self._embedder is None and (self._own is None or self._own[0] != model["sha"]):
            own = self.folder / model_file(model["sha"])
            self._own = model["sha"], load(own if own.is_file() else model["path"])
        embedder = self._embedder or (self._own[1] if self._own else None)
        assert embedder is not None
        if (state := (model["sha"], embedder._state())) == self._verified:  # a hash of all weights takes a while
            return embedder
        if embedder.short_sha() != model["sha"]:
            raise ValueError(
                f"images must be embedded by the model of {self.address}, {model['name']} (SHA-256 {model['sha']}), got "
                f"{embedder.origin} ({embedder.short_sha()}). Pass that run, or embed the catalog again with "
                "liftedstruct catalog add --new-model."
            )
        self._verified = state
        return embedder

    def use(self, model: Embedder | str | Path) -> None:
        """Embed queries with this model, or its run folder or file, which must be the model of the catalog."""
        self._embedder = model if isinstance(model, Embedder) else load(model)
        _ = self.embedder

    def begin(self, embedder: Embedder | None, dim: int, new_model: bool = False) -> dict[str, Any]:
        """Return the table that images are to be added to, with its model, and create what is missing.

        With `new_model`, this is a second table beside the current one, until `finish` replaces it.
        """
        record = self.store.read() or {"format": FORMAT, "version": VERSION, "current": None, "next": None, "fields": []}
        if embedder is not None and embedder.width != dim:
            raise ValueError(f"vectors must have {embedder.width} dimensions like the model, got {dim}. Embed with the model.")
        model = _model(embedder, dim)
        current, upcoming, dropped = record["current"], record["next"], None
        if current is None:
            place, table = "current", 1
        elif model["sha"] == current["model"]["sha"] and dim == current["model"]["dim"]:
            dropped, place, table = upcoming if new_model else None, "current", current["table"]
            if Path(model["path"]).parent == Path(os.path.realpath(self.folder)):  # the catalog's own copy
                model = current["model"]
        elif new_model:
            place = "next"
            if upcoming and upcoming["model"]["sha"] != model["sha"]:
                dropped = upcoming
            table = current["table"] + 1
        elif embedder is None:
            raise ValueError(
                f"vectors must be of the model of {self.address}, {current['model']['name']} with {current['model']['dim']} "
                f"dimensions, got {dim} dimensions without a model. Add them to another catalog."
            )
        else:
            self.embedder_of(current["model"])  # raises an error
        if dropped:
            record["next"] = None
            self.store.write(record)
        self._remove_leftovers(record)
        if embedder is not None and (folder := self.folder).is_dir() and not (folder / model_file(model["sha"])).is_file():
            copy = folder / model_file(model["sha"])  # so that the folder can be moved
            if embedder.onnx is not None:
                with replacing(copy.with_suffix(".onnx")) as file:
                    file.write(embedder.onnx.read_bytes())
            embedder.save(copy)
        self.store.create(table, dim)
        for name in record["fields"]:
            self.store.index_field(table, check_field(name))
        record[place] = {"table": table, "model": model}
        self.store.write(record)
        found: dict[str, Any] = record[place]
        return found

    def finish(self, table: int) -> None:
        """Make a table the one that is searched, if it is not yet: every search sees the old model or the new one."""
        record = self.record
        if record["next"] and record["next"]["table"] == table:
            record |= {"current": record["next"], "next": None}
            record.pop("calibration", None)
            self.store.write(record)
            self._remove_leftovers(record)

    def _remove_leftovers(self, record: Mapping[str, Any]) -> None:
        """Remove tables and models that the record does not name: of a model before, or of a call that was killed."""
        named = {each["table"]: each["model"]["sha"] for each in (record["current"], record["next"]) if each}
        for table in {1, *(number + step for number in named for step in (-1, 1))} - {0, *named}:
            self.store.drop(table)
        for file in self.folder.glob("model-*"):  # a table is dropped first, since a kill may come in between
            if (found := re.match(r"model-([0-9a-f]{16})\.", file.name)) and found[1] not in named.values():
                file.unlink(missing_ok=True)

    # --- content ---------------------------------------------------------------------------------------------------------

    def add(
        self,
        images: str | Path | Sequence[str | Path],
        *,
        prune: bool = False,
        new_model: bool = False,
        batch_size: int = 64,
        progress: bool = False,
    ) -> Added:
        """Add the images of folders, CSV files and single files; embed those that are new or whose file has changed.

        The id of an image is the column `id` of a CSV file, or its path in the folder. Its product is the column `product` or
        `label`, or its folder. Further columns become metadata. An interrupted call resumes.

        Args:
            images: folders, CSV files and images.
            prune: remove the items that are not among the images.
            new_model: embed all images with another model, and then replace the catalog at once.
            batch_size: images per batch.
            progress: show progress.

        """
        paths = [images] if isinstance(images, str | os.PathLike) else list(images)
        with self.store.writing():
            return add_images(self, self._embedder or self.embedder, paths, prune, new_model, batch_size, progress)

    def add_vectors(
        self,
        ids: Sequence[str],
        vectors: EmbeddingsLike,
        products: Sequence[str] | None = None,
        metadata: Sequence[Mapping[str, Value]] | None = None,
    ) -> None:
        """Add embeddings that are there already, at once. Items whose id exists are replaced.

        Args:
            ids: n distinct ids.
            vectors: (n, d), from the model of the catalog; in a catalog without a model, any vectors of one dimension.
            products: n names of products.
            metadata: n dicts of fields.

        """
        X = as_vectors(vectors)
        for name, each in (("ids", ids), ("products", products), ("metadata", metadata)):
            if each is not None and len(each) != len(X):
                raise ValueError(f"{name} must be one per vector, {len(X):,}, got {len(each):,}. Pass as many.")
        if len(set(ids)) < len(ids):
            raise ValueError(f"ids must be distinct, got {len(ids) - len(set(ids)):,} repeated. Remove them.")
        known: set[str] = set()
        items = (  # made one by one while they are written
            Item(check_id(name), str(as_value("a product", product)), metadata=_checked(fields, known))
            for name, product, fields in zip(
                ids,
                itertools.repeat("", len(X)) if products is None else products,
                itertools.repeat({}, len(X)) if metadata is None else metadata,
                strict=True,
            )
        )
        with self.store.writing():
            record = self.store.read()
            current = record["current"] if record else None
            if current and current["model"]["sha"] and self._embedder is not None:
                _ = self.embedder  # an error if it is another model
            if current is None or current["model"]["dim"] != X.shape[1]:
                current = self.begin(self._embedder, X.shape[1])
            self.store.put(current["table"], items, X)

    def remove(self, ids: Iterable[str]) -> int:
        """Remove items, and return how many there were."""
        with self.store.writing():
            return self.store.remove(self.table, [ids] if isinstance(ids, str) else list(ids))

    def count(self, where: str | Where | None = None) -> int:
        """Return the number of items, or of those that a filter selects, such as `price < 100`."""
        return self.store.count(self.table, _where(where))

    def ids(self, where: str | Where | None = None) -> list[str]:
        """Return the ids of the items that a filter selects, in the order of insertion."""
        return [item.id for item in self.items(where)]

    def items(self, where: str | Where | None = None, after: int = -1) -> Iterator[Item]:
        """Yield the items that a filter selects, in the order of insertion, from the first whose `seq` is beyond `after`."""
        return self.store.items(self.table, _where(where), after)

    def vectors(self, items: Sequence[Item]) -> Vectors:
        """Return the embeddings of items, (n, d)."""
        found = self.store.get(self.table, [item.seq for item in items])
        dim = self.record["current"]["model"]["dim"]
        return np.stack([found[item.seq][1] for item in items]) if items else np.empty((0, dim), np.float32)

    def index_field(self, name: str) -> None:
        """Make filters by a metadata field fast, also of items that are added later."""
        with self.store.writing():
            record = self.record
            self.store.index_field(record["current"]["table"], check_field(name))
            if name not in record["fields"]:
                self.store.write(record | {"fields": [*record["fields"], name]})

    def status(self) -> str:
        """Return what the catalog holds, line by line."""
        record, items = self.record, list(self.items())
        model, calibration = record["current"]["model"], record.get("calibration")
        gone = sum(bool(item.path) and not Path(item.path).is_file() for item in items)
        products = len({item.product for item in items if item.product})
        rows = {
            "items": f"{len(items):,}, {products:,} products" + (f"; {gone:,} image files are gone" if gone else ""),
            "model": f"{model['name']}, {model['dim']} dimensions" + (f", SHA-256 {model['sha']}" if model["sha"] else ""),
            "memory": f"{self.store.size(record['current']['table']) / 1e6:,.1f} MB for exact search",
            "fields": ", ".join(sorted({name for item in items for name in item.metadata})) or "none",
            "indexed": ", ".join(record["fields"]) or "none",
            "calibration": "none; run: liftedstruct catalog calibrate",
        }
        if calibration:
            rate = Estimate(*calibration["false_match_rate"].values())
            rows["calibration"] = f"threshold {calibration['threshold']:.4g}, false-match rate {str(rate).strip()}"
            if len(items) > 1.5 * calibration["items"]:
                rows["calibration"] += f"; of {calibration['items']:,} items: calibrate again"
        if record["next"]:
            rows["next model"] = (
                f"{record['next']['model']['name']}, {self.store.count(record['next']['table']):,} items so far"
            )
        return "\n".join(f"{name:<12} {text}" for name, text in rows.items())

    # --- search ----------------------------------------------------------------------------------------------------------

    def search(
        self,
        queries: ImageLike | Iterable[ImageLike] | EmbeddingsLike,
        k: int = 10,
        where: str | Where | None = None,
        group_by: str | None = None,
        index: str = EXACT,
        without: Sequence[str | None] | None = None,
    ) -> list[Answer]:
        """Find the k nearest items of each query.

        Args:
            queries: images as `Embedder.encode` takes them, or embeddings, float (m, d); or a single one.
            k: number of matches.
            where: filter, such as `category = chair and price < 100`.
            group_by: field whose values count once, each with its nearest image, such as `product`.
            index: "exact", or the name of an approximate index of the store, such as "hnsw".
            without: for each query, the id of an item that is left out, such as its own, or None.

        Returns:
            An answer for each query.

        """
        filtered = _where(where)
        check_count("k", k)
        if group_by is not None:
            check_field(group_by)
        if not isinstance(queries, np.ndarray | torch.Tensor | str | os.PathLike | bytes):
            queries = list(queries) if isinstance(queries, Iterable) else queries
        for _ in range(TRIES):
            record = self.record
            Q = self.encode(queries)
            if Q.shape[1] != (dim := record["current"]["model"]["dim"]):
                raise ValueError(f"queries must have {dim} dimensions like {self.address}, got {Q.shape[1]}. Use its model.")
            if without is not None and len(without) != len(Q):
                raise ValueError(f"without must be one id or None per query, {len(Q):,}, got {len(without):,}. Pass as many.")
            try:
                answers = self._search(record, Q, k, filtered, group_by, index, without or [None] * len(Q))
            except ValueError:
                if self.record["current"] == record["current"]:
                    raise
                continue  # the model was replaced: embed again
            if answers is not None:
                return answers
        raise ValueError(f"{self.address} must not change all the time during a search, got {TRIES} changes. Try again.")

    def encode(self, queries: ImageLike | Iterable[ImageLike] | EmbeddingsLike) -> Vectors:
        """Return queries as embeddings, (m, d): images are embedded, embeddings are checked."""
        rows: Any = queries
        if (isinstance(rows, torch.Tensor) and rows.is_floating_point()) or (
            isinstance(rows, np.ndarray) and rows.dtype.kind == "f"
        ):
            return as_vectors(rows[None] if rows.ndim == 1 else rows)
        X: Vectors = self.embedder.encode(queries)
        return X

    def _search(
        self,
        record: Mapping[str, Any],
        Q: Vectors,
        k: int,
        where: Where | None,
        group_by: str | None,
        index: str,
        without: Sequence[str | None],
    ) -> list[Answer] | None:
        """Return the answers to embeddings, or None if an item was removed in between."""
        table, threshold = int(record["current"]["table"]), (record.get("calibration") or {}).get("threshold")
        if index != EXACT:
            self.store.build(table, index)  # unless it is there already
        answers: dict[int, Answer] = {}
        wanted, todo = max(2 * k, FIRST), np.arange(len(Q))
        while len(todo):
            found = self.store.nearest(table, Q[todo], wanted, where, index)
            seqs = np.unique(np.concatenate([each for _, each in found]))
            items = {seq: item for seq, (item, _) in self.store.get(table, seqs.tolist()).items()}
            if len(items) < len(seqs):
                return None
            for i, (D2, near) in zip(todo, found, strict=True):
                ranked = [(math.sqrt(d2), items[int(seq)]) for d2, seq in zip(D2, near, strict=True)]
                ranked = [each for each in ranked if each[1].id != without[int(i)]]
                answer = _answer(ranked, k, group_by, threshold, len(near) < wanted, wanted >= MARGIN)
                if answer:
                    answers[int(i)] = answer
            todo, wanted = np.array([i for i in todo if i not in answers], np.int64), 8 * wanted
        return [answers[i] for i in range(len(Q))]


def _answer(
    ranked: list[tuple[float, Item]], k: int, group_by: str | None, threshold: float | None, whole: bool, enough: bool
) -> Answer | None:
    """Return the answer from the nearest items, or None if more of them are needed.

    `whole` says that there are no more; `enough`, that a margin is not looked for among more of them.
    """
    chosen: list[tuple[float, Item]] = []
    seen: set[Any] = set()
    for distance, item in ranked:
        value = "" if group_by is None else item.fields.get(group_by, "")
        key = ("", item.seq) if value == "" else value
        if key not in seen and len(chosen) < k:
            seen.add(key)
            chosen.append((distance, item))
    other = next((distance for distance, item in ranked if not _same_product(item, ranked[0][1])), None)
    if not whole and (len(chosen) < k or (other is None and not enough)):
        return None
    matches = tuple(
        Match(rank, distance, item.id, item.product, item.path, item.metadata)
        for rank, (distance, item) in enumerate(chosen, start=1)
    )
    verdict = None if threshold is None else "match" if ranked and ranked[0][0] <= threshold else "no match"
    return Answer(matches, None if other is None else other - ranked[0][0], verdict)


def _same_product(one: Item, other: Item) -> bool:
    return one.seq == other.seq or bool(one.product and one.product == other.product)


def as_vectors(vectors: EmbeddingsLike) -> Vectors:
    """Return embeddings as a float32 array, (n, d); they must be finite."""
    X = as_embeddings(vectors).detach().cpu()
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(X.numpy(), np.float32)
    if not np.isfinite(found).all():
        check_finite(X.double(), float(X.double().square().sum()))
        raise ValueError(f"vectors must fit float32, got values up to {X.abs().max().item():.3g}. Scale them down.")
    return found


def model_file(sha: str) -> str:
    """Return the name of the embedder file in a catalog folder."""
    if not re.fullmatch(r"[0-9a-f]{16}", sha):
        raise ValueError(f"a catalog must name its model by 16 hex digits, got {sha!r}. Restore it from a backup.")
    return f"model-{sha}.safetensors"


def _model(embedder: Embedder | None, dim: int) -> dict[str, Any]:
    if embedder is None:
        return {"sha": "", "dim": dim, "name": "vectors without a model", "path": ""}
    return {"sha": embedder.short_sha(), "dim": dim, "name": embedder.origin, "path": os.path.realpath(embedder.origin)}


def _where(where: str | Where | None) -> Where | None:
    return parse_where(where) if isinstance(where, str) else where


def _checked(metadata: Mapping[str, Any], known: set[str]) -> dict[str, Value]:
    """Return metadata with checked names and values; `known` collects the names that were checked."""
    if not known.issuperset(metadata):
        for name in metadata:
            if name in OWN_FIELDS:
                raise ValueError(f"metadata must not have a field {name!r}, which is the item's own. Rename it.")
            known.add(check_field(name))
    return {name: as_value(name, value) for name, value in metadata.items()}

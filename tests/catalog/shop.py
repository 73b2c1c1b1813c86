"""A tiny shop for tests: photos of products, embedders with random weights, and catalogs of vectors."""

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from liftedstruct.catalog import Catalog
from liftedstruct.catalog.store import Vectors, open_store
from liftedstruct.catalog.where import And, Condition, Not, Or, Value, Where
from liftedstruct.embedder import Embedder
from liftedstruct.trunks import make_trunk

__all__ = ["catalog_of", "make_embedder", "matches", "planted", "write_photo", "write_photos"]

NAMES = ("chair/1.png", "chair/2.png", "lamp/1.png", "lamp/2.png", "sofa/blue/1.png", "top.png")


COMPARE = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def matches(where: Where | None, fields: Mapping[str, Value]) -> bool:
    """Return whether a filter is true for an item with these fields. This defines what every store must return."""
    match where:
        case None:
            return True
        case And(parts):
            return all(matches(part, fields) for part in parts)
        case Or(parts):
            return any(matches(part, fields) for part in parts)
        case Not(part):
            return not matches(part, fields)
        case Condition(field, sign, value):
            found = fields.get(field)
            same_type = found is not None and isinstance(found, str) == isinstance(value, str)
            return same_type and bool(COMPARE[sign](found, value))  # type: ignore[arg-type]


def make_embedder(seed: int = 0, dim: int = 8) -> Embedder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Embedder(make_trunk("small", pretrained=False), dim, crop=32, size=36).eval()


def write_photo(file: Path, seed: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((40, 36), Image.Resampling.BICUBIC).save(file)
    return file


def write_photos(folder: Path, names: Sequence[str] = NAMES) -> Path:
    for seed, name in enumerate(names):
        write_photo(folder / name, seed)
    return folder


def planted(products: int, each: int, seed: int = 0, spread: float = 0.5, dim: int = 8) -> tuple[Vectors, list[str]]:
    """Return vectors around a random center for each product, and the names of the products."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(products, dim)).repeat(each, axis=0)
    X = (centers + spread * rng.normal(size=centers.shape)).astype(np.float32)
    return X, [f"product {i // each}" for i in range(len(X))]


def catalog_of(address: str | Path, X: Any, products: Sequence[str] | None = None, **further: Any) -> Catalog:
    """Create a catalog of vectors without a model; the ids are "0", "1", ..."""
    catalog = Catalog(str(address), open_store(str(address), create=True), None)
    catalog.add_vectors([f"{i}" for i in range(len(X))], X, products, **further)
    return catalog

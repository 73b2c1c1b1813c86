"""Folders of rendered products as a dataset, with the classes and the split that were recorded beside the images."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from liftedstruct.data.image_files import brief, image_tree
from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.readers import SPLITS
from liftedstruct.data.sources import FolderSource

__all__ = ["PRODUCTS_RECORD", "find_products", "read_products"]

PRODUCTS_RECORD = "products.json"


def find_products(path: Path) -> list[Path]:
    """The folder itself, if it holds rendered products."""
    return [path] if read_record(path) else []


def read_products(path: Path) -> ImageSet:
    """Rendered products in a folder; an image that was added to the folder of a product is one of that product."""
    record = read_record(path)
    if not record:
        raise ValueError(
            f"a dataset of kind 'products' must be a folder with the {PRODUCTS_RECORD} of the renderer, got {str(path)!r} "
            "without it. Pass the folder that the products were written to, or another kind."
        )
    try:
        products = [(str(p["name"]), str(p["super_class"]), SPLITS[p["split"]], list(p["files"])) for p in record["products"]]
        listed = {str(file): i for i, (*_, files) in enumerate(products) for file in files}
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{str(path / PRODUCTS_RECORD)!r} must list the products with name, super_class, split and files, got "
            f"{type(error).__name__}: {error}. Write the products again with the same settings: existing files are kept."
        ) from error
    tree = image_tree(path)
    there = set(tree.paths())
    missing = [file for file in listed if file not in there]
    if len(missing) == len(listed):
        raise ValueError(
            f"{str(path)!r} must hold the products of its {PRODUCTS_RECORD}, got none of {brief(missing, 1)}. "
            "Write the products again with the same settings and folder."
        )
    class_of = {file.rpartition("/")[0]: i for file, i in listed.items()}  # by folder
    unlisted = {file: class_of.get(file.rpartition("/")[0]) for file in sorted(there - listed.keys(), key=os.fsencode)}
    added = {file: i for file, i in unlisted.items() if i is not None}
    extra = [file for file, i in unlisted.items() if i is None]
    others = [file for file in tree.left_out if file != PRODUCTS_RECORD]
    warnings = {
        "images whose files are absent are left out": missing,
        "images that the list does not name are taken by their folders": added,
        "images outside of the folders of products are left out": extra,
        "what is not an image is left out": others,
    }
    labels = {file: i for file, i in listed.items() if file in there} | added
    paths = sorted(labels, key=labels.__getitem__)
    parts = np.array([part for *_, part, _ in products])
    return ImageSet(
        name="products",
        root=path,
        source=FolderSource(path),
        paths=tuple(paths),
        labels=np.array([labels[file] for file in paths], dtype=np.int64),
        class_names=tuple(name for name, *_ in products),
        test_classes=np.flatnonzero(parts == "test"),
        validation_classes=np.flatnonzero(parts == "val"),
        super_classes=tuple(super_class for _, super_class, *_ in products),
        warnings=tuple(f"products: {what}: {brief(files)}" for what, files in warnings.items() if files),
        missing=tuple(missing),
        extra=(*extra, *others),
    )


def read_record(folder: Path) -> dict[str, Any]:
    """What the renderer recorded about the products in a folder, or nothing if there is no such record."""
    try:
        record = json.loads((folder / PRODUCTS_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) and record.keys() >= {"renderer", "classes", "size", "seed", "format"} else {}

"""Read folders of rendered products, with the classes and the split saved in `products.json`."""

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
    """Return the folder itself, if it contains rendered products."""
    return [path] if read_record(path) else []


def read_products(path: Path) -> ImageSet:
    """Read a folder of rendered products; images added to a product's folder belong to that product."""
    record = read_record(path)
    if not record:
        raise ValueError(
            f"a dataset of kind 'products' must be a folder with a valid {PRODUCTS_RECORD}, got {str(path)!r}. "
            "Pass the folder that the products were written to, or another kind."
        )
    try:
        products = [(str(p["name"]), str(p["super_class"]), SPLITS[p["split"]], list(p["files"])) for p in record["products"]]
        listed = {str(file): i for i, (*_, files) in enumerate(products) for file in files}
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{str(path / PRODUCTS_RECORD)!r} must list the products with name, super_class, split and files, got "
            f"{type(error).__name__}: {error}. Write the products again with the same settings; existing files are kept."
        ) from error
    tree = image_tree(path)
    there = set(tree.paths())
    missing = [file for file in listed if file not in there]
    if len(missing) == len(listed):
        raise ValueError(
            f"{str(path)!r} must contain the images listed in its {PRODUCTS_RECORD}, got none of {brief(missing, 1)}. "
            "Write the products again with the same settings and folder."
        )
    class_of = {file.rpartition("/")[0]: i for file, i in listed.items()}  # by folder
    unlisted = {file: class_of.get(file.rpartition("/")[0]) for file in sorted(there - listed.keys(), key=os.fsencode)}
    added = {file: i for file, i in unlisted.items() if i is not None}
    extra = [file for file, i in unlisted.items() if i is None]
    others = [file for file in tree.left_out if file != PRODUCTS_RECORD]
    warnings = {
        "missing images are left out": missing,
        "images that are not listed get the class of their folder": added,
        "images outside the product folders are left out": extra,
        "files that are not images are left out": others,
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
    """Return the contents of a folder's `products.json`, or an empty dict if it is missing or invalid."""
    try:
        record = json.loads((folder / PRODUCTS_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) and record.keys() >= {"renderer", "classes", "size", "seed", "format"} else {}

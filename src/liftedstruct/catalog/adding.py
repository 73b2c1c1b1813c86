"""Add image files to a catalog: embed what is new or has changed, in chunks that are stored whole."""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from liftedstruct.catalog.store import Item
from liftedstruct.catalog.where import OWN_FIELDS, Value, as_value, check_field, check_id, number_of
from liftedstruct.data import FolderSource, ImageError, ListedFile, content_hash, list_items
from liftedstruct.embedder import Embedder
from liftedstruct.runtime.limits import available_cores
from liftedstruct.runtime.progress import Bar
from liftedstruct.runtime.threads import map_ahead

if TYPE_CHECKING:
    from liftedstruct.catalog.catalog import Catalog

__all__ = ["Added", "add_images", "metadata_of"]

CHUNK = 256  # items that are stored at once; a multiple of the batch size, so that batches are the same after a kill


@dataclass(frozen=True)
class Added:
    """Result of adding images.

    Attributes:
        added: number of new items.
        updated: number of items whose image or fields have changed.
        unchanged: number of items that were there already.
        removed: number of items that were removed because they are not among the images.
        unreadable: reason for each image that cannot be read, by its path; an item of an earlier version of it is kept.

    """

    added: int
    updated: int
    unchanged: int
    removed: int
    unreadable: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = {name: getattr(self, name) for name in ("added", "updated", "unchanged", "removed")}
        counts["unreadable"] = len(self.unreadable)
        return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count or name == "added")


def add_images(
    catalog: "Catalog",
    embedder: Embedder,
    paths: Sequence[str | Path],
    prune: bool,
    new_model: bool,
    batch_size: int,
    progress: bool,
) -> Added:
    """Add the images of folders, CSV files and single files to a catalog; see `Catalog.add`."""
    unreadable: dict[str, str] = {}
    wanted = _items(list_items(paths), unreadable)
    target = catalog.begin(embedder, embedder.width, new_model)
    table, searched = target["table"], catalog.record["current"]["table"]
    known = {item.id: item for item in catalog.store.items(table)}
    old = {item.id for item in catalog.store.items(searched)} if table != searched else set()
    if not prune and (missing := sorted(old - wanted.keys())):
        raise ValueError(
            f"a new model must embed all images of the catalog, but {len(missing):,} are not given ({missing[0]!r}, ...). "
            "Pass all images, or --prune to leave them out."
        )
    new, changed, unchanged = list[Item](), list[Item](), 0
    with ThreadPoolExecutor(available_cores()) as pool, Bar("check", len(wanted), wanted=progress) as bar:
        for item, content in zip(wanted.values(), map_ahead(pool, _content, wanted.values(), 64), strict=True):
            bar.advance()
            if isinstance(content, Exception):
                unreadable[item.path] = f"cannot be read: {content}"
                continue
            item, before = item._replace(content=content), known.get(item.id)
            if before is not None and before.content != content and before.path != item.path and Path(before.path).is_file():
                raise _same_id(item.id, before.path, item.path)
            if before is None or before.content != content:
                new.append(item)
            elif before._replace(seq=-1) != item:
                changed.append(item._replace(seq=before.seq))
            else:
                unchanged += 1
    for at in range(0, len(changed), CHUNK):  # other fields, same image: keep the vector
        some = changed[at : at + CHUNK]
        vectors = catalog.store.get(table, [item.seq for item in some])
        catalog.store.put(table, some, np.stack([vectors[item.seq][1] for item in some]))
    added = 0
    with Bar("embed", len(new), wanted=progress) as bar:
        for at in range(0, len(new), CHUNK):
            some, bad = new[at : at + CHUNK], dict[int, str]()
            X = embedder.encode([item.path for item in some], batch_size, unreadable=bad)
            unreadable |= {some[i].path: reason for i, reason in bad.items()}
            kept = [item for i, item in enumerate(some) if i not in bad]
            if kept:
                catalog.store.put(table, kept, X)
            added += sum(item.id not in known for item in kept)
            bar.advance(len(some))
    gone = [name for name in known if name not in wanted] if prune else []
    removed = catalog.store.remove(table, gone) if gone else 0
    if lost := sorted((old & wanted.keys()) - {item.id for item in catalog.store.items(table)} if old else ()):
        raise ValueError(
            f"a new model must embed all images of the catalog, but {len(lost):,} cannot be read ({lost[0]!r}, ...). Restore "
            "the files and run the command again, or remove these items; until then, the old model is used."
        )
    catalog.finish(table)
    embedded = len(new) - sum(item.path in unreadable for item in new)
    return Added(added, embedded - added + len(changed), unchanged, removed, unreadable)


def _items(files: Sequence[ListedFile], unreadable: dict[str, str]) -> dict[str, Item]:
    """Return the listed files as items by id, which must be distinct; those whose names are no valid text are unreadable."""
    fields = metadata_of([file.metadata for file in files])
    items: dict[str, Item] = {}
    for file, metadata in zip(files, fields, strict=True):
        try:
            name, path = (
                check_id(file.metadata.get("id") or file.name),
                str(as_value("a path", str(Path(file.file).absolute()))),
            )
            product = str(as_value("a product", file.label))
        except ValueError as error:
            unreadable[ascii(file.file)] = str(error)
            continue
        if name in items:
            raise _same_id(name, items[name].path, path)
        items[name] = Item(name, product, path, metadata=metadata)
    return items


def _same_id(name: str, one: str, other: str) -> ValueError:
    return ValueError(
        f"images must have distinct ids, got {name!r} for {one} and {other}. "
        "Add the folder above both, or a CSV file with a column id."
    )


def metadata_of(rows: Sequence[dict[str, str]]) -> list[dict[str, Value]]:
    """Convert the text columns of CSV files to metadata: a column of numbers only becomes numbers; empty cells are left out.

    Examples:
        >>> metadata_of([{"price": "79.5", "unit size": "XL"}, {"price": "80", "unit size": ""}])
        [{'price': 79.5, 'unit_size': 'XL'}, {'price': 80}]
    """
    names = {name: check_field(re.sub(r"\W", "_", name.strip())) for row in rows for name in row if name not in OWN_FIELDS}
    if len(set(names.values())) < len(names):
        raise ValueError(f"columns must have distinct names of letters, digits and _, got {', '.join(names)}. Rename one.")
    texts = {name for row in rows for name in names if row.get(name, "").strip() and number_of(row[name].strip()) is None}

    def value(name: str, text: str) -> Value:
        number = None if name in texts else number_of(text.strip())
        return as_value(name, text) if number is None else number

    return [{names[name]: value(name, row[name]) for name in row if name in names and row[name].strip()} for row in rows]


def _content(item: Item) -> Any:
    """Return a hash of the image file, or the error."""
    try:
        if not Path(item.path).is_file() and Path(item.path).exists():
            raise OSError("not a regular file")
        return f"{content_hash(FolderSource(Path()), item.path):016x}"
    except (OSError, ImageError) as error:
        return error

"""Decisions about the images of a dataset, such as correct labels, in a CSV file that `read_images` applies.

The file has the columns `action,path,id,product,value,kind,time`, one decision per line, the latest last. Actions:

- relabel: the image is of the class `value`, which may be a new one;
- drop: leave the image out;
- merge: all images of the class `product` are of the class `value`;
- keep: the image is right as it is: do not suggest again what is wrong with it.

Image files are never changed. A path is absolute, or relative to the folder of the file or of the dataset.
"""

import contextlib
import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np

from liftedstruct.data.image_files import brief
from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.listing import csv_rows
from liftedstruct.data.sources import FolderSource
from liftedstruct.runtime.atomic import locked, replacing

__all__ = ["ACTIONS", "Decision", "add_decisions", "apply_decisions", "read_decisions", "undo_decision"]

ACTIONS = ("keep", "relabel", "drop", "merge")


@dataclass(frozen=True)
class Decision:
    """A line of the file.

    Attributes:
        action: one of `ACTIONS`.
        path: path of the image; empty for a class.
        id: id of the image in a catalog; without a path, it is the path.
        product: class of the image when the decision was made, or the class to merge.
        value: the right class; for keep, the other image or class of the suggestion.
        kind: the list of suggestions in which it was made.
        time: when it was made; lines that were written together have one time and are undone together.
        others: further columns of the file, which are kept.

    """

    action: str
    path: str = ""
    id: str = ""
    product: str = ""
    value: str = ""
    kind: str = ""
    time: str = ""
    others: Mapping[str, str] = field(default_factory=dict, compare=False)


COLUMNS = [each.name for each in fields(Decision)][:-1]
ABOUT_COPIES = ("", "duplicates", "leaks")  # kinds for which keep is about what `check` reports


def read_decisions(file: str | Path) -> list[Decision]:
    """Read a file of decisions, in order."""
    file, found = Path(file), []
    if not file.is_file():
        raise ValueError(f"decisions must be an existing CSV file, got {str(file)!r}. Check the path.")
    for line, path, label, others in csv_rows(file, need_label=False):
        texts = {"product": label or ""} | others | {"path": path}
        own = {name: texts.pop(name, "") for name in COLUMNS}
        each = Decision(**own, others=texts)
        subject = each.product if each.action == "merge" else path or each.id or (each.product if each.action == "keep" else "")
        rule = f"action must be one of {', '.join(ACTIONS)}, got {each.action!r}" if each.action not in ACTIONS else ""
        if not rule and (not subject or (each.action in ("relabel", "merge") and not each.value)):
            rule = f"{each.action} must have {'a product' if each.action == 'merge' else 'a path'} and its value, got none"
        if rule:
            raise ValueError(f"{str(file)!r}, line {line}: {rule}. Correct the line, or remove it.")
        found.append(each)
    return found


def add_decisions(file: str | Path, decisions: Sequence[Decision]) -> None:
    """Append decisions to a file, which is created if missing."""
    with _writing(Path(file)) as before:
        _write(Path(file), [*before, *decisions])


def undo_decision(file: str | Path) -> list[Decision]:
    """Remove the last decision of a file, with the lines that were written together with it, and return them."""
    with _writing(Path(file)) as before:
        left = before[:-1]
        while left and left[-1].time and left[-1].time == before[-1].time:
            left.pop()
        if before:
            _write(Path(file), left)
        return before[len(left) :]


def apply_decisions(images: ImageSet, file: str | Path) -> ImageSet:
    """Return the image set that follows from a file of decisions, with warnings about what did not fit."""
    file, source = Path(file), images.source
    root = Path(os.path.realpath(source.root if isinstance(source, FolderSource) else images.root))
    numbers = {name: i for i, path in enumerate(images.paths) for name in (path, os.path.normpath(root / path))}
    labels = [images.class_names[label] for label in images.labels]
    folders = {path.rpartition("/")[0]: label for path, label in zip(images.paths, labels, strict=True)}
    parts, supers = (dict(zip(images.class_names, each, strict=False)) for each in (images.parts, images.super_classes))
    before, dropped, kept, unknown = [parts[label] for label in labels], set[int](), set[int](), list[str]()
    for each in read_decisions(file):
        product, value = (name if name in parts else folders.get(name, name) for name in (each.product, each.value))
        path = each.path or each.id
        places = path, os.path.normpath(root / path), *(os.path.realpath(folder / path) for folder in (file.parent, root))
        rows = [numbers[name] for name in places if name in numbers][:1]
        if each.action == "merge":
            rows = [i for i, label in enumerate(labels) if label == product]
        if not rows and (each.action != "keep" or path):
            unknown.append(path or each.product)
        elif each.action in ("drop", "keep"):
            (dropped if each.action == "drop" else kept if each.kind in ABOUT_COPIES else set[int]()).update(rows)
        else:
            parts.setdefault(value, parts[labels[rows[0]]])  # a new class is in the part of its first image
            supers.setdefault(value, supers.get(labels[rows[0]], ""))
            for i in rows:
                labels[i] = value
    left = [i for i in range(len(images)) if i not in dropped]
    present = {labels[i] for i in left}
    names = [name for name in parts if name in present]  # new classes are the last
    number, split = {name: c for c, name in enumerate(names)}, np.array([parts[name] for name in names])
    if set(split) != set(images.parts):
        raise ValueError(f"decisions must leave images in each part of the split, got {str(file)!r}. Remove some lines.")
    warnings = list(images.warnings)
    if unknown:
        warnings.append(f"decisions about what is not in the data are ignored: {brief(unknown)} in {str(file)!r}")
    if moved := sum(parts[labels[i]] != before[i] for i in left):
        warnings.append(f"{moved:,} images move to another part of the split with their new class, according to {str(file)!r}")
    return replace(
        images,
        paths=tuple(images.paths[i] for i in left),
        labels=np.array([number[labels[i]] for i in left], np.int64),
        class_names=tuple(names),
        test_classes=np.flatnonzero(split == "test"),
        validation_classes=np.flatnonzero(split == "validation"),
        super_classes=tuple(supers[name] for name in names) if images.super_classes else (),
        queries=tuple(path for path in images.queries if numbers[path] not in dropped),
        kept=tuple(images.paths[i] for i in sorted(kept - dropped)),
        warnings=tuple(warnings),
    )


@contextlib.contextmanager
def _writing(file: Path) -> Iterator[list[Decision]]:
    """Yield the decisions of a file that no other process changes meanwhile."""
    with locked(file.with_name(f".{file.name}.lock"), "writer"):
        yield read_decisions(file) if file.exists() else []


def _write(file: Path, decisions: Sequence[Decision]) -> None:
    text, further = io.StringIO(newline=""), list(dict.fromkeys(name for each in decisions for name in each.others))
    writer = csv.writer(text)
    writer.writerow([*COLUMNS, *further])
    for each in decisions:
        writer.writerow([getattr(each, name) for name in COLUMNS] + [each.others.get(name, "") for name in further])
    with replacing(file) as stream:
        stream.write(text.getvalue().encode("utf-8", "surrogateescape"))

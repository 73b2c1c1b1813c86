"""Read datasets: detect the layout, list the images as an `ImageSet`, and split the classes.

A reader takes a path and returns the whole dataset. If the data defines test classes, the image set has them; otherwise it
has none, and `read_images` draws them.
"""

import difflib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from stat import S_ISDIR

import numpy as np

from liftedstruct.data.datasets import find_cars, find_cub, find_online_products, read_cars, read_cub, read_online_products
from liftedstruct.data.decisions import apply_decisions
from liftedstruct.data.image_files import brief, image_tree
from liftedstruct.data.image_set import ImageSet, Indices
from liftedstruct.data.listing import QUERY, csv_rows
from liftedstruct.data.sources import FolderSource
from liftedstruct.data.splits import NAME_VARIATION, group_by_name, hold_out
from liftedstruct.runtime.checks import as_plain, check_count, pick

__all__ = ["FINDERS", "READERS", "SPLITS", "Reader", "read_csv", "read_folder", "read_images", "recognize"]

Reader = Callable[[Path], ImageSet]

SPLITS = {"train": "train", "test": "test", "val": "val", "valid": "val", "validation": "val"}  # folder or word -> part
CSV_SPLITS = SPLITS | {QUERY: "test", "gallery": "test"}
TARS = (".tar", ".tgz", ".tar.gz", ".tbz2", ".tar.bz2", ".txz", ".tar.xz")


def read_images(
    path: str | Path,
    kind: str | None = None,
    *,
    test_classes: float | Sequence[str] | None = None,
    validation: float = 0.0,
    seed: int = 0,
    decisions: str | Path | None = None,
) -> ImageSet:
    """List the images, classes and split of a dataset in any of the layouts in `READERS`.

    Args:
        path: a folder of class folders, a folder written by `liftedstruct products`, a CSV file with the columns
            `path,label[,split]`, or CUB-200-2011 (also its archive), CARS196 or Stanford Online Products as downloaded.
        kind: layout, a key of `READERS`; default: detected.
        test_classes: fraction of the classes to draw as test classes (default: 0.5), or their names. Not allowed for data with
            its own split, such as the three datasets of the paper. Classes whose names differ only in case, whitespace or
            Unicode normalization are drawn together; if the data or the given names separate them, there is a warning.
        validation: fraction of the training classes to hold out as validation classes, to choose settings.
        seed: seed of the random split.
        decisions: CSV file of decisions to apply, such as correct labels, see `liftedstruct.data.Decision`.

    """
    check_count("seed", seed, least=0)
    path = Path(path).expanduser()
    try:
        path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ValueError(
            f"path must be an existing folder, .csv file or archive, got {str(path)!r}: "
            f"{getattr(error, 'strerror', error)}. Check the spelling."
        ) from error
    images = pick(READERS, recognize(path) if kind is None else kind, "kind")(path)
    if decisions is not None:
        images = apply_decisions(images, decisions)
    if not len(images.test_classes):
        images = replace(images, test_classes=_choose(images.class_names, 0.5 if test_classes is None else test_classes, seed))
    elif test_classes is not None:
        raise ValueError(
            f"test_classes must not be set for data with its own split, such as {str(path)!r} ({images.name}), "
            f"got {test_classes!r}. Omit it."
        )
    if validation and len(images.validation_classes):
        raise ValueError(
            f"validation must not be set for data with its own validation classes, such as {str(path)!r}, "
            f"got {validation}. Omit it."
        )
    return _with_name_warning(images.with_validation(validation, seed) if validation else images)


def recognize(path: Path) -> str:
    """Detect the layout, a key of `READERS`, from a few file names."""
    if S_ISDIR(path.stat().st_mode):
        found = {kind: folders for kind, find in FINDERS.items() if (folders := find(path))}
        if len(found) > 1:
            names = ", ".join(repr(str(folder)) for folders in found.values() for folder in folders)
            raise ValueError(f"path must contain one dataset, got {str(path)!r} with {', '.join(found)}. Pass one of {names}.")
        return next(iter(found), "folder")
    name = path.name.lower()
    if name.endswith(".csv"):
        return "csv"
    if name.endswith(TARS):
        return "cub"
    raise ValueError(
        f"path must be a folder, a .csv file or a .tar or .tgz of CUB-200-2011, got the file {str(path)!r}. "
        "Pass the folder of the images; unpack other archives first."
    )


def read_folder(path: Path) -> ImageSet:
    """Read a folder of class folders: the class of an image is its folder, such as `chairs/red`.

    If the top-level folders are `train` and `test`, with or without `val`, they define the split and contain the class
    folders.
    """
    if not path.is_dir():
        raise ValueError(f"a dataset of kind 'folder' must be a folder, got the file {str(path)!r}. Pass its folder.")
    tree = image_tree(path)
    depth = _depth_of_split(tree.images)
    rows: list[tuple[str, str]] = []
    parts: dict[str, str] = {}  # class -> its part of the split
    loose: list[str] = []
    for folder, names in tree.images.items():
        files = [f"{folder}/{name}" if folder else name for name in names]
        words = folder.split("/")
        label = folder if depth is None else "/".join(words[depth + 1 :])
        if not label:
            loose += files
            continue
        if depth is not None:
            _assign(parts, label, SPLITS[words[depth].lower()])
        rows += [(file, label) for file in files]
    if not rows:
        raise ValueError(
            f"{str(path)!r} must contain class folders with images, got {len(loose)} images and none in a class folder. "
            "Make a folder for each class, or pass the .csv file or the archive of the dataset."
        )
    warnings = list(tree.warnings)
    if loose:
        warnings.append(f"images outside any class folder are left out: {brief(loose)}")
    beside = sorted({label.split("/")[0] for _, label in rows})
    if depth is None and {"train", "test"} <= {name.lower() for name in beside}:
        warnings.append(
            f"folders named train and test are not used as a split since there are other folders beside them: {brief(beside)}"
        )
    rows.sort(key=lambda row: os.fsencode(row[1]))
    return _image_set("folder", path, rows, parts, warnings, (*tree.left_out, *loose))


def read_csv(path: Path) -> ImageSet:
    """Read a CSV file with a header and the columns `path`, `label` and, optionally, `split`.

    The parts of the split are train, test, val, query and gallery.
    Classes with images of the parts query and gallery are test classes; their scores are those of the queries in the gallery.
    Without a column `label`, `product` is the label. Paths are absolute or relative to the folder of the file; other columns
    are ignored. Labels are used verbatim, including leading and trailing whitespace, because folder names may have it too.
    """
    rows: list[tuple[str, str]] = []
    parts: dict[str, str] = {}
    seen: dict[str, tuple[int, str]] = {}  # full path -> first line with it, its label
    repeated, queries = list[str](), list[str]()
    folder = path.parent.absolute()
    for line, file, label, others in csv_rows(path):
        where = f"{str(path)!r}, line {line}: "
        word = others["split"].strip() if "split" in others else None
        if not file or not label:
            raise ValueError(f"{where}{'label' if file else 'path'} must not be empty. Fill it in, or remove the line.")
        if word is not None:
            if word.lower() not in CSV_SPLITS:
                raise ValueError(f"{where}split must be one of train, test, val, query, gallery, got {word!r}. Correct it.")
            _assign(parts, label, CSV_SPLITS[word.lower()], where)
        full = os.path.normpath(os.path.join(folder, file))  # noqa: PTH118 - a Path keeps the ".."
        first, other = seen.setdefault(full, (line, label))
        if other != label:
            raise ValueError(
                f"{where}an image must have one class, got {file!r} as {label!r}, and as {other!r} on line {first}. "
                "Remove one of the lines."
            )
        if first != line:
            repeated.append(file)
            continue
        if not os.path.isfile(folder / file):  # noqa: PTH113 - Path.is_file raises for names that are too long
            raise ValueError(
                f"{where}path must be an existing file, got {file!r}. Paths are relative to the folder of the CSV file: move "
                "the CSV file, or correct the paths."
            )
        rows.append((file, label))
        if word is not None and word.lower() == QUERY:
            queries.append(file)
    if not rows:
        raise ValueError(f"{str(path)!r} must list at least one image, got only a header. Add a line for each image.")
    warnings = [f"repeated lines of the same image are left out: {brief(repeated)}"] if repeated else []
    return replace(_image_set("csv", path, rows, parts, warnings), queries=tuple(queries))


FINDERS: dict[str, Callable[[Path], list[Path]]] = {
    "cub": find_cub,
    "cars": find_cars,
    "online-products": find_online_products,
}

READERS: dict[str, Reader] = {
    "folder": read_folder,
    "csv": read_csv,
    "cub": read_cub,
    "cars": read_cars,
    "online-products": read_online_products,
}


def _assign(parts: dict[str, str], label: str, part: str, where: str = "") -> None:
    """Record the part of the split that a class is in."""
    if parts.setdefault(label, part) != part:
        raise ValueError(
            f"{where}each class must be in one part of the split, got {label!r} in {parts[label]} and {part}. Split by class, "
            "not by image, or remove the split to have test classes drawn from all classes."
        )


def _image_set(
    name: str,
    root: Path,
    rows: Sequence[tuple[str, str]],
    parts: dict[str, str],
    warnings: Sequence[str],
    extra: Sequence[str] = (),
) -> ImageSet:
    """Build an `ImageSet` from pairs of path and class name; `parts` maps class names to the split, or is empty."""
    absent = sorted({"train", "test"} - set(parts.values())) if parts else []
    if absent:
        raise ValueError(
            f"a split must have training and test classes, got {str(root)!r} with none for {' and '.join(absent)}. "
            "Add some, or remove the split to have test classes drawn from all classes."
        )
    names = sorted({label for _, label in rows}, key=lambda label: label.encode("utf-8", "surrogateescape"))
    number = {label: i for i, label in enumerate(names)}
    part_of = np.array([parts.get(label, "train") for label in names])
    return ImageSet(
        name=name,
        root=root,
        source=FolderSource(root if root.is_dir() else root.parent),
        paths=tuple(file for file, _ in rows),
        labels=np.array([number[label] for _, label in rows], dtype=np.int64),
        class_names=tuple(names),
        test_classes=np.flatnonzero(part_of == "test"),
        validation_classes=np.flatnonzero(part_of == "val"),
        warnings=tuple(warnings),
        extra=tuple(extra),
    )


def _choose(class_names: Sequence[str], test_classes: float | Sequence[str], seed: int) -> Indices:
    """Return the numbers of the test classes, drawn at random or given by name."""
    C = len(class_names)
    if C < 2:
        raise ValueError(f"a split requires at least two classes, got only {class_names[0]!r}. Add a second class.")
    test_classes = as_plain(test_classes)
    if isinstance(test_classes, int | float):
        return hold_out(range(C), class_names, test_classes, seed=[seed, 1])
    names = {test_classes} if isinstance(test_classes, str) else set(test_classes)
    for name in names:
        if name not in class_names:
            close = difflib.get_close_matches(str(name), class_names, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"The classes are {brief(class_names, 3)}."
            raise ValueError(f"test_classes must be names of classes in the data, got {name!r}. {hint}")
    chosen = np.flatnonzero([name in names for name in class_names])
    if not 0 < len(chosen) < C:
        raise ValueError(f"test_classes must be some of the {C} classes, got {len(chosen)}. Leave some for training.")
    return chosen


def _with_name_warning(images: ImageSet) -> ImageSet:
    """Add a warning about class names that are nearly the same."""
    alike = [group for group in group_by_name(range(len(images.class_names)), images.class_names) if len(group) > 1]
    if not alike:
        return images
    separated = [group for group in alike if len({images.parts[c] for c in group}) > 1]
    where = "are in different parts of the split" if separated else "are kept in one part of the split"
    names = brief(images.class_names[c] for group in separated or alike for c in group)
    warning = f"class names that differ only in {NAME_VARIATION} {where}: {names}; merge or rename the classes"
    return replace(images, warnings=(*images.warnings, warning))


def _depth_of_split(folders: Iterable[str]) -> int | None:
    """Return the depth of the `train` and `test` folders: top level, or below folders without siblings."""
    paths = [folder.split("/") for folder in folders if folder]
    for depth in range(max(map(len, paths), default=0)):
        words = {path[depth].lower() if len(path) > depth else "" for path in paths}
        if words <= SPLITS.keys() and len({SPLITS[word] for word in words}) > 1:
            return depth
        if len(words) > 1:
            return None
    return None

"""From a path to an :class:`~liftedstruct.data.ImageSet`: the layout is recognised, the classes are split.

A reader takes a path and gives the whole set. Where the data says which classes are for the test, the set says so too;
where it does not, no class of it is for the test yet, and :func:`read_images` draws them.
"""

import csv
import difflib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftedstruct.data.class_names import SMALL_DIFFERENCES, draw, group_by_name
from liftedstruct.data.datasets import find_cars, find_cub, find_online_products, read_cars, read_cub, read_online_products
from liftedstruct.data.image_files import image_tree, some
from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.sources import FolderSource
from liftedstruct.runtime.checks import as_number, as_plain, check_count, pick

__all__ = ["READERS", "Reader", "read_csv", "read_folder", "read_images", "read_products", "recognise"]

Reader = Callable[[Path], ImageSet]

SPLITS = {"train": "train", "test": "test", "val": "val", "valid": "val", "validation": "val"}  # folder or word -> part
TARS = (".tar", ".tgz", ".tar.gz", ".tbz2", ".tar.bz2", ".txz", ".tar.xz")
OTHER_ARCHIVES = (".zip", ".7z", ".rar")
PRODUCTS_RECORD = "products.json"


def read_images(
    path: str | Path,
    kind: str | None = None,
    *,
    test_classes: float | Sequence[str] | None = None,
    validation: float = 0.0,
    seed: int = 0,
) -> ImageSet:
    """Read the list of a data set, in whatever layout it comes.

    Args:
        path: a folder of class folders, a CSV file with the columns ``path,label[,split]``, a folder of rendered products,
            or CUB-200-2011 (also its archive), CARS196 or Stanford Online Products as downloaded.
        kind: the layout, one of ``READERS``; recognised if not given.
        test_classes: the fraction of classes to test on, drawn by the seed (half of them if not given), or their names. Not
            for data with a split of its own, such as the three benchmarks with the paper's. Classes whose names differ only in
            case, blanks or Unicode form are drawn as one; where the data or the names given separate them, there is a warning.
        validation: the fraction of the remaining, training classes to hold out for the choice of settings.
        seed: draws the classes.

    """
    check_count("seed", seed, least=0)
    path = Path(path).expanduser()
    try:
        path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ValueError(
            f"path must name a folder, a .csv file or an archive that is there, got {str(path)!r}: "
            f"{getattr(error, 'strerror', error)}. Check the spelling."
        ) from error
    images = pick(READERS, recognise(path) if kind is None else kind, "kind")(path)
    if not len(images.test_classes):
        images = replace(images, test_classes=_chosen(images.class_names, 0.5 if test_classes is None else test_classes, seed))
    elif test_classes is not None:
        whose = "its own" if images.name in READERS else f"the paper's, {images.name}"
        raise ValueError(
            f"test_classes must be left out where the data has a split already, as {str(path)!r} does ({whose}), "
            f"got {test_classes!r}. Leave it out."
        )
    if not validation:
        return _with_name_warnings(images)
    if len(images.validation_classes):
        raise ValueError(
            f"validation must be 0 where the data has a validation part of its own, as {str(path)!r} does, "
            f"got {validation}. Leave it out."
        )
    return _with_name_warnings(images.with_validation(validation, seed))


def recognise(path: Path) -> str:
    """The kind of layout, one of ``READERS``, told by a few file names."""
    if S_ISDIR(path.stat().st_mode):
        found = {kind: folders for kind, find in FINDERS.items() if (folders := find(path))}
        if len(found) > 1:
            names = ", ".join(repr(str(folder)) for folders in found.values() for folder in folders)
            raise ValueError(f"path must name one data set, {str(path)!r} holds {', '.join(found)}. Pass one of {names}.")
        return next(iter(found), "folder")
    name = path.name.lower()
    if name.endswith(".csv"):
        return "csv"
    if name.endswith(TARS):
        return "cub"
    if name.endswith(OTHER_ARCHIVES):
        raise ValueError(
            f"an archive must be a .tar or .tgz of CUB-200-2011, got {str(path)!r}. Unpack it first and pass the folder."
        )
    raise ValueError(
        f"path must name a folder, a .csv file or a .tar or .tgz of CUB-200-2011, got the file {str(path)!r}. "
        "Pass the folder that the images are in."
    )


def read_folder(path: Path) -> ImageSet:
    """A folder of class folders: an image's class is its folder, as ``chairs/red``.

    If the folders at the top are ``train`` and ``test``, with or without ``val``, they are the split and hold the class
    folders.
    """
    if not path.is_dir():
        raise ValueError(f"a data set of kind 'folder' must be a folder, got the file {str(path)!r}. Pass its folder.")
    tree = image_tree(path)
    warnings, extra = list(tree.warnings), list(tree.left_out)
    classes = {folder: [f"{folder}/{name}" for name in names] for folder, names in tree.images.items() if folder}
    loose = tree.images.get("", [])
    if not classes:
        raise ValueError(_no_classes(path, loose))
    if loose:
        warnings.append(f"images outside of any class folder are left out: {some(loose)}")
        extra += loose
    depth = _depth_of_splits(classes)
    if depth is None:
        beside = sorted({folder.split("/")[0] for folder in classes})
        if {"train", "test"} <= {name.lower() for name in beside}:
            warnings.append(
                f"folders named train and test are no split, since there are other folders beside them: {some(beside)}"
            )
        rows = [(file, folder) for folder, files in classes.items() for file in files]
        return _image_set("folder", path, rows, {}, warnings, extra)

    rows = []
    parts: dict[str, str] = {}  # class -> its part of the split
    both: dict[str, str] = {}
    for folder, files in classes.items():
        word = folder.split("/")[depth]
        part, name = SPLITS[word.lower()], "/".join(folder.split("/")[depth + 1 :])
        if not name:
            warnings.append(f"images outside of any class folder are left out: {some(files)}")
            extra += files
            continue
        if parts.setdefault(name, part) != part:
            both[name] = f"{parts[name]} and {part}"
        rows += [(file, name) for file in files]
    if both:
        name = min(both)
        raise ValueError(
            f"a class must be in one part of the split, {name!r} is in {both[name]} (first of {len(both)} such classes). Split "
            "by classes, not by images: join the folders into one set of class folders, of which test_classes are taken."
        )
    if not rows:
        raise ValueError(_no_classes(path, [file for files in classes.values() for file in files]))
    missing = sorted({"train", "test"} - set(parts.values()))
    if missing:
        raise ValueError(
            f"a split must have classes for train and test, {str(path)!r} has none for {' and '.join(missing)}. Add or rename "
            "a folder, or join the folders into one set of class folders, of which test_classes are taken."
        )
    return _image_set("folder", path, sorted(rows, key=lambda row: os.fsencode(row[1])), parts, warnings, extra)


def read_csv(path: Path) -> ImageSet:
    """A CSV file with a header and the columns ``path``, ``label`` and, as one likes, ``split`` (train, test or val).

    Paths are absolute or relative to the folder of the file; other columns are not looked at. Labels are taken to the letter,
    blanks at their ends too, as folders may have such names.
    """
    rows: list[tuple[str, str]] = []
    parts: dict[str, str] = {}
    lines: dict[str, tuple[int, str]] = {}  # full path -> first line that has it, label there
    numbers: dict[str, int] = {}  # path as it is written -> line
    twice: list[str] = []
    above = path.parent.absolute()
    for line, (file, label, word) in _csv_rows(path):
        where = f"{str(path)!r}, line {line}:"
        if not file or not label:
            raise ValueError(f"{where} {'label' if file else 'path'} must not be empty. Fill it in, or remove the line.")
        if word is not None:
            part = SPLITS.get(word.lower())
            if part is None:
                raise ValueError(f"{where} split must be one of train, test, val, got {word!r}. Correct it.")
            if parts.setdefault(label, part) != part:
                raise ValueError(
                    f"{where} a class must be in one part of the split, {label!r} is in {parts[label]} and {part}. Split by "
                    "classes, not by images, or remove the column split, and test_classes are taken of all."
                )
        full = os.path.normpath(os.path.join(above, file))  # noqa: PTH118 - a Path keeps the ".."
        if full in lines:
            first, other = lines[full]
            if other != label:
                raise ValueError(
                    f"{where} an image must have one class, {file!r} is {other!r} on line {first} and {label!r} here. "
                    "Remove one of the lines."
                )
            twice.append(file)
            continue
        lines[full] = line, label
        numbers[file] = line
        rows.append((file, label))
    if not rows:
        raise ValueError(f"{str(path)!r} must list at least one image, got a header alone. Add a line for each image.")
    missing = _missing(path.parent, numbers)
    if missing:
        raise ValueError(
            f"every path must be a file, {len(missing)} of {len(rows)} in {str(path)!r} are not, the first {missing[0]!r} on "
            f"line {numbers[missing[0]]}. Paths are relative to the folder of the CSV file: move it, or correct them."
        )
    without = sorted({"train", "test"} - set(parts.values())) if parts else []
    if without:
        words = " and ".join(without)
        raise ValueError(
            f"the column split must have classes for train and test, {str(path)!r} has none for {words}. Mark some classes as "
            f"{words}, or remove the column, and test_classes are taken of all."
        )
    return _image_set(
        "csv", path, rows, parts, [f"lines that list an image again are left out: {some(twice)}"] if twice else []
    )


def find_products(path: Path) -> list[Path]:
    """The folder itself, if it holds rendered products."""
    return [path] if _products_record(path) else []


def read_products(path: Path) -> ImageSet:
    """Rendered products in a folder, with the classes and the split that were written down beside them.

    An image that was added to the folder of a product is one of that product.
    """
    record = _products_record(path)
    if not record:
        raise ValueError(
            f"a data set of kind 'products' must be a folder with the {PRODUCTS_RECORD} of the renderer, got {str(path)!r} "
            "without it. Pass the folder that the products were written to, or another kind."
        )
    try:
        products = [(str(p["name"]), str(p["super_class"]), SPLITS[p["split"]], list(p["files"])) for p in record["products"]]
        listed = [(str(file), i) for i, (*_, files) in enumerate(products) for file in files]
    except (KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{str(path / PRODUCTS_RECORD)!r} must list the products with name, super_class, split and files, got {reason}. "
            "Write the products again with the same settings and folder: files that are there are kept."
        ) from error
    tree = image_tree(path)
    there = set(tree.paths())
    missing = [file for file, _ in listed if file not in there]
    if len(missing) == len(listed):
        raise ValueError(
            f"{str(path)!r} must hold the products of its {PRODUCTS_RECORD}, got none of {some(missing, 1)}. "
            "Write the products again with the same settings and folder."
        )
    class_of = {file.rpartition("/")[0]: i for file, i in listed}  # by folder
    unlisted = sorted(there.difference(file for file, _ in listed), key=os.fsencode)
    added = [file for file in unlisted if file.rpartition("/")[0] in class_of]
    extra = [file for file in unlisted if file.rpartition("/")[0] not in class_of]
    others = [file for file in tree.left_out if file != PRODUCTS_RECORD]
    warnings = [
        f"products: {what}: {some(files)}"
        for what, files in (
            ("images whose files are absent are left out", missing),
            ("images that the list does not name are taken by their folders", added),
            ("images outside of the folders of products are left out", extra),
            ("what is not an image is left out", others),
        )
        if files
    ]
    taken = [(file, i) for file, i in listed if file in there] + [(file, class_of[file.rpartition("/")[0]]) for file in added]
    taken.sort(key=lambda pair: pair[1])
    return ImageSet(
        name="products",
        root=path,
        source=FolderSource(path),
        paths=tuple(file for file, _ in taken),
        labels=np.array([i for _, i in taken], dtype=np.int64),
        class_names=tuple(name for name, *_ in products),
        test_classes=np.array([i for i, (_, _, part, _) in enumerate(products) if part == "test"], dtype=np.int64),
        validation_classes=np.array([i for i, (_, _, part, _) in enumerate(products) if part == "val"], dtype=np.int64),
        super_classes=tuple(super_class for _, super_class, *_ in products),
        warnings=tuple(warnings),
        missing=tuple(missing),
        extra=(*extra, *others),
    )


FINDERS: dict[str, Callable[[Path], list[Path]]] = {
    "cub": find_cub,
    "cars": find_cars,
    "online-products": find_online_products,
    "products": find_products,
}

READERS: dict[str, Reader] = {
    "folder": read_folder,
    "csv": read_csv,
    "cub": read_cub,
    "cars": read_cars,
    "online-products": read_online_products,
    "products": read_products,
}


def _image_set(
    name: str,
    root: Path,
    rows: Sequence[tuple[str, str]],
    parts: dict[str, str],
    warnings: Sequence[str],
    extra: Sequence[str] = (),
) -> ImageSet:
    """From pairs of a path and its class name; ``parts`` has the split by class name, or nothing."""
    names = sorted({label for _, label in rows}, key=lambda label: label.encode("utf-8", "surrogateescape"))
    number = {label: i for i, label in enumerate(names)}
    return ImageSet(
        name=name,
        root=root,
        source=FolderSource(root if root.is_dir() else root.parent),
        paths=tuple(file for file, _ in rows),
        labels=np.array([number[label] for _, label in rows], dtype=np.int64),
        class_names=tuple(names),
        test_classes=np.array([i for i, label in enumerate(names) if parts.get(label) == "test"], dtype=np.int64),
        validation_classes=np.array([i for i, label in enumerate(names) if parts.get(label) == "val"], dtype=np.int64),
        warnings=tuple(warnings),
        extra=tuple(extra),
    )


def _products_record(folder: Path) -> dict[str, Any]:
    """What the renderer wrote about the products in a folder, or nothing if it wrote none of it."""
    try:
        record = json.loads((folder / PRODUCTS_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) and record.keys() >= {"renderer", "classes", "size", "seed", "format"} else {}


def _chosen(class_names: Sequence[str], test_classes: float | Sequence[str], seed: int) -> NDArray[np.int64]:
    """The numbers of the test classes, of which there is at least one, as there is for training."""
    C = len(class_names)
    if C < 2:
        raise ValueError(f"one class cannot be split into train and test, got {class_names[0]!r} alone. Add a second class.")
    test_classes = as_plain(test_classes)
    if isinstance(test_classes, int | float):
        fraction = as_number(test_classes)
        if not 0 < fraction < 1:
            raise ValueError(f"test_classes must be a fraction between 0 and 1, or class names, got {test_classes!r}. Try 0.5.")
        groups = group_by_name(range(C), class_names)
        if len(groups) < 2:
            raise ValueError(
                f"test classes must be drawn of names that differ in more than {SMALL_DIFFERENCES}, got {some(class_names)}. "
                "Rename the classes, or pass test_classes as names."
            )
        n = min(len(groups) - 1, max(1, round(fraction * len(groups))))
        return draw(groups, n, np.random.default_rng([seed, 1]))
    if isinstance(test_classes, str):
        raise ValueError(
            f"test_classes must be a fraction between 0 and 1, or a list of class names, got {test_classes!r}. "
            f"Pass [{test_classes!r}]."
        )
    number = {name: i for i, name in enumerate(class_names)}
    for name in test_classes:
        if name not in number:
            close = difflib.get_close_matches(str(name), class_names, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"They are called as {some(class_names, 3)}."
            raise ValueError(f"test_classes must be names of classes of the data, got {name!r}. {hint}")
    chosen = sorted({number[name] for name in test_classes})
    if not 0 < len(chosen) < C:
        raise ValueError(f"test_classes must be some of the {C} classes, got {len(chosen)} of them. Leave some for training.")
    return np.array(chosen, dtype=np.int64)


def _with_name_warnings(images: ImageSet) -> ImageSet:
    """The same with a warning of class names that are nearly the same."""
    warnings = list(images.warnings)
    alike = [group for group in group_by_name(range(len(images.class_names)), images.class_names) if len(group) > 1]
    for separated, where, remedy in (
        (False, "are kept in one part of the split", "rename them, or merge the classes"),
        (True, "are in different parts of the split", "merge the classes if they are one, or rename them"),
    ):
        groups = [group for group in alike if (len({images.parts[c] for c in group}) > 1) == separated]
        if groups:
            names = some(images.class_names[c] for group in groups for c in group)
            warnings.append(f"class names that differ only in {SMALL_DIFFERENCES} {where}: {names}; {remedy}")
    return replace(images, warnings=tuple(warnings))


def _depth_of_splits(classes: Iterable[str]) -> int | None:
    """Where in their paths the class folders have the part of the split: at the top, or below folders that are alone."""
    paths = [folder.split("/") for folder in classes]
    for depth in range(max(map(len, paths))):
        words = {path[depth].lower() if len(path) > depth else "" for path in paths}
        if words <= SPLITS.keys() and len({SPLITS[word] for word in words}) > 1:
            return depth
        if len(words) > 1:
            return None
    return None


def _no_classes(path: Path, loose: Sequence[str]) -> str:
    """What to say of a folder without class folders."""
    if loose:
        return (
            f"images must be in class folders, {str(path)!r} has {len(loose)} without one and no class folder. "
            "Make a folder for each class and move its images there."
        )
    inside = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if not inside:
        return f"{str(path)!r} must hold class folders with images, got an empty folder. Put a folder for each class in it."
    files = [name for name in inside if name.lower().endswith((".csv", *TARS, *OTHER_ARCHIVES))]
    hint = f"Pass {str(path / files[0])!r}, if that is the data." if files else "Check that it is the right folder."
    return f"{str(path)!r} must hold class folders with images, got none with an image in it. {hint}"


def _csv_rows(path: Path) -> Iterator[tuple[int, tuple[str, str, str | None]]]:
    """First line of each row, and its path, label and split."""
    if not path.is_file():
        raise ValueError(f"a data set of kind 'csv' must be a file, got the folder {str(path)!r}. Pass the .csv file in it.")
    try:
        # as file names do, bytes that are not UTF-8 come through as surrogates
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip().lower() for name in next(reader, [])]
            if not header:
                raise ValueError(
                    f"{str(path)!r} must have a header path,label or path,label,split, got an empty line. Write one."
                )
            missing = [name for name in ("path", "label") if name not in header]
            if missing:
                raise ValueError(
                    f"{str(path)!r} must have the columns path and label, separated by commas, got {some(header)} without "
                    f"{' and '.join(missing)}. Name the columns in the first line."
                )
            p, y = header.index("path"), header.index("label")
            s = header.index("split") if "split" in header else None
            last = reader.line_num
            for row in reader:
                first, last = last + 1, reader.line_num  # a quoted field may have line breaks
                if not row:
                    continue
                if len(row) <= max(p, y, s or 0):
                    raise ValueError(
                        f"{str(path)!r}, line {first}: a row must have {len(header)} columns, got {len(row)}. "
                        "Put quotes around fields with commas, and a comma for each empty field."
                    )
                yield first, (row[p], row[y], None if s is None else row[s].strip())
    except csv.Error as error:
        raise ValueError(
            f"{str(path)!r}, line {reader.line_num}: a row must be proper CSV, got: {error}. "
            "Close quotes, and double those inside fields."
        ) from error
    except OSError as error:
        raise ValueError(
            f"{str(path)!r} must be a file that can be read, got: {error.strerror}. Check its permissions."
        ) from error


def _missing(root: Path, files: Iterable[str]) -> list[str]:
    """The paths that are no file, with one look at each folder instead of one at each file."""
    listings: dict[str, set[str]] = {}
    missing = []
    for file in files:
        name = file[file.rfind("/") + 1 :]
        folder = file[: len(file) - len(name)]  # "" or with its slash at the end
        if folder not in listings:
            try:
                with os.scandir(root / folder) as entries:
                    listings[folder] = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
            except (OSError, ValueError):
                listings[folder] = set()
        if name not in listings[folder] and not _is_file(root / file):  # links, and names that differ in capitals alone
            missing.append(file)
    return missing


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False

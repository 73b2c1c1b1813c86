"""Readers for the paper's three datasets as downloaded, with the paper's splits and verified counts.

Missing files and files that are not listed cause warnings; inconsistent lists cause errors.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from liftedstruct.data.image_files import brief, image_tree, is_image
from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.sources import FolderSource, Source, TarSource

__all__ = ["CARS", "CUB", "ONLINE_PRODUCTS", "KnownDataset", "find_cars", "find_cub", "find_online_products"]
__all__ += ["read_cars", "read_cub", "read_online_products"]


@dataclass(frozen=True)
class KnownDataset:
    """Expected numbers of images and classes of a dataset, each as (training, test)."""

    name: str
    images: tuple[int, int]
    classes: tuple[int, int]


CUB = KnownDataset("CUB-200-2011", images=(5864, 5924), classes=(100, 100))
CARS = KnownDataset("CARS196", images=(8054, 8131), classes=(98, 98))
ONLINE_PRODUCTS = KnownDataset("Stanford Online Products", images=(59551, 60502), classes=(11318, 11316))

CUB_FILES = ("images.txt", "image_class_labels.txt", "classes.txt")
EBAY_FILES = ("Ebay_train.txt", "Ebay_test.txt")
EBAY_HEADER = ["image_id", "class_id", "super_class_id", "path"]
MAT_ENTRIES = 10**6  # limit for a variable in cars_annos.mat; the largest has 16,185
AGAIN = "Download the dataset again."


def find_cub(path: Path) -> list[Path]:
    """Find folders of CUB-200-2011: the path itself, or its direct subfolders."""
    return _find(path, lambda folder: sum((folder / name).is_file() for name in CUB_FILES) > 1)  # one of them may be missing


def find_cars(path: Path) -> list[Path]:
    """Find folders of CARS196, in either layout: the path itself, or its direct subfolders."""
    return _find(
        path, lambda folder: (folder / "cars_annos.mat").is_file() or (folder / "car_ims").is_dir() or _has_joint_cars(folder)
    )


def find_online_products(path: Path) -> list[Path]:
    """Find folders of Stanford Online Products: the path itself, or its direct subfolders."""
    return _find(path, lambda folder: any((folder / name).is_file() for name in EBAY_FILES))


def read_cub(path: Path) -> ImageSet:
    """Read CUB-200-2011: the first 100 classes are training classes, the last 100 are test classes.

    The path is its folder, the parent of its folder, or its archive.
    """
    source: Source
    if path.is_dir():
        root, above = _only(find_cub(path), path, CUB, CUB_FILES), ""
        source, files, read = FolderSource(root), _files_below(root, "images"), lambda name: (root / name).read_bytes()
    else:
        root, source = path, TarSource(path)
        above, read = _above(source), source.read
        files = [name for name in source.members if name.startswith(f"{above}images/") and is_image(name)]
    images, labels, classes = (_numbered(_read(CUB, root, above + name, read), name) for name in CUB_FILES)
    numbers = {str(key): i for i, key in enumerate(sorted(classes))}
    _check_classes(CUB, len(classes), "classes.txt")
    wrong = sorted(key for key in images.keys() | labels.keys() if key not in images or labels.get(key) not in numbers)
    if wrong:
        raise ValueError(f"{', '.join(CUB_FILES)} must agree, got a mismatch for image {wrong[0]} (of {len(wrong)}). {AGAIN}")
    return _verified(
        CUB,
        root,
        source,
        listed=[f"{above}images/{images[key]}" for key in sorted(images)],
        labels=[numbers[labels[key]] for key in sorted(images)],
        class_names=[classes[key] for key in sorted(classes)],
        files=files,
    )


def read_cars(path: Path) -> ImageSet:
    """Read CARS196: the first 98 classes are training classes, the last 98 are test classes.

    Two layouts are supported: `cars_annos.mat` and `car_ims`, with classes in numeric order, and `train/<class>` and
    `test/<class>`, as CARS196 is often redistributed. The latter is a split by image, not the paper's split: both folders are
    merged, and classes are in alphabetical order. The official class numbers differ within some makes, but the first 98
    classes are the same.
    """
    root = _only(find_cars(path), path, CARS, ("cars_annos.mat", "car_ims"))
    if (root / "cars_annos.mat").is_file() or (root / "car_ims").is_dir():
        listed, labels, class_names = _annotations(root / "cars_annos.mat")
        return _verified(CARS, root, FolderSource(root), listed, labels, class_names, _files_below(root, "car_ims"))
    files = [file for part in ("train", "test") for file in _files_below(root, part)]
    of_class: dict[str, list[str]] = {}
    for file in files:
        _, *folders, _ = file.split("/")
        if folders:
            of_class.setdefault("/".join(folders), []).append(file)
    class_names = sorted(of_class, key=os.fsencode)
    _check_classes(CARS, len(class_names), "train and test")
    listed = [file for name in class_names for file in of_class[name]]
    labels = [i for i, name in enumerate(class_names) for _ in of_class[name]]
    return _verified(CARS, root, FolderSource(root), listed, labels, class_names, files)


def read_online_products(path: Path) -> ImageSet:
    """Read Stanford Online Products, with the split of its two lists; class names are the super-class and a number."""
    root = _only(find_online_products(path), path, ONLINE_PRODUCTS, EBAY_FILES)
    train, test = (_ebay_rows(root / name) for name in EBAY_FILES)
    super_classes = {key: file.split("/")[0].removesuffix("_final") for key, file in train + test}
    both = {key for key, _ in train} & {key for key, _ in test}
    if both:
        raise ValueError(
            f"each class must be in one part of the split, got {min(both)} in Ebay_train.txt and Ebay_test.txt "
            f"(first of {len(both)}). {AGAIN}"
        )
    keys = sorted(super_classes)
    number = {key: i for i, key in enumerate(keys)}
    images = _verified(
        ONLINE_PRODUCTS,
        root,
        FolderSource(root),
        listed=[file for _, file in train + test],
        labels=[number[key] for key, _ in train + test],
        class_names=[f"{super_classes[key]}_{key:05}" for key in keys],
        files=image_tree(root).paths(),
        test=sorted({number[key] for key, _ in test}),
    )
    return replace(images, super_classes=tuple(super_classes[key] for key in keys))


def _verified(
    dataset: KnownDataset,
    root: Path,
    source: Source,
    listed: Sequence[str],
    labels: Sequence[int],
    class_names: Sequence[str],
    files: Sequence[str],
    test: Sequence[int] | None = None,
) -> ImageSet:
    """Return the listed images that exist, with a warning for every difference from the expected counts.

    `test` has the numbers of the test classes; by default all classes after the training classes are test classes.
    """
    is_test = np.isin(np.arange(len(class_names)), np.arange(dataset.classes[0], len(class_names)) if test is None else test)
    names = Counter(listed)
    if len(names) < len(listed):
        again = names.most_common(1)[0][0]
        raise ValueError(f"{dataset.name} must list each image once, got {again!r} more than once. {AGAIN}")
    there = set(files)
    is_there = np.array([name in there for name in listed], dtype=bool)
    if not is_there.any():
        raise ValueError(
            f"{dataset.name} must have its images beside its lists, got none of {brief(listed, 1)} in {str(root)!r}. "
            "Unpack the images there too."
        )
    y = np.array(labels, dtype=np.int64)
    warnings = []
    missing: list[str] = []
    for part, word in enumerate(("training", "test")):
        of_part = np.flatnonzero(is_test[y] == bool(part))
        absent = [listed[i] for i in of_part.tolist() if not is_there[i]]
        missing += absent
        for what, n, right in (
            ("images", len(of_part), dataset.images[part]),
            ("classes", int((is_test == bool(part)).sum()), dataset.classes[part]),
        ):
            if n != right:
                difference = f"{right - n:,} missing" if n < right else f"{n - right:,} extra"
                warnings.append(f"{dataset.name}: expected {right:,} {word} {what}, got {n:,} ({difference})")
        if absent:
            warnings.append(f"{dataset.name}: {word} images without a file are left out: {brief(absent)}")
    extra = sorted(there - names.keys(), key=os.fsencode)
    if extra:
        warnings.append(f"{dataset.name}: images that are not listed are left out: {brief(extra)}")
    return ImageSet(
        name=dataset.name,
        root=root,
        source=source,
        paths=tuple(name for name in listed if name in there),
        labels=y[is_there],
        class_names=tuple(class_names),
        test_classes=np.flatnonzero(is_test),
        warnings=tuple(warnings),
        missing=tuple(missing),
        extra=tuple(extra),
    )


def _find(path: Path, has: Callable[[Path], bool]) -> list[Path]:
    """Return the folder itself if it has the layout, otherwise its direct subfolders that have it."""
    if not _is_open(path):
        return []
    if has(path):
        return [path]
    return [path / name for name in sorted(_folders(path), key=os.fsencode) if has(path / name)]


def _folders(path: Path) -> set[str]:
    """Return the names of the direct subfolders, without hidden and unreadable ones."""
    if not _is_open(path):
        return set()
    with os.scandir(path) as entries:
        return {entry.name for entry in entries if not entry.name.startswith(".") and _is_open(path / entry.name)}


def _is_open(path: Path) -> bool:
    return os.access(path, os.R_OK | os.X_OK) and path.is_dir()


def _only(found: list[Path], path: Path, dataset: KnownDataset, names: Sequence[str]) -> Path:
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"path must contain one dataset, got {brief(map(str, found))} in {str(path)!r}. Pass one of these.")
    raise ValueError(
        f"{dataset.name} must be a folder with {', '.join(names)}, got {str(path)!r} without them. "
        "Pass the folder that contains them, or another kind."
    )


def _has_joint_cars(folder: Path) -> bool:
    """Return whether train and test contain the same 196 classes, as they never do in a split by class."""
    train = _folders(folder / "train")
    return len(train) == sum(CARS.classes) and train == _folders(folder / "test")


def _files_below(root: Path, folder: str) -> list[str]:
    return image_tree(root / folder).paths(below=folder) if (root / folder).is_dir() else []


def _above(source: TarSource) -> str:
    """Return the folder with the lists in the archive, such as "CUB_200_2011/", or "" for the top level."""
    lists = [name for name in source.members if f"/{name}".endswith(f"/{CUB_FILES[0]}")]
    if not lists:
        raise ValueError(
            f"an archive must contain {CUB.name}, with {', '.join(CUB_FILES)}, got {str(source.archive)!r} without them. "
            "Unpack it and pass the folder."
        )
    return min(lists, key=len).removesuffix(CUB_FILES[0])


def _read(dataset: KnownDataset, root: Path, name: str, read: Callable[[str], bytes]) -> bytes:
    try:
        return read(name)
    except OSError as error:
        reason = error.strerror or "no such file"
        raise ValueError(f"{dataset.name} must have the file {name}, got {reason} in {str(root)!r}. {AGAIN}") from error


def _lines(text: bytes) -> list[tuple[int, str]]:
    """Return the non-empty lines with their numbers from 1; bytes that are not UTF-8 become surrogates."""
    lines = text.decode("utf-8-sig", "surrogateescape").split("\n")
    return [(n, line) for n, line in enumerate((line.strip() for line in lines), start=1) if line]


def _numbered(text: bytes, file: str) -> dict[int, str]:
    """Parse a list of CUB-200-2011, whose lines are a number, a space and a value."""
    entries: dict[int, str] = {}
    for n, line in _lines(text):
        key, _, value = line.partition(" ")
        if not (key.isascii() and key.isdigit() and value.strip()):
            raise ValueError(f"{file}, line {n}: a line must be a number and a name, got {line!r}. {AGAIN}")
        if int(key) in entries:
            raise ValueError(f"{file}, line {n}: a number must occur once, got {key} again. {AGAIN}")
        entries[int(key)] = value.strip()
    return entries


def _check_classes(dataset: KnownDataset, n: int, where: str) -> None:
    """Raise if classes are missing or extra: the split by class order requires all of them."""
    if n != sum(dataset.classes):
        raise ValueError(
            f"{dataset.name} must have {sum(dataset.classes)} classes, got {n} in {where}. "
            "Download it again, or read other data as kind='folder'."
        )


def _annotations(file: Path) -> tuple[list[str], list[int], list[str]]:
    """Return the paths, class numbers from 0 and class names in `cars_annos.mat`."""
    from scipy.io import loadmat, whosmat  # only needed for this dataset

    try:
        for name, shape, _ in whosmat(file):  # loadmat allocates any size that a header claims
            if math.prod(shape) > MAT_ENTRIES:
                raise ValueError(f"{name} of shape {shape}")
        content = loadmat(file, squeeze_me=True, variable_names=("annotations", "class_names"))
        rows = np.atleast_1d(content["annotations"])
        listed = [str(path) for path in rows["relative_im_path"]]
        labels = [int(label) - 1 for label in rows["class"]]
        class_names = [str(name) for name in np.atleast_1d(content["class_names"])]
    except Exception as error:  # a broken file raises almost anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"cars_annos.mat must have annotations with relative_im_path and class, and class_names, got {reason}. {AGAIN}"
        ) from error
    _check_classes(CARS, len(class_names), "cars_annos.mat")
    wrong = [label + 1 for label in labels if not 0 <= label < len(class_names)]
    if wrong:
        raise ValueError(f"cars_annos.mat must have classes from 1 to {len(class_names)}, got {wrong[0]}. {AGAIN}")
    return listed, labels, class_names


def _ebay_rows(file: Path) -> list[tuple[int, str]]:
    """Return the class and path of every line of a list of Stanford Online Products."""
    lines = _lines(_read(ONLINE_PRODUCTS, file.parent, file.name, lambda _: file.read_bytes()))
    if not lines or lines[0][1].split() != EBAY_HEADER:
        got = lines[0][1] if lines else ""
        raise ValueError(f"{file.name}, line 1: the header must be {' '.join(EBAY_HEADER)!r}, got {got!r}. {AGAIN}")
    rows = []
    for n, line in lines[1:]:
        try:
            _, key, _, path = line.split(maxsplit=3)
            rows.append((int(key), path))
        except ValueError as error:
            raise ValueError(
                f"{file.name}, line {n}: a line must be three numbers and a path, got {line!r}. {AGAIN}"
            ) from error
    return rows

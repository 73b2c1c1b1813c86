"""The paper's three benchmarks as they come off the download, split as in the paper, with their counts verified.

A file that is absent, or there though no list names it, is a warning; lists that contradict themselves are an error.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from liftedstruct.data.image_files import image_tree, is_image, some
from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.sources import FolderSource, Source, TarSource

__all__ = ["CARS", "CUB", "ONLINE_PRODUCTS", "Benchmark", "read_cars", "read_cub", "read_online_products"]
__all__ += ["find_cars", "find_cub", "find_online_products"]


@dataclass(frozen=True)
class Benchmark:
    """What a benchmark must have: in its training half, in its test half."""

    name: str
    images: tuple[int, int]
    classes: tuple[int, int]


CUB = Benchmark("CUB-200-2011", images=(5864, 5924), classes=(100, 100))
CARS = Benchmark("CARS196", images=(8054, 8131), classes=(98, 98))
ONLINE_PRODUCTS = Benchmark("Stanford Online Products", images=(59551, 60502), classes=(11318, 11316))

CUB_FILES = ("images.txt", "image_class_labels.txt", "classes.txt")
EBAY_FILES = ("Ebay_train.txt", "Ebay_test.txt", "Ebay_info.txt")
EBAY_HEADER = ["image_id", "class_id", "super_class_id", "path"]
SUPER_CLASSES = 12
MAT_ENTRIES = 10**6  # of a variable of cars_annos.mat; the largest has 16,185
AGAIN = "Download the data set again."


def find_cub(path: Path) -> list[Path]:
    """The folders of CUB-200-2011: this one, or those right below it."""
    return _find(path, lambda folder: sum((folder / name).is_file() for name in CUB_FILES) > 1)  # one may be missing


def find_cars(path: Path) -> list[Path]:
    """The folders of CARS196, in either layout: this one, or those right below it."""
    return _find(
        path, lambda folder: (folder / "cars_annos.mat").is_file() or (folder / "car_ims").is_dir() or _split_cars(folder)
    )


def find_online_products(path: Path) -> list[Path]:
    """The folders of Stanford Online Products: this one, or those right below it."""
    return _find(path, lambda folder: any((folder / name).is_file() for name in EBAY_FILES))


def read_cub(path: Path) -> ImageSet:
    """CUB-200-2011: the first 100 classes to train on, the last 100 for the test.

    From its folder, the one above it, or its archive as it is.
    """
    source: Source
    if path.is_dir():
        root = _only(find_cub(path), path, CUB, CUB_FILES)
        source, files, above = FolderSource(root), _files_below(root, "images"), ""
        lists = {name: _read(root / name, CUB) for name in CUB_FILES}
    else:
        root, source = path, TarSource.of(path)
        above = _above(source, path)
        files = [name for name in source.members if name.startswith(f"{above}images/") and is_image(name)]
        for name in CUB_FILES:
            if above + name not in source.members:
                raise ValueError(f"{CUB.name} must have the file {name}, {str(path)!r} has none. {AGAIN}")
        lists = {name: source.read(above + name) for name in CUB_FILES}

    images, of, classes = (_numbered(lists[name], name) for name in CUB_FILES)
    alone = sorted(images.keys() ^ of.keys())
    if alone:
        raise ValueError(
            f"images.txt and image_class_labels.txt must have the same image ids, {alone[0]} is only in "
            f"{'images.txt' if alone[0] in images else 'image_class_labels.txt'} (first of {len(alone)} such ids). {AGAIN}"
        )
    numbers = {str(key): i for i, key in enumerate(sorted(classes))}
    for image, key in of.items():
        if key not in numbers:
            raise ValueError(
                f"image_class_labels.txt must name classes of classes.txt, image {image} is of class {key!r}. {AGAIN}"
            )
    _check_classes(CUB, len(classes), "classes.txt")
    return _verified(
        CUB,
        root,
        source,
        listed=[f"{above}images/{images[image]}" for image in sorted(images)],
        labels=[numbers[of[image]] for image in sorted(images)],
        class_names=[classes[key] for key in sorted(classes)],
        files=files,
    )


def read_cars(path: Path) -> ImageSet:
    """CARS196: the first 98 classes to train on, the last 98 for the test.

    Either ``cars_annos.mat`` beside ``car_ims``, with the classes in the order of their numbers, or ``train/<class>`` and
    ``test/<class>`` as it is often passed on. If no class is in both, they are the split. Otherwise that split is one of
    images and not the paper's: the two are joined, and the classes taken in the order of their names. Within some makes the
    official numbers are in another order, but the first 98 are the same classes.
    """
    root = _only(find_cars(path) or _find(path, _has_train_and_test), path, CARS, ("cars_annos.mat", "car_ims"))
    if (root / "cars_annos.mat").is_file() or (root / "car_ims").is_dir():
        listed, labels, class_names = _annotations(root / "cars_annos.mat")
        files = _files_below(root, "car_ims")
        return _verified(CARS, root, FolderSource(root), listed, labels, class_names, files)
    train, test = (image_tree(root / part).images for part in ("train", "test"))  # class -> files
    loose = [f"{part}/{name}" for part, images in (("train", train), ("test", test)) for name in images.pop("", [])]
    is_split = train.keys().isdisjoint(test)
    class_names = [*train, *test] if is_split else sorted(train | test, key=os.fsencode)
    _check_classes(CARS, len(class_names), "train and test")
    files, labels = [], []
    for i, name in enumerate(class_names):
        of_class = [f"{part}/{name}/{file}" for part, of in (("train", train), ("test", test)) for file in of.get(name, [])]
        files += of_class
        labels += [i] * len(of_class)
    numbers = range(len(train), len(class_names)) if is_split else None
    images = _verified(CARS, root, FolderSource(root), files, labels, class_names, files, numbers)
    if not loose:
        return images
    warning = f"{CARS.name}: images outside of any class folder are left out: {some(loose)}"
    return replace(images, warnings=(*images.warnings, warning), extra=(*images.extra, *loose))


def read_online_products(path: Path) -> ImageSet:
    """Stanford Online Products: the split of its two lists; a class is called after its super-class and number."""
    root = _only(find_online_products(path), path, ONLINE_PRODUCTS, EBAY_FILES)
    train, test = (_ebay_rows(root / name) for name in EBAY_FILES[:2])
    super_classes: dict[int, str] = {}
    for name, rows in zip(EBAY_FILES, (train, test), strict=False):
        for line, (key, _, file) in enumerate(rows, start=2):
            super_class = file.split("/")[0].removesuffix("_final")
            if super_classes.setdefault(key, super_class) != super_class:
                raise ValueError(
                    f"{name}, line {line}: class {key} must be in one super-class, it is in {super_classes[key]!r} "
                    f"and {super_class!r}. {AGAIN}"
                )
    both = {key for key, *_ in train} & {key for key, *_ in test}
    if both:
        raise ValueError(
            f"a class must be in one part of the split, {min(both)} is in Ebay_train.txt and Ebay_test.txt "
            f"(first of {len(both)} such classes). {AGAIN}"
        )
    keys = sorted(super_classes)
    number = {key: i for i, key in enumerate(keys)}
    images = _verified(
        ONLINE_PRODUCTS,
        root,
        FolderSource(root),
        listed=[file for *_, file in train + test],
        labels=[number[key] for key, *_ in train + test],
        class_names=[f"{super_classes[key]}_{key:05}" for key in keys],
        files=image_tree(root).paths(),
        test=sorted({number[key] for key, *_ in test}),
    )
    warnings = []
    missing = images.missing
    info = root / "Ebay_info.txt"
    if not info.is_file():
        missing += (info.name,)
        warnings.append(f"{ONLINE_PRODUCTS.name}: Ebay_info.txt is missing; the other two lists say it all")
    elif differing := sorted({file for *_, file in set(_ebay_rows(info)) ^ set(train + test)}):
        warnings.append(
            f"{ONLINE_PRODUCTS.name}: Ebay_info.txt and the other two lists differ, which are taken: {some(differing)}"
        )
    if (n := len(set(super_classes.values()))) != SUPER_CLASSES:
        warnings.append(f"{ONLINE_PRODUCTS.name}: super-classes: {n} instead of {SUPER_CLASSES}")
    return replace(
        images,
        super_classes=tuple(super_classes[key] for key in keys),
        warnings=images.warnings + tuple(warnings),
        missing=missing,
    )


def _verified(
    benchmark: Benchmark,
    root: Path,
    source: Source,
    listed: Sequence[str],
    labels: Sequence[int],
    class_names: Sequence[str],
    files: Sequence[str],
    test: Sequence[int] | None = None,
) -> ImageSet:
    """The images that are listed and there, with a warning of every difference from what the benchmark must have.

    A listed file that was saved in another format, and so with another suffix, is taken. ``test`` has the numbers of the test
    classes; without it they are those after the training half.
    """
    is_test = np.isin(np.arange(len(class_names)), np.arange(benchmark.classes[0], len(class_names)) if test is None else test)
    names = Counter(listed)
    if len(names) < len(listed):
        again = names.most_common(1)[0][0]
        raise ValueError(f"{benchmark.name} must list an image once, {again!r} is listed twice. {AGAIN}")
    there = set(files)
    spare = {_stem(name): name for name in sorted(there - names.keys(), reverse=True)}
    taken = [name if name in there else spare.get(_stem(name)) for name in listed]
    if not any(taken):
        raise ValueError(
            f"{benchmark.name} must have its images beside its lists, none of {some(listed, 1)} is in {str(root)!r}. "
            "Unpack the images there too."
        )
    y = np.array(labels, dtype=np.int64)
    warnings = []
    missing: list[str] = []
    for part, word in enumerate(("training", "test")):
        of_part = np.flatnonzero(is_test[y] == bool(part))
        absent = [listed[i] for i in of_part.tolist() if not taken[i]]
        missing += absent
        for what, n, right in (
            ("images", len(of_part), benchmark.images[part]),
            ("classes", int((is_test == bool(part)).sum()), benchmark.classes[part]),
        ):
            if n != right:
                difference = f"{right - n:,} missing" if n < right else f"{n - right:,} extra"
                warnings.append(f"{benchmark.name}: {word} {what}: {n:,} instead of {right:,}, {difference}")
        if absent:
            warnings.append(f"{benchmark.name}: {word} images whose files are absent are left out: {some(absent)}")
    extra = sorted(there - set(taken), key=os.fsencode)
    if extra:
        warnings.append(f"{benchmark.name}: images that no list names are left out: {some(extra)}")
    return ImageSet(
        name=benchmark.name,
        root=root,
        source=source,
        paths=tuple(name for name in taken if name),
        labels=y[[name is not None for name in taken]],
        class_names=tuple(class_names),
        test_classes=np.flatnonzero(is_test),
        warnings=tuple(warnings),
        missing=tuple(missing),
        extra=tuple(extra),
    )


def _find(path: Path, has: Callable[[Path], bool]) -> list[Path]:
    """The folder itself if it has the layout, otherwise those right below it that have."""
    if not _is_open(path):
        return []
    if has(path):
        return [path]
    return [path / name for name in sorted(_folders(path), key=os.fsencode) if has(path / name)]


def _folders(path: Path) -> set[str]:
    """The names of the folders right below, without hidden ones and those that cannot be read."""
    if not _is_open(path):
        return set()
    with os.scandir(path) as entries:
        return {entry.name for entry in entries if not entry.name.startswith(".") and _is_open(path / entry.name)}


def _is_open(path: Path) -> bool:
    return os.access(path, os.R_OK | os.X_OK) and path.is_dir()


def _only(found: list[Path], path: Path, benchmark: Benchmark, names: Sequence[str]) -> Path:
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"path must name one data set, {str(path)!r} holds {some(map(str, found))}. Pass one of these.")
    raise ValueError(
        f"{benchmark.name} must be a folder with {', '.join(names)}, got {str(path)!r} without them. "
        "Pass the folder that they are in, or another kind."
    )


def _split_cars(folder: Path) -> bool:
    """Whether train and test are of CARS196.

    Either both hold the same 196 classes, which an ordinary split does not, or they hold 98 classes each, none of them in
    both, and as many images as CARS196 has, give or take a hundredth.
    """
    train = _folders(folder / "train")
    if len(train) not in (sum(CARS.classes), CARS.classes[0]):
        return False
    test = _folders(folder / "test")
    if len(train) == sum(CARS.classes):
        return train == test
    if len(test) != CARS.classes[1] or train & test:
        return False
    n = sum(len(_files_below(folder, part)) for part in ("train", "test"))
    return abs(n - sum(CARS.images)) <= 0.01 * sum(CARS.images)


def _has_train_and_test(folder: Path) -> bool:
    return (folder / "train").is_dir() and (folder / "test").is_dir()


def _files_below(root: Path, folder: str) -> list[str]:
    return image_tree(root / folder).paths(below=folder) if (root / folder).is_dir() else []


def _stem(path: str) -> str:
    return str(PurePosixPath(path).with_suffix(""))


def _above(source: TarSource, archive: Path) -> str:
    """The folder inside of the archive that has the lists, as "CUB_200_2011/", or "" if they are at the top."""
    tops = [name.removesuffix(last) for last in CUB_FILES for name in source.members if f"/{name}".endswith(f"/{last}")]
    tops = sorted((top for top in set(tops) if tops.count(top) > 1), key=len)
    if not tops:
        raise ValueError(
            f"an archive must be that of {CUB.name}, with {', '.join(CUB_FILES)}, got {str(archive)!r} without them. "
            "Unpack it and pass the folder."
        )
    return tops[0]


def _read(file: Path, benchmark: Benchmark) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{benchmark.name} must have the file {file.name}, {str(file.parent)!r} has none that can be read: "
            f"{error.strerror}. {AGAIN}"
        ) from error


def _lines(text: bytes) -> list[tuple[int, str]]:
    """The lines that are not empty, with their numbers from 1; names that are not UTF-8 come through as surrogates."""
    lines = text.decode("utf-8-sig", "surrogateescape").split("\n")
    return [(n, line) for n, line in enumerate((line.strip() for line in lines), start=1) if line]


def _numbered(text: bytes, file: str) -> dict[int, str]:
    """A list of CUB-200-2011: a number, a space, and what it stands for."""
    entries: dict[int, str] = {}
    for n, line in _lines(text):
        key, _, value = line.partition(" ")
        if not (key.isascii() and key.isdigit() and value.strip()):
            raise ValueError(f"{file}, line {n}: a line must be a number and a name, got {line!r}. {AGAIN}")
        if int(key) in entries:
            raise ValueError(f"{file}, line {n}: a number must be there once, got {key} again. {AGAIN}")
        entries[int(key)] = value.strip()
    return entries


def _check_classes(benchmark: Benchmark, n: int, where: str) -> None:
    """Without all of the classes nobody can say which are the first half."""
    if n != sum(benchmark.classes):
        raise ValueError(
            f"{benchmark.name} must have {sum(benchmark.classes)} classes, got {n} in {where}. "
            "Download it again, or read other data as kind='folder'."
        )


def _annotations(file: Path) -> tuple[list[str], list[int], list[str]]:
    """Paths, class numbers from 0 and class names of ``cars_annos.mat``."""
    if not file.is_file():
        raise ValueError(
            f"{CARS.name} must have the file cars_annos.mat beside car_ims, {str(file.parent)!r} has none. {AGAIN}"
        )
    from scipy.io import loadmat, whosmat  # for these data alone

    try:
        for name, shape, _ in whosmat(file):  # loadmat allocates what a header claims
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
    wrong = [i for i, label in enumerate(labels) if not 0 <= label < len(class_names)]
    if wrong:
        raise ValueError(
            f"cars_annos.mat must have classes 1 to {len(class_names)}, annotation {wrong[0] + 1} has "
            f"{labels[wrong[0]] + 1}. {AGAIN}"
        )
    return listed, labels, class_names


def _ebay_rows(file: Path) -> list[tuple[int, int, str]]:
    """Class, super-class and path of every line of a list of Stanford Online Products."""
    lines = _lines(_read(file, ONLINE_PRODUCTS))
    if not lines or lines[0][1].split() != EBAY_HEADER:
        got = lines[0][1] if lines else ""
        raise ValueError(f"{file.name}, line 1: the header must be {' '.join(EBAY_HEADER)!r}, got {got!r}. {AGAIN}")
    rows = []
    for n, line in lines[1:]:
        try:
            _, key, super_key, path = line.split(maxsplit=3)
            rows.append((int(key), int(super_key), path))
        except ValueError as error:
            raise ValueError(
                f"{file.name}, line {n}: a line must be three numbers and a path, got {line!r}. {AGAIN}"
            ) from error
    return rows

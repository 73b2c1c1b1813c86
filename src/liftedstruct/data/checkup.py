"""Check a dataset for issues that harm training or inflate scores.

Every image is decoded once. Exact duplicates have the same pixels. Near duplicates have 64-bit perceptual hashes
(`imagehash.phash`) that differ in few bits **and** similar thumbnails; by the hash alone, many products on white would be
duplicates. A duplicate within a class is redundant, one across classes implies a wrong label, and one across the split is a
leak that invalidates the scores. Classes in different parts of the split whose names differ only in case, whitespace or Unicode
normalization are most likely a leak, too.
"""

import csv
import io
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from liftedstruct.data.decoding import ImageError, load_rgb
from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.sources import FolderSource, Source
from liftedstruct.data.splits import NAME_VARIATION, group_by_name
from liftedstruct.runtime.atomic import replacing
from liftedstruct.runtime.checks import check_count
from liftedstruct.runtime.limits import available_cores
from liftedstruct.runtime.progress import Bar

__all__ = ["CheckUp", "Finding", "check_dataset", "check_list_file", "write_fixed_list"]

THUMB = 16  # side length in pixels of the thumbnails that are compared
ALIKE = 6.0  # maximum mean absolute difference of two thumbnails, out of 255: about 1 for copies, 20 and more for others
CORRELATED = 0.9  # minimum correlation of two thumbnails
TINY = 32  # pixels; images with a shorter side are listed

SERIOUS, NOTE = "serious", "note"
PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Finding:
    """Issue found in a dataset, and the images affected."""

    kind: str
    severity: str  # "serious": fix before training; "note": for information
    message: str
    images: Sequence[int] = ()  # indices in the image set
    offenders: Sequence[int] = ()  # the subset that a fixed list leaves out


@dataclass(frozen=True)
class CheckUp:
    """Result of `check_dataset`."""

    name: str
    root: str
    n_images: int
    n_classes: int
    findings: tuple[Finding, ...]

    @property
    def serious(self) -> bool:
        """Whether any issue should be fixed before training."""
        return any(finding.severity == SERIOUS for finding in self.findings)

    @property
    def offenders(self) -> tuple[int, ...]:
        """Indices of all images that a fixed list leaves out."""
        return tuple(sorted({i for finding in self.findings for i in finding.offenders}))

    def to_json(self, image_set: ImageSet) -> str:
        """Return everything as JSON, with images as paths, and the missing and extra files of the image set."""
        content = {**asdict(self), "serious": self.serious, "missing": image_set.missing, "extra": image_set.extra}
        for finding in content["findings"]:
            for key in ("images", "offenders"):
                finding[key] = [image_set.paths[i] for i in finding[key]]
        return json.dumps(content, indent=2)

    def __str__(self) -> str:
        lines = [f"{self.name} at {_printable(self.root)}: {self.n_images:,} images of {self.n_classes:,} classes", ""]
        width = max((len(finding.kind) for finding in self.findings), default=0)
        lines += [f"  {finding.severity:<8} {finding.kind:<{width}}  {finding.message}" for finding in self.findings]
        n = sum(finding.severity == SERIOUS for finding in self.findings)
        return "\n".join([*lines, "", f"{_count(n, 'serious issue')}." if n else "No serious issues."])


@dataclass(frozen=True)
class _ImageSummary:
    """Properties of a decoded image."""

    reason: str = ""  # why it cannot be decoded, or empty
    size: tuple[int, int] = (0, 0)
    flat: bool = False
    pixels: bytes = b""  # digest
    phash: bytes = b""
    thumb: NDArray[np.uint8] | None = None


def check_dataset(image_set: ImageSet, *, near: int = 10, workers: int | None = None, progress: bool = True) -> CheckUp:
    """Decode every image and list the issues of the dataset.

    Args:
        image_set: dataset, as returned by `read_images`.
        near: number of bits in which the 64-bit perceptual hashes of near duplicates may differ, 0 to 16.
        workers: number of threads; default: one per core.
        progress: show a progress bar.
    """
    if check_count("near", near, 0) > 16:
        raise ValueError(f"near must be at most 16 of the 64 bits, got {near}. Unrelated images differ in about 32; try 10.")
    summaries = []
    with (
        warnings.catch_warnings(action="ignore"),
        ThreadPoolExecutor(check_count("workers", workers or available_cores())) as pool,
        Bar("check", len(image_set), wanted=progress) as bar,
    ):
        for summary in pool.map(lambda path: _summarize(image_set.source, path), image_set.paths):
            summaries.append(summary)
            bar.advance()
    bad = [*_bad_images(image_set, summaries)]
    copies: dict[bytes, list[int]] = {}
    kept = set(image_set.kept)
    for i, summary in enumerate(summaries):
        if summary.pixels and not summary.flat and image_set.paths[i] not in kept:
            copies.setdefault(summary.pixels, []).append(i)
    near_copies = _near_duplicates(summaries, [same[0] for same in copies.values()], near)
    offenders = {i for finding in bad for i in finding.offenders}
    findings = [
        *(Finding("incomplete", NOTE, warning) for warning in image_set.warnings),
        *bad,
        *_duplicates(image_set, list(copies.values()), "exact duplicates", "the same pixels", offenders),
        *_duplicates(image_set, near_copies, "near duplicates", "nearly the same pixels", offenders),
        *_name_leaks(image_set),
        *_class_sizes(image_set),
    ]
    findings.sort(key=lambda finding: finding.severity != SERIOUS)
    used = len(np.unique(image_set.labels))
    return CheckUp(image_set.name, str(image_set.root), len(image_set), used, tuple(findings))


def write_fixed_list(image_set: ImageSet, check_up: CheckUp, file: Path) -> ImageSet:
    """Write a CSV list (path, label, split) without the offenders; image files are not modified.

    Classes with fewer than two images left are kept: their images can still be negatives.
    """
    check_list_file(image_set, file)
    assert isinstance(image_set.source, FolderSource)
    keep = np.setdiff1d(np.arange(len(image_set)), check_up.offenders)
    root = image_set.source.root.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow(("path", "label", "split"))
    for i in keep:
        c = image_set.labels[i]
        path = os.path.relpath(root / image_set.paths[i], file.parent.resolve())
        rows.writerow((path, image_set.class_names[c], image_set.parts[c].replace("validation", "val")))
    with replacing(file) as stream:
        stream.write(text.getvalue().encode("utf-8", "surrogateescape"))
    return image_set.subset(keep)


def check_list_file(image_set: ImageSet, file: Path) -> None:
    """Raise if a list of these images cannot be written to this file."""
    if not isinstance(image_set.source, FolderSource):
        raise ValueError(
            f"a list requires images that are files in a folder, got {image_set.root}. Write them to a folder first."
        )
    if file.suffix.lower() != ".csv" or file.is_dir():
        raise ValueError(f"the list must be a .csv file, got {file}. Choose another name.")
    if file.exists() and image_set.root.exists() and file.samefile(image_set.root):
        raise ValueError(f"the list must not overwrite the input list, got {file}. Choose another name.")
    if file.is_file() and not file.read_bytes()[:200].lstrip(b"\xef\xbb\xbf").lower().startswith(b"path,label"):
        raise ValueError(f"the list must not overwrite a file that is not a list, got {file}. Choose another name.")


def _summarize(source: Source, path: str) -> _ImageSummary:
    """Decode an image and return its properties."""
    import imagehash

    try:
        image = load_rgb(source, path)
    except ImageError as error:
        return _ImageSummary(str(error))
    return _ImageSummary(
        size=image.size,
        flat=all(low == high for low, high in image.getextrema()),  # type: ignore[misc]
        pixels=blake2b(image.tobytes(), digest_size=16, salt=repr(image.size).encode()[:16]).digest(),
        phash=np.packbits(imagehash.phash(image).hash.ravel()).tobytes(),
        thumb=np.asarray(image.resize((THUMB, THUMB), Image.Resampling.BOX), dtype=np.uint8),
    )


def _bad_images(image_set: ImageSet, summaries: Sequence[_ImageSummary]) -> Iterator[Finding]:
    found: dict[tuple[str, str, str], list[int]] = {}  # severity, kind, text -> images
    for i, summary in enumerate(summaries):
        if summary.reason:
            kind = "truncated" if summary.reason == "truncated" else "unreadable"
            found.setdefault((SERIOUS, kind, summary.reason), []).append(i)
        elif summary.flat:
            found.setdefault((SERIOUS, "single color", "single color"), []).append(i)
        if not summary.reason and min(summary.size) < TINY:
            found.setdefault((NOTE, "tiny", f"side below {TINY} pixels"), []).append(i)
    for (severity, kind, text), images in sorted(found.items()):
        others = " and others" if len(images) > 1 else ""
        message = f"{_count(len(images), 'image')} ({text}): {_printable(image_set.paths[images[0]])}{others}"
        yield Finding(kind, severity, message, images, images)


def _near_duplicates(summaries: Sequence[_ImageSummary], unique: list[int], near: int) -> list[list[int]]:
    """Group images linked by near-duplicate pairs; `unique` has one image from each set of exact duplicates."""
    if len(unique) < 2:
        return []
    import faiss
    from scipy.cluster.hierarchy import DisjointSet

    codes = np.frombuffer(b"".join(summaries[i].phash for i in unique), dtype=np.uint8).reshape(-1, 8)
    thumbs = np.stack([summaries[i].thumb for i in unique])  # type: ignore[misc]
    index = faiss.IndexBinaryFlat(64)
    index.add(codes)
    groups = DisjointSet(range(len(unique)))
    # Search in blocks, and compare thumbnails only with images that are not in the same group yet.
    for start in range(0, len(codes), 256):
        limits, _, found = index.range_search(codes[start : start + 256], near + 1)
        for a, (low, high) in enumerate(zip(limits[:-1].tolist(), limits[1:].tolist(), strict=True), start):
            others = np.array([b for b in found[low:high].tolist() if b > a and not groups.connected(a, b)], dtype=np.int64)
            for at in range(0, len(others), 1024):
                block = others[at : at + 1024]
                for b in block[_look_alike(thumbs[a], thumbs[block])].tolist():
                    groups.merge(a, b)
    return sorted(sorted(unique[k] for k in group) for group in groups.subsets())


def _look_alike(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which thumbnails b have a small difference from a and a high correlation with it.

    The difference alone would match images with the same background, such as two small birds in a gray sky.
    """
    x, y, inner = a[None].astype(np.float32), b.astype(np.float32), (1, 2, 3)
    difference = np.abs(x - y).mean(axis=inner)
    x, y = x - x.mean(axis=(1, 2), keepdims=True), y - y.mean(axis=(1, 2), keepdims=True)  # remove the mean color
    scale = np.sqrt((x * x).sum(axis=inner) * (y * y).sum(axis=inner))
    alike: NDArray[np.bool_] = (difference <= ALIKE) & ((x * y).sum(axis=inner) >= CORRELATED * scale)
    return alike


def _duplicates(image_set: ImageSet, groups: list[list[int]], kind: str, what: str, bad: set[int]) -> Iterator[Finding]:
    """Report groups of duplicates by severity: across the split, across classes, within a class."""
    places: dict[str, list[list[int]]] = {"across the split": [], "across classes": [], "within a class": []}
    for group in groups:
        classes = set(image_set.labels[group].tolist())
        if len({image_set.parts[c] for c in classes}) > 1:
            places["across the split"].append(group)
        elif len(classes) > 1:
            places["across classes"].append(group)
        elif len(group) > 1:
            places["within a class"].append(group)
    for place, found in places.items():
        if not found:
            continue
        within = place == "within a class"
        images = [i for group in found for i in group]
        # within a class keep one image, a good one if possible; otherwise the correct label is unknown, so drop all
        stay = {next((i for i in group if i not in bad), group[0]) for group in found} if within else set()
        shown = " and ".join(image_set.paths[i] for i in found[0][:2])
        counts = f"{_count(len(found), 'group')}, {_count(len(images), 'image')}"
        text = f"{counts} with {what} {place}, such as {_printable(shown)}"
        yield Finding(f"{kind} {place}", NOTE if within else SERIOUS, text, images, [i for i in images if i not in stay])


def _name_leaks(image_set: ImageSet) -> Iterator[Finding]:
    """Report classes with nearly the same name in different parts of the split, most likely a leak."""
    rank = [PARTS.index(part) for part in image_set.parts]
    groups = group_by_name(np.unique(image_set.labels), image_set.class_names)
    leaks = [group for group in groups if len({rank[c] for c in group}) > 1]
    if not leaks:
        return
    classes = [c for group in leaks for c in group]
    trained = [c for group in leaks for c in group if rank[c] < max(rank[other] for other in group)]  # others are evaluated
    images, offenders = (np.flatnonzero(np.isin(image_set.labels, some)).tolist() for some in (classes, trained))
    shown = ", ".join(f"{image_set.class_names[c]!r} ({image_set.parts[c]})" for c in leaks[0])
    text = f"{_count(len(leaks), 'group')} of names that differ only in {NAME_VARIATION}, such as {shown}; merge or rename them"
    yield Finding("class names across the split", SERIOUS, text, images, offenders)


def _class_sizes(image_set: ImageSet) -> Iterator[Finding]:
    sizes = np.bincount(image_set.labels, minlength=len(image_set.class_names))
    single = np.flatnonzero(sizes == 1)
    if len(single):
        images = np.flatnonzero(np.isin(image_set.labels, single)).tolist()
        text = f"{len(single):,} with one image and no positive pair: {_printable(image_set.class_names[single[0]])}"
        yield Finding("small classes", NOTE, text, images)
    if len(image_set):
        present = sizes[sizes > 0]
        text = f"{present.min():,} to {present.max():,} images per class, median {np.median(present):g}"
        yield Finding("class sizes", NOTE, text)


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def _printable(name: str) -> str:
    """Escape control characters and undecodable bytes of a name for a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in name)

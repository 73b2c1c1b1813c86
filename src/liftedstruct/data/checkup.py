"""A check-up of a data set: what would spoil a training or flatter a score, in plain words.

Every image is decoded once. Exact duplicates have the same pixels. Near duplicates have perceptual hashes (``imagehash.phash``,
64 bits) that differ in few bits **and** small thumbnails that look alike; the hash alone takes many products on white for one.
A duplicate within a class is only waste; one across classes is a wrong label; one across the train/test split is a leak, and
the score that it flatters is worthless. Classes on both sides of the split whose names differ only in case, blanks or Unicode
form are most likely a leak, too.
"""

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from liftedstruct.data import FolderSource, ImageSet, Source
from liftedstruct.data.class_names import SMALL_DIFFERENCES, group_by_name
from liftedstruct.data.decoding import ImageError, load_rgb
from liftedstruct.runtime.atomic import replacing
from liftedstruct.runtime.checks import check_count
from liftedstruct.runtime.progress import Bar

__all__ = ["CheckUp", "Finding", "check_list_file", "examine", "write_fixed_list"]

THUMB = 16  # pixels a side of the thumbnails that near duplicates are compared by
ALIKE = 6.0  # mean difference of two thumbnails, of 255: a re-encoded or resized copy has about 1, another photo 20 and more
CORRELATED = 0.9  # and their correlation

SERIOUS, NOTE = "serious", "note"


@dataclass(frozen=True)
class Finding:
    """One thing found, and the images that it concerns."""

    kind: str
    severity: str  # "serious": do not train before it is mended; "note": good to know
    message: str
    images: tuple[int, ...] = ()  # numbers in the image set
    offenders: tuple[int, ...] = ()  # those of them that a list without the trouble leaves out


@dataclass(frozen=True)
class CheckUp:
    """What :func:`examine` found in a data set."""

    name: str
    root: str
    n_images: int
    n_classes: int
    findings: tuple[Finding, ...]

    @property
    def serious(self) -> bool:
        """Whether anything was found that should stop a training."""
        return any(finding.severity == SERIOUS for finding in self.findings)

    @property
    def offenders(self) -> tuple[int, ...]:
        """All images that a fixed list leaves out."""
        return tuple(sorted({i for finding in self.findings for i in finding.offenders}))

    def to_json(self, image_set: ImageSet) -> str:
        """The check-up for machines: every image by its path, and all that the reader missed."""
        paths = image_set.paths
        findings = [
            {
                **asdict(finding),
                "images": [paths[i] for i in finding.images],
                "offenders": [paths[i] for i in finding.offenders],
            }
            for finding in self.findings
        ]
        lists = {"missing": image_set.missing, "extra": image_set.extra}
        return json.dumps({**asdict(self), "serious": self.serious, "findings": findings, **lists}, indent=2)

    def __str__(self) -> str:
        lines = [f"{self.name} at {_one_line(self.root)}: {self.n_images:,} images of {self.n_classes:,} classes", ""]
        width = max((len(finding.kind) for finding in self.findings), default=0)
        lines += [f"  {finding.severity:<8} {finding.kind:<{width}}  {finding.message}" for finding in self.findings]
        n = sum(finding.severity == SERIOUS for finding in self.findings)
        lines += ["", "Nothing serious was found." if not n else f"{n} serious {'matter' if n == 1 else 'matters'}."]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Look:
    """What one decoding of one image says about it."""

    reason: str = ""  # why it cannot be used, or empty
    size: tuple[int, int] = (0, 0)
    flat: bool = False
    pixels: bytes = b""
    hash: int = 0
    thumb: NDArray[np.uint8] | None = None


def examine(
    image_set: ImageSet, *, near: int = 10, tiny: int = 32, workers: int | None = None, progress: bool = True
) -> CheckUp:
    """Decode every image and say what is wrong with the data set.

    Args:
        image_set: what ``read_images`` returned.
        near: bits by which the 64-bit perceptual hashes of near duplicates may differ; 0 to 16.
        tiny: an image with a side below this many pixels is noted.
        workers: threads; by default as many as there are cores.
        progress: show a progress bar.
    """
    check_count("tiny", tiny), check_count("near", near, 0)
    if near > 16:
        raise ValueError(f"near must be at most 16 of the 64 bits, got {near}: unrelated images differ by about 32. Try 10.")
    looks = list(_look_at_all(image_set, check_count("workers", workers or os.cpu_count() or 1), progress))
    poor = [*_unusable(image_set, looks), *_poor(image_set, looks, tiny)]
    bad = {i for finding in poor for i in finding.offenders}  # a good copy of a bad image is worth keeping
    findings = [
        *(Finding("incomplete", NOTE, warning) for warning in image_set.warnings),
        *poor,
        *_duplicates(image_set, _same_pixels(looks), "exact duplicates", "the same pixels", bad),
        *_duplicates(image_set, _alike(looks, near), "near duplicates", "nearly the same picture", bad),
        *_names(image_set),
        *_classes(image_set, looks),
    ]
    order = {SERIOUS: 0, NOTE: 1}
    findings.sort(key=lambda finding: order[finding.severity])
    used = len(np.unique(image_set.labels))
    return CheckUp(image_set.name, str(image_set.root), len(image_set), used, tuple(findings))


def write_fixed_list(image_set: ImageSet, check_up: CheckUp, file: Path) -> ImageSet:
    """Write a CSV list (path, label, split) without the offenders; the images are not touched.

    A class that is left with fewer than two images stays in the list: it can still be a negative.
    """
    check_list_file(image_set, file)
    assert isinstance(image_set.source, FolderSource)
    keep = np.setdiff1d(np.arange(len(image_set)), check_up.offenders)
    part = [{"validation": "val"}.get(each, each) for each in image_set.parts]
    root = image_set.source.root.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow(("path", "label", "split"))
    for i in keep:
        c = image_set.labels[i]
        path = os.path.relpath(root / image_set.paths[i], file.parent.resolve())
        rows.writerow((path, image_set.class_names[c], part[c]))
    with replacing(file) as stream:
        stream.write(text.getvalue().encode("utf-8", "surrogateescape"))
    return image_set.subset(keep)


def check_list_file(image_set: ImageSet, file: Path) -> None:
    """Whether a list of these images can be written to this file, found out before the work."""
    if not isinstance(image_set.source, FolderSource):
        raise ValueError(
            f"a list can be written of images that are files, those of {image_set.root} are not. Make a folder of them."
        )
    if file.suffix.lower() != ".csv" or file.is_dir():
        raise ValueError(f"a list must be a .csv file, got {file}. Give it another name.")
    if file.exists() and image_set.root.exists() and file.samefile(image_set.root):
        raise ValueError(f"a list must not replace the one that was read, got {file}. Give it another name.")
    if file.is_file() and not file.read_bytes()[:200].lstrip(b"\xef\xbb\xbf").lower().startswith(b"path,label"):
        raise ValueError(f"a list must not replace another kind of file, {file} is one. Give it another name.")


def _look_at_all(image_set: ImageSet, workers: int, progress: bool) -> Iterator[_Look]:
    with ThreadPoolExecutor(workers) as pool:
        looks: Iterable[_Look] = pool.map(lambda path: _look_at(image_set.source, path), image_set.paths)
        with Bar("doctor", len(image_set), wanted=progress) as bar:
            for look in looks:
                bar.advance()
                yield look


def _look_at(source: Source, path: str) -> _Look:
    import imagehash

    truncated = ""
    try:
        image = load_rgb(source, path)
    except ImageError as error:
        if str(error) != "truncated":
            return _Look(str(error))
        truncated = str(error)
        try:
            image = load_rgb(source, path, tolerate_truncated=True)
        except ImageError as worse:
            return _Look(str(worse))
    bits = imagehash.phash(image).hash.ravel()
    return _Look(
        reason=truncated,
        size=image.size,
        flat=all(low == high for low, high in image.getextrema()),  # type: ignore[misc]
        pixels=blake2b(image.tobytes(), digest_size=16, salt=repr(image.size).encode()[:16]).digest(),
        hash=int.from_bytes(np.packbits(bits).tobytes(), "big"),
        thumb=np.asarray(image.resize((THUMB, THUMB), Image.Resampling.BOX), dtype=np.uint8),
    )


def _unusable(image_set: ImageSet, looks: Sequence[_Look]) -> Iterator[Finding]:
    reasons: dict[str, list[int]] = {}
    for i, look in enumerate(looks):
        if look.reason:
            reasons.setdefault(look.reason, []).append(i)
    for reason, images in sorted(reasons.items()):
        kind = "truncated" if reason.startswith("truncated") else "unreadable"
        yield Finding(kind, SERIOUS, f"{_count(images)} {reason}: {_first(image_set, images)}", tuple(images), tuple(images))


def _poor(image_set: ImageSet, looks: Sequence[_Look], tiny: int) -> Iterator[Finding]:
    flat = [i for i, look in enumerate(looks) if look.flat and not look.reason]
    if flat:
        yield Finding(
            "one colour", SERIOUS, f"{_count(flat)} of a single colour: {_first(image_set, flat)}", tuple(flat), tuple(flat)
        )
    small = [i for i, look in enumerate(looks) if not look.reason and min(look.size) < tiny]
    if small:
        text = f"{_count(small)} with a side below {tiny} pixels: {_first(image_set, small)}"
        yield Finding("tiny", NOTE, text, tuple(small), tuple(small))


def _same_pixels(looks: Sequence[_Look]) -> list[list[int]]:
    groups: dict[bytes, list[int]] = {}
    for i, look in enumerate(looks):
        if look.pixels and not look.flat:
            groups.setdefault(look.pixels, []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def _alike(looks: Sequence[_Look], near: int) -> list[list[int]]:
    """Groups of images that are linked by near-duplicate pairs, one image for each set of exact duplicates."""
    import faiss

    first: dict[bytes, int] = {}
    for i, look in enumerate(looks):
        if look.pixels and not look.flat:
            first.setdefault(look.pixels, i)
    numbers = np.array(sorted(first.values()), dtype=np.int64)
    if len(numbers) < 2:
        return []
    codes = np.frombuffer(b"".join(looks[i].hash.to_bytes(8, "big") for i in numbers), dtype=np.uint8).reshape(-1, 8)
    thumbs = np.stack([look.thumb for look in (looks[i] for i in numbers) if look.thumb is not None])
    index = faiss.IndexBinaryFlat(64)
    index.add(codes)
    leader = list(range(len(numbers)))

    def lead(a: int) -> int:
        while leader[a] != a:
            leader[a] = a = leader[leader[a]]
        return a

    # Queries go in blocks, and a query whose group is known already only looks for those that are not in it yet.
    for start in range(0, len(codes), 256):
        limits, _, found = index.range_search(codes[start : start + 256], near + 1)
        for a, (low, high) in enumerate(zip(limits[:-1].tolist(), limits[1:].tolist(), strict=True), start):
            mine = lead(a)
            others = [b for b in found[low:high].tolist() if b > a and lead(b) != mine]
            for at in range(0, len(others), 1024):
                b = np.array(others[at : at + 1024])
                close = _look_alike(np.broadcast_to(thumbs[a], (len(b), *thumbs.shape[1:])), thumbs[b])
                for other in b[close].tolist():
                    leader[lead(other)] = mine
    groups: dict[int, list[int]] = {}
    for member, number in enumerate(numbers.tolist()):
        groups.setdefault(lead(member), []).append(number)
    return [group for group in groups.values() if len(group) > 1]


def _look_alike(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Pairs of thumbnails that differ little, and little of what there is to see: two small birds in one grey sky do not."""
    x, y, inner = a.astype(np.float32), b.astype(np.float32), (1, 2, 3)
    difference = np.abs(x - y).mean(axis=inner)
    x, y = x - x.mean(axis=(1, 2), keepdims=True), y - y.mean(axis=(1, 2), keepdims=True)  # without the colour of the sky
    scale = np.sqrt((x * x).sum(axis=inner) * (y * y).sum(axis=inner))
    alike: NDArray[np.bool_] = (difference <= ALIKE) & ((x * y).sum(axis=inner) >= CORRELATED * scale)
    return alike


def _duplicates(image_set: ImageSet, groups: list[list[int]], kind: str, what: str, bad: set[int]) -> Iterator[Finding]:
    """Sort groups of duplicates by what they spoil."""
    part = np.zeros(len(image_set), dtype=np.int64)
    part[image_set.validation], part[image_set.test] = 1, 2
    within: list[list[int]] = []
    across: list[list[int]] = []
    leaks: list[list[int]] = []
    for group in groups:
        of = part[group]
        if len(set(of)) > 1:
            leaks.append(group)
        elif len(set(image_set.labels[group])) > 1:
            across.append(group)
        else:
            within.append(group)
    for place, severity, some in (
        ("across the split", SERIOUS, leaks),
        ("across classes", SERIOUS, across),
        ("within a class", NOTE, within),
    ):
        if not some:
            continue
        images = tuple(i for group in some for i in group)
        # within a class all but the first go; elsewhere nobody knows which label is right, so all of them go
        offenders = tuple(i for group in some for i in (_all_but_one(group, bad) if some is within else group))
        where = "group" if len(some) == 1 else "groups"
        shown = " and ".join(image_set.paths[i] for i in some[0][:2])
        text = f"{len(some):,} {where}, {_count(images)} with {what} {place}, such as {_one_line(shown)}"
        yield Finding(f"{kind} {place}", severity, text, images, offenders)


def _all_but_one(group: list[int], bad: set[int]) -> list[int]:
    """The copies that can go: one that has nothing else against it stays."""
    stays = next((i for i in group if i not in bad), group[0])
    return [i for i in group if i != stays]


def _names(image_set: ImageSet) -> Iterator[Finding]:
    """Classes of nearly the same name in different parts of the split: most likely one class, and a leak."""
    rank = [("train", "validation", "test").index(part) for part in image_set.parts]
    groups = group_by_name(np.unique(image_set.labels), image_set.class_names)
    leaks = [group for group in groups if len({rank[c] for c in group}) > 1]
    if not leaks:
        return
    classes = [c for group in leaks for c in group]
    trained = [c for group in leaks for c in group if rank[c] < max(rank[other] for other in group)]  # the others are measured
    images, offenders = (np.flatnonzero(np.isin(image_set.labels, some)).tolist() for some in (classes, trained))
    shown = ", ".join(f"{image_set.class_names[c]!r} ({image_set.parts[c]})" for c in leaks[0])
    count = f"{len(leaks):,} {'group' if len(leaks) == 1 else 'groups'}"
    text = f"{count} of names that differ only in {SMALL_DIFFERENCES}, such as {shown}; merge or rename them"
    yield Finding("class names across the split", SERIOUS, text, tuple(images), tuple(offenders))


def _classes(image_set: ImageSet, looks: Sequence[_Look]) -> Iterator[Finding]:
    sizes = np.bincount(image_set.labels, minlength=len(image_set.class_names))
    present = sizes[sizes > 0]
    single = np.flatnonzero(sizes == 1)
    if len(single):
        images = tuple(np.flatnonzero(np.isin(image_set.labels, single)).tolist())
        text = f"{len(single):,} with one image, which has no positive pair: {_one_line(image_set.class_names[single[0]])}"
        yield Finding("small classes", NOTE, text, images)
    if len(present):
        text = f"{present.min():,} to {present.max():,} images, {np.median(present):g} in the middle"
        yield Finding("class sizes", NOTE, text)
        if present.max() > 50 * np.median(present):
            largest = _one_line(image_set.class_names[int(sizes.argmax())])
            yield Finding("unbalanced", NOTE, f"{largest} has {present.max():,} images, 50 times the middle")
    shapes = {look.size for look in looks if not look.reason}
    if len(shapes) > 1:
        low, high = min(shapes, key=lambda s: s[0] * s[1]), max(shapes, key=lambda s: s[0] * s[1])
        yield Finding("mixed sizes", NOTE, f"{len(shapes):,} of them, {low[0]} x {low[1]} to {high[0]} x {high[1]} pixels")


def _count(images: Sequence[int]) -> str:
    return f"{len(images):,} {'image' if len(images) == 1 else 'images'}"


def _first(image_set: ImageSet, images: Sequence[int]) -> str:
    return _one_line(image_set.paths[images[0]]) + (" and others" if len(images) > 1 else "")


def _one_line(name: str) -> str:
    """A name as it can stand in a line: control characters and broken bytes are shown, not sent to the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in name)

"""Making a prepared dataset: every image is decoded once, in parallel, and a prepare that was interrupted resumes.

Rows are appended to ``images.npy.part`` in the order of the images. Every few seconds the rows are synced to the disk, then
``progress.json`` is replaced by a record of how many images are done; on resuming, rows beyond that record are cut off.
``meta.json`` is written last: a folder that has it holds a complete dataset.
"""

import errno
import functools
import hashlib
import json
import shutil
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from liftedstruct.data.decoding import RESIZE_MODES, ImageError, SourceError, content_hash, decode, is_transient
from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.packed import (
    CONTENTS,
    DEFAULT_SIZE,
    FORMAT,
    IMAGES,
    LABELS,
    META,
    PATHS,
    PROGRESS,
    VERSION,
    PackedImages,
    read_record,
)
from liftedstruct.data.sources import Source
from liftedstruct.runtime.atomic import is_temporary, locked, replacing, sync, sync_folder, write_json
from liftedstruct.runtime.checks import check_count, pick
from liftedstruct.runtime.limits import available_cores
from liftedstruct.runtime.progress import Bar, say

__all__ = ["OtherDatasetError", "prepare"]

PART, CONTENTS_PART = "images.npy.part", "contents.part"  # there while a prepare is unfinished
LOCK = "prepare.lock"  # there while one runs
HEADER = 128  # bytes before the first pixel: the .npy header, which is written at the end
CHUNK = 16  # images per thread that are decoded before they are written
SYNC_SECONDS = 2.0  # a kill costs about as much work
BAD_IMAGES = dict.fromkeys(("list", "stop"))
CHANGES = {  # part of the plan -> what to say when it differs
    "paths": "the list of images changed",
    "classes": "the labels or class names changed",
    "split": "the split into training, validation and test classes changed",
    "files": "image files changed (their sizes or times), or are missing now",
}
Json = dict[str, Any]


def prepare(
    image_set: ImageSet,
    folder: str | Path,
    *,
    size: int = DEFAULT_SIZE,
    resize_mode: str = "squash",
    bad_images: Literal["list", "stop"] = "list",
    workers: int | None = None,
    progress: bool = True,
    force: bool = False,
) -> PackedImages:
    """Decode every image once into a folder; does nothing if that is done, resumes if it was interrupted.

    Whether it is done is told by names, sizes and times of the image files, labels and settings (their digest is the checksum
    of the dataset), not by the bytes of the files. A source that fails meanwhile (a disk, a network) stops it with an
    OSError, and the next run resumes.

    Args:
        image_set: The images, their classes and split; all parts of the split are prepared.
        folder: Output folder; new, empty, or of an earlier prepare.
        size: Side of the prepared images.
        resize_mode: How a rectangle becomes a square: ``squash``, ``letterbox`` (white around) or ``trim-letterbox`` (the white
            border is removed first).
        bad_images: Leave unreadable images out and ``list`` them, or ``stop`` at the first.
        workers: Threads that decode; default: one per core.
        progress: Show progress, on a terminal or as lines of text.
        force: Start from scratch, whatever an earlier prepare left in the folder. A complete dataset is replaced when the new
            one is decoded.

    """
    folder, n = Path(folder), len(image_set)
    pick(RESIZE_MODES, resize_mode, "resize_mode")
    pick(BAD_IMAGES, bad_images, "bad_images")
    size, workers = check_count("size", size), check_count("workers", available_cores() if workers is None else workers)
    if n == 0:
        raise ValueError(f"an image set must have images to be prepared, {image_set.root} has none. Check the path.")
    fingerprints = [_fingerprint(image_set.source, path) for path in image_set.paths]
    plan = _plan(image_set, size, resize_mode, fingerprints)
    start: Json = {"format": FORMAT, "version": VERSION, "plan": plan, "bad_images": bad_images}
    start |= {"processed": 0, "left_out": []}  # pairs of an image's number and the reason
    if not force and _matches(read_record(folder / META), start):
        packed = PackedImages(folder)
        if progress:
            say(f"{folder} already holds these {len(packed):,} images, nothing to do")
        return packed
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"{folder} must be a folder, there is a file of that name. Choose another.") from error
    with locked(folder / LOCK, "prepare"):
        if not force and _matches(read_record(folder / META), start):  # another process has just finished it
            return PackedImages(folder)
        try:
            record = (None if force else _resumed(folder, start)) or _begun(folder, start, force)
            record = _decode_all(image_set, folder, record, fingerprints, workers, progress)
            _finish(image_set, folder, record)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise OSError(f"the disk of {folder} is full. Make room and run it again, it resumes where it stopped.") from error
    if record["left_out"]:
        i, reason = record["left_out"][0]
        say(
            f"warning: {len(record['left_out']):,} of {n:,} images are left out and listed in {folder / META}; "
            f"the first is {image_set.paths[i]!r}: {reason}"
        )
    return PackedImages(folder)


class OtherDatasetError(ValueError):
    """A folder that holds a dataset of other sources or settings; ``what`` says what differs."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. Choose another folder, or replace it with force=True (--force).")
        self.what = what


def _source_gone(path: str, reason: object) -> OSError:
    return OSError(
        f"the source of the images must stay readable, {path!r} is not: {reason}. "
        "Check its disk or connection and run it again, it resumes from there."
    )


def _plan(image_set: ImageSet, size: int, resize_mode: str, fingerprints: list[str]) -> Json:
    """All that the result depends on, as short values and digests; the folder that the images are in is no part of it."""
    return {
        "name": image_set.name,
        "size": size,
        "resize_mode": resize_mode,
        "images": len(image_set),
        "paths": _digest(image_set.paths),
        "classes": _digest([image_set.labels.tolist(), image_set.class_names, image_set.super_classes]),
        "split": _digest([image_set.test_classes.tolist(), image_set.validation_classes.tolist()]),
        "files": _digest(fingerprints),
    }


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()


def _fingerprint(source: Source, path: str) -> str:
    try:
        return source.fingerprint(path)
    except Exception as error:
        if is_transient(error):
            raise _source_gone(path, error) from error
        gone = isinstance(error, FileNotFoundError | NotADirectoryError)
        return "missing" if gone else type(error).__name__  # decoding says what is wrong


def _differences(record: Json, start: Json) -> list[str]:
    """What keeps an earlier prepare from being the one that starts now."""
    if record["version"] != start["version"]:
        return [f"its version is {record['version']}, not {start['version']}"]
    old, new = record["plan"], start["plan"]
    keys = ("name", "size", "resize_mode", "images")
    found = [f"{key} is {old[key]!r}, not {new[key]!r}" for key in keys if old[key] != new[key]]
    found += [text for key, text in CHANGES.items() if old[key] != new[key]]
    if record["bad_images"] != start["bad_images"] and record["left_out"]:  # without any, no matter
        found.append(f"bad_images is {record['bad_images']!r}, not {start['bad_images']!r}")
    return found


def _matches(record: Json | None, start: Json) -> bool:
    return record is not None and not _differences(record, start)


def _resumed(folder: Path, start: Json) -> Json | None:
    """The record of an interrupted prepare of the same images and settings, if its rows are there."""
    record = read_record(folder / PROGRESS)
    if record is None or not _matches(record, start):
        return None
    if not any((folder / name).exists() for name in (META, PART)) and (folder / IMAGES).exists():
        (folder / IMAGES).replace(folder / PART)  # it was killed between the last two renames
    rows, row_bytes = record["processed"] - len(record["left_out"]), 3 * record["plan"]["size"] ** 2
    whole = _length(folder / PART) >= HEADER + rows * row_bytes and _length(folder / CONTENTS_PART) >= 8 * rows
    return record | {"bad_images": start["bad_images"]} if whole else None


def _begun(folder: Path, start: Json, force: bool) -> Json:
    """Begin from scratch; refuses a folder of other files, one of another prepare unless forced, and a disk without room."""
    earlier = read_record(folder / META) or read_record(folder / PROGRESS)
    others = sorted(each.name for each in folder.iterdir() if each.name != LOCK and not is_temporary(each.name))
    if others and earlier is None:
        raise ValueError(
            f"{folder} must be empty or of an earlier prepare, it holds {others[0]!r} ({len(others)} in all). Choose another."
        )
    if earlier and earlier["processed"] and not force and (differences := _differences(earlier, start)):
        kind = "a dataset" if (folder / META).exists() else "an interrupted prepare"
        raise OtherDatasetError(f"{folder} holds {kind} of other sources or settings: {'; '.join(differences)}")
    images, size = start["plan"]["images"], start["plan"]["size"]
    needed = HEADER + images * (3 * size**2 + 300) + 2**20  # the lists take a little
    free = shutil.disk_usage(folder).free + _length(folder / PART)
    if free < needed:
        raise OSError(
            f"the disk of {folder} must have {needed / 1e9:,.2f} GB free, it has {free / 1e9:,.2f} GB. "
            "Make room, or choose a smaller size."
        )
    write_json(folder / PROGRESS, start)
    return start


def _length(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _decode_all(image_set: ImageSet, folder: Path, record: Json, fingerprints: list[str], workers: int, progress: bool) -> Json:
    """Decode from where the record is, append row by row in the order of the images, and keep the record up to date."""
    n, plan, synced = len(image_set), record["plan"], time.monotonic()
    decode_one = functools.partial(_decode_one, image_set.source, size=plan["size"], resize_mode=plan["resize_mode"])
    done, left_out = record["processed"], list(record["left_out"])
    rows = done - len(left_out)
    with (
        _open_at(folder / PART, HEADER + rows * 3 * plan["size"] ** 2) as images,
        _open_at(folder / CONTENTS_PART, 8 * rows) as contents,
        warnings.catch_warnings(action="ignore"),
        ThreadPoolExecutor(workers, "decode") as pool,
        Bar("prepare", n, done, progress) as bar,
    ):
        while done < n:
            chunk = range(done, min(n, done + CHUNK * workers))
            for i, decoded in zip(chunk, pool.map(decode_one, [image_set.paths[i] for i in chunk]), strict=True):
                pixels, content, reason = decoded
                if reason == "missing" and fingerprints[i] != "missing":
                    raise _source_gone(image_set.paths[i], reason)
                if pixels is None and record["bad_images"] == "stop":
                    where = f"{image_set.paths[i]!r} is not: {reason}"
                    raise ValueError(f"every image must be readable, {where}. Fix it, or pass bad_images='list'.")
                if pixels is None:
                    left_out.append((i, reason))
                else:
                    images.write(pixels.data)
                    contents.write(content.to_bytes(8, "little"))
                bar.advance()
            done = chunk.stop
            if done == n or time.monotonic() - synced > SYNC_SECONDS:
                for file in (images, contents):
                    file.flush()
                    sync(file.fileno())
                record = record | {"processed": done, "left_out": left_out}
                write_json(folder / PROGRESS, record)
                synced = time.monotonic()
    return record


def _open_at(file: Path, length: int) -> BinaryIO:
    """A file to append to, cut to a length; a new one is filled with zeros up to there."""
    file.touch()
    stream = file.open("r+b")
    stream.truncate(length)
    stream.seek(length)
    return stream


def _decode_one(source: Source, path: str, size: int, resize_mode: str) -> tuple[NDArray[np.uint8] | None, int, str]:
    """Pixels and the hash of the file, or the reason why there are none."""
    try:
        return decode(source, path, size, resize_mode), content_hash(source, path), ""
    except SourceError as error:
        raise _source_gone(path, error) from error
    except ImageError as error:
        return None, 0, str(error)


def _finish(image_set: ImageSet, folder: Path, record: Json) -> None:
    """Everything but ``meta.json`` to the disk, then that: the moment from which the dataset is complete."""
    size, left_out = record["plan"]["size"], record["left_out"]
    kept = np.setdiff1d(np.arange(len(image_set)), [i for i, _ in left_out])
    if 2 * len(kept) < len(image_set):
        for name in (PART, CONTENTS_PART, PROGRESS):
            (folder / name).unlink()
        i, reason = left_out[0]
        raise ValueError(
            f"at least half of the images must be readable, {len(left_out):,} of {len(image_set):,} are not; the first is "
            f"{image_set.paths[i]!r}: {reason}. List them all with liftedstruct check --json."
        )
    (folder / META).unlink(missing_ok=True)  # of the dataset that is replaced
    sync_folder(folder)
    with (folder / PART).open("r+b") as file:
        shape = (len(kept), size, size, 3)
        npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        file.flush()
        sync(file.fileno())
    for name, array in ((LABELS, image_set.labels[kept]), (CONTENTS, np.fromfile(folder / CONTENTS_PART, "<u8"))):
        with replacing(folder / name) as file:
            np.save(file, array)
    write_json(folder / PATHS, [image_set.paths[i] for i in kept])
    (folder / PART).replace(folder / IMAGES)
    sync_folder(folder)
    meta = record | {
        "checksum": _digest(record["plan"]),
        "n": len(kept),
        "root": str(image_set.root),
        "class_names": image_set.class_names,
        "super_classes": image_set.super_classes,
        "test_classes": image_set.test_classes.tolist(),
        "validation_classes": image_set.validation_classes.tolist(),
        "left_out": [{"path": image_set.paths[i], "reason": reason} for i, reason in left_out],
    }
    write_json(folder / META, meta)
    for name in (CONTENTS_PART, PROGRESS):
        (folder / name).unlink()

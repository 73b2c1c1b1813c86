"""Prepare a dataset: decode every image once, in parallel, and resume after an interruption.

Rows are appended to `images.npy.part` in the order of the images. Every few seconds, a background thread syncs the rows to
disk, then replaces `progress.json` with a record of how many images are done. On resume, rows beyond that record are
truncated. `meta.json` is written last, so a folder that contains it is complete.
"""

import errno
import functools
import hashlib
import json
import shutil
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
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
from liftedstruct.runtime.threads import map_ahead

__all__ = ["OtherDatasetError", "prepare"]

PART, CONTENTS_PART = "images.npy.part", "contents.part"  # exist while prepare is unfinished
LOCK = "prepare.lock"  # exists while prepare runs
HEADER = 128  # bytes before the first pixel, for the .npy header, which is written at the end
CHUNK = 16  # images per thread that are decoded ahead of writing
SYNC_SECONDS = 2.0  # between syncs; a killed process loses at most about this much work plus the duration of one sync
BAD_IMAGES = dict.fromkeys(("list", "stop"))
CHANGES = {  # key of the plan -> message if it differs
    "paths": "the list of images changed",
    "classes": "the labels or class names changed",
    "split": "the split into training, validation and test classes changed",
    "files": "image files changed (size or mtime), or are missing now",
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
    """Decode every image once into a folder. Do nothing if that is already done, and resume if it was interrupted.

    To decide whether it is done, `prepare` compares the names, sizes and mtimes of the image files, the labels and the
    settings (their digest is the checksum of the dataset), not the bytes of the files. If the disk or network that holds
    the images fails, it raises an OSError, and the next call resumes.

    Args:
        image_set: Images, classes and split; all parts of the split are prepared.
        folder: Output folder: new, empty, or written by an earlier prepare.
        size: Side length of the prepared images in pixels.
        resize_mode: How a rectangular image becomes a square: `squash` (ignore the aspect ratio), `letterbox` (pad with white)
            or `trim-letterbox` (trim the white border first).
        bad_images: `list` to leave out unreadable images and list them, `stop` to raise at the first one.
        workers: Number of decoding threads; default: one per core.
        progress: Show a progress bar in a terminal, or print lines elsewhere.
        force: Start from scratch and replace the result of an earlier prepare. A complete dataset is kept until the new one
            is decoded.

    """
    folder, n = Path(folder), len(image_set)
    pick(RESIZE_MODES, resize_mode, "resize_mode")
    pick(BAD_IMAGES, bad_images, "bad_images")
    size, workers = check_count("size", size), check_count("workers", available_cores() if workers is None else workers)
    if n == 0:
        raise ValueError(f"image_set must have at least one image, got none in {image_set.root}. Check the path.")
    fingerprints = [_fingerprint(image_set.source, path) for path in image_set.paths]
    plan = _plan(image_set, size, resize_mode, fingerprints)
    start: Json = {"format": FORMAT, "version": VERSION, "plan": plan, "bad_images": bad_images}
    start |= {"processed": 0, "left_out": []}  # pairs of image index and reason
    if not force and _matches(read_record(folder / META), start):
        packed = PackedImages(folder)
        if progress:
            say(f"{folder} already contains these {len(packed):,} images, nothing to do")
        return packed
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"{folder} must be a folder, got an existing file. Choose another folder.") from error
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
            raise OSError(f"the disk of {folder} is full. Free some space and run prepare again to resume.") from error
    if record["left_out"]:
        i, reason = record["left_out"][0]
        say(
            f"warning: {len(record['left_out']):,} of {n:,} images were left out, listed in {folder / META}; "
            f"the first is {image_set.paths[i]!r}: {reason}"
        )
    return PackedImages(folder)


class OtherDatasetError(ValueError):
    """Error for a folder that contains a dataset with different images or settings; `what` lists the differences."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. Choose another folder, or pass force=True (--force) to replace it.")
        self.what = what


def _source_gone(path: str, reason: object) -> OSError:
    return OSError(
        f"the images must stay readable during prepare, got an error for {path!r}: {reason}. "
        "Check the disk or the connection and run prepare again to resume."
    )


def _plan(image_set: ImageSet, size: int, resize_mode: str, fingerprints: list[str]) -> Json:
    """Return everything the result depends on, as short values and digests. The location of the images is not included."""
    return {
        "name": image_set.name,
        "size": size,
        "resize_mode": resize_mode,
        "images": len(image_set),
        "paths": _digest(image_set.paths),
        "classes": _digest([image_set.labels.tolist(), image_set.class_names, image_set.super_classes]),
        "split": _digest([image_set.test_classes.tolist(), image_set.validation_classes.tolist(), *image_set.queries]),
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
        return "missing" if gone else type(error).__name__  # decoding reports the reason


def _differences(record: Json, start: Json) -> list[str]:
    """List the differences between an earlier prepare and the current one."""
    if record["version"] != start["version"]:
        return [f"version is {record['version']}, not {start['version']}"]
    old, new = record["plan"], start["plan"]
    keys = ("name", "size", "resize_mode", "images")
    found = [f"{key} is {old[key]!r}, not {new[key]!r}" for key in keys if old[key] != new[key]]
    found += [text for key, text in CHANGES.items() if old[key] != new[key]]
    if record["bad_images"] != start["bad_images"] and record["left_out"]:  # without bad images the result is the same
        found.append(f"bad_images is {record['bad_images']!r}, not {start['bad_images']!r}")
    return found


def _matches(record: Json | None, start: Json) -> bool:
    return record is not None and not _differences(record, start)


def _resumed(folder: Path, start: Json) -> Json | None:
    """Return the record of an interrupted prepare of the same images and settings, if its rows exist."""
    record = read_record(folder / PROGRESS)
    if record is None or not _matches(record, start):
        return None
    if not any((folder / name).exists() for name in (META, PART)) and (folder / IMAGES).exists():
        (folder / IMAGES).replace(folder / PART)  # the process was killed between the last two renames
    rows, row_bytes = record["processed"] - len(record["left_out"]), 3 * record["plan"]["size"] ** 2
    whole = _length(folder / PART) >= HEADER + rows * row_bytes and _length(folder / CONTENTS_PART) >= 8 * rows
    return record | {"bad_images": start["bad_images"]} if whole else None


def _begun(folder: Path, start: Json, force: bool) -> Json:
    """Start from scratch.

    Raise if the folder contains other files, if it contains another dataset and `force` is not set, or if the disk has too
    little free space.
    """
    earlier = read_record(folder / META) or read_record(folder / PROGRESS)
    others = sorted(each.name for each in folder.iterdir() if each.name != LOCK and not is_temporary(each.name))
    if others and earlier is None:
        raise ValueError(
            f"{folder} must be empty or written by prepare, got {others[0]!r} in it ({len(others)} in total). Choose another."
        )
    if earlier and earlier["processed"] and not force and (differences := _differences(earlier, start)):
        kind = "a dataset" if (folder / META).exists() else "an interrupted prepare"
        raise OtherDatasetError(f"{folder} contains {kind} with different images or settings: {'; '.join(differences)}")
    images, size = start["plan"]["images"], start["plan"]["size"]
    needed = HEADER + images * (3 * size**2 + 300) + 2**20  # with some room for the lists
    free = shutil.disk_usage(folder).free + _length(folder / PART)
    if free < needed:
        raise OSError(
            f"the disk of {folder} must have {needed / 1e9:,.2f} GB free, got {free / 1e9:,.2f} GB. "
            "Free some space, or choose a smaller size."
        )
    write_json(folder / PROGRESS, start)
    return start


def _length(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _decode_all(image_set: ImageSet, folder: Path, record: Json, fingerprints: list[str], workers: int, progress: bool) -> Json:
    """Decode the images that the record does not include, append their rows in order, and keep the record up to date."""
    n, plan, synced = len(image_set), record["plan"], time.monotonic()
    decode_one = functools.partial(_decode_one, image_set.source, size=plan["size"], resize_mode=plan["resize_mode"])
    done, left_out = record["processed"], list(record["left_out"])
    rows = done - len(left_out)
    with (
        _open_at(folder / PART, HEADER + rows * 3 * plan["size"] ** 2) as images,
        _open_at(folder / CONTENTS_PART, 8 * rows) as contents,
        warnings.catch_warnings(action="ignore"),
        ThreadPoolExecutor(workers, "decode") as pool,
        ThreadPoolExecutor(1, "sync") as syncer,
        Bar("prepare", n, done, progress) as bar,
    ):
        syncing: Future[None] | None = None
        for i, decoded in enumerate(map_ahead(pool, decode_one, image_set.paths[done:], CHUNK * workers), start=done):
            pixels, content, reason = decoded
            if reason == "missing" and fingerprints[i] != "missing":
                raise _source_gone(image_set.paths[i], reason)
            if pixels is None and record["bad_images"] == "stop":
                where = f"{image_set.paths[i]!r}: {reason}"
                raise ValueError(f"every image must be readable, got {where}. Fix it, or pass bad_images='list'.")
            if pixels is None:
                left_out.append((i, reason))
            else:
                images.write(pixels.data)
                contents.write(content.to_bytes(8, "little"))
            bar.advance()
            if i + 1 == n or time.monotonic() - synced > SYNC_SECONDS:
                images.flush()
                contents.flush()
                if syncing is not None:
                    syncing.result()
                record = record | {"processed": i + 1, "left_out": [*left_out]}
                syncing = syncer.submit(_sync, (images, contents), folder, record)
                synced = time.monotonic()
        if syncing is not None:
            syncing.result()
    return record


def _sync(files: tuple[BinaryIO, ...], folder: Path, record: Json) -> None:
    """Sync the rows to disk, then replace the record that counts them."""
    for file in files:
        sync(file.fileno())  # raises if the file was closed meanwhile
    write_json(folder / PROGRESS, record)


def _open_at(file: Path, length: int) -> BinaryIO:
    """Open a file for appending after truncating it, or extending it with zeros, to a length."""
    file.touch()
    stream = file.open("r+b")
    stream.truncate(length)
    stream.seek(length)
    return stream


def _decode_one(source: Source, path: str, size: int, resize_mode: str) -> tuple[NDArray[np.uint8] | None, int, str]:
    """Return pixels, hash of the file, and an empty reason; or None, 0 and the reason why decoding failed."""
    try:
        return decode(source, path, size, resize_mode), content_hash(source, path), ""
    except SourceError as error:
        raise _source_gone(path, error) from error
    except ImageError as error:
        return None, 0, str(error)


def _finish(image_set: ImageSet, folder: Path, record: Json) -> None:
    """Write everything else to disk, then `meta.json`, which marks the dataset as complete."""
    size, left_out = record["plan"]["size"], record["left_out"]
    kept = np.setdiff1d(np.arange(len(image_set)), [i for i, _ in left_out])
    if 2 * len(kept) < len(image_set):
        for name in (PART, CONTENTS_PART, PROGRESS):
            (folder / name).unlink()
        i, reason = left_out[0]
        raise ValueError(
            f"at least half of the images must be readable, got {len(left_out):,} unreadable of {len(image_set):,}; "
            f"the first is {image_set.paths[i]!r}: {reason}. List all of them with liftedstruct check --json."
        )
    (folder / META).unlink(missing_ok=True)  # of the dataset being replaced
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
        "queries": np.flatnonzero(np.isin([image_set.paths[i] for i in kept], image_set.queries)).tolist(),
        "left_out": [{"path": image_set.paths[i], "reason": reason} for i, reason in left_out],
    }
    write_json(folder / META, meta)
    for name in (CONTENTS_PART, PROGRESS):
        (folder / name).unlink()

"""Making a packed set: every image decoded once, in parallel, in an order that a kill or a full disk cannot harm."""

import collections
import errno
import hashlib
import json
import os
import shutil
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from liftedstruct.checks import check_count, pick
from liftedstruct.decoding import FITS, ImageError, decode
from liftedstruct.images.image_set import ImageSet
from liftedstruct.images.sources import Source
from liftedstruct.packed.bar import Bar, say
from liftedstruct.packed.files import (
    HEADER,
    IMAGES,
    LABELS,
    LOCK,
    META,
    PART,
    PATHS,
    PROGRESS,
    VERSION,
    locked,
    npy_header,
    read_record,
    sync_folder,
    write_json,
)
from liftedstruct.packed.packed_images import PackedImages

__all__ = ["BAD_IMAGES", "prepare"]

FLUSH_SECONDS = 0.5  # a kill costs as much work, or twice that; rarer, and the last flush is what one waits for
BAD_IMAGES = {
    "list": "leave them out, and list them",
    "stop": "stop at the first one",
    "tolerate": "keep what there is of truncated ones, leave the others out",
}
CHANGES = {  # part of the plan -> what to say when it is another one
    "paths": "the list of images changed",
    "classes": "the labels or class names changed",
    "split": "the split into training, validation and test classes changed",
    "files": "image files changed (their sizes or times)",
}
Json = dict[str, Any]


def prepare(
    image_set: ImageSet,
    folder: str | Path,
    *,
    size: int = 256,
    fit: str = "resize",
    bad_images: Literal["list", "tolerate", "stop"] = "list",
    workers: int | None = None,
    progress: bool = True,
    force: bool = False,
) -> PackedImages:
    """Decode every image once into a folder, made if absent; does nothing if that is done, goes on if it was interrupted.

    Args:
        image_set: The images, their classes and split; all parts of the split go in.
        folder: Where to; new, empty, or of an earlier prepare.
        size: Side of the packed images.
        fit: How a rectangle becomes a square: ``resize``, ``letterbox`` (white around) or ``trim-letterbox`` (the white
            border off first).
        bad_images: Leave unreadable images out and ``list`` them, also ``tolerate`` truncated ones, or ``stop`` at the first.
        workers: Threads that decode; as many as there are cores if not given.
        progress: Show how far it is, on the terminal or as lines of text.
        force: Make it anew, whatever of an earlier prepare is in the folder.

    """
    folder, n = Path(folder), len(image_set)
    pick(FITS, fit, "fit")
    pick(BAD_IMAGES, bad_images, "bad_images")
    size, workers = check_count("size", size), _cores() if workers is None else check_count("workers", workers)
    if n == 0:
        raise ValueError(f"an image set must have images to be prepared, {image_set.root} has none. Check the path.")
    plan = _plan(image_set, size, fit)
    if not force and _is_finished(folder, plan, bad_images):
        packed = PackedImages(folder)
        if progress:
            say(f"{folder} already holds these {len(packed):,} images, nothing to do")
        return packed
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"{folder} must be a folder, there is a file of that name. Choose another.") from error
    with locked(folder):
        if not force and _is_finished(folder, plan, bad_images):  # by another process, between the first look and the lock
            return PackedImages(folder)
        state = _begin(folder, plan, bad_images, force)
        _check_space(folder, state)
        try:
            _decode_rest(image_set, folder, state, workers, progress)
            _finish(image_set, folder, state)
        except _HopelessError:
            _remove(folder)  # nothing in it is worth going on from
            (folder / PROGRESS).unlink()
            raise
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise OSError(f"the disk of {folder} is full. Make room and run it again, it goes on where it stopped.") from error
    if state.left_out:
        i, reason = state.left_out[0]
        say(
            f"warning: {len(state.left_out):,} of {n:,} images are left out and listed in {folder / META}; "
            f"the first is {image_set.paths[i]!r}: {reason}"
        )
    return PackedImages(folder)


class _HopelessError(ValueError):
    """Too many images are unreadable for this to be the right data."""


@dataclass
class _State:
    """How far a prepare is, as ``progress.json`` has it."""

    plan: Json
    bad_images: str
    processed: int = 0
    left_out: list[tuple[int, str]] = field(default_factory=list)  # number of the image, reason
    truncated: list[int] = field(default_factory=list)  # kept by tolerance

    @property
    def row_bytes(self) -> int:
        return 3 * int(self.plan["size"]) ** 2

    @property
    def file_bytes(self) -> int:
        """Length of the file so far: a row for each image that is not left out."""
        return HEADER + (self.processed - len(self.left_out)) * self.row_bytes

    def record(self) -> Json:
        lists = {"left_out": list(self.left_out), "truncated": list(self.truncated)}  # as they are now
        return {"format": "liftedstruct packed", "version": VERSION, **vars(self), **lists}


def _plan(image_set: ImageSet, size: int, fit: str) -> Json:
    """All that the result depends on, in a few words and digests; the folder that the images are in is no part of it."""
    classes = [image_set.labels.tolist(), image_set.class_names, image_set.super_classes]
    return {
        "name": image_set.name,
        "size": size,
        "fit": fit,
        "images": len(image_set),
        "paths": _digest(image_set.paths),
        "classes": _digest(classes),
        "split": _digest([image_set.test_classes.tolist(), image_set.validation_classes.tolist()]),
        "files": _digest([_fingerprint(image_set.source, path) for path in image_set.paths]),
    }


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()


def _fingerprint(source: Source, path: str) -> str:
    try:
        return source.fingerprint(path)
    except Exception as error:  # decoding will say what is wrong with it
        return type(error).__name__


def _differences(record: Json, plan: Json, bad_images: str) -> list[str]:
    """What keeps the folder's earlier prepare from being this one, in words."""
    if record["version"] != VERSION:
        return [f"its version is {record['version']}, not {VERSION}"]
    old = record["plan"]
    found = [f"{key} is {old[key]!r}, not {plan[key]!r}" for key in ("name", "size", "fit", "images") if old[key] != plan[key]]
    found += [text for key, text in CHANGES.items() if old[key] != plan[key]]
    if record["bad_images"] != bad_images and (record["left_out"] or record["truncated"]):  # without bad ones it is all one
        found.append(f"bad_images is {record['bad_images']!r}, not {bad_images!r}")
    return found


def _is_finished(folder: Path, plan: Json, bad_images: str) -> bool:
    record = read_record(folder / META)
    return record is not None and not _differences(record, plan, bad_images)


def _begin(folder: Path, plan: Json, bad_images: str, force: bool) -> _State:
    """Where to go on; refuses a folder of other files, and one of another prepare unless forced."""
    finished, unfinished = read_record(folder / META), read_record(folder / PROGRESS)
    record = finished or unfinished
    others = sorted(each.name for each in folder.iterdir() if each.name not in (LOCK, PROGRESS + ".tmp"))
    if record is None and others:
        raise ValueError(
            f"{folder} must be empty or of an earlier prepare, it holds {others[0]!r} ({len(others)} in all). Choose another."
        )
    begun = finished or (unfinished and unfinished["processed"])  # one that has decoded nothing yet is nothing to protect
    differences = _differences(record, plan, bad_images) if record and begun else []
    if differences and not force:
        raise ValueError(
            f"{folder} holds {'a set' if finished else 'an interrupted prepare'} of other sources or settings: "
            f"{'; '.join(differences)}. Choose another folder, or make it anew with force=True (--force)."
        )
    if unfinished and begun and not (finished or force):
        left_out = [(int(i), str(reason)) for i, reason in unfinished["left_out"]]
        state = _State(plan, bad_images, unfinished["processed"], left_out, unfinished["truncated"])
        if (folder / IMAGES).exists():  # killed between the last two renames
            (folder / IMAGES).replace(folder / PART)
        if (folder / PART).exists() and (folder / PART).stat().st_size >= state.file_bytes:
            return state
    state = _State(plan, bad_images)
    write_json(folder / PROGRESS, state.record())  # before the rest goes: the folder stays one of ours at every moment
    _remove(folder)
    return state


def _remove(folder: Path) -> None:
    for name in (META, IMAGES, PART, LABELS, PATHS, PATHS + ".tmp", META + ".tmp"):  # meta first: the rest is not whole
        (folder / name).unlink(missing_ok=True)


def _check_space(folder: Path, state: _State) -> None:
    missing = HEADER + state.plan["images"] * state.row_bytes - state.file_bytes
    needed, free = missing + 2**20 + 300 * int(state.plan["images"]), shutil.disk_usage(folder).free  # the lists take a little
    if free < needed:
        raise OSError(
            f"the disk of {folder} must have {_gigabytes(needed)} free, it has {_gigabytes(free)}. "
            "Make room, or choose a smaller size."
        )


def _decode_rest(image_set: ImageSet, folder: Path, state: _State, workers: int, progress: bool) -> None:
    """Decode from where the state is, append row by row in the order of the images, and let the state follow the disk."""
    n, settings = len(image_set), (int(state.plan["size"]), str(state.plan["fit"]), state.bad_images == "tolerate")
    ahead = 8 * workers  # so many images may be decoded before their turn comes to be written: memory stays bounded
    numbers = iter(range(state.processed, n))
    waiting: collections.deque[Future[_Decoded]] = collections.deque()
    fd = os.open(folder / PART, os.O_RDWR | os.O_CREAT, 0o666)
    pool, flusher = ThreadPoolExecutor(workers, "decode"), ThreadPoolExecutor(1, "flush")
    flushed: Future[None] | None = None
    last_flush, disk_failed = time.monotonic(), False
    try:
        os.ftruncate(fd, state.file_bytes)  # rows beyond what is known to be on the disk are made again
        os.lseek(fd, 0, os.SEEK_END)
        with Bar(n, state.processed, progress) as bar:
            while state.processed < n:
                while len(waiting) < ahead and (i := next(numbers, None)) is not None:
                    waiting.append(pool.submit(_decode_one, image_set.source, image_set.paths[i], *settings))
                pixels, reason = waiting.popleft().result()
                if pixels is None:
                    _refuse(image_set, state, reason)
                else:
                    _append(fd, pixels)
                    if reason:
                        state.truncated.append(state.processed)
                state.processed += 1
                bar.advance()
                if time.monotonic() - last_flush > FLUSH_SECONDS and (flushed is None or flushed.done()):
                    if flushed is not None:
                        flushed.result()
                    flushed = flusher.submit(_flush, fd, folder, state.record())
                    last_flush = time.monotonic()
    except OSError:
        disk_failed = True
        raise
    finally:
        try:
            pool.shutdown(cancel_futures=True)
            flusher.shutdown()
            if flushed is not None:
                flushed.result()
            if not disk_failed:  # after a failure, a second fsync would say that all is well; the last record holds
                _flush(fd, folder, state.record())
        finally:
            os.close(fd)


_Decoded = tuple[NDArray[np.uint8] | None, str]  # pixels, or none and the reason; both for one that is kept by tolerance


def _decode_one(source: Source, path: str, size: int, fit: str, tolerate: bool) -> _Decoded:
    try:
        return decode(source, path, size, fit), ""
    except ImageError as error:
        if not (tolerate and str(error) == "truncated"):
            return None, str(error)
    try:
        return decode(source, path, size, fit, tolerate_truncated=True), "truncated"
    except ImageError as error:
        return None, str(error)


def _refuse(image_set: ImageSet, state: _State, reason: str) -> None:
    path, n = image_set.paths[state.processed], len(image_set)
    if state.bad_images == "stop":
        raise ValueError(f"every image must be readable, {path!r} is not: {reason}. Mend it, or pass bad_images='list'.")
    if 2 * (len(state.left_out) + 1) > n:
        raise _HopelessError(
            f"at least half of the images must be readable, {len(state.left_out) + 1:,} of {n:,} are not; "
            f"the last is {path!r}: {reason}. Check the data set with liftedstruct doctor."
        )
    state.left_out.append((state.processed, reason))


def _append(fd: int, pixels: NDArray[np.uint8]) -> None:
    rest = np.ascontiguousarray(pixels).data.cast("B")
    while rest:
        rest = rest[os.write(fd, rest) :]


def _flush(fd: int, folder: Path, record: Json) -> None:
    """Pixels to the disk first, then the word that they are there."""
    os.fsync(fd)
    write_json(folder / PROGRESS, record)


def _finish(image_set: ImageSet, folder: Path, state: _State) -> None:
    """Everything but ``meta.json`` to the disk, then that: the moment from which the set is whole."""
    kept = np.ones(len(image_set), bool)
    kept[[i for i, _ in state.left_out]] = False
    n, size = int(kept.sum()), int(state.plan["size"])
    with (folder / PART).open("r+b") as file:
        file.write(npy_header(n, size))
        file.flush()
        os.fsync(file.fileno())
    with (folder / LABELS).open("wb") as file:
        np.save(file, image_set.labels[kept].astype(np.int64))
        file.flush()
        os.fsync(file.fileno())
    write_json(folder / PATHS, [image_set.paths[i] for i in np.flatnonzero(kept)])
    (folder / PART).replace(folder / IMAGES)
    sync_folder(folder)
    meta = state.record() | {
        "checksum": _digest(state.plan),
        "n": n,
        "root": str(image_set.root),
        "class_names": image_set.class_names,
        "super_classes": image_set.super_classes,
        "test_classes": image_set.test_classes.tolist(),
        "validation_classes": image_set.validation_classes.tolist(),
        "left_out": [{"path": image_set.paths[i], "reason": reason} for i, reason in state.left_out],
        "truncated": [image_set.paths[i] for i in state.truncated],
    }
    write_json(folder / META, meta)
    (folder / PROGRESS).unlink()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.2f} GB"

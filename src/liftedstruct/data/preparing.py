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
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from liftedstruct.data.decoding import FITS, ImageError, SourceError, content_hash, decode, is_passing
from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.packed import PackedImages
from liftedstruct.data.packed_files import (
    CONTENTS,
    CONTENTS_PART,
    HEADER,
    IMAGES,
    LABELS,
    LEFT_OUT,
    LOCK,
    META,
    PART,
    PATHS,
    PROGRESS,
    SIZE,
    VERSION,
    npy_header,
    read_record,
)
from liftedstruct.data.sources import Source
from liftedstruct.runtime.atomic import BINARY, is_temporary, locked, replacing, sync, sync_folder, write_json
from liftedstruct.runtime.checks import check_count, pick
from liftedstruct.runtime.progress import Bar, say

__all__ = ["BAD_IMAGES", "OtherSetError", "prepare"]

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
RETRIED = ("no permission", "missing", "does not fit into memory")  # reasons that may go without a change of size or time
CHECKSUM_OF = "name, size, fit, paths, labels, class names, split, sizes and times of the image files; not their bytes"
Json = dict[str, Any]


def prepare(
    image_set: ImageSet,
    folder: str | Path,
    *,
    size: int = SIZE,
    fit: str = "resize",
    bad_images: Literal["list", "tolerate", "stop"] = "list",
    workers: int | None = None,
    progress: bool = True,
    force: bool = False,
) -> PackedImages:
    """Decode every image once into a folder, made if absent; does nothing if that is done, goes on if it was interrupted.

    Whether it is done is told by names, sizes and times of the image files, labels and settings (their digest is the checksum
    of the set), not by the bytes of the files; images left out for want of permission or memory are tried again. A source
    that fails meanwhile (a disk, a network) stops it with an OSError, and the next run goes on from there.

    Args:
        image_set: The images, their classes and split; all parts of the split go in.
        folder: Where to; new, empty, or of an earlier prepare.
        size: Side of the packed images.
        fit: How a rectangle becomes a square: ``resize``, ``letterbox`` (white around) or ``trim-letterbox`` (the white
            border off first).
        bad_images: Leave unreadable images out and ``list`` them, also ``tolerate`` truncated ones, or ``stop`` at the first.
        workers: Threads that decode; as many as there are cores if not given.
        progress: Show how far it is, on the terminal or as lines of text.
        force: Make it anew, whatever of an earlier prepare is in the folder. A finished set goes when the new one is decoded,
            or before if the disk has no room for both.

    """
    folder, n = Path(folder), len(image_set)
    pick(FITS, fit, "fit")
    pick(BAD_IMAGES, bad_images, "bad_images")
    size, workers = check_count("size", size), _cores() if workers is None else check_count("workers", workers)
    if n == 0:
        raise ValueError(f"an image set must have images to be prepared, {image_set.root} has none. Check the path.")
    fingerprints = [_fingerprint(image_set.source, path) for path in image_set.paths]
    there = [is_there for _, is_there in fingerprints]
    plan = _plan(image_set, size, fit, [text for text, _ in fingerprints])
    if not force and _is_finished(folder, image_set, plan, bad_images):
        packed = PackedImages(folder)
        if progress:
            say(f"{folder} already holds these {len(packed):,} images, nothing to do")
        return packed
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"{folder} must be a folder, there is a file of that name. Choose another.") from error
    with locked(folder / LOCK, "prepare"):
        if not force and _is_finished(folder, image_set, plan, bad_images):  # by another process, since the first look
            return PackedImages(folder)
        state = _begin(folder, image_set, plan, bad_images, force, there.count(False))
        old_must_go = _check_space(folder, state)
        if not state.processed:
            write_json(folder / PROGRESS, state.record())  # first: the folder stays one of ours at every moment
            for name in (PART, CONTENTS_PART):
                (folder / name).unlink(missing_ok=True)
        if old_must_go or not (state.processed or (folder / META).exists()):
            _remove_set(folder)
        try:
            _decode_rest(image_set, folder, state, there, workers, progress)
            _check_enough(image_set, folder, state)
            _finish(image_set, folder, state)
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


class OtherSetError(ValueError):
    """A folder that holds a set of other sources or settings; what differs is in ``what``."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. Choose another folder, or make it anew with force=True (--force).")
        self.what = what


class _SourceGoneError(OSError):
    """The images cannot be reached; what is decoded is safe on the disk."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"the source of the images must stay readable, {path!r} is not: {reason}. "
            "See to its disk or connection and run it again, it goes on from there."
        )


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
    def rows(self) -> int:
        """Rows so far: one for each image that is not left out."""
        return self.processed - len(self.left_out)

    @property
    def file_bytes(self) -> int:
        """Length of the file so far."""
        return HEADER + self.rows * self.row_bytes

    def record(self) -> Json:
        """As it is now, without an image that an interrupt left in a list but not in the count."""
        left_out = [(i, reason) for i, reason in self.left_out if i < self.processed]
        lists = {"left_out": left_out, "truncated": [i for i in self.truncated if i < self.processed]}
        return {"format": "liftedstruct packed", "version": VERSION, **vars(self), **lists}

    def cut(self, processed: int) -> None:
        """Back to so many images; their rows are made again."""
        self.processed = processed
        self.left_out = [(i, reason) for i, reason in self.left_out if i < processed]
        self.truncated = [i for i in self.truncated if i < processed]


def _plan(image_set: ImageSet, size: int, fit: str, fingerprints: list[str]) -> Json:
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
        "files": _digest(fingerprints),
    }


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()


def _fingerprint(source: Source, path: str) -> tuple[str, bool]:
    """The fingerprint, and whether the image is there at all."""
    try:
        text = source.fingerprint(path)
        return text, text != "missing"
    except Exception as error:
        if is_passing(error):
            raise _SourceGoneError(path, str(error)) from error
        return type(error).__name__, False  # decoding will say what is wrong with it


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


def _is_finished(folder: Path, image_set: ImageSet, plan: Json, bad_images: str) -> bool:
    record, unfinished = read_record(folder / META), _unfinished(folder)
    if record is None or _differences(record, plan, bad_images):
        return False
    if unfinished and not _differences(unfinished, plan, bad_images):  # it was being made anew
        return False
    return _first_readable(image_set, record) is None


def _unfinished(folder: Path) -> Json | None:
    """The record of an interrupted prepare that has decoded something; beside a whole set its rows must be there too."""
    record = read_record(folder / PROGRESS)
    if record is None or not record["processed"] or ((folder / META).exists() and not (folder / PART).exists()):
        return None
    return record


def _first_readable(image_set: ImageSet, record: Json) -> str | None:
    """The first image that was left out for a reason that may go, and can be read now."""
    settings = (int(record["plan"]["size"]), str(record["plan"]["fit"]), record["bad_images"] == "tolerate")
    for each in record["left_out"]:
        path, reason = (each["path"], each["reason"]) if isinstance(each, dict) else (image_set.paths[each[0]], each[1])
        if reason in RETRIED and _decode_one(image_set.source, path, *settings).pixels is not None:
            return str(path)
    return None


def _begin(folder: Path, image_set: ImageSet, plan: Json, bad_images: str, force: bool, missing: int) -> _State:
    """Where to go on; refuses a folder of other files, and one of another prepare unless forced. Deletes nothing."""
    finished, unfinished = read_record(folder / META), _unfinished(folder)
    ours = (LOCK,) + ((LEFT_OUT,) if read_record(folder / LEFT_OUT) else ())
    others = sorted(each.name for each in folder.iterdir() if each.name not in ours and not is_temporary(each.name))
    if others and not (finished or read_record(folder / PROGRESS)):
        raise ValueError(
            f"{folder} must be empty or of an earlier prepare, it holds {others[0]!r} ({len(others)} in all). Choose another."
        )
    if finished and unfinished and _differences(unfinished, plan, bad_images):
        unfinished = None  # what there is to protect is the whole set
    record = unfinished or finished
    if force or record is None:
        return _State(plan, bad_images)
    differences = _differences(record, plan, bad_images)
    if not differences and record is finished and (path := _first_readable(image_set, finished)) is not None:
        differences = [f"{path!r} was left out and can be read now"]
    if differences and missing:
        differences.append(f"{missing:,} of the image files are missing now")
    if differences:
        raise OtherSetError(
            f"{folder} holds {'a set' if finished else 'an interrupted prepare'} of other sources or settings: "
            f"{'; '.join(differences)}"
        )
    left_out = [(int(i), str(reason)) for i, reason in record["left_out"]]
    state = _State(plan, bad_images, record["processed"], left_out, record["truncated"])
    state.cut(state.processed)
    if not finished and (folder / IMAGES).exists() and not (folder / PART).exists():  # killed between the last two renames
        (folder / IMAGES).replace(folder / PART)
    if _length(folder / PART) < state.file_bytes or _length(folder / CONTENTS_PART) < 8 * state.rows:
        return _State(plan, bad_images)
    if (path := _first_readable(image_set, state.record())) is not None:
        state.cut(next(i for i, _ in state.left_out if image_set.paths[i] == path))
    return state


def _remove_set(folder: Path) -> None:
    for name in (META, IMAGES, LABELS, CONTENTS, PATHS):  # meta first: the rest is not whole
        (folder / name).unlink(missing_ok=True)


def _check_space(folder: Path, state: _State) -> bool:
    """Whether the old set must go before the new one is made; an error if the disk has no room even then."""
    missing = HEADER + int(state.plan["images"]) * state.row_bytes - state.file_bytes
    needed, free = missing + 2**20 + 300 * int(state.plan["images"]), shutil.disk_usage(folder).free  # the lists take a little
    free += max(0, _length(folder / PART) - state.file_bytes)  # is cut off
    old = sum(_length(folder / name) for name in (IMAGES, LABELS, CONTENTS, PATHS))
    if free + old < needed:
        raise OSError(
            f"the disk of {folder} must have {_gigabytes(needed)} free, it has {_gigabytes(free + old)}. "
            "Make room, or choose a smaller size."
        )
    return free < needed


def _length(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _decode_rest(image_set: ImageSet, folder: Path, state: _State, there: list[bool], workers: int, progress: bool) -> None:
    """Decode from where the state is, append row by row in the order of the images, and let the state follow the disk.

    ``there`` says which images had a fingerprint: one of those that is missing now went away with its source.
    """
    n, settings = len(image_set), (int(state.plan["size"]), str(state.plan["fit"]), state.bad_images == "tolerate")
    ahead = 8 * workers  # so many images may be decoded before their turn comes to be written: memory stays bounded
    numbers = iter(range(state.processed, n))
    waiting: collections.deque[Future[_Decoded]] = collections.deque()
    fd, contents_fd = (os.open(folder / name, os.O_RDWR | os.O_CREAT | BINARY, 0o666) for name in (PART, CONTENTS_PART))
    pool, flusher = ThreadPoolExecutor(workers, "decode"), ThreadPoolExecutor(1, "flush")
    flushed: Future[None] | None = None
    last_flush, disk_failed = time.monotonic(), False
    try:
        for each, length in ((fd, state.file_bytes), (contents_fd, 8 * state.rows)):
            os.ftruncate(each, length)  # rows beyond what is known to be on the disk are made again
            os.lseek(each, 0, os.SEEK_END)
        with Bar("prepare", n, state.processed, progress) as bar:
            while state.processed < n:
                while len(waiting) < ahead and (i := next(numbers, None)) is not None:
                    waiting.append(pool.submit(_decode_one, image_set.source, image_set.paths[i], *settings))
                pixels, content, reason, source_failed = waiting.popleft().result()
                if source_failed or (reason == "missing" and there[state.processed]):
                    raise _SourceGoneError(image_set.paths[state.processed], reason)
                if pixels is None:
                    _refuse(image_set, state, reason)
                else:
                    _append(fd, pixels)
                    _append(contents_fd, np.array([content], np.uint64))
                    if reason:
                        state.truncated.append(state.processed)
                state.processed += 1
                bar.advance()
                if time.monotonic() - last_flush > FLUSH_SECONDS and (flushed is None or flushed.done()):
                    if flushed is not None:
                        flushed.result()
                    flushed = flusher.submit(_flush, (fd, contents_fd), folder, state.record())
                    last_flush = time.monotonic()
    except OSError as error:
        disk_failed = not isinstance(error, _SourceGoneError)
        raise
    finally:
        try:
            pool.shutdown(cancel_futures=True)
            flusher.shutdown()
            if flushed is not None:
                flushed.result()
            if not disk_failed:  # after a failure, a second fsync would say that all is well; the last record holds
                _flush((fd, contents_fd), folder, state.record())
        finally:
            os.close(fd)
            os.close(contents_fd)


class _Decoded(NamedTuple):
    """Pixels and the hash of the file, or neither and the reason; all for one that is kept by tolerance."""

    pixels: NDArray[np.uint8] | None
    content: int = 0
    reason: str = ""
    source_failed: bool = False


def _decode_one(source: Source, path: str, size: int, fit: str, tolerate: bool) -> _Decoded:
    try:
        return _Decoded(decode(source, path, size, fit), content_hash(source, path))
    except ImageError as error:
        if not (tolerate and str(error) == "truncated"):
            return _Decoded(None, 0, str(error), isinstance(error, SourceError))
    try:
        return _Decoded(decode(source, path, size, fit, tolerate_truncated=True), content_hash(source, path), "truncated")
    except ImageError as error:
        return _Decoded(None, 0, str(error), isinstance(error, SourceError))


def _refuse(image_set: ImageSet, state: _State, reason: str) -> None:
    path = image_set.paths[state.processed]
    if state.bad_images == "stop":
        raise ValueError(f"every image must be readable, {path!r} is not: {reason}. Mend it, or pass bad_images='list'.")
    state.left_out.append((state.processed, reason))


def _check_enough(image_set: ImageSet, folder: Path, state: _State) -> None:
    """Give up if most images are unreadable: list them all, and leave nothing to go on from."""
    n, bad = len(image_set), len(state.left_out)
    if 2 * bad <= n:
        return
    record = {"format": "liftedstruct packed", "version": VERSION, "left_out": _listed(image_set, state)}
    write_json(folder / LEFT_OUT, record)
    if not (folder / META).exists():
        _remove_set(folder)
    for name in (PART, CONTENTS_PART, PROGRESS):
        (folder / name).unlink()
    i, reason = state.left_out[0]
    raise ValueError(
        f"at least half of the images must be readable, {bad:,} of {n:,} are not; the first is {image_set.paths[i]!r}: "
        f"{reason}. See them all in {folder / LEFT_OUT}, and check the data set with liftedstruct doctor."
    )


def _listed(image_set: ImageSet, state: _State) -> list[dict[str, str]]:
    return [{"path": image_set.paths[i], "reason": reason} for i, reason in state.left_out]


def _append(fd: int, row: NDArray[np.unsignedinteger]) -> None:
    rest = np.ascontiguousarray(row).data.cast("B")
    while rest:
        rest = rest[os.write(fd, rest) :]


def _flush(fds: tuple[int, int], folder: Path, record: Json) -> None:
    """Pixels and hashes to the disk first, then the word that they are there."""
    for fd in fds:
        sync(fd)
    write_json(folder / PROGRESS, record)


def _finish(image_set: ImageSet, folder: Path, state: _State) -> None:
    """Everything but ``meta.json`` to the disk, then that: the moment from which the set is whole."""
    kept = np.ones(len(image_set), bool)
    kept[[i for i, _ in state.left_out]] = False
    n, size = int(kept.sum()), int(state.plan["size"])
    (folder / META).unlink(missing_ok=True)  # of the old set, which goes now
    sync_folder(folder)
    with (folder / PART).open("r+b") as file:
        file.write(npy_header(n, size))
        file.flush()
        sync(file.fileno())
    with replacing(folder / LABELS) as file:
        np.save(file, image_set.labels[kept].astype(np.int64))
    with replacing(folder / CONTENTS) as file:
        np.save(file, np.fromfile(folder / CONTENTS_PART, np.uint64, n))
    write_json(folder / PATHS, [image_set.paths[i] for i in np.flatnonzero(kept)])
    (folder / PART).replace(folder / IMAGES)
    sync_folder(folder)
    meta = state.record() | {
        "checksum": _digest(state.plan),
        "checksum_of": CHECKSUM_OF,
        "n": n,
        "root": str(image_set.root),
        "class_names": image_set.class_names,
        "super_classes": image_set.super_classes,
        "test_classes": image_set.test_classes.tolist(),
        "validation_classes": image_set.validation_classes.tolist(),
        "left_out": _listed(image_set, state),
        "truncated": [image_set.paths[i] for i in state.truncated],
    }
    (folder / LEFT_OUT).unlink(missing_ok=True)
    write_json(folder / META, meta)
    for name in (CONTENTS_PART, PROGRESS):
        (folder / name).unlink()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.2f} GB"

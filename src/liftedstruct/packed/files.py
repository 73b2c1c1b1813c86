"""The files of a packed set, each written so that it is never half there, and the lock of the folder."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import fcntl

__all__ = [
    "HEADER",
    "IMAGES",
    "LABELS",
    "LEFT_OUT",
    "LOCK",
    "META",
    "PART",
    "PATHS",
    "PROGRESS",
    "VERSION",
    "locked",
    "npy_header",
    "read_record",
]

VERSION = 1
IMAGES, LABELS, PATHS, META = "images.npy", "labels.npy", "paths.json", "meta.json"
PART, PROGRESS = "images.npy.part", "progress.json"  # there while a prepare is not finished
LEFT_OUT = "left-out.json"  # there after a prepare that found too many images unreadable, until one succeeds
LOCK = "prepare.lock"  # there while one runs
HEADER = 128  # bytes before the first pixel: the .npy header, padded, so that n can be filled in at the end


def read_record(file: Path) -> dict[str, Any] | None:
    """What prepare wrote into one of its records; None where there is no such file, or it is not of prepare."""
    try:
        record = json.loads(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("format") == "liftedstruct packed" else None


def npy_header(n: int, size: int) -> bytes:
    """The head of a version 1.0 .npy file, in exactly ``HEADER`` bytes."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({n}, {size}, {size}, 3), }}"
    return b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + text.ljust(HEADER - 11).encode("ascii") + b"\n"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One prepare at a time in a folder. The lock is the system's, so it ends with its process, however that ends."""
    if sys.platform == "win32":
        yield
        return
    file = folder / LOCK
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not (file.exists() and os.path.samestat(os.fstat(fd), file.stat())):
                raise BlockingIOError  # the file was removed by its owner just now, and perhaps made again by another one
        except BlockingIOError as error:
            owner = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            raise ValueError(
                f"{folder} must have one prepare at a time, process {owner or 'unknown'} is at it. Wait for it, or end it."
            ) from error
        os.truncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
    finally:
        os.close(fd)

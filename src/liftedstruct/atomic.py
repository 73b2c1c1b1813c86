"""Files that are either the old one or the new one, whenever the power goes, and the lock of a folder."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

if sys.platform != "win32":
    import fcntl

__all__ = ["locked", "replacing", "sync_folder", "write_json"]


@contextlib.contextmanager
def replacing(file: str | Path) -> Iterator[BinaryIO]:
    """A stream to write a file with. It takes its name when all is on the disk; after an error there is what there was."""
    file = Path(file)
    temporary = file.with_name(file.name + ".tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def write_json(file: str | Path, content: Any) -> None:
    """A JSON file; escapes keep names with any characters, and lone surrogates."""
    with replacing(file) as stream:
        stream.write(json.dumps(content).encode("ascii"))


def sync_folder(folder: Path) -> None:
    """Renames in a folder to the disk."""
    if sys.platform != "win32":
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def locked(file: Path, what: str) -> Iterator[None]:
    """One piece of work of a kind at a time in the file's folder. The lock is the system's and ends with its process."""
    if sys.platform == "win32":
        yield
        return
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not (file.exists() and os.path.samestat(os.fstat(fd), file.stat())):
                raise BlockingIOError  # the file was removed by its owner just now, and perhaps made again by another one
        except BlockingIOError as error:
            owner = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise ValueError(
                f"{file.parent} must have one {what} at a time, process {owner} is at it. Wait for it, or end it."
            ) from error
        os.truncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
    finally:
        os.close(fd)

"""Files that are either the old one or the new one, whenever the power goes, and the lock of a folder."""

import contextlib
import errno
import functools
import io
import json
import os
import re
import secrets
import stat
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from platform import node
from typing import Any, BinaryIO

from liftedstruct.runtime.progress import say

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["BINARY", "is_temporary", "locked", "remove_leftovers", "replacing", "sync", "sync_folder", "write_json"]

BINARY = getattr(os, "O_BINARY", 0)  # without it, Windows writes two bytes for each line feed
# What a file system answers that does not offer a lock or an fsync. A failing disk says something else.
UNSUPPORTED = {errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
NAMESPACE = Path("/proc/self/ns/pid")  # containers may share a host's name and have process numbers of their own
HOST = f"{zlib.crc32(f'{node()} {NAMESPACE.stat().st_ino if NAMESPACE.exists() else 0}'.encode()):08x}"
TEMPORARY = re.compile(r"\.liftedstruct-([0-9a-f]{8})-(\d+)-[0-9a-f]{16}\.tmp")


@contextlib.contextmanager
def replacing(file: str | Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A stream to write a file with. It takes its name when all is on the disk; after an error there is what there was.

    Links are followed and stay links. What is not a regular file (a device, a pipe), or is named by an open descriptor
    (``/dev/stdout``), is appended to, all at once.

    Args:
        file: the path to write; its folder exists.
        durable: wait for the disk. Files that are cheap to write again may do without.

    """
    file = Path(file)
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not (stat.S_ISREG(mode) and _is_plain(file)):
        content = io.BytesIO()
        yield content
        with file.open("ab") as stream:
            stream.write(content.getvalue())
        return
    file = Path(os.path.realpath(file))
    temporary = file.with_name(f".liftedstruct-{HOST}-{os.getpid()}-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            if durable:
                sync(stream.fileno())
        if mode is not None:
            with contextlib.suppress(OSError):  # some file systems have no modes
                temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(file.parent)
        remove_leftovers(file.parent)


def _is_plain(file: Path) -> bool:
    """Whether a name and the links that it stands for lead to a file without a detour through open descriptors."""
    for _ in range(40):  # as many links as Linux follows
        folder = Path(os.path.realpath(file.parent))
        if folder.is_relative_to("/dev") or folder.is_relative_to("/proc"):
            return False
        if not file.is_symlink():
            break
        file = file.parent / file.readlink()
    return True


def write_json(file: str | Path, content: Any) -> None:
    """A JSON file; escapes keep names with any characters, and lone surrogates."""
    with replacing(file) as stream:
        stream.write(json.dumps(content).encode("ascii"))


def is_temporary(name: str) -> bool:
    """Whether a file has a name that :func:`replacing` gives while it writes; one that was killed leaves it behind."""
    return TEMPORARY.fullmatch(name) is not None


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of processes of this machine that no longer run, as far as that can be seen."""
    if sys.platform == "win32":  # there is no way to ask for a process without a library
        return
    try:
        files = list(folder.iterdir())
    except PermissionError:
        return
    for file in files:
        found = TEMPORARY.fullmatch(file.name)
        if found and found[1] == HOST:
            try:
                os.kill(int(found[2]), 0)
            except ProcessLookupError:
                file.unlink(missing_ok=True)
            except (OSError, OverflowError):
                pass


def sync(fd: int) -> None:
    """What was written to the disk, as far as the file system offers that."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        _warn("fsync is not offered by this file system: after a power cut, files may be incomplete")


def sync_folder(folder: Path) -> None:
    """Renames in a folder to the disk."""
    if sys.platform == "win32":
        return
    try:
        fd = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that can be written to but not listed
        return
    try:
        sync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(file: Path, what: str) -> Iterator[None]:
    """One piece of work of a kind at a time in the file's folder. The lock is the system's and ends with its process."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT | BINARY, 0o666)
    try:
        try:
            _lock(fd)
            if not (file.exists() and os.path.samestat(os.fstat(fd), file.stat())):
                raise BlockingIOError  # the file was removed by its owner just now, and perhaps made again by another one
        except BlockingIOError as error:
            owner = os.read(fd, 20).decode("ascii", "replace").strip() or "unknown"
            raise ValueError(
                f"{file.parent} must have one {what} at a time, it is in use by process {owner}. Wait for it, or end it."
            ) from error
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode("ascii"))
        remove_leftovers(file.parent)
        try:
            yield
        finally:
            if sys.platform != "win32":  # where an open file cannot be removed, it stays
                file.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _lock(fd: int) -> None:
    """Lock an open file, or raise BlockingIOError if another process has; a warning where there are no locks."""
    if sys.platform == "win32":
        os.lseek(fd, 1 << 20, os.SEEK_SET)  # beyond the content, which others may read
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError from error
        finally:
            os.lseek(fd, 0, os.SEEK_SET)
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        _warn("locks are not offered by this file system: do not run the same command twice at once")


@functools.cache
def _warn(text: str) -> None:
    say(f"warning: {text}")

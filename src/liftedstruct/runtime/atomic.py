"""Atomic file writes that survive crashes and power loss, and file locks."""

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

BINARY = getattr(os, "O_BINARY", 0)  # without it, Windows translates line feeds to two bytes
# Errors of a file system that does not support locks or fsync. A failing disk raises other errors.
UNSUPPORTED = {errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
NAMESPACE = Path("/proc/self/ns/pid")  # containers may share a host name but have their own process IDs
HOST = f"{zlib.crc32(f'{node()} {NAMESPACE.stat().st_ino if NAMESPACE.exists() else 0}'.encode()):08x}"
TEMPORARY = re.compile(r"\.liftedstruct-([0-9a-f]{8})-(\d+)-[0-9a-f]{16}\.tmp")


@contextlib.contextmanager
def replacing(file: str | Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a stream that replaces a file atomically when the block ends. After an error, the old file is unchanged.

    Symbolic links are followed and preserved. Paths that are not regular files (devices, pipes) or that name an open
    descriptor (`/dev/stdout`) are appended to in one write.

    Args:
        file: path to write. Its folder must exist.
        durable: sync to disk before replacing the file. Not needed for files that are cheap to write again.

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
            with contextlib.suppress(OSError):  # some file systems have no permissions
                temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(file.parent)
        remove_leftovers(file.parent)


def _is_plain(file: Path) -> bool:
    """Return whether a path leads to a file without passing through `/dev` or `/proc`, directly or by links."""
    for _ in range(40):  # the number of links that Linux follows
        folder = Path(os.path.realpath(file.parent))
        if folder.is_relative_to("/dev") or folder.is_relative_to("/proc"):
            return False
        if not file.is_symlink():
            break
        file = file.parent / file.readlink()
    return True


def write_json(file: str | Path, content: Any) -> None:
    """Write a JSON file. It is ASCII, with escapes, so that any string can be stored, including lone surrogates."""
    with replacing(file) as stream:
        stream.write(json.dumps(content).encode("ascii"))


def is_temporary(name: str) -> bool:
    """Return whether a name is one of the temporary names of `replacing`. A killed process leaves such files behind."""
    return TEMPORARY.fullmatch(name) is not None


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files left by processes of this host that are no longer running."""
    if sys.platform == "win32":  # the standard library cannot check whether a process is running
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
    """Sync an open file to disk. Warn if the file system does not support that."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        _warn("this file system does not support fsync: files may be incomplete after a power failure")


def sync_folder(folder: Path) -> None:
    """Sync the renames in a folder to disk."""
    if sys.platform == "win32":
        return
    try:
        fd = os.open(folder, os.O_RDONLY)
    except PermissionError:  # the folder is writable but not readable
        return
    try:
        sync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(file: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock on a file, or raise ValueError. The operating system releases it when the process ends."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT | BINARY | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        try:
            _lock(fd)
            if not (file.exists() and os.path.samestat(os.fstat(fd), file.stat())):
                raise BlockingIOError  # its owner has just removed it, and another process may have re-created it
        except BlockingIOError as error:
            owner = os.read(fd, 20).decode("ascii", "replace").strip() or "unknown"
            raise ValueError(
                f"{file.parent} must be used by one {what} at a time, but is in use by process {owner}. "
                "Wait for it, or stop it."
            ) from error
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode("ascii"))
        remove_leftovers(file.parent)
        try:
            yield
        finally:
            if sys.platform != "win32":  # Windows cannot remove an open file
                file.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _lock(fd: int) -> None:
    """Lock an open file, or raise BlockingIOError if another process holds the lock. Warn if locks are not supported."""
    if sys.platform == "win32":
        os.lseek(fd, 1 << 20, os.SEEK_SET)  # beyond the content, so that others can read it
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
        _warn("this file system does not support locks: do not run the same command more than once at a time")


@functools.cache
def _warn(text: str) -> None:
    say(f"warning: {text}")

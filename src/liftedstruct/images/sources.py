"""Where the pixels of a data set come from: a folder, an archive that is never unpacked, memory, or our own renderer."""

import bz2
import contextlib
import errno
import gzip
import hashlib
import io
import lzma
import os
import shutil
import tarfile
import tempfile
import threading
import weakref
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["ArraySource", "FolderSource", "Source", "TarSource"]


class Source(Protocol):
    """Opens images by the path that an :class:`~liftedstruct.images.ImageSet` has for them.

    A source is small and can be pickled, so that worker processes can have one each.
    """

    def open(self, path: str) -> Image.Image:
        """The image, not yet decoded where the format allows it; raises what pillow or the file system raise."""

    def fingerprint(self, path: str) -> str:
        """A text that is another one when the image is another one, found without reading it.

        Of an image that is gone it is "missing", or an OSError is raised.
        """


@dataclass(frozen=True)
class FolderSource:
    """Files below a folder."""

    root: Path

    def open(self, path: str) -> Image.Image:
        return Image.open(self.root / path)

    def fingerprint(self, path: str) -> str:
        try:
            stat = (self.root / path).stat()
        except OSError:  # a broken link, or one to itself
            return "missing"
        return f"{stat.st_size} {stat.st_mtime_ns}"


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Images that are in memory already; the path of an image is its number."""

    images: NDArray[np.uint8] = field(repr=False)  # (n, h, w, 3)

    def open(self, path: str) -> Image.Image:
        return Image.fromarray(self.images[int(path)])

    def fingerprint(self, path: str) -> str:
        pixels = np.ascontiguousarray(self.images[int(path)])
        return f"{pixels.shape} {hashlib.blake2b(pixels.data, digest_size=16).hexdigest()}"


@dataclass(frozen=True)
class TarSource:
    """Members of a ``.tar`` or ``.tgz`` archive.

    A plain tar is read in place: the position of every member is known, any process can go there. A compressed one has no
    positions, so it is decompressed once into a temporary file without a name, which goes with the process whatever ends it.
    Neither is ever in memory as a whole. What a worker process is sent is the list of positions alone: one that was forked
    reads the same temporary file, any other decompresses the archive again, once.
    """

    archive: Path
    members: dict[str, tuple[int, int]] = field(repr=False)  # path -> first byte, number of bytes
    content: dict[str, bytes] = field(default_factory=dict, repr=False)  # path -> bytes, of members that are not in one piece
    plain: IO[bytes] | None = field(default=None, repr=False, compare=False)  # a compressed archive, decompressed

    @staticmethod
    def of(archive: Path) -> "TarSource":
        """Index an archive; its files are named by their paths inside of it, without a leading ``./``."""
        members: dict[str, tuple[int, int]] = {}
        content: dict[str, bytes] = {}
        plain: IO[bytes] | None = None
        try:
            plain = _decompressed(archive)
            with tarfile.open(None if plain else archive, mode="r:", fileobj=plain) as tar:
                for member in tar:
                    name, target = member.name.removeprefix("./"), member.linkname.removeprefix("./")
                    if member.islnk() and target in members:  # a second name of a file before it
                        members[name] = members[target]
                        if target in content:
                            content[name] = content[target]
                    elif member.isfile():
                        members[name] = (member.offset_data, member.size)
                        if member.issparse() and (file := tar.extractfile(member)):
                            content[name] = file.read()
        except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            if plain:
                plain.close()
            raise ValueError(
                f"{_one_line(archive)} must be a readable tar archive, got: {error}. Download it again."
            ) from error
        return _tar_source(archive, members, content, plain)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.archive, self.members, self.content, self.plain is not None)

    def read(self, path: str) -> bytes:
        """The bytes of a member."""
        if path not in self.members:
            raise FileNotFoundError(f"{_one_line(self.archive)} has no member {_one_line(path)}")
        if path in self.content:
            return self.content[path]
        start, size = self.members[path]
        if self.plain:
            return _read_at(self.plain, start, size)
        with self.archive.open("rb") as file:
            file.seek(start)
            return file.read(size)

    def open(self, path: str) -> Image.Image:
        return Image.open(io.BytesIO(self.read(path)))

    def fingerprint(self, path: str) -> str:
        if path not in self.members:
            raise FileNotFoundError(f"{_one_line(self.archive)} has no member {_one_line(path)}")
        stat = self.archive.stat()
        return f"{self.members[path]} {stat.st_size} {stat.st_mtime_ns}"


_compressed: "weakref.WeakValueDictionary[tuple[Path, int, int], TarSource]" = weakref.WeakValueDictionary()


def _tar_source(
    archive: Path, members: dict[str, tuple[int, int]], content: dict[str, bytes], plain: IO[bytes] | None
) -> TarSource:
    source = TarSource(archive, members, content, plain)
    if plain:
        weakref.finalize(source, plain.close)
        _compressed[_identity(archive)] = source
    return source


def _unpickled(archive: Path, members: dict[str, tuple[int, int]], content: dict[str, bytes], is_compressed: bool) -> TarSource:
    """The source that this process has of a compressed archive, its own or its parent's, or a new one."""
    if not is_compressed:
        return TarSource(archive, members, content)
    return _compressed.get(_identity(archive)) or _tar_source(archive, members, content, _decompressed(archive))


def _identity(archive: Path) -> tuple[Path, int, int]:
    stat = archive.stat()
    return archive, stat.st_size, stat.st_mtime_ns


_seeking = threading.Lock()


def _read_at(file: IO[bytes], start: int, size: int) -> bytes:
    """Read without moving the position, which threads and forked processes share."""
    if not hasattr(os, "pread"):  # on Windows, where no process is forked
        with _seeking:
            file.seek(start)
            return file.read(size)
    pieces = []
    while size and (piece := os.pread(file.fileno(), size, start)):  # at most 2 GB at once
        pieces.append(piece)
        start, size = start + len(piece), size - len(piece)
    return b"".join(pieces)


def _decompressed(archive: Path) -> IO[bytes] | None:
    """A temporary file with the plain tar, or None where the archive is one already."""
    with archive.open("rb") as file:
        start = file.read(6)
    openers: dict[bytes, type[gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile]] = {
        b"\x1f\x8b": gzip.GzipFile,
        b"BZh": bz2.BZ2File,
        b"\xfd7zXZ": lzma.LZMAFile,
    }
    opener = next((opener for magic, opener in openers.items() if start.startswith(magic)), None)
    if opener is None:
        return None
    plain = tempfile.TemporaryFile(prefix="liftedstruct-", suffix=".tar")  # noqa: SIM115 - the source closes it
    try:
        with opener(archive) as packed:
            shutil.copyfileobj(packed, plain, 1 << 20)
        plain.flush()
        plain.seek(0)
    except BaseException as error:
        with contextlib.suppress(OSError):  # a full disk again
            plain.close()
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise ValueError(
                f"{_one_line(archive)} must fit the temporary folder {_one_line(tempfile.gettempdir())} when decompressed, "
                "got a full disk. Set TMPDIR to a folder with room, or decompress it to a .tar yourself."
            ) from error
        raise
    return plain


def _one_line(name: Path | str) -> str:
    return repr(str(name))  # a name may have line breaks, or bytes that cannot be printed

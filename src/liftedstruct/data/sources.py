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
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["ArraySource", "FolderSource", "Source", "TarSource"]

Pieces = tuple[tuple[int, int], ...]  # first byte in the file, number of bytes; in the archive they follow one another

MOST_SPARSE = 64 * 2**20  # bytes of a file with holes; nobody stores photographs so
MOST_HEADER = 2**20  # bytes of a name or of pax records
READ_WHOLE = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


class Source(Protocol):
    """Opens images by the path that an :class:`~liftedstruct.data.ImageSet` has for them.

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
    sparse: dict[str, Pieces] = field(default_factory=dict, repr=False)  # of members with holes: what is stored
    plain: IO[bytes] | None = field(default=None, repr=False, compare=False)  # a compressed archive, decompressed

    @staticmethod
    def of(archive: Path) -> "TarSource":
        """Index an archive; its files are named by their paths inside of it, without a leading ``./``."""
        members: dict[str, tuple[int, int]] = {}
        sparse: dict[str, Pieces] = {}
        plain = _decompressed(archive)
        try:
            with tarfile.open(None if plain else archive, mode="r:", fileobj=plain, tarinfo=_Member) as tar:
                for member in tar:
                    name, target = member.name.removeprefix("./"), member.linkname.removeprefix("./")
                    if member.islnk() and target in members:  # a second name of a file before it
                        members[name] = members[target]
                        if target in sparse:
                            sparse[name] = sparse[target]
                    elif member.isfile():
                        members[name] = (member.offset_data, member.size)
                        pieces: Any = member.sparse
                        if member.issparse():
                            sparse[name] = tuple((offset, size) for offset, size in pieces if size)
        except Exception as error:  # a broken archive raises almost anything
            if plain:
                plain.close()
            raise _unreadable(archive, error) from error
        return _tar_source(archive, members, sparse, plain)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.archive, self.members, self.sparse, self.plain is not None)

    def read(self, path: str) -> bytes:
        """The bytes of a member."""
        if path not in self.members:
            raise FileNotFoundError(f"{_one_line(self.archive)} has no member {_one_line(path)}")
        start, size = self.members[path]
        if path not in self.sparse:
            return self._read_at(start, size)
        if size > MOST_SPARSE:
            raise ValueError(f"a sparse file must have at most {MOST_SPARSE:,} bytes, got {size:,}. Store it whole.")
        parts, end = list[bytes](), 0
        for offset, stored in self.sparse[path]:
            if not end <= offset < offset + stored <= size:
                raise ValueError(f"a sparse file must have its pieces in order, got one at {offset}. Store it whole.")
            parts += [bytes(offset - end), self._read_at(start, stored)]
            start, end = start + stored, offset + stored
        return b"".join([*parts, bytes(size - end)])

    def _read_at(self, start: int, size: int) -> bytes:
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


class _Member(tarfile.TarInfo):
    """A header of an archive. Long names and pax records are read whole by tarfile, so their size is bounded here."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in READ_WHOLE and member.size > MOST_HEADER:
            raise tarfile.ReadError(f"a header of {member.size:,} bytes")
        return member


def _tar_source(
    archive: Path, members: dict[str, tuple[int, int]], sparse: dict[str, Pieces], plain: IO[bytes] | None
) -> TarSource:
    source = TarSource(archive, members, sparse, plain)
    if plain:
        weakref.finalize(source, plain.close)
        _compressed[_identity(archive)] = source
    return source


def _unpickled(archive: Path, members: dict[str, tuple[int, int]], sparse: dict[str, Pieces], is_compressed: bool) -> TarSource:
    """The source that this process has of a compressed archive, its own or its parent's, or a new one."""
    if not is_compressed:
        return TarSource(archive, members, sparse)
    return _compressed.get(_identity(archive)) or _tar_source(archive, members, sparse, _decompressed(archive))


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
    openers: dict[bytes, type[gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile]] = {
        b"\x1f\x8b": gzip.GzipFile,
        b"BZh": bz2.BZ2File,
        b"\xfd7zXZ": lzma.LZMAFile,
    }
    plain: IO[bytes] | None = None
    try:
        with archive.open("rb") as file:
            start = file.read(6)
        for opener in (opener for magic, opener in openers.items() if start.startswith(magic)):
            plain = tempfile.TemporaryFile(prefix="liftedstruct-", suffix=".tar")  # noqa: SIM115 - the source closes it
            with opener(archive) as packed:
                shutil.copyfileobj(packed, plain, 1 << 20)
            plain.flush()
            plain.seek(0)
    except BaseException as error:
        if plain:
            with contextlib.suppress(OSError):  # a full disk again
                plain.close()
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise ValueError(
                f"{_one_line(archive)} must fit the temporary folder {_one_line(tempfile.gettempdir())} when decompressed, "
                "got a full disk. Set TMPDIR to a folder with room, or decompress it to a .tar yourself."
            ) from error
        if isinstance(error, Exception):  # EOFError, OSError, zlib.error, lzma.LZMAError
            raise _unreadable(archive, error) from error
        raise
    return plain


def _unreadable(archive: Path, error: Exception) -> ValueError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ValueError(f"{_one_line(archive)} must be a readable tar archive, got: {reason}. Download it again.")


def _one_line(name: Path | str) -> str:
    return repr(str(name))  # a name may have line breaks, or bytes that cannot be printed

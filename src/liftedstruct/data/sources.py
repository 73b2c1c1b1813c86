"""Sources of images: a folder, an archive that is read without unpacking, or memory."""

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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

__all__ = ["FolderSource", "MemorySource", "Source", "TarSource"]

MAX_SPARSE = 64 * 2**20  # bytes of a sparse file; image files are not stored sparse
MAX_HEADER = 2**20  # bytes of a name or of pax records
READ_WHOLE = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
DECOMPRESSORS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}  # by magic number


class Source(Protocol):
    """Protocol of sources, which open images by their paths in an `ImageSet`. Sources are thread-safe."""

    def open(self, path: str) -> Image.Image:
        """Open an image, without decoding it if the format allows. Exceptions of pillow and the file system propagate."""

    def fingerprint(self, path: str) -> str:
        """Return a string that changes when the image changes, without decoding it; raise OSError if it is gone."""


@dataclass(frozen=True)
class FolderSource:
    """Source of image files in a folder."""

    root: Path

    def open(self, path: str) -> Image.Image:
        return Image.open(self.root / path)

    def file(self, path: str) -> Path:
        return self.root / path

    def fingerprint(self, path: str) -> str:
        stat = self.file(path).stat()
        return f"{stat.st_size} {stat.st_mtime_ns}"


@dataclass(frozen=True, eq=False)
class MemorySource:
    """Source of images in a sequence: uint8 arrays, pillow images, bytes of files, or paths of files.

    The path of an image is its index in the sequence. Only arrays can be prepared.
    """

    images: Sequence[Any] | NDArray[np.uint8] = field(repr=False)  # or (n, h, w, 3)

    def open(self, path: str) -> Image.Image:
        image = self.images[int(path)]
        if isinstance(image, np.ndarray):
            return Image.fromarray(image)
        if isinstance(image, ImageFile.ImageFile) and image.tile and image.filename:  # opened, but not decoded
            again = Image.open(image.filename)
            if again.size == image.size:
                return again
        if isinstance(image, Image.Image):
            return image.copy()  # decoding changes it
        return Image.open(io.BytesIO(image) if isinstance(image, bytes) else image)

    def file(self, path: str) -> Path | None:
        image = self.images[int(path)]
        return Path(image) if isinstance(image, str | os.PathLike) else None

    def fingerprint(self, path: str) -> str:
        pixels = np.ascontiguousarray(self.images[int(path)])
        return f"{pixels.shape} {hashlib.blake2b(pixels.data, digest_size=16).hexdigest()}"


class TarSource:
    """Source of the members of a tar archive, plain or compressed, by their paths in the archive without a leading `./`.

    A plain tar is read in place. A compressed one is decompressed once into an unnamed temporary file, which is removed
    with the source or the process. Neither is ever loaded into memory as a whole.
    """

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.members: dict[str, tarfile.TarInfo] = {}
        self._reading = threading.Lock()  # threads share the file position
        try:
            file = _open_plain(archive)
            weakref.finalize(self, file.close)
            self._tar = tarfile.open(mode="r:", fileobj=file, tarinfo=_Header)  # noqa: SIM115 - open as long as the source lives
            for member in self._tar:
                name, target = member.name.removeprefix("./"), member.linkname.removeprefix("./")
                if member.islnk() and target in self.members:  # a hard link to an earlier member
                    self.members[name] = self.members[target]
                elif member.isfile():
                    self.members[name] = member
        except Exception as error:  # a broken archive raises almost anything
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise ValueError(
                    f"{str(archive)!r} must fit into the temporary folder {tempfile.gettempdir()!r} when decompressed, "
                    "got a full disk. Set TMPDIR to a folder with more space, or decompress it to a .tar yourself."
                ) from error
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"{str(archive)!r} must be a readable tar archive, got: {reason}. Download it again.") from error

    def read(self, path: str) -> bytes:
        """Return the bytes of a member."""
        member = self._member(path)
        if member.issparse():
            if member.size > MAX_SPARSE:
                raise ValueError(f"a sparse file must have at most {MAX_SPARSE:,} bytes, got {member.size:,}. Store it whole.")
            header: Any = member  # typeshed lacks `sparse`
            header.sparse, end = [(offset, size) for offset, size in header.sparse if size], 0
            for offset, size in header.sparse:
                if not end <= offset <= offset + size <= member.size:
                    raise ValueError(f"a sparse file must have its pieces in order, got one at {offset}. Store it whole.")
                end = offset + size
        with self._reading, self._tar.extractfile(member) as file:  # type: ignore[union-attr]
            return file.read()

    def open(self, path: str) -> Image.Image:
        return Image.open(io.BytesIO(self.read(path)))

    def fingerprint(self, path: str) -> str:
        member, stat = self._member(path), self.archive.stat()
        return f"({member.offset_data}, {member.size}) {stat.st_size} {stat.st_mtime_ns}"

    def _member(self, path: str) -> tarfile.TarInfo:
        if path not in self.members:
            raise FileNotFoundError(f"{str(self.archive)!r} has no member {path!r}")
        return self.members[path]


class _Header(tarfile.TarInfo):
    """Header of a member, with a size limit on long names and pax records, which tarfile reads into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in READ_WHOLE and header.size > MAX_HEADER:
            raise tarfile.ReadError(f"a header of {header.size:,} bytes")
        return header


def _open_plain(archive: Path) -> IO[bytes]:
    """Open the archive itself, or a temporary file with its decompressed content."""
    with archive.open("rb") as file:
        magic = file.read(6)
    decompress = next((each for start, each in DECOMPRESSORS.items() if magic.startswith(start)), None)
    if decompress is None:
        return archive.open("rb")
    with decompress(archive) as compressed, contextlib.ExitStack() as stack:
        plain = stack.enter_context(tempfile.TemporaryFile(prefix="liftedstruct-", suffix=".tar"))
        shutil.copyfileobj(compressed, plain, 1 << 20)
        plain.seek(0)
        stack.pop_all()  # keep it open
    return plain

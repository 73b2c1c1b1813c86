"""Where the pixels of a data set come from: a folder, an archive that is never unpacked, or our own renderer."""

import io
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from PIL import Image

__all__ = ["FolderSource", "Source", "TarSource"]


class Source(Protocol):
    """Opens images by the path that an :class:`~liftedstruct.images.ImageSet` has for them.

    A source is small and can be pickled, so that worker processes can have one each.
    """

    def open(self, path: str) -> Image.Image:
        """The image, not yet decoded where the format allows it; raises what pillow or the file system raise."""

    def fingerprint(self, path: str) -> str:
        """A text that is another one when the image is another one, found without reading it; raises OSError if it is gone."""


@dataclass(frozen=True)
class FolderSource:
    """Files below a folder."""

    root: Path

    def open(self, path: str) -> Image.Image:
        return Image.open(self.root / path)

    def fingerprint(self, path: str) -> str:
        stat = (self.root / path).stat()
        return f"{stat.st_size} {stat.st_mtime_ns}"


@dataclass(frozen=True)
class TarSource:
    """Members of a ``.tar`` or ``.tgz`` archive.

    A plain tar is read in place: the position of every member is known, any process can go there. A compressed one has no
    positions, so it is read through once and its members are kept, still encoded, in memory.
    """

    archive: Path
    members: dict[str, tuple[int, int]] = field(repr=False)  # path -> first byte, number of bytes
    content: dict[str, bytes] = field(default_factory=dict, repr=False)  # path -> bytes, where the archive is compressed

    @staticmethod
    def of(archive: Path) -> "TarSource":
        """Index an archive; its files are named by their paths inside of it."""
        members: dict[str, tuple[int, int]] = {}
        content: dict[str, bytes] = {}
        try:
            with tarfile.open(archive) as tar:
                compressed = not tarfile.is_tarfile(archive) or not _is_plain(archive)
                for member in tar:
                    if member.isfile():
                        members[member.name] = (member.offset_data, member.size)
                        if compressed:
                            file = tar.extractfile(member)
                            content[member.name] = file.read() if file else b""
        except (tarfile.TarError, EOFError, OSError) as error:
            raise ValueError(f"{archive} must be a readable tar archive, got: {error}. Download it again.") from error
        return TarSource(archive, members, content)

    def read(self, path: str) -> bytes:
        """The bytes of a member."""
        if path not in self.members:
            raise FileNotFoundError(f"{self.archive} has no member {path}")
        if path in self.content:
            return self.content[path]
        start, size = self.members[path]
        with self.archive.open("rb") as file:
            file.seek(start)
            return file.read(size)

    def open(self, path: str) -> Image.Image:
        return Image.open(io.BytesIO(self.read(path)))

    def fingerprint(self, path: str) -> str:
        if path not in self.members:
            raise FileNotFoundError(f"{self.archive} has no member {path}")
        stat = self.archive.stat()
        return f"{self.members[path]} {stat.st_size} {stat.st_mtime_ns}"


def _is_plain(archive: Path) -> bool:
    try:
        with tarfile.open(archive, mode="r:"):
            return True
    except tarfile.ReadError:
        return False

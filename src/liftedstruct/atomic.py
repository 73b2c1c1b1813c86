"""Files that are either the old one or the new one, whenever the power goes."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["replacing", "sync_folder", "write_json"]


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

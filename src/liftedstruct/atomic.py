"""Files that are either the old one or the new one, whenever the power goes."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from liftedstruct.packed.files import sync_folder

__all__ = ["replacing"]


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

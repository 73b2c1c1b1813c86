"""Arrays from .npy and .npz files: no code in them is run, and no memory is allocated for data that they do not hold.

A header of a hundred bytes can claim an array of terabytes, and NumPy allocates what the header claims before it reads.
"""

import io
import math
import os
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

from numpy.lib import format as npy
from numpy.typing import NDArray

from liftedstruct.runtime.limits import available_bytes

__all__ = ["UNNAMED", "check_zip", "load_arrays"]

UNNAMED = "arr_0"  # np.savez's name of an array without one
EXPANSION = 1032  # deflate's largest ratio
HEADER = 2**16  # bytes; NumPy refuses headers of more than 10,000 characters


def load_arrays(path: str | Path, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name, or the one array of an .npy file as ``arr_0``.

    Args:
        path: told apart by content, not by suffix.
        names: of an .npz file read only these arrays, as far as it has them.

    Raises:
        OSError: the file cannot be opened.
        ValueError: anything else, with the reason on one line, without the name of the file.

    """
    with Path(path).open("rb") as stream:
        try:
            if stream.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                return {UNNAMED: _read_array(stream, os.fstat(stream.fileno()).st_size, "it")}
            with ZipFile(stream) as archive:
                members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
                wanted = [name for name in members if names is None or name in names]
                check_zip(archive, {members[name].filename for name in wanted})
                arrays = {}
                for name in wanted:
                    with archive.open(members[name]) as member:
                        arrays[name] = _read_array(member, members[name].file_size, repr(name))
                return arrays
        except MemoryError as error:
            raise ValueError("its arrays do not fit into memory") from error
        except Exception as error:  # a broken file raises almost anything
            raise ValueError(str(error).partition("\n")[0].rstrip(".") or type(error).__name__) from error


def check_zip(archive: ZipFile, names: Collection[str] | None = None) -> None:
    """Raise ValueError if members (by default all) claim more than they can hold, or expand to more than the free memory."""
    size = os.fstat(archive.fp.fileno()).st_size if archive.fp else 0
    members = [member for member in archive.infolist() if names is None or member.filename in names]
    for member in members:
        if member.file_size > EXPANSION * min(member.compress_size, size):
            raise ValueError(f"{member.filename!r} claims {member.file_size:,} bytes, more than it can hold")
    total, free = sum(member.file_size for member in members), available_bytes()
    if total > max(size, free):
        raise ValueError(f"it expands from {size:,} to {total:,} bytes, and {free:,} bytes of memory are free")


def _read_array(stream: IO[bytes], size: int, what: str) -> NDArray[Any]:
    """The array that a stream of this many bytes begins with."""
    stream.seek(0)
    head = io.BytesIO(stream.read(HEADER))
    read_header = npy.read_array_header_1_0 if npy.read_magic(head) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(head)
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects")
    claimed, held = math.prod(shape) * max(dtype.itemsize, 1), size - head.tell()
    if claimed > held or min(shape, default=0) < 0:
        raise ValueError(f"{what} claims {claimed:,} bytes, as {dtype} of shape {shape}, and has {held:,}")
    stream.seek(0)
    array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array

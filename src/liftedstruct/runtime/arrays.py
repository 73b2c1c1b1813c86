"""Safe loading of .npy and .npz files: nothing is unpickled, and no memory is allocated for data that the file does not hold.

A header of a hundred bytes can declare an array of terabytes, and NumPy allocates the declared size before it reads.
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

UNNAMED = "arr_0"  # np.savez's name for an array passed without one
EXPANSION = 1032  # largest compression ratio of deflate
HEADER = 2**16  # bytes; NumPy rejects headers of more than 10,000 characters


def load_arrays(path: str | Path, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """Load the arrays of an .npz file by name, or the array of an .npy file as `arr_0`.

    Args:
        path: .npz or .npy file. The format is detected from the content, not from the suffix.
        names: load only these arrays of an .npz file. Names that it does not have are ignored.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if the file cannot be loaded. The message is one line and does not contain the file name.

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
        except Exception as error:  # a corrupt file can raise almost any exception
            raise ValueError(str(error).partition("\n")[0].rstrip(".") or type(error).__name__) from error


def check_zip(archive: ZipFile, names: Collection[str] | None = None) -> None:
    """Raise ValueError if members (default: all) declare impossible sizes, or would expand to more than the free memory."""
    size = os.fstat(archive.fp.fileno()).st_size if archive.fp else 0
    members = [member for member in archive.infolist() if names is None or member.filename in names]
    for member in members:
        if member.file_size > EXPANSION * min(member.compress_size, size):
            raise ValueError(f"{member.filename!r} declares {member.file_size:,} bytes, more than it can hold")
    total, free = sum(member.file_size for member in members), available_bytes()
    if total > max(size, free):
        raise ValueError(f"it expands from {size:,} to {total:,} bytes, and {free:,} bytes of memory are free")


def _read_array(stream: IO[bytes], size: int, what: str) -> NDArray[Any]:
    """Read the array at the start of a stream of `size` bytes."""
    stream.seek(0)
    head = io.BytesIO(stream.read(HEADER))
    read_header = npy.read_array_header_1_0 if npy.read_magic(head) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(head)
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects")
    declared, held = math.prod(shape) * max(dtype.itemsize, 1), size - head.tell()
    if declared > held or min(shape, default=0) < 0:
        raise ValueError(f"{what} declares {declared:,} bytes ({dtype}, shape {shape}) but has {held:,}")
    stream.seek(0)
    array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array

"""Load weights from files without executing code in them. Errors name the first layer that does not match."""

import argparse
import hashlib
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from liftedstruct.runtime.arrays import check_zip, load_arrays
from liftedstruct.trunks.base import Trunk
from liftedstruct.trunks.caffemodel import read_caffemodel

__all__ = ["load_weights", "read_tensors"]


def read_tensors(file: str | Path) -> dict[str, Tensor]:
    """Read all tensors of a weights file, by name: .npz, .safetensors, .pth or .pt (a state dict), or .caffemodel."""
    file = Path(file)
    if file.suffix not in READERS:
        raise ValueError(f"weights must be a file of type {', '.join(READERS)}, got {str(file)!r}. Convert it to one of these.")
    if not file.is_file():
        raise ValueError(f"weights must be an existing file, got {file}. Check the path.")
    try:
        return READERS[file.suffix](file)
    except (OSError, ValueError, KeyError, EOFError, OverflowError, MemoryError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise ValueError(
            f"{file} must be a complete {file.suffix} file of tensors, got: {reason}. Download it again."
        ) from error


def load_weights(trunk: Trunk, tensors: Mapping[str, Tensor], file: str | Path, names: Mapping[str, str] | None = None) -> None:
    """Copy tensors into a trunk and record their origin. Tensors that the trunk does not have are ignored.

    Args:
        trunk: trunk to load the tensors into.
        tensors: tensors by their name in the file.
        file: source of the tensors, for error messages and the protocol.
        names: maps the trunk's names to names in the file. Default: they are the same.

    """
    file, found = Path(file), {}
    for own, expected in trunk.state_dict().items():
        name = own if names is None else names[own]
        if own.endswith("num_batches_tracked"):  # unused, and missing in old files
            found[own] = expected
            continue
        shape, got = tuple(expected.shape), tuple(tensors[name].shape) if name in tensors else "no such layer"
        if shape != got:
            variant = f" ({trunk.variant} variant)" if trunk.variant else ""
            raise ValueError(
                f"{file} must hold weights of {trunk.name}{variant}: {name} must be {shape}, got {got}. "
                "Pass a weights file of this network."
            )
        found[own] = tensors[name]
    trunk.load_state_dict(found)
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    trunk.weights = f"{file.name} (sha256 {digest[:16]})"


def _read_npz(file: Path) -> dict[str, Tensor]:
    try:
        return {name: torch.from_numpy(array) for name, array in load_arrays(file).items()}
    except TypeError as error:  # text
        raise ValueError(str(error)) from error


def _read_torch(file: Path) -> dict[str, Tensor]:
    try:
        if zipfile.is_zipfile(file):  # format since torch 1.6
            with zipfile.ZipFile(file) as archive:
                check_zip(archive)
        with torch.serialization.safe_globals([argparse.Namespace]):  # the settings in checkpoints of DINO: attributes only
            content = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, zipfile.BadZipFile, AttributeError, IndexError, TypeError) as error:
        raise ValueError("it contains objects other than tensors") from error
    for key in ("state_dict", "model", "teacher"):  # the last two: DeiT, and full checkpoints of DINO
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(each, Tensor) for each in content.values()):
        raise ValueError("it does not contain a state dict")
    return content


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(str(error)) from error


READERS: dict[str, Callable[[Path], dict[str, Tensor]]] = {
    ".caffemodel": read_caffemodel,
    ".npz": _read_npz,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".safetensors": _read_safetensors,
}

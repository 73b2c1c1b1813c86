"""Input validation for the public functions. An error message states the rule, the value and the remedy."""

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "EmbeddingsLike",
    "LabelsLike",
    "as_classes",
    "as_embeddings",
    "as_labels",
    "as_number",
    "as_plain",
    "check_count",
    "check_finite",
    "check_margin",
    "check_out",
    "check_temperature",
    "pick",
]

EmbeddingsLike = Tensor | NDArray[np.floating]
LabelsLike = Tensor | NDArray[np.generic] | Sequence[int] | Sequence[str] | Sequence[bool]
T = TypeVar("T")

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def as_embeddings(embeddings: EmbeddingsLike) -> Tensor:
    """Return embeddings as a float32 or float64 tensor of shape (m, d). Keeps the graph; half precision becomes float32."""
    X = embeddings if isinstance(embeddings, Tensor) else torch.from_numpy(_plain_array(embeddings))
    if X.dtype not in FLOATS:
        raise ValueError(f"embeddings must be of a float type, got {_dtype(X)}. Convert them with .float().")
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(f"embeddings must have shape (m, d) with m, d >= 1, got {tuple(X.shape)}. Pass one row per image.")
    return X if X.dtype in (torch.float32, torch.float64) else X.float()


def as_labels(labels: LabelsLike, embeddings: Tensor) -> Tensor:
    """Return labels as an integer tensor of shape (m,) on the device of the embeddings. Equal integers mean equal labels.

    Integers of any size and strings are compared exactly: labels are never converted to floats. Booleans are two classes.
    """
    y = labels if isinstance(labels, Tensor) else torch.from_numpy(as_classes(labels)[0])
    _check_integers(y)
    if y.ndim != 1 or len(y) != len(embeddings):
        raise ValueError(
            f"labels must have shape (m,), one label per row of the embeddings: got {tuple(y.shape)} for "
            f"{len(embeddings)} rows. Pass as many labels as embeddings."
        )
    return y.to(embeddings.device, torch.int64)  # large uint64 values wrap around but stay distinct


def as_classes(labels: LabelsLike) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
    """Return class indices 0..C-1 in the shape of the labels (integers, strings or booleans), and the C distinct labels."""
    if isinstance(labels, Tensor):
        _check_integers(labels)
        labels = labels.cpu().numpy()
    y = labels if isinstance(labels, np.ndarray) else np.array(labels, dtype=object)  # object: no conversion of mixed lists
    if y.dtype == object and y.size:
        kinds = {_kind(label) for label in y.flat}
        wrong = kinds - {str, int, bool} or (kinds if len(kinds) > 1 else set())
        if wrong:
            found = " and ".join(sorted(kind.__name__ for kind in wrong))
            raise ValueError(f"labels must be all integers or all strings, got {found}. Convert them to one of the two.")
    elif y.dtype.kind not in "iuUTb" and y.size:
        raise ValueError(f"labels must be integers or strings, got {y.dtype}. Convert whole numbers to an integer type.")
    distinct, classes = np.unique(y, return_inverse=True)
    return classes.reshape(y.shape).astype(np.int64), distinct


def check_finite(embeddings: Tensor, total: float) -> None:
    """Raise ValueError if `total`, the sum of the squared (centered) embeddings, is too large or not finite; name the row."""
    if 4 * total <= torch.finfo(embeddings.dtype).max:  # ‖x_i - x_j‖² is at most four times the larger ‖x‖²
        return
    bad = ~embeddings.isfinite().all(dim=1)
    if not bad.any():
        largest = embeddings.abs().max().item()
        raise ValueError(
            f"embeddings must have squares that fit {_dtype(embeddings)}, got values up to {largest:.3g}. "
            "Scale them down, or pass float64."
        )
    row = int(bad.nonzero()[0])
    value = embeddings[row][~embeddings[row].isfinite()][0].item()
    raise ValueError(
        f"embeddings must be finite, but row {row} holds {value} (first of {int(bad.sum())} such rows). "
        "Lower the learning rate, or clip the gradient."
    )


def check_margin(margin: float) -> float:
    """Return the margin as a float. It must be finite and not negative."""
    number = as_number(margin)
    if not 0 <= number < math.inf:
        raise ValueError(f"margin must be a finite number >= 0, got {margin!r}. The paper uses 1.0.")
    return number


def check_temperature(temperature: float) -> float:
    """Return the temperature as a float. It must be finite and positive."""
    number = as_number(temperature)
    if not 0 < number < math.inf:
        raise ValueError(
            f"temperature must be a finite number > 0, got {temperature!r}. The paper uses none, which is equivalent to 1.0."
        )
    return number


def check_count(name: str, value: int, least: int = 1) -> int:
    """Return the value as an int. It must be a whole number of at least `least`."""
    number = as_plain(value)
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}. Pass {least} or more.")
    return number


def as_number(value: object) -> float:
    """Return a Python or NumPy number as a float, and NaN for anything else, including booleans. NaN is in no range."""
    number = as_plain(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        return math.nan
    try:
        return float(number)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf if number > 0 else -math.inf


def as_plain(value: Any) -> Any:
    """Convert a NumPy scalar or zero-dimensional array to a Python value. Return anything else unchanged."""
    return value.item() if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0) else value


def check_out(name: str, path: str | Path) -> Path:
    """Return an output path. It must not be a folder, and its parent folder must exist."""
    path = Path(path)
    if path.is_dir() or not Path(os.path.realpath(path)).parent.is_dir():  # follows links
        raise ValueError(f"{name} must be a file in a folder that exists, got {path}. Create the folder, and pass a file.")
    return path


def pick(registry: Mapping[str, T], name: str, what: str) -> T:
    """Return a registry entry by name. The error for an unknown name lists all names and suggests the closest one."""
    if isinstance(name, str) and name in registry:
        return registry[name]
    close = difflib.get_close_matches(name, registry, n=1, cutoff=0.4) if isinstance(name, str) else []
    hint = f"Did you mean {close[0]!r}?" if close else "Pass one of these names."
    raise ValueError(f"{what} must be one of {', '.join(sorted(registry))}, got {name!r}. {hint}")


def _check_integers(labels: Tensor) -> None:
    if labels.dtype not in (*INTEGERS, torch.bool):
        raise ValueError(f"labels must be integers or strings, got {_dtype(labels)}. Convert whole numbers with .long().")


def _plain_array(embeddings: object) -> NDArray[np.generic]:
    """Return an array that torch accepts: writable, native byte order, positive strides. Copies only if needed."""
    array = np.asarray(embeddings)
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise ValueError(f"embeddings must be of a float type, got {array.dtype}. Convert them with .astype(np.float32).")
    plain = array.dtype.isnative and array.flags.writeable and all(stride > 0 for stride in array.strides)
    return array if plain else array.astype(array.dtype.newbyteorder("="), order="C", copy=True)


def _kind(label: object) -> type:
    if isinstance(label, bool | np.bool_):
        return bool
    return str if isinstance(label, str) else int if isinstance(label, int | np.integer) else type(label)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")

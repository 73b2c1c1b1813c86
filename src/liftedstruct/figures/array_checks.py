"""Checks of the arrays that several figures take: labels that are numbers into class names, and lists of neighbors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftedstruct.data.image_set import Indices

__all__ = ["as_class_indices", "as_neighbors"]


def as_class_indices(labels: Any, class_names: Sequence[str]) -> Indices:
    """Labels that are indices into the class names, (n,)."""
    y, C = np.asarray(labels), len(class_names)
    if y.ndim != 1 or not _in_range(y, C):
        raise ValueError(
            f"labels must be numbers of the {C} class names, 0 to {C - 1}, got {_describe(y)}. Pass as many names as classes."
        )
    return y.astype(np.int64)


def as_neighbors(neighbors: Any, n: int) -> Indices:
    """The rows of the nearest images of each of n images, (n, k)."""
    lists = np.asarray(neighbors)
    if lists.ndim != 2 or len(lists) != n or not _in_range(lists, n):
        raise ValueError(
            f"neighbors must have shape (n, k), a list of rows 0 to {n - 1} for each of the {n} labels, got "
            f"{_describe(lists)}. Pass the indices of nearest_neighbors."
        )
    return lists.astype(np.int64)


def _in_range(array: NDArray[Any], count: int) -> bool:
    """Whether it is of integers, one or more, from 0 to count - 1."""
    return bool(array.size and array.dtype.kind in "iu" and array.min() >= 0 and array.max() < count)


def _describe(array: NDArray[Any]) -> str:
    values = f" from {array.min()} to {array.max()}" if array.size and array.dtype.kind in "iu" else ""
    return f"{array.dtype} of shape {array.shape}{values}"

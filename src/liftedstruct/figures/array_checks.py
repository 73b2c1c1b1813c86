"""Validation of arrays that several figures take: class indices, neighbors and rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from liftedstruct.data import Indices

__all__ = ["as_class_indices", "as_neighbors", "as_rows", "places_in_groups"]


def as_class_indices(labels: Any, class_names: Sequence[str]) -> Indices:
    """Return labels as indices into the class names, (n,)."""
    C = len(class_names)
    rule = f"labels must be indices into the {C} class names, 0 to {C - 1}"
    return _as_indices(labels, C, np.ndim(labels) == 1 and np.size(labels) > 0, rule, "Pass one name per class.")


def as_neighbors(neighbors: Any, n: int) -> Indices:
    """Return the rows of the nearest neighbors of n images, (n, k)."""
    rule = f"neighbors must have shape (n, k), rows 0 to {n - 1} for each of the {n} labels"
    fits = np.ndim(neighbors) == 2 and len(neighbors) == n and np.size(neighbors) > 0
    return _as_indices(neighbors, n, fits, rule, "Pass the indices that nearest_neighbors returns.")


def as_rows(rows: Any, n: int) -> Indices:
    """Return row indices into n images, (q,), possibly empty."""
    return _as_indices(rows, n, np.ndim(rows) == 1, f"rows must be a list of rows 0 to {n - 1}", "Pass rows of these images.")


def _as_indices(values: Any, count: int, fits: bool, rule: str, remedy: str) -> Indices:
    """Return the values as int64, or raise unless they are integers from 0 to count - 1 and the shape fits."""
    array = np.asarray(values)
    whole = array.dtype.kind in "iu" or not array.size
    span = f" from {array.min()} to {array.max()}" if whole and array.size else ""
    if not (fits and whole and array.min(initial=0) >= 0 and array.max(initial=0) < max(count, 1)):
        raise ValueError(f"{rule}, got {array.dtype} of shape {array.shape}{span}. {remedy}")
    return array.astype(np.int64)


def places_in_groups(groups: Indices) -> Indices:
    """Return for each entry the number of earlier entries of its group."""
    order = np.argsort(groups, kind="stable")
    _, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    places = np.empty_like(order)
    places[order] = np.arange(len(groups)) - np.repeat(starts, sizes)
    return places

"""Direct implementations of the definitions: all distances in float64, dimension by dimension, with a stable sort."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["first_ranks", "neighbors", "squares"]


def squares(Q: NDArray[np.floating], X: NDArray[np.floating]) -> NDArray[np.float64]:
    """Compute D² of all pairs."""
    D2 = np.zeros((len(Q), len(X)))
    for k in range(X.shape[1]):
        D2 += (Q[:, k, None].astype(np.float64) - X[None, :, k].astype(np.float64)) ** 2
    return D2


def neighbors(X: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return all other rows, nearest first; ties go to the lower index."""
    D2 = squares(X, X)
    np.fill_diagonal(D2, np.inf)
    lists = np.argsort(D2, axis=1, kind="stable")
    return np.stack([row[row != i] for i, row in enumerate(lists)]).astype(np.int64).reshape(len(X), len(X) - 1)


def first_ranks(X: NDArray[np.floating], y: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the rank of the first same-class row, or 0 if there is none."""
    hits = y[neighbors(X)] == y[:, None]
    return np.where(hits.any(axis=1), hits.argmax(axis=1) + 1, 0) if len(X) > 1 else np.zeros(1, np.int64)

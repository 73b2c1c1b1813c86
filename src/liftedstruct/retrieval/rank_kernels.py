"""Compiled kernels of `liftedstruct.retrieval.recall`: they compare and count a block of products while it is in the cache.

Positions i and j refer to the images sorted by class; `order` maps them to the caller's indices. Comparisons use
v = a_i·a_j - h_j with h = ‖a‖² / 2: D²_ij < t_i is equivalent to v > c_i with c_i = h_i - s² t_i / 2. Above c_i + slack or
below c_i - slack, the product decides. Comparisons in between are *open*, and `squares` decides them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from liftedstruct.retrieval.exact_distances import Doubles, Integers, Singles, kernel, slack, squares

__all__ = ["SortedByClass", "count", "count_of_queries", "nearest_others", "nearest_positives"]

Bounds = tuple[np.float32, np.float32, np.float32]
ColumnBounds = tuple[Singles, Singles, Singles]

STRIP = 256  # columns compared with all rows of a block at a time, so that their bounds and counts stay in the L1 cache


class SortedByClass(NamedTuple):
    """Images sorted by class, then by index: position i is image order[i]; its class in the gallery is starts[i]..stops[i]."""

    X: NDArray[np.floating]  # by index
    order: Integers
    starts: Integers
    stops: Integers
    norms: Doubles  # of the scaled images, by position
    scale: float
    least: float


@kernel
def nearest_positives(G: Singles, i0: int, j0: int, images: SortedByClass, t: Doubles, p: Integers) -> None:
    """Update t_i, the squared distance to the nearest positive, and p_i, its index, from a block of G = a_i·a_j."""
    near, found = np.empty(G.shape[1], np.int64), np.empty(G.shape[1])
    for r in range(G.shape[0]):
        i = i0 + r
        first, last = max(images.starts[i] - j0, 0), min(images.stops[i] - j0, G.shape[1])  # the row's class
        update_nearest(G[r], i, j0, first, last, images, t, p, near, found)


@kernel
def nearest_others(G: Singles, i0: int, j0: int, images: SortedByClass, t: Doubles, p: Integers) -> None:
    """Update t_i, the squared distance to the nearest image of another class, and p_i, its index, from a block of G."""
    X, _, starts, stops, norms, scale, least = images
    d, width = X.shape[1], G.shape[1]
    near, found = np.empty(width, np.int64), np.empty(width)
    half = (0.5 * norms[j0 : j0 + width] ** 2).astype(np.float32)
    widest = norms[j0 : j0 + width].max()
    for r in range(G.shape[0]):
        i = i0 + r
        left = min(max(starts[i] - j0, 0), width)
        right = min(max(stops[i] - j0, left), width)
        for first, last in ((0, left), (right, width)):
            c = 0.5 * (norms[i] * norms[i] - scale * scale * t[i])
            low = np.float32(c - slack(norms[i], widest, d, c, least))
            if reaches(G[r, first:last], half[first:last], low):
                update_nearest(G[r], i, j0, first, last, images, t, p, near, found)


@kernel
def reaches(row: Singles, half: Singles, low: np.float32) -> bool:
    """Return whether any column is not certainly farther than the bound. The loop is written to be vectorized."""
    n_open = np.int32(0)
    for q in range(len(row)):
        n_open = np.int32(n_open + np.int32(not row[q] - half[q] < low))
    return int(n_open) > 0


@kernel
def update_nearest(
    row: Singles,
    i: int,
    j0: int,
    first: int,
    last: int,
    images: SortedByClass,
    t: Doubles,
    p: Integers,
    near: Integers,
    found: Doubles,
) -> None:
    """Update t_i and p_i from the columns first..last of its row of G, except from the image itself."""
    X, order, _, _, norms, scale, least = images
    widest, best, guess = 0.0, -np.inf, -1
    for q in range(first, last):
        norm = norms[j0 + q]
        v = row[q] - 0.5 * norm * norm
        if j0 + q != i:
            widest = max(widest, norm)
            if v > best:
                best, guess = v, q
    if guess >= 0:  # likely the nearest: few others then need an exact comparison
        near[0] = order[j0 + guess]
        squares(X, order[i], X, near, 1, found)
        if found[0] < t[i] or (found[0] == t[i] and near[0] < p[i]):
            t[i], p[i] = found[0], near[0]
    c = 0.5 * (norms[i] * norms[i] - scale * scale * t[i])
    low = c - slack(norms[i], widest, X.shape[1], c, least)
    n_near = 0
    for q in range(first, last):
        if j0 + q != i and not row[q] - 0.5 * norms[j0 + q] * norms[j0 + q] < low:
            near[n_near] = order[j0 + q]
            n_near += 1
    squares(X, order[i], X, near, n_near, found)
    for q in range(n_near):
        if found[q] < t[i] or (found[q] == t[i] and near[q] < p[i]):
            t[i], p[i] = found[q], near[q]


@kernel
def count(G: Singles, i0: int, j0: int, images: SortedByClass, c: Doubles, t: Doubles, p: Integers, nearer: Integers) -> None:
    """Add to `nearer` the number of images nearer than the nearest positive, for each row and column of G = a_i·a_j, i < j."""
    X, order, _, _, norms, _, least = images
    d = X.shape[1]
    low, high, half = np.empty(STRIP, np.float32), np.empty(STRIP, np.float32), np.empty(STRIP, np.float32)
    open_columns, near, found = np.empty(STRIP, np.int64), np.empty(STRIP, np.int64), np.empty(STRIP)
    tallest = norms[i0 : i0 + G.shape[0]].max()
    for begin in range(0, G.shape[1], STRIP):
        width = min(STRIP, G.shape[1] - begin)
        j1 = j0 + begin
        widest = norms[j1 : j1 + width].max()
        for q in range(width):
            j = j1 + q
            e = slack(norms[j], tallest, d, c[j], least)
            low[q], high[q], half[q] = c[j] - e, c[j] + e, 0.5 * norms[j] * norms[j]
        counts = np.zeros(width, np.int32)
        for r in range(G.shape[0]):
            i = i0 + r
            first = max(0, i + 1 - j1)
            if first >= width:
                break
            e = slack(norms[i], widest, d, c[i], least)
            low_i, high_i, half_i = np.float32(c[i] - e), np.float32(c[i] + e), np.float32(0.5 * norms[i] * norms[i])
            row = G[r, begin + first : begin + width]
            columns = low[first:width], high[first:width], half[first:width]
            n_nearer, n_open = compare(row, (low_i, high_i, half_i), columns, counts[first:])
            if n_open > 0 or e == np.inf:  # compare() may miss an overflow
                n_near = 0
                for q in range(first, width):
                    v, w = row[q - first] - half[q], row[q - first] - half_i
                    if is_open(v, low_i, high_i) or is_open(w, low[q], high[q]):
                        open_columns[n_near], near[n_near] = q, order[j1 + q]
                        n_near += 1
                squares(X, order[i], X, near, n_near, found)
                for s in range(n_near):
                    q, square = open_columns[s], found[s]
                    v, w, j = row[q - first] - half[q], row[q - first] - half_i, j1 + q
                    if is_open(v, low_i, high_i) and (square < t[i] or (square == t[i] and order[j] < p[i])):
                        n_nearer += 1
                    if is_open(w, low[q], high[q]) and (square < t[j] or (square == t[j] and order[i] < p[j])):
                        counts[q] += 1
            nearer[i] += n_nearer
        for q in range(width):
            nearer[j1 + q] += counts[q]


@kernel
def count_of_queries(
    G: Singles, queries: Integers, j0: int, images: SortedByClass, c: Doubles, t: Doubles, p: Integers, nearer: Integers
) -> None:
    """Add to `nearer` the number of images nearer than the nearest positive, for each row of G, the query at this position."""
    X, order, _, _, norms, _, least = images
    d, width = X.shape[1], G.shape[1]
    half, widest = (0.5 * norms[j0 : j0 + width] ** 2).astype(np.float32), norms[j0 : j0 + width].max()
    near, found = np.empty(width, np.int64), np.empty(width)
    for r in range(len(queries)):
        i = queries[r]
        e = slack(norms[i], widest, d, c[i], least)
        low, high = np.float32(c[i] - e), np.float32(c[i] + e)
        n_nearer, n_open = count_above(G[r], half, low, high)
        if n_open > 0 or e == np.inf:  # count_above() may miss an overflow
            n_near = 0
            for q in range(width):
                if is_open(G[r, q] - half[q], low, high):
                    near[n_near] = order[j0 + q]
                    n_near += 1
            squares(X, order[i], X, near, n_near, found)
            for s in range(n_near):
                if found[s] < t[i] or (found[s] == t[i] and near[s] < p[i]):
                    n_nearer += 1
        nearer[i] += n_nearer


@kernel
def count_above(row: Singles, half: Singles, low: np.float32, high: np.float32) -> tuple[int, int]:
    """Return how many columns are certainly nearer to the row than its nearest positive, and the number of open comparisons."""
    n_nearer, n_open = np.int32(0), np.int32(0)
    for q in range(len(row)):
        v = row[q] - half[q]
        nearer = np.int32(v > high)
        n_nearer = np.int32(n_nearer + nearer)
        n_open = np.int32(n_open + np.int32(v >= low) - nearer)
    return int(n_nearer), int(n_open)


@kernel
def is_open(v: np.float32, low: np.float32, high: np.float32) -> bool:
    """Return whether v is neither certainly below nor certainly above the threshold; NaN is open."""
    return not v < low and not v > high


@kernel
def compare(row: Singles, bounds_i: Bounds, bounds: ColumnBounds, counts: NDArray[np.int32]) -> tuple[int, int]:
    """Return how many columns are certainly nearer to the row than its nearest positive, and the number of open comparisons.

    Columns to which the row is certainly nearer than their nearest positive are counted in `counts`. Bounds are c - slack,
    c + slack and h, for the row and for each column. The loop is written to be vectorized: 32-bit values only, no branches.
    """
    (low_i, high_i, half_i), (low, high, half) = bounds_i, bounds
    n_nearer, n_open = np.int32(0), np.int32(0)
    for q in range(len(row)):
        v, w = row[q] - half[q], row[q] - half_i
        nearer_to_row, nearer_to_column = np.int32(v > high_i), np.int32(w > high[q])
        n_nearer = np.int32(n_nearer + nearer_to_row)
        counts[q] = np.int32(counts[q] + nearer_to_column)
        n_open = np.int32(n_open + np.int32(v >= low_i) - nearer_to_row + np.int32(w >= low[q]) - nearer_to_column)
    return int(n_nearer), int(n_open)

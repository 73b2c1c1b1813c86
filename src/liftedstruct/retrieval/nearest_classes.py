r"""Distance of each query to the nearest image of its own class, and to the nearest image of any other class.

Both are found block by block from float32 products, without lists of neighbors, and are exact: see
`liftedstruct.retrieval.exact_distances`.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from liftedstruct.distances import full_precision
from liftedstruct.retrieval.exact_distances import Doubles, Integers, blocks_of
from liftedstruct.retrieval.rank_kernels import nearest_others, nearest_positives
from liftedstruct.retrieval.recall import COLUMNS, ROWS, sorted_by_class
from liftedstruct.retrieval.two_sets import gallery_and_queries
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_number
from liftedstruct.runtime.threads import limit_threads, parallel_for

__all__ = ["NearestImages", "nearest_by_class", "threshold_at"]


class NearestImages(NamedTuple):
    """Nearest image of each query's class and of any other class: distances (m,), inf if there is none, and indices (m,)."""

    same: Doubles
    same_index: Integers
    other: Doubles
    other_index: Integers


def nearest_by_class(
    embeddings: EmbeddingsLike,
    labels: LabelsLike,
    queries: EmbeddingsLike | None = None,
    query_labels: LabelsLike | None = None,
) -> tuple[Doubles, Doubles]:
    """Compute the Euclidean distance of each query to the nearest image of its class, and to that of any other class.

    The distances are exact, in float64. The memory is that of a few blocks.

    Args:
        embeddings: (n, d), an array or a tensor of any float type; computed on the CPU.
        labels: (n,), integers or strings.
        queries: (m, d), embeddings of queries that are not in the gallery. Default: every image is a query, and is not its own
            neighbor.
        query_labels: (m,), labels of the queries.

    Returns:
        The distances to the same and to other classes, (m,) each in float64. They are inf where there is no such image.

    Examples:
        >>> import numpy as np
        >>> same, other = nearest_by_class(np.array([[0.0], [1.0], [3.0], [3.5]]), ["a", "a", "a", "b"])
        >>> same.tolist(), other.tolist()
        ([1.0, 1.0, 2.0, inf], [3.5, 2.5, 0.5, 0.5])
    """
    X, y, Q, own = gallery_and_queries(embeddings, labels, queries, query_labels)
    with limit_threads((len(X) if Q is None else len(Q)) * X.numel()):
        if Q is None or own is None:
            found = _nearest_images(X, y.numpy())
        else:
            found = _nearest_images(torch.cat((X, Q)), torch.cat((y, own)).numpy(), gallery=len(X))
    return found.same, found.other


def threshold_at(distances: Doubles, rate: float) -> float:
    r"""Compute the largest float64 threshold t such that at most a fraction `rate` of the distances is at most t.

    Let k be the largest number of distances that may be accepted, $k / n \le$ rate. Then t is the float64 number just below the
    distance of rank k + 1, so distances that are tied with it are all rejected. If it is 0, t is negative, and nothing is
    accepted. With a rate of 1, t is inf.

    Args:
        distances: (n,), at least one; inf counts as a distance that no finite threshold reaches.
        rate: fraction from 0 to 1.

    Examples:
        >>> import numpy as np
        >>> threshold_at(np.array([1.0, 2.0, 2.0, 4.0]), 0.25)
        1.9999999999999998
        >>> threshold_at(np.array([1.0, 2.0, 2.0, 4.0]), 0.5)  # two may be accepted, but only one or three can
        1.9999999999999998
    """
    D = np.asarray(distances, dtype=np.float64)
    if D.ndim != 1 or not len(D) or not (D >= 0).all():
        raise ValueError(f"distances must be a list of at least one number >= 0, got shape {D.shape}. Drop NaN and negatives.")
    k = accepted_of(len(D), rate)
    return math.inf if k == len(D) else math.nextafter(float(np.partition(D, k)[k]), -math.inf)


def accepted_of(n: int, rate: float) -> int:
    """Return the largest k with k / n <= rate."""
    number = as_number(rate)
    if not 0 <= number <= 1:
        raise ValueError(f"rate must be between 0 and 1, got {rate!r}. Try 0.01.")
    k = min(n, int(number * n))
    return k + 1 if k < n and (k + 1) / n <= number else k - int(k / n > number)


def _nearest_images(
    X: Tensor, y: Integers, height: int = ROWS, width: int = COLUMNS, gallery: int | None = None
) -> NearestImages:
    n, size, begin = len(X), gallery or len(X), gallery or 0  # the gallery is 0..size, the queries are begin..n
    images, scaler = sorted_by_class(X, y, gallery)
    order = images.order
    t = np.full((2, n), np.inf)  # D² to the same and to other classes, by position
    p = np.full((2, n), n)

    def search(rows: slice) -> None:
        A = scaler.transform(X, order[rows])
        first, last = int(images.starts[rows.start]), int(images.stops[rows.stop - 1])  # the classes of these rows
        for columns in blocks_of(size, width):
            G = torch.mm(A, scaler.transform(X, order[columns]).T).numpy()  # a_i·a_j                               (b, w)
            nearest_others(G, rows.start, columns.start, images, t[1], p[1])
            if columns.start < last and first < columns.stop:
                nearest_positives(G, rows.start, columns.start, images, t[0], p[0])

    with full_precision(X.device):
        parallel_for(search, blocks_of(n, height, begin))
    back = np.argsort(order[begin:])  # from positions to queries
    return NearestImages(np.sqrt(t[0, begin:][back]), p[0, begin:][back], np.sqrt(t[1, begin:][back]), p[1, begin:][back])

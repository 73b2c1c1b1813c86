"""Similarities of embeddings, -‖x_i - x_k‖², for all pairs or the edges of a graph, and preferences estimated from them."""

import numpy as np
import torch
from torch import Tensor

from liftedstruct.clustering.messages import BLOCK, FAR, Similarities
from liftedstruct.retrieval import nearest_neighbors

__all__ = ["all_pairs", "guess_preference", "median_similarity", "neighbor_graph"]

ROWS = 512  # per product
CLOSE = 1e-9  # of ‖x‖² + ‖y‖²: below this, a difference of float64 products has fewer than the seven digits of float32
SAMPLE = 2000  # rows used to guess a preference


def all_pairs(X: Tensor) -> Similarities:
    """Compute the similarities of all pairs, n² float32 values, from float64 products; only half of them are computed."""
    n = len(X)
    room = n + -n % BLOCK
    values = torch.empty(n, room)
    values[:, n:] = float(FAR)
    Y = X.double()
    for first in range(0, n, ROWS):
        rows = slice(first, min(first + ROWS, n))
        block = _similarities(Y[rows], Y[first:])  #                                              (b, n - first)
        values[rows, first:n] = block
        values[first:, rows] = block.T
    values.fill_diagonal_(float(FAR))
    return Similarities(np.arange(n + 1) * room, np.empty(0, np.int32), values.numpy().reshape(-1))


def neighbor_graph(X: Tensor, k: int) -> Similarities:
    """Compute the similarities of each point to its k nearest neighbors, and to the points it is a nearest neighbor of."""
    n = len(X)
    distances, nearest = nearest_neighbors(X.numpy(), k)
    i, j = np.repeat(np.arange(n), k), nearest.reshape(-1).astype(np.int64)
    edges, first = np.unique(np.concatenate((i * n + j, j * n + i)), return_index=True)  # by row, then by column
    row = edges // n
    degrees = np.bincount(row, minlength=n)
    start = np.concatenate(([0], np.cumsum(degrees + -degrees % BLOCK)))
    place = start[row] + np.arange(len(edges)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    columns = np.zeros(start[-1], np.int32)
    columns[place] = edges % n
    values = np.full(start[-1], FAR)
    values[place] = -np.square(distances.reshape(-1)[first % (n * k)], dtype=np.float64)
    return Similarities(start, columns, values)


def median_similarity(X: Tensor) -> float:
    """Return the median over all pairs of up to 2,000 points, or over evenly spaced rows of more points. It is never 0."""
    n = len(X)
    rows = np.linspace(0, n - 1, min(n, max(1, 4_000_000 // n))).astype(np.int64)
    Y = X.double()
    values = _similarities(Y[rows], Y)  #                                                         (rows, n)
    values[torch.arange(len(rows)), torch.from_numpy(rows)] = torch.nan
    median = float(values.nanmedian())  # NaN if there is no pair
    return median if median < 0 else _tenth_of_spread(X)


def _similarities(X: Tensor, Y: Tensor) -> Tensor:
    """Compute -‖x_i - y_j‖² in float64, from the difference where the product is inaccurate."""
    x, y = X.square().sum(dim=1), Y.square().sum(dim=1)
    S = torch.addmm(-y, X, Y.T, alpha=2).sub_(x[:, None])
    lost = -CLOSE * (x[:, None] + y)
    i, j = (lost < S).nonzero(as_tuple=True)
    for part in torch.arange(len(i)).split(max(1, 2**21 // X.shape[1])):
        S[i[part], j[part]] = -(X[i[part]] - Y[j[part]]).square().sum(dim=1)
    return S


def guess_preference(X: Tensor, K: int) -> float:
    """Estimate the preference that gives K clusters: the saving from one more cluster, with exemplars drawn at random."""
    n = len(X)
    rng = np.random.default_rng(0)
    order = rng.permutation(n)
    fewer, more = max(1, int(K / 1.25)), min(n, int(1.25 * K) + 1)
    queries = rng.permutation(n)[:SAMPLE]
    cost = [0.0, 0.0]
    for rows in np.array_split(queries, max(1, len(queries) * more // 2**22)):
        D2 = torch.cdist(X[rows], X[order[:more]]).square_()
        D2[torch.from_numpy(rows[:, None] == order[None, :more])] = 0  # an exemplar chooses itself
        cost[0] += float(D2[:, :fewer].amin(dim=1).sum())
        cost[1] += float(D2.amin(dim=1).sum())
    saved = (cost[0] - cost[1]) / (more - fewer) * n / len(queries) if more > fewer else 0.0
    return -saved if saved > 0 else _tenth_of_spread(X)


def _tenth_of_spread(X: Tensor) -> float:
    """Return a fallback preference for mostly equal points, where the estimates are 0 and clusters would cost nothing."""
    return min(-0.1 * float(X.double().square().sum(dim=1).mean()), -1e-6)

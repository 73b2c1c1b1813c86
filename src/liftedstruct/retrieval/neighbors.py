"""Exact nearest neighbors: faiss finds candidates in float32, which are ranked by the exact distance.

A float32 search alone may rank near ties incorrectly and drop one at the end of the list. This search therefore requests a few
extra candidates and ranks them with `squares`. The list is accepted if the bound on the rounding error rules out that any other
image is as near. Otherwise the search is repeated for that query with more candidates, eventually with all images.
"""

from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from liftedstruct.retrieval.exact_distances import Doubles, Integers, Scaler, as_cpu_matrix, blocks_of, kernel, squares
from liftedstruct.retrieval.two_sets import as_queries
from liftedstruct.runtime.checks import EmbeddingsLike, check_count, check_finite, pick
from liftedstruct.runtime.threads import limit_threads, parallel_for

__all__ = ["NeighborSearch", "nearest_neighbors"]

Array = TypeVar("Array", Tensor, NDArray[Any])

METRICS = {"cosine": True, "euclidean": False}
DIRECT = 1 << 23  # multiplications up to which all distances are computed directly, without candidates
EXTRA = 31  # additional candidates
ENTRIES = 1 << 21  # list entries per block of queries


def nearest_neighbors(
    embeddings: Array, k: int, queries: EmbeddingsLike | None = None, metric: str = "euclidean"
) -> tuple[Array, Array]:
    """Find the k embeddings nearest to each query, nearest first.

    The result is exact. Of two embeddings at the same squared distance, the one with the lower index comes first.

    Args:
        embeddings: (n, d), an array or a tensor of any float type; computed on the CPU.
        k: number of neighbors per query.
        queries: (m, d). Default: every embedding is a query, and is not its own neighbor.
        metric: "euclidean", or "cosine" for 1 minus the cosine of the angle.

    Returns:
        The distances, (m, k) in float64, and the indices, (m, k). They are arrays if `embeddings` is an array, and tensors on
        the same device if it is a tensor. The cosine distance is computed as half the squared Euclidean distance of the unit
        vectors, which is accurate at small angles.

    Raises:
        ValueError: if there are fewer than k neighbors, or if an input is invalid.

    Examples:
        >>> import numpy as np
        >>> distances, indices = nearest_neighbors(np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]), k=2)
        >>> indices.tolist()
        [[2, 1], [2, 0], [0, 1]]
        >>> distances[0].tolist()
        [1.0, 5.0]
    """
    cosine = pick(METRICS, metric, "metric")
    X = as_cpu_matrix(embeddings)
    n, k = len(X), check_count("k", k)
    most = n - (queries is None)
    if k > most:
        why = " (an image is not its own neighbor)" if queries is None else ""
        raise ValueError(f"k must be at most {most} for {n} embeddings{why}, got {k}. Lower k, or pass more embeddings.")
    if queries is None:
        Q, own = X, torch.arange(n)
    else:
        Q, X = as_queries(queries, X)
        own = torch.full((len(Q),), -1)
    with limit_threads(n * Q.numel()):
        if cosine:
            X, Q = (unit := _unit(X, "embeddings")), unit if Q is X else _unit(Q, "queries")
        search = NeighborSearch(X)
        D = X.new_empty((len(Q), k), dtype=torch.float64)
        indices = torch.empty_like(D, dtype=torch.int64)
        for rows in blocks_of(len(Q), search.rows_at_once(k)):
            D[rows], indices[rows] = search.nearest(Q[rows], k, own[rows])
        D = D.mul_(0.5) if cosine else D.sqrt_()
    if isinstance(embeddings, Tensor):
        return D.to(embeddings.device), indices.to(embeddings.device)
    return D.numpy(), indices.numpy()


class NeighborSearch:
    """Search among the rows of X, a CPU tensor: candidates from faiss, ranked by the exact distance."""

    def __init__(self, X: Tensor) -> None:
        self.X, self.scaler = X, Scaler.fit(X)
        self.scaler.norms(X)  # raises an error if X is not finite

    @cached_property
    def index(self) -> Any:
        """The faiss index of the scaled rows, built on first use: small searches need none."""
        import faiss

        index = faiss.IndexFlatL2(self.X.shape[1])
        for rows in np.array_split(np.arange(len(self.X)), -(-len(self.X) // 4096)):
            index.add(self.scaler.transform(self.X, rows).numpy())
        return index

    def rows_at_once(self, k: int) -> int:
        """Return the number of queries per block with lists of k neighbors, to limit memory."""
        return max(1, min(1024, ENTRIES // (k + 1 + EXTRA)))

    def nearest(self, Q: Tensor, k: int, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return squared distances and indices of the k nearest rows of X, (b, k); `own` is each query's row in X, or -1."""
        return self._nearest(Q, self.scaler.norms(Q), k, own, k + 1 + EXTRA)

    def _nearest(self, Q: Tensor, norms: Tensor, k: int, own: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
        n = len(self.X)
        if 2 * wanted >= n or (n * Q.numel() <= DIRECT and "index" not in vars(self)):
            with limit_threads(n * Q.numel()):
                return self._nearest_of_all(Q, k, own)
        approximate, j = map(
            torch.from_numpy, self.index.search(self.scaler.transform(Q, np.arange(len(Q))).numpy(), wanted)
        )  # (b, wanted)
        j = j.sort(dim=1).values  # by index, so that a stable sort by distance keeps the order of ties
        D2, j = _sorted(self._squares(Q, j.clamp(min=0)).masked_fill_(j < 0, torch.inf), j, own)
        D2, j = D2[:, :k], j[:, :k]
        proven = self.scaler.floor(approximate[:, -1], norms) > D2[:, -1] * self.scaler.scale**2
        if not proven.all():
            again = (~proven).nonzero().squeeze(1)
            for part in again.split(self.rows_at_once(8 * wanted)):
                D2[part], j[part] = self._nearest(Q[part], norms[part], k, own[part], 8 * wanted)
        return D2, j

    def _nearest_of_all(self, Q: Tensor, k: int, own: Tensor) -> tuple[Tensor, Tensor]:
        j = torch.arange(len(self.X))
        lists = []
        for rows in blocks_of(len(Q), max(1, ENTRIES // len(j))):
            every = j.expand(len(Q[rows]), -1).contiguous()
            D2, order = _sorted(self._squares(Q[rows], every), every, own[rows])
            lists.append((D2[:, :k].clone(), order[:, :k].clone()))
        return torch.cat([D2 for D2, _ in lists]), torch.cat([order for _, order in lists])

    def _squares(self, Q: Tensor, j: Tensor) -> Tensor:
        """Compute the exact D² from each query to the rows of X in its list.                                   (b, c)"""
        D2 = np.empty(j.shape)
        source, lists, gallery = Q.numpy(), j.numpy(), self.X.numpy()
        parts = blocks_of(len(Q), max(1, (1 << 22) // (j.shape[1] * Q.shape[1])))  # a few milliseconds each
        parallel_for(lambda rows: squares_of_lists(source[rows], gallery, lists[rows], D2[rows]), parts)
        return torch.from_numpy(D2)


def _sorted(D2: Tensor, j: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Sort lists, given in order of index, by distance and then index; an image's own row goes last."""
    D2, at = D2.masked_fill(j == own[:, None], torch.inf).sort(dim=1, stable=True)
    return D2, j.gather(1, at)


def _unit(X: Tensor, what: str) -> Tensor:
    """Normalize the rows to unit length, in float64."""
    if not X.isfinite().all():
        check_finite(X, torch.inf)
    largest = X.abs().amax(dim=1, keepdim=True).double()
    zero = (largest == 0).squeeze(1)
    if zero.any():
        raise ValueError(
            f"{what} must be nonzero for metric='cosine', but row {int(zero.nonzero()[0])} is zero "
            f"(first of {int(zero.sum())} such rows). Drop it, or use metric='euclidean'."
        )
    unit = X.double() / largest
    return unit.div_(torch.linalg.vector_norm(unit, dim=1, keepdim=True))


@kernel
def squares_of_lists(Q: NDArray[np.floating], X: NDArray[np.floating], lists: Integers, out: Doubles) -> None:
    """Compute D² from each query to the rows of X in its list."""
    for r in range(len(Q)):
        squares(Q, r, X, lists[r], lists.shape[1], out[r])

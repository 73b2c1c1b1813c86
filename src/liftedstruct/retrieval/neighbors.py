"""Lists of nearest neighbors, exact: candidates from faiss in float32, ranked by the distance as defined.

A search in float32 alone may rank near ties wrongly, and drop one at the end of its list. So it is asked for a few candidates
more than wanted, these are ranked by :func:`~liftedstruct.retrieval.exact_distances.squares`, and the list stands if no image
outside it can be as near, by the bound on the rounding. If one could, the search goes wider for that row, at last over
everything.
"""

from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from liftedstruct.retrieval.exact_distances import Doubles, Integers, Scaler, as_cpu_matrix, blocks_of, kernel, squares
from liftedstruct.runtime.checks import EmbeddingsLike, check_count, check_finite, pick
from liftedstruct.runtime.threads import limit_threads, parallel_for

__all__ = ["NeighborSearch", "nearest_neighbors"]

Array = TypeVar("Array", Tensor, NDArray[Any])

METRICS = {"cosine": True, "euclidean": False}
DIRECT = 1 << 23  # multiplications: less than this is done at once, without candidates
EXTRA = 31  # candidates beyond those wanted
ENTRIES = 1 << 21  # of a list at a time


def nearest_neighbors(
    embeddings: Array, k: int, queries: EmbeddingsLike | None = None, metric: str = "euclidean"
) -> tuple[Array, Array]:
    """The k nearest embeddings of each query, nearest first; of two at the same squared distance the lower index comes first.

    Args:
        embeddings: (n, d), an array or a tensor of any float type; computed on the CPU.
        k: how many to list.
        queries: (m, d); without them every image is a query, and not its own neighbor.
        metric: "euclidean", or "cosine" for 1 - cos of the angle.

    Returns:
        distances (m, k) in float64 and indices (m, k); arrays for arrays, tensors on the same device for tensors. The cosine
        distance is taken as half the squared Euclidean distance of the unit vectors, which keeps its digits at small angles.

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
        raise ValueError(f"k must be at most {most} for {n} embeddings{why}, got {k}. Ask for fewer, or pass more embeddings.")
    if queries is None:
        Q, own = X, torch.arange(n)
    else:
        Q, own = _queries(queries, X), torch.full((len(queries),), -1)
        if Q.dtype != X.dtype:
            Q, X = Q.double(), X.double()
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
    """A search among the rows of X, a CPU tensor: candidates from faiss, then the defined distance."""

    def __init__(self, X: Tensor) -> None:
        self.X, self.scaler = X, Scaler.fit(X)
        self.scaler.norms(X)  # checks X

    @cached_property
    def index(self) -> Any:
        """The scaled rows in faiss; made when first asked for, as few rows need no index."""
        import faiss

        index = faiss.IndexFlatL2(self.X.shape[1])
        for rows in np.array_split(np.arange(len(self.X)), -(-len(self.X) // 4096)):
            index.add(self.scaler.transform(self.X, rows).numpy())
        return index

    def rows_at_once(self, k: int) -> int:
        """As many queries as fit a modest memory with lists of k."""
        return max(1, min(1024, ENTRIES // (k + 1 + EXTRA)))

    def nearest(self, Q: Tensor, k: int, own: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distances and indices of the k nearest rows of X, (b, k) each; ``own`` are the queries' rows in X, or -1."""
        norms = self.scaler.norms(Q)
        with limit_threads(len(self.X) * Q.numel()):
            return self._nearest(Q, norms, k, own, k + 1 + EXTRA)

    def _nearest(self, Q: Tensor, norms: Tensor, k: int, own: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
        n = len(self.X)
        if 2 * wanted >= n or n * Q.numel() <= DIRECT:
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
        """The defined D² of each query to its list of rows of X.                                               (b, c)"""
        D2 = np.empty(j.shape)
        source, lists, gallery = Q.numpy(), j.numpy(), self.X.numpy()
        parts = blocks_of(len(Q), max(1, (1 << 22) // (j.shape[1] * Q.shape[1])))  # some milliseconds each
        parallel_for(lambda rows: squares_of_lists(source[rows], gallery, lists[rows], D2[rows]), parts)
        return torch.from_numpy(D2)


def _sorted(D2: Tensor, j: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Lists that are ordered by index, ordered by distance and then index; an image's own row goes to the end."""
    D2, at = D2.masked_fill(j == own[:, None], torch.inf).sort(dim=1, stable=True)
    return D2, j.gather(1, at)


def _queries(queries: EmbeddingsLike, X: Tensor) -> Tensor:
    Q = as_cpu_matrix(queries)
    if Q.shape[1] != X.shape[1]:
        raise ValueError(
            f"queries must have as many dimensions as the embeddings, {X.shape[1]}, got {Q.shape[1]}. Embed both the same way."
        )
    bad = (~Q.isfinite().all(dim=1)).nonzero().squeeze(1)
    if len(bad):
        raise ValueError(f"queries must be finite, row {int(bad[0])} is not (first of {len(bad)} such rows). Drop them.")
    return Q


def _unit(X: Tensor, what: str) -> Tensor:
    """Rows of length one, in float64."""
    if not X.isfinite().all():
        check_finite(X, torch.inf)
    largest = X.abs().amax(dim=1, keepdim=True).double()
    zero = (largest == 0).squeeze(1)
    if zero.any():
        raise ValueError(
            f"{what} must not be zero under metric='cosine', row {int(zero.nonzero()[0])} is (first of {int(zero.sum())}). "
            "Drop it, or use metric='euclidean'."
        )
    unit = X.double() / largest
    return unit.div_(torch.linalg.vector_norm(unit, dim=1, keepdim=True))


@kernel
def squares_of_lists(Q: NDArray[np.floating], X: NDArray[np.floating], lists: Integers, out: Doubles) -> None:
    """D² of each query to its list of rows of X."""
    for r in range(len(Q)):
        squares(Q, r, X, lists[r], lists.shape[1], out[r])

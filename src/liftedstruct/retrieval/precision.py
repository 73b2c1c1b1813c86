r"""Precision among the nearest, for comparison with newer papers, and the recall of information retrieval.

A query has R positives, the other images of its class. Names collide in this field; this is which is which:

==========================  ===================================================================================
recall_at_k                 is **any** positive among the K nearest? The paper's Recall@K
precision_at_1              is the nearest a positive? The same as Recall@1
r_precision                 which share of the R nearest are positives?
map_at_r                    the same, but early positives count more (Musgrave, Belongie and Lim, 2020)
retrieval_recall            which share of the R positives are among the K nearest? Information retrieval's recall
==========================  ===================================================================================

All are averages over the queries that have a positive. Neighbors are exact, and of equal distances the lower index is nearer.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from liftedstruct.retrieval.exact_distances import as_cpu_matrix
from liftedstruct.retrieval.neighbors import NeighborSearch
from liftedstruct.retrieval.recall import check_ks, recall_at_k
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_labels

__all__ = ["map_at_r", "precision_at_1", "r_precision", "retrieval_recall"]


def precision_at_1(embeddings: EmbeddingsLike, labels: LabelsLike) -> float:
    """Share of queries whose nearest other image is of their class; the same number as Recall@1.

    >>> import numpy as np
    >>> precision_at_1(np.array([[0.0], [1.0], [3.0], [3.5], [9.0]]), ["a", "a", "a", "b", "b"])
    0.6
    """
    return recall_at_k(embeddings, labels, ks=(1,))[1]


def r_precision(embeddings: EmbeddingsLike, labels: LabelsLike) -> float:
    r"""Share of positives among the R nearest of a query, R being the number of its positives; averaged over queries.

    Example: of the three a on a line, those at 0 and 1 have (1, 3) and (0, 3) as their two nearest, all of them a. The a at 3
    has 3.5 and 1, one of two. The b at 3.5 has an a nearest, the b at 9 a b.

    >>> import numpy as np
    >>> r_precision(np.array([[0.0], [1.0], [3.0], [3.5], [9.0]]), ["a", "a", "a", "b", "b"])  # (1 + 1 + 1/2 + 0 + 1) / 5
    0.7
    """
    return _average(hits.sum(dim=1) / R for hits, R in _hits_up_to_r(embeddings, labels))


def map_at_r(embeddings: EmbeddingsLike, labels: LabelsLike) -> float:
    r"""Mean average precision at R, of Musgrave, Belongie and Lim, *A Metric Learning Reality Check* (2020).

    .. math:: \mathrm{MAP@R} = \frac{1}{R} \sum_{i=1}^{R} P(i), \qquad
              P(i) = \text{precision at } i \text{ if the } i\text{-th nearest is a positive, else } 0

    averaged over queries.

    Example: as for :func:`r_precision`, but the a at 3 has its positive second, where precision is 1/2.

    >>> import numpy as np
    >>> map_at_r(np.array([[0.0], [1.0], [3.0], [3.5], [9.0]]), ["a", "a", "a", "b", "b"])  # (1 + 1 + (0 + 1/2)/2 + 0 + 1) / 5
    0.65
    """

    def scores() -> Iterator[Tensor]:
        for hits, R in _hits_up_to_r(embeddings, labels):
            places = torch.arange(1, hits.shape[1] + 1, device=hits.device)
            precision = hits.cumsum(dim=1) / places.double()  # at each place                         (b, k)
            yield precision.mul_(hits).sum(dim=1) / R

    return _average(scores())


def retrieval_recall(embeddings: EmbeddingsLike, labels: LabelsLike, ks: Iterable[int] = (1, 2, 4, 8)) -> dict[int, float]:
    r"""Share of **all** of a query's positives that are among its K nearest, averaged over queries: {K: share}.

    This is what information retrieval calls recall. The Recall@K of metric learning asks for **one** positive only, and is
    :func:`recall_at_k`: an image with three positives, one of them nearest, has Recall@1 = 1 and retrieval recall 1/3.

    >>> import numpy as np
    >>> from liftedstruct.retrieval import recall_at_k
    >>> x, y = np.array([[0.0], [1.0], [3.0], [3.5], [9.0]]), ["a", "a", "a", "b", "b"]
    >>> recall_at_k(x, y, ks=(1, 2, 3))
    {1: 0.6, 2: 0.8, 3: 0.8}
    >>> retrieval_recall(x, y, ks=(1, 2, 3))
    {1: 0.4, 2: 0.7, 3: 0.8}
    """
    ks = check_ks(ks)
    found: dict[int, list[Tensor]] = {k: [] for k in ks}
    for hits, R in _hits(embeddings, labels, max(ks)):
        for k, shares in found.items():
            shares.append(hits[:, :k].sum(dim=1) / R)
    return {k: _average(shares) for k, shares in found.items()}


def _average(parts: Iterable[Tensor]) -> float:
    return torch.cat(list(parts)).mean().item()


def _hits_up_to_r(embeddings: EmbeddingsLike, labels: LabelsLike) -> Iterator[tuple[Tensor, Tensor]]:
    """As :func:`_hits`, and false beyond the R nearest."""
    for hits, R in _hits(embeddings, labels):
        yield hits & (torch.arange(hits.shape[1], device=hits.device) < R[:, None]), R


def _hits(embeddings: EmbeddingsLike, labels: LabelsLike, k: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of queries: which of their k nearest (R if none is given) are positives (b, k), and R in float64 (b,)."""
    X = as_cpu_matrix(embeddings)
    y = as_labels(labels, X)
    _, classes, sizes = y.unique(return_inverse=True, return_counts=True)
    R = sizes[classes] - 1
    R, queries = R.sort(descending=True, stable=True)  # queries with lists of about the same length together
    n_queries = int((R > 0).sum())
    if not n_queries:
        raise ValueError(f"labels must have two images of some class, got {len(X)} images of {len(X)} classes. Add images.")
    search = NeighborSearch(X)
    begin = 0
    while begin < n_queries:
        longest = int(R[begin]) if k is None else min(k, len(X) - 1)
        rows = slice(begin, min(n_queries, begin + search.rows_at_once(longest)))
        own = queries[rows]
        _, j = search.nearest(X[own], longest, own)
        yield y[j] == y[own][:, None], R[rows].double()
        begin = rows.stop

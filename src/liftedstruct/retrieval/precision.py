r"""Precision metrics for comparison with newer papers, and recall as in information retrieval.

A query has R positives, the other images of its class. The names of these metrics are easily confused:

| function           | metric                                                                                        |
|--------------------|-----------------------------------------------------------------------------------------------|
| `recall_at_k`      | is **any** positive among the K nearest? The paper's Recall@K                                 |
| `precision_at_1`   | is the nearest neighbor a positive? Equal to Recall@1                                         |
| `r_precision`      | fraction of positives among the R nearest                                                     |
| `map_at_r`         | the same, but early positives count more (Musgrave, Belongie and Lim, 2020)                   |
| `retrieval_recall` | fraction of the R positives that are among the K nearest, the recall of information retrieval |

All are averages over the queries that have a positive. Neighbors are exact; ties go to the lower index.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from liftedstruct.retrieval.neighbors import NeighborSearch
from liftedstruct.retrieval.recall import check_ks, recall_at_k
from liftedstruct.retrieval.two_sets import gallery_and_queries
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike

__all__ = ["map_at_r", "precision_at_1", "r_precision", "retrieval_recall"]


def precision_at_1(
    embeddings: EmbeddingsLike,
    labels: LabelsLike,
    *,
    queries: EmbeddingsLike | None = None,
    query_labels: LabelsLike | None = None,
) -> float:
    """Compute precision at 1: the fraction of queries whose nearest neighbor belongs to their class. Equal to Recall@1.

    Args:
        embeddings: (n, d), an array or a tensor of any float type; computed on the CPU.
        labels: (n,), integers or strings.
        queries: (m, d), embeddings of queries that are not in the gallery. Default: every image is a query.
        query_labels: (m,), labels of the queries.

    Returns:
        The average over the queries that have a positive, 0 to 1.

    Examples:
        >>> import numpy as np
        >>> precision_at_1(np.array([[0.0], [1.0], [3.0], [3.5], [9.0]]), ["a", "a", "a", "b", "b"])
        0.6
    """
    return recall_at_k(embeddings, labels, (1,), queries=queries, query_labels=query_labels)[1]


def r_precision(
    embeddings: EmbeddingsLike,
    labels: LabelsLike,
    *,
    queries: EmbeddingsLike | None = None,
    query_labels: LabelsLike | None = None,
) -> float:
    r"""Compute R-precision: the fraction of positives among the R nearest neighbors of a query with R positives.

    Args:
        embeddings: (n, d), an array or a tensor of any float type; computed on the CPU.
        labels: (n,), integers or strings.
        queries: (m, d), embeddings of queries that are not in the gallery. Default: every image is a query.
        query_labels: (m,), labels of the queries.

    Returns:
        The average over the queries that have a positive, 0 to 1.

    Examples:
        The two nearest neighbors of the `a` at 0 and of the `a` at 1 are both `a`. The `a` at 3 has a `b` at 3.5 and an `a` at
        1: one of two is a positive. The nearest neighbor of the `b` at 3.5 is an `a`; for the `b` at 9, it is a `b`.

        >>> import numpy as np
        >>> r_precision(np.array([[0.0], [1.0], [3.0], [3.5], [9.0]]), ["a", "a", "a", "b", "b"])  # (1 + 1 + 1/2 + 0 + 1) / 5
        0.7
    """
    found = _hits_up_to_r(embeddings, labels, queries, query_labels)
    return _average(hits.sum(dim=1) / R for hits, R in found)


def map_at_r(
    embeddings: EmbeddingsLike,
    labels: LabelsLike,
    *,
    queries: EmbeddingsLike | None = None,
    query_labels: LabelsLike | None = None,
) -> float:
    r"""Compute mean average precision at R (Musgrave, Belongie and Lim, *A Metric Learning Reality Check*, 2020).

    $$
    \text{MAP@R} = \frac{1}{R} \sum_{i=1}^{R} P(i)
    $$

    averaged over queries, where $P(i)$ is the precision at i if the i-th nearest neighbor is a positive, and 0 otherwise.

    Args:
        embeddings: (n, d), an array or a tensor of any float type; computed on the CPU.
        labels: (n,), integers or strings.
        queries: (m, d), embeddings of queries that are not in the gallery. Default: every image is a query.
        query_labels: (m,), labels of the queries.

    Returns:
        The average over the queries that have a positive, 0 to 1.

    Examples:
        As in `r_precision`, but the positive of the `a` at 3 comes second, where the precision is 1/2:
        (1 + 1 + (0 + 1/2) / 2 + 0 + 1) / 5.

        >>> import numpy as np
        >>> map_at_r(np.array([[0.0], [1.0], [3.0], [3.5], [9.0]]), ["a", "a", "a", "b", "b"])
        0.65
    """

    def scores() -> Iterator[Tensor]:
        for hits, R in _hits_up_to_r(embeddings, labels, queries, query_labels):
            places = torch.arange(1, hits.shape[1] + 1, device=hits.device)
            precision = hits.cumsum(dim=1) / places.double()  # at each place                         (b, k)
            yield precision.mul_(hits).sum(dim=1) / R

    return _average(scores())


def retrieval_recall(
    embeddings: EmbeddingsLike,
    labels: LabelsLike,
    ks: Iterable[int] = (1, 2, 4, 8),
    *,
    queries: EmbeddingsLike | None = None,
    query_labels: LabelsLike | None = None,
) -> dict[int, float]:
    r"""Compute the fraction of **all** positives of a query that are among its K nearest neighbors, averaged over queries.

    This is recall as in information retrieval. The Recall@K of metric learning, `recall_at_k`, needs only **one** positive: an
    image with three positives, one of which is its nearest neighbor, has Recall@1 = 1 and retrieval recall 1/3.

    Args:
        embeddings: (n, d), an array or a tensor of any float type; computed on the CPU.
        labels: (n,), integers or strings.
        ks: the values of K.
        queries: (m, d), embeddings of queries that are not in the gallery. Default: every image is a query.
        query_labels: (m,), labels of the queries.

    Returns:
        A dict from K to the average over the queries that have a positive, 0 to 1.

    Examples:
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
    for hits, R in _hits(embeddings, labels, queries, query_labels, max(ks)):
        for k, shares in found.items():
            shares.append(hits[:, :k].sum(dim=1) / R)
    return {k: _average(shares) for k, shares in found.items()}


def _average(parts: Iterable[Tensor]) -> float:
    return torch.cat(list(parts)).mean().item()


def _hits_up_to_r(
    embeddings: EmbeddingsLike, labels: LabelsLike, queries: EmbeddingsLike | None, query_labels: LabelsLike | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the same as `_hits`, with false beyond the R nearest neighbors."""
    for hits, R in _hits(embeddings, labels, queries, query_labels):
        yield hits & (torch.arange(hits.shape[1], device=hits.device) < R[:, None]), R


def _hits(
    embeddings: EmbeddingsLike,
    labels: LabelsLike,
    queries: EmbeddingsLike | None,
    query_labels: LabelsLike | None,
    k: int | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, per block of queries, which of the k nearest (default: R) are positives, (b, k), and R, (b,) in float64."""
    X, y, Q, own = gallery_and_queries(embeddings, labels, queries, query_labels)
    if Q is None or own is None:
        Q, own, itself = X, y, torch.arange(len(X))
    else:
        itself = torch.full((len(Q),), -1)
    R = _class_sizes(y, own) - int(Q is X)
    R, order = R.sort(descending=True, stable=True)  # groups queries with lists of similar length
    n_queries = int((R > 0).sum())
    if not n_queries:
        raise ValueError(
            f"labels must have a class with two images, got {len(X)} images of {len(X)} classes. Add images."
            if Q is X
            else f"query_labels must have a class of the gallery, got {len(Q)} queries of others. Check the labels."
        )
    search = NeighborSearch(X)
    begin = 0
    while begin < n_queries:
        longest = int(R[begin]) if k is None else min(k, len(X) - (Q is X))
        rows = slice(begin, min(n_queries, begin + search.rows_at_once(longest)))
        block = order[rows]
        _, j = search.nearest(Q[block], longest, itself[block])
        yield y[j] == own[block][:, None], R[rows].double()
        begin = rows.stop


def _class_sizes(y: Tensor, own: Tensor) -> Tensor:
    """Return the number of images in the gallery with each query's label."""
    ordered = y.sort().values
    return torch.searchsorted(ordered, own, right=True) - torch.searchsorted(ordered, own)

r"""Recall@K for every K at once, from the rank of the first same-class image, without lists of neighbors.

The rank of a query's first positive is one plus the number of images nearer than it. The algorithm finds the distance to the
nearest positive, $d^+_i$, then counts block by block the images with $D_{ij} < d^+_i$, or at $d^+_i$ with a lower index. It
needs no heap and only the memory of a few blocks. Since $D$ is symmetric, half of its blocks are enough. The products are in
float32, but the result is exact: see `liftedstruct.retrieval.exact_distances`.
"""

from collections.abc import Iterable
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from liftedstruct.distances import full_precision
from liftedstruct.retrieval.exact_distances import Integers, Scaler, blocks_of
from liftedstruct.retrieval.rank_kernels import SortedByClass, count, count_of_queries, nearest_positives
from liftedstruct.retrieval.two_sets import gallery_and_queries
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, check_count, pick
from liftedstruct.runtime.progress import Bar
from liftedstruct.runtime.threads import limit_threads, parallel_for

__all__ = ["COLUMNS", "ROWS", "SINGLES", "Recall", "check_ks", "first_ranks", "recall_at_k", "sorted_by_class"]

ROWS, COLUMNS = 256, 1024  # of a product, so that it stays in the cache of its thread
UNREACHED = 3e38  # c of an image without positives, larger than any product
SINGLES = {"leave-out": False, "miss": True}


class Recall(dict[int, float]):
    """Dict from K to Recall@K.

    Attributes:
        queries: number of images averaged over.
        singles: number of images without another image of their class to find.
    """

    queries: int
    singles: int


def recall_at_k(
    embeddings: EmbeddingsLike,
    labels: LabelsLike,
    ks: Iterable[int] = (1, 2, 4, 8),
    *,
    singles: str = "leave-out",
    queries: EmbeddingsLike | None = None,
    query_labels: LabelsLike | None = None,
) -> Recall:
    r"""Compute Recall@K: the fraction of queries with **at least one** image of their class among their K nearest neighbors.

    This is the Recall@K of the paper and of metric learning. Every image is a query once, with all other images as its gallery;
    or `queries` are the queries, and all images are their gallery. Distances are Euclidean, and images at equal distance are
    ranked by index. The fraction of **all** images of the class that are among the K nearest is a different metric,
    `retrieval_recall`. Recall@1 is equal to `precision_at_1`.

    Args:
        embeddings: (n, d), an array or a tensor of any float type; computed on the CPU.
        labels: (n,), integers or strings.
        ks: the values of K; several take no longer than one.
        singles: how to treat queries without an image of their class in the gallery: "leave-out" excludes them from the
            average, and "miss" counts them as queries without a hit.
        queries: (m, d), embeddings of queries that are not in the gallery. Default: every image is a query.
        query_labels: (m,), labels of the queries.

    Returns:
        A dict from K to the fraction, with two attributes. `queries` is the number of images averaged over, and `singles` is
        the number of queries without an image of their class in the gallery.

    Raises:
        ValueError: if no query has an image of its class in the gallery, or if an input is invalid.

    Examples:
        The `a` at 3 has a `b` before its first `a`, the `b` at 3.5 has all three `a` before its `b`, and the `c` is alone in
        its class.

        >>> import numpy as np
        >>> x = np.array([[0.0], [1.0], [3.0], [3.5], [9.0], [20.0]])
        >>> recall = recall_at_k(x, ["a", "a", "a", "b", "b", "c"], ks=(1, 2, 3))
        >>> recall
        {1: 0.6, 2: 0.8, 3: 0.8}
        >>> recall.queries, recall.singles
        (5, 1)
        >>> recall_at_k(x, ["a", "a", "a", "b", "b", "c"], ks=(1, 2), queries=np.array([[3.2], [3.3]]), query_labels=["a", "b"])
        {1: 1.0, 2: 1.0}
    """
    ks, missed = check_ks(ks), pick(SINGLES, singles, "singles")
    ranks = first_ranks(embeddings, labels, queries=queries, query_labels=query_labels, most=max(ks))
    alone = int((ranks == 0).sum())
    if alone == len(ranks):
        if queries is not None:
            raise ValueError(f"query_labels must have a class of the gallery, got {alone} queries of others. Check the labels.")
        raise ValueError(f"labels must have a class with two images, got {alone} images of {alone} classes. Add images.")
    recall = Recall()
    recall.queries, recall.singles = len(ranks) - (0 if missed else alone), alone
    for k in ks:
        recall[k] = int(((ranks > 0) & (ranks <= k)).sum()) / recall.queries
    return recall


def first_ranks(
    embeddings: EmbeddingsLike,
    labels: LabelsLike,
    progress: bool = False,
    queries: EmbeddingsLike | None = None,
    query_labels: LabelsLike | None = None,
    most: int | None = None,
) -> Integers:
    """Compute the rank of each query's first same-class image: 1 if it is the nearest, 0 if there is none.           (n,)

    Ties go to the lower index. Every image is a query, or those of `queries`. With `progress`, show a progress bar on stderr.
    With `most`, a rank above it may be any number above it, which is faster for `queries`.

    Examples:
        >>> import numpy as np
        >>> first_ranks(np.array([[0.0], [1.0], [3.0], [3.5], [9.0]]), ["a", "a", "a", "b", "b"]).tolist()
        [1, 1, 2, 4, 1]
    """
    X, y, Q, own = gallery_and_queries(embeddings, labels, queries, query_labels)
    rows = len(X) if Q is None else len(Q)
    with limit_threads(rows * X.numel()), Bar("recall", rows, wanted=progress) as bar:
        if Q is None or own is None:
            return _first_ranks(X, y.numpy(), bar)
        return _first_ranks(torch.cat((X, Q)), torch.cat((y, own)).numpy(), bar, gallery=len(X), most=most)


def check_ks(ks: Iterable[int]) -> list[int]:
    """Return the values of K as a list of whole numbers, and raise an error if there are none."""
    if not isinstance(ks, Iterable):
        raise ValueError(f"ks must be whole numbers, such as (1, 2, 4, 8), got {ks!r}. Pass a list or a tuple.")
    checked = [check_count("each of ks", k) for k in ks]
    if not checked:
        raise ValueError("ks must contain at least one number, got none. Pass (1, 2, 4, 8).")
    return checked


def sorted_by_class(X: Tensor, y: Integers, gallery: int | None = None) -> tuple[SortedByClass, Scaler]:
    """Sort images by class. If only the first `gallery` images are the gallery, the queries are sorted after them."""
    size = gallery or len(X)
    order = np.argsort(y[:size], kind="stable")
    if gallery:
        order = np.concatenate((order, gallery + np.argsort(y[gallery:], kind="stable")))
    classes = y[order]
    starts, stops = np.searchsorted(classes[:size], classes), np.searchsorted(classes[:size], classes, "right")
    scaler = Scaler.fit(X)
    norms = scaler.norms(X).numpy()[order]
    return SortedByClass(X.numpy(), order, starts, stops, norms, scaler.scale, scaler.least), scaler


def _first_ranks(
    X: Tensor,
    y: Integers,
    bar: Bar,
    height: int = ROWS,
    width: int = COLUMNS,
    gallery: int | None = None,
    most: int | None = None,
) -> Integers:
    """Compute the ranks in blocks of `height` rows and `width` columns, shared among threads.

    If only the first `gallery` images are the gallery, the queries are the others, and follow them.
    """
    n, size, begin = len(X), gallery or len(X), gallery or 0  # the gallery is 0..size, the queries are begin..n
    images, scaler = sorted_by_class(X, y, gallery)
    _, order, starts, stops, norms, *_ = images
    t, p = np.full(n, np.inf), np.full(n, n)  # D² and index of each image's nearest positive         (n,)
    nearer = np.zeros(n, np.int64)
    lock = Lock()

    def find_positives(rows: slice) -> None:
        A = scaler.transform(X, order[rows])
        first, last = int(starts[rows.start]), int(stops[rows.stop - 1])  # the classes of these rows
        for part in blocks_of(last - first, width):
            j0 = first + part.start
            G = torch.mm(A, scaler.transform(X, order[j0 : first + part.stop]).T).numpy()  # a_i·a_j                (b, w)
            nearest_positives(G, rows.start, j0, images, t, p)

    def count_nearer(columns: slice) -> None:
        B = scaler.transform(X, order[columns])
        space = torch.from_numpy(np.empty(height * len(B), np.float32))
        counts = np.zeros(columns.stop, np.int64)
        for rows in blocks_of(columns.stop, height):
            A = scaler.transform(X, order[rows])
            j0 = max(columns.start, rows.start)  # skip the part left of the diagonal: D is symmetric
            G = space[: len(A) * (columns.stop - j0)].view(len(A), columns.stop - j0)
            torch.mm(A, B[j0 - columns.start :].T, out=G)  # a_i·a_j                                  (b, w)
            count(G.numpy(), rows.start, j0, images, c, t, p, counts)
        with lock:
            np.add(nearer[: columns.stop], counts, out=nearer[: columns.stop])
            bar.advance(len(B))

    def count_nearer_to_queries(rows: slice) -> None:
        queries = rows.start + np.flatnonzero(t[rows] < np.inf)
        A = scaler.transform(X, order[queries])
        for columns in blocks_of(size, height):  # exchanged: the images, of which a block is scaled each time, are the columns
            if not len(queries):
                break
            G = torch.mm(A, scaler.transform(X, order[columns]).T).numpy()  # a_i·a_j                               (b, w)
            count_of_queries(G, queries, columns.start, images, c, t, p, nearer)
            left = np.flatnonzero(nearer[queries] < (size if most is None else most))
            if len(left) < 0.9 * len(queries):
                queries, A = queries[left], A[left]
        with lock:
            bar.advance(rows.stop - rows.start)

    with full_precision(X.device):
        parallel_for(find_positives, blocks_of(n, height, begin))
        c = np.where(t < np.inf, 0.5 * (norms**2 - scaler.scale**2 * t), UNREACHED)
        if gallery:
            parallel_for(count_nearer_to_queries, blocks_of(n, width, begin))
        else:
            parallel_for(count_nearer, reversed(list(blocks_of(n, width))))  # the longest first
    ranks = np.empty_like(nearer)
    ranks[order] = np.where(t < np.inf, nearer + 1, 0)
    return ranks[begin:]

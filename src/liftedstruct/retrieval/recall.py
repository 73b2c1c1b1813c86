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
from liftedstruct.retrieval.exact_distances import Integers, Scaler, as_cpu_matrix, blocks_of
from liftedstruct.retrieval.rank_kernels import count, nearest_positives
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_labels, check_count, pick
from liftedstruct.runtime.progress import Bar
from liftedstruct.runtime.threads import limit_threads, parallel_for

__all__ = ["SINGLES", "Recall", "check_ks", "first_ranks", "recall_at_k"]

ROWS, COLUMNS = 256, 1024  # of a product, so that it stays in the cache of its thread
UNREACHED = 3e38  # c of an image without positives, larger than any product
SINGLES = {"leave-out": False, "miss": True}


class Recall(dict[int, float]):
    """Dict from K to Recall@K.

    Attributes:
        queries: number of images averaged over.
        singles: number of images that are alone in their class.
    """

    queries: int
    singles: int


def recall_at_k(
    embeddings: EmbeddingsLike, labels: LabelsLike, ks: Iterable[int] = (1, 2, 4, 8), *, singles: str = "leave-out"
) -> Recall:
    r"""Compute Recall@K: the fraction of queries with **at least one** image of their class among their K nearest neighbors.

    This is the Recall@K of the paper and of metric learning. Every image is a query once, with all other images as its gallery.
    Distances are Euclidean, and images at equal distance are ranked by index. The fraction of **all** images of the class that
    are among the K nearest is a different metric, `retrieval_recall`. Recall@1 is equal to `precision_at_1`.

    Args:
        embeddings: (n, d), an array or a tensor of any float type; computed on the CPU.
        labels: (n,), integers or strings.
        ks: the values of K; several take no longer than one.
        singles: how to treat images that are alone in their class: "leave-out" excludes them from the average, and "miss"
            counts them as queries without a hit.

    Returns:
        A dict from K to the fraction, with two attributes. `queries` is the number of images averaged over, and `singles` is
        the number of images that are alone in their class.

    Raises:
        ValueError: if no class has two images, or if an input is invalid.

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
    """
    ks, missed = check_ks(ks), pick(SINGLES, singles, "singles")
    ranks = first_ranks(embeddings, labels)
    alone = int((ranks == 0).sum())
    if alone == len(ranks):
        raise ValueError(f"labels must have a class with two images, got {alone} images of {alone} classes. Add images.")
    recall = Recall()
    recall.queries, recall.singles = len(ranks) - (0 if missed else alone), alone
    for k in ks:
        recall[k] = int(((ranks > 0) & (ranks <= k)).sum()) / recall.queries
    return recall


def first_ranks(embeddings: EmbeddingsLike, labels: LabelsLike, progress: bool = False) -> Integers:
    """Compute the rank of each image's first same-class image: 1 if it is the nearest, 0 if there is none.           (n,)

    Ties go to the lower index. With `progress`, show a progress bar on stderr.

    Examples:
        >>> import numpy as np
        >>> first_ranks(np.array([[0.0], [1.0], [3.0], [3.5], [9.0]]), ["a", "a", "a", "b", "b"]).tolist()
        [1, 1, 2, 4, 1]
    """
    X = as_cpu_matrix(embeddings)
    y = as_labels(labels, X)
    with limit_threads(len(X) * X.numel()), Bar("recall", len(X), wanted=progress) as bar:
        return _first_ranks(X, y.numpy(), bar)


def check_ks(ks: Iterable[int]) -> list[int]:
    """Return the values of K as a list of whole numbers, and raise an error if there are none."""
    if not isinstance(ks, Iterable):
        raise ValueError(f"ks must be whole numbers, such as (1, 2, 4, 8), got {ks!r}. Pass a list or a tuple.")
    checked = [check_count("each of ks", k) for k in ks]
    if not checked:
        raise ValueError("ks must contain at least one number, got none. Pass (1, 2, 4, 8).")
    return checked


def _first_ranks(X: Tensor, y: Integers, bar: Bar, height: int = ROWS, width: int = COLUMNS) -> Integers:
    """Compute the ranks in blocks of `height` rows and `width` columns, shared among threads.

    Images are sorted by class, then by index: position i is image order[i], and its class is starts[i]..stops[i].
    """
    n = len(X)
    order = np.argsort(y, kind="stable")
    sizes = np.unique(y, return_counts=True)[1]
    stops = np.repeat(np.cumsum(sizes), sizes)
    starts = stops - np.repeat(sizes, sizes)
    scaler = Scaler.fit(X)
    norms = scaler.norms(X).numpy()[order]
    source = X.numpy()
    t, p = np.full(n, np.inf), np.full(n, n)  # D² and index of each image's nearest positive         (n,)
    nearer = np.zeros(n, np.int64)
    lock = Lock()

    def find_positives(rows: slice) -> None:
        A = scaler.transform(X, order[rows])
        first, last = int(starts[rows.start]), int(stops[rows.stop - 1])  # the classes of these rows
        for part in blocks_of(last - first, width):
            j0 = first + part.start
            G = torch.mm(A, scaler.transform(X, order[j0 : first + part.stop]).T).numpy()  # a_i·a_j                (b, w)
            nearest_positives(G, rows.start, j0, source, order, starts, stops, norms, scaler.scale, scaler.least, t, p)

    def count_nearer(columns: slice) -> None:
        B = scaler.transform(X, order[columns])
        space = torch.from_numpy(np.empty(height * len(B), np.float32))
        counts = np.zeros(columns.stop, np.int64)
        for rows in blocks_of(columns.stop, height):
            A = scaler.transform(X, order[rows])
            j0 = max(columns.start, rows.start)  # skip the part left of the diagonal: D is symmetric
            G = space[: len(A) * (columns.stop - j0)].view(len(A), columns.stop - j0)
            torch.mm(A, B[j0 - columns.start :].T, out=G)  # a_i·a_j                                  (b, w)
            count(G.numpy(), rows.start, j0, source, order, norms, c, t, p, scaler.least, counts)
        with lock:
            np.add(nearer[: columns.stop], counts, out=nearer[: columns.stop])
            bar.advance(len(B))

    with full_precision(X.device):
        parallel_for(find_positives, blocks_of(n, height))
        c = np.where(t < np.inf, 0.5 * (norms**2 - scaler.scale**2 * t), UNREACHED)
        parallel_for(count_nearer, reversed(list(blocks_of(n, width))))  # the longest first
    ranks = np.empty_like(nearer)
    ranks[order] = np.where(t < np.inf, nearer + 1, 0)
    return ranks

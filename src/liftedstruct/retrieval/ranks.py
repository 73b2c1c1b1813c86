r"""Recall@K for every K at once, from the rank of the first same-class image, without a list of neighbours.

The rank of a query's first positive is one plus the number of images nearer than it. So find the distance to the nearest
positive, :math:`d^+_i`, then count block by block the images with :math:`D_{ij} < d^+_i`, or at :math:`d^+_i` with a lower
index. No heap, memory of a few blocks, and as :math:`D` is symmetric, half of its blocks are enough. The products are in
float32, the answer is exact: see :mod:`liftedstruct.retrieval.exact`.
"""

from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from liftedstruct.distances import full_precision
from liftedstruct.retrieval.counting import count, nearest_positives
from liftedstruct.retrieval.exact import Frame, Integers, blocks_of, door, scaled_into, slack, squares_of_pairs
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_labels, check_count, pick
from liftedstruct.runtime.progress import Bar
from liftedstruct.runtime.threads import few_threads, share_out

__all__ = ["Recall", "check_ks", "first_ranks", "recall_at_k"]

# On a CPU a thread multiplies 256 rows with 1,024 columns, and the product stays in its cache; an accelerator wants more.
ROWS, COLUMNS = 256, 1024
ROWS_ELSEWHERE, COLUMNS_ELSEWHERE = 4096, 4096
UNREACHED = 3e38  # c of an image without positives: no product comes near it
SINGLES = {"leave-out": False, "miss": True}


class Recall(dict[int, float]):
    """{K: Recall@K}, an ordinary dict that also knows how many queries it is the average of, and of the single images."""

    queries: int  # images in the average
    singles: int  # images that are alone in their class, so that no K finds another


def recall_at_k(
    embeddings: EmbeddingsLike, labels: LabelsLike, ks: Iterable[int] = (1, 2, 4, 8), *, singles: str = "leave-out"
) -> Recall:
    r"""Share of queries with **at least one** image of their class among the K nearest others, as in the paper.

    Every image is a query once, all others are its gallery, distances are Euclidean, and images at equal distance are ranked by
    index. This is the Recall@K of metric learning; the share of **all** images of the class that are among the K nearest is
    :func:`liftedstruct.retrieval_recall`, another number. Recall@1 is :func:`liftedstruct.precision_at_1`.

    Args:
        embeddings: (n, d), an array or a tensor of any float type and on any device.
        labels: (n,), integers or strings.
        ks: the values of K; all together take as long as one.
        singles: what to do with images that are alone in their class: "leave-out" of the average, or count as a "miss".

    Returns:
        {K: share}, with ``.queries``, the number of images averaged over, and ``.singles``, of images alone in their class.

    Example: five images on a line, and one alone in its class. The a at 3 has a b before its first a; the b at 3.5 has all
    three a before its b.

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
        raise ValueError(f"labels must have two images of some class, got {alone} images of {alone} classes. Add images.")
    recall = Recall()
    recall.queries, recall.singles = len(ranks) - (0 if missed else alone), alone
    for k in ks:
        recall[k] = int(((ranks > 0) & (ranks <= k)).sum()) / recall.queries
    return recall


def first_ranks(embeddings: EmbeddingsLike, labels: LabelsLike, progress: bool = False) -> Integers:
    """Rank (1 is nearest) of each image's first same-class image among all others; 0 if it is alone in its class.    (n,)

    Ties in the distance are broken by index, the lower is the nearer. With ``progress`` a bar on stderr tells how far it is.

    >>> import numpy as np
    >>> first_ranks(np.array([[0.0], [1.0], [3.0], [3.5], [9.0]]), ["a", "a", "a", "b", "b"]).tolist()
    [1, 1, 2, 4, 1]
    """
    X = door(embeddings)
    y = as_labels(labels, X)
    with few_threads(len(X) * X.numel()), Bar("recall", len(X), wanted=progress) as bar:
        classes = Classes.of(y)
        return _ranks_compiled(X, classes, bar) if X.device.type == "cpu" else _ranks_torch(X, classes, bar)


def check_ks(ks: Iterable[int]) -> list[int]:
    """The values of K as whole numbers; there must be one."""
    if not isinstance(ks, Iterable):
        raise ValueError(f"ks must be whole numbers, such as (1, 2, 4, 8), got {ks!r}. Pass a list or a tuple.")
    checked = [check_count("each of ks", k) for k in ks]
    if not checked:
        raise ValueError("ks must hold at least one number, got none. Pass (1, 2, 4, 8).")
    return checked


class Classes(NamedTuple):
    """The images sorted by class, and by index within it: position i is image order[i], its class starts[i]..stops[i]."""

    order: Tensor  # (n,)
    starts: Tensor  # (n,)
    stops: Tensor  # (n,)

    @staticmethod
    def of(labels: Tensor) -> "Classes":
        labels, order = labels.sort(stable=True)
        sizes = labels.unique_consecutive(return_counts=True)[1]
        stops = sizes.cumsum(0)
        return Classes(order, (stops - sizes).repeat_interleave(sizes), stops.repeat_interleave(sizes))

    def in_callers_order(self, t: Tensor, nearer: Tensor) -> Integers:
        """One plus the number of images nearer, or 0 where there is no positive."""
        ranks = torch.empty_like(nearer)
        ranks[self.order] = torch.where(t.isfinite(), nearer + 1, 0)
        return ranks.cpu().numpy()


def _ranks_compiled(X: Tensor, classes: Classes, bar: Bar, height: int = ROWS, width: int = COLUMNS) -> Integers:
    """On a CPU: blocks of ``height`` rows and ``width`` columns, shared out among threads."""
    n, d = X.shape
    frame = Frame.of(X)
    norms = frame.norms(X)[classes.order].numpy()
    source, centre = X.numpy(), frame.centre.numpy()
    order, starts, stops = (each.numpy() for each in classes)
    t, p = np.full(n, np.inf), np.full(n, n)  # of each image's nearest positive: D² and index        (n,)
    nearer = np.zeros(n, np.int64)
    lock = Lock()

    def scaled(part: slice) -> Tensor:
        rows = np.empty((part.stop - part.start, d), np.float32)
        scaled_into(source, order[part], centre, frame.scale, rows)
        return torch.from_numpy(rows)

    def find(rows: slice) -> None:
        A = scaled(rows)
        first, last = int(starts[rows.start]), int(stops[rows.stop - 1])  # the classes of these rows
        for part in blocks_of(last - first, width):
            j0 = first + part.start
            G = torch.mm(A, scaled(slice(j0, first + part.stop)).T).numpy()  # a_i·a_j                (b, w)
            nearest_positives(G, rows.start, j0, source, order, starts, stops, norms, frame.scale, frame.least, t, p)

    def tally(columns: slice) -> None:
        B = scaled(columns)
        space = torch.from_numpy(np.empty(height * len(B), np.float32))
        counts = np.zeros(columns.stop, np.int64)
        for rows in blocks_of(columns.stop, height):
            A = scaled(rows)
            j0 = max(columns.start, rows.start)  # what is left of the diagonal is the mirror image of what is right
            G = space[: len(A) * (columns.stop - j0)].view(len(A), columns.stop - j0)
            torch.mm(A, B[j0 - columns.start :].T, out=G)  # a_i·a_j                                  (b, w)
            count(G.numpy(), rows.start, j0, source, order, norms, c, t, p, frame.least, counts)
        with lock:
            np.add(nearer[: columns.stop], counts, out=nearer[: columns.stop])
            bar.advance(_share(columns, n))

    with full_precision(X.device):
        share_out(find, blocks_of(n, height))
        c = np.where(t < np.inf, 0.5 * (norms**2 - frame.scale**2 * t), UNREACHED)
        share_out(tally, reversed(list(blocks_of(n, width))))  # the longest first
    return classes.in_callers_order(torch.from_numpy(t), torch.from_numpy(nearer))


def _ranks_torch(
    X: Tensor, classes: Classes, bar: Bar, height: int = ROWS_ELSEWHERE, width: int = COLUMNS_ELSEWHERE
) -> Integers:
    """On any device, in whole tensors: the same comparisons as the compiled kernels make, see counting.py."""
    (n, d), (order, starts, stops) = X.shape, classes
    frame = Frame.of(X)
    norms = frame.norms(X)[order]
    half = 0.5 * norms.square()
    positions = torch.arange(n, device=X.device)
    t, p = torch.full_like(norms, torch.inf), torch.full_like(order, n)
    nearer = torch.zeros_like(order)

    def thresholds(these: slice, others: slice) -> tuple[Tensor, Tensor]:
        c = torch.where(t[these] < torch.inf, half[these] - 0.5 * frame.scale**2 * t[these], UNREACHED)
        e = slack.py_func(norms[these], norms[others].max(), d, c, frame.least)  # type: ignore[attr-defined]
        return (c - e).float(), (c + e).float()

    def lower(i: Tensor, j: Tensor) -> None:
        square, index = squares_of_pairs(X, order[i], X, order[j]), order[j]
        least = t.scatter_reduce(0, i, square, "amin")
        p[least < t] = n
        t.copy_(least)
        tied = square == t[i]
        p.scatter_reduce_(0, i[tied], index[tied], "amin")

    with full_precision(X.device):
        for rows in blocks_of(n, height):
            A, i = frame.rows(X[order[rows]]), positions[rows, None]
            first, last = int(starts[rows.start]), int(stops[rows.stop - 1])
            for part in blocks_of(last - first, width):
                columns = slice(first + part.start, first + part.stop)
                j = positions[columns]
                v = A @ frame.rows(X[order[columns]]).T - half[columns].float()  #                    (b, w)
                positive = (starts[rows, None] <= j) & (j < stops[rows, None]) & (i != j)
                guess = v.masked_fill(~positive, -torch.inf).argmax(dim=1, keepdim=True)
                r, _ = positive.gather(1, guess).nonzero(as_tuple=True)
                lower(rows.start + r, columns.start + guess[r, 0])
                low, _ = thresholds(rows, columns)
                r, q = (positive & ~(v < low[:, None])).nonzero(as_tuple=True)
                lower(rows.start + r, columns.start + q)
        for columns in blocks_of(n, width):
            B = frame.rows(X[order[columns]])
            for rows in blocks_of(columns.stop, height):
                G = frame.rows(X[order[rows]]) @ B.T  # a_i·a_j                                       (b, w)
                right = positions[rows, None] < positions[columns]  # of the diagonal
                v, w = G - half[columns].float(), G - half[rows, None].float()
                (low_i, high_i), (low_j, high_j) = thresholds(rows, columns), thresholds(columns, rows)
                nearer[rows] += ((v > high_i[:, None]) & right).sum(dim=1)
                nearer[columns] += ((w > high_j) & right).sum(dim=0)
                by_row = ~(v < low_i[:, None]) & ~(v > high_i[:, None]) & right
                by_column = ~(w < low_j) & ~(w > high_j) & right
                r, q = (by_row | by_column).nonzero(as_tuple=True)
                i, j = rows.start + r, columns.start + q
                square = squares_of_pairs(X, order[i], X, order[j])
                for these, others, opened in ((i, j, by_row), (j, i, by_column)):
                    closer = (square < t[these]) | ((square == t[these]) & (order[others] < p[these]))
                    nearer.index_add_(0, these, (closer & opened[r, q]).long())
            bar.advance(_share(columns, n))
    return classes.in_callers_order(t, nearer)


def _share(columns: slice, n: int) -> int:
    """How many of n images' work these columns are, of which the last have most: whole numbers that add up to n."""
    first, stop = int(columns.start), int(columns.stop)
    return stop * stop // n - first * first // n

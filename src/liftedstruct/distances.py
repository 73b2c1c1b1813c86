r"""Euclidean distances within a batch, :math:`D_{ij} = \lVert x_i - x_j \rVert_2`, and who is whose positive or negative.

The squared distances come from one matrix product, as in the paper:
:math:`D^2 = \tilde x 1^\top + 1 \tilde x^\top - 2 X X^\top`, with two safeguards. The batch mean is subtracted first, which
changes no distance and keeps the digits of embeddings that sit far from the origin. And where a pair is so close that the
product has lost its digits (:data:`CLOSE`), the distance is taken from the difference of the two vectors, so that equal
vectors are at distance zero exactly, on every machine. In a batch of tight clusters far apart most pairs of a cluster are that
close; there a second product, around a center in each cluster, has the digits, and costs much less than all the differences.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from liftedstruct.runtime.checks import check_finite

__all__ = [
    "SortedBatch",
    "full_precision",
    "negative_mask",
    "pairwise_distances",
    "positive_mask",
    "unit_scale",
    "workspace",
]

# Below D² = CLOSE · (‖x_i‖² + ‖x_j‖²) cancellation has taken more than three of the digits of D².
CLOSE = 1e-3
MANY = 0.02  # share of close pairs above which a block of rows is centered again, in each of its clusters
LEVELS = 3  # of clusters within clusters; pairs that are still close are computed by differences

# Rows handled at a time. On a CPU a block of rows stays in the cache for all the passes over it (256 was fastest of 64..1024
# for m = 1,024..4,096); an accelerator wants few, large kernels.
BLOCK_ROWS = {"cpu": 256}
BLOCK_ROWS_ELSEWHERE = 4096


def unit_scale(largest: float) -> float:
    """The power of two that scales a number to between 1/2 and 1, so that squares fit float32; no digit is lost."""
    return 2.0 ** min(max(-math.frexp(largest)[1], -500), 500)


def positive_mask(labels: Tensor) -> Tensor:
    """(m, m), true where i and j are different images of one class."""
    return (labels[:, None] == labels[None, :]).fill_diagonal_(False)


def negative_mask(labels: Tensor) -> Tensor:
    """(m, m), true where i and j are of different classes."""
    return labels[:, None] != labels[None, :]


def pairwise_distances(embeddings: Tensor) -> Tensor:
    """All distances of a batch, (m, m), differentiable any number of times; the gradient is zero where D = 0."""
    with full_precision(embeddings.device):
        X = embeddings - embeddings.detach().mean(dim=0)  #                                           (m, d)
        sq = X.square().sum(dim=1)  # ‖x_i‖²                                                          (m,)
        D2 = sq[:, None] + sq[None, :] - 2 * X @ X.T  #                                               (m, m)
        i, j = _close(D2, sq, sq).triu(1).nonzero(as_tuple=True)
        if len(i) > MANY * D2.numel() and not embeddings.requires_grad:
            return _by_differences(embeddings, embeddings)
        exact = (embeddings[i] - embeddings[j]).square().sum(dim=1)
        D2 = D2.index_put((i, j), exact).index_put((j, i), exact)
        apart = (D2 > 0).fill_diagonal_(False)
        return torch.where(apart, torch.where(apart, D2, 1.0).sqrt(), 0.0)


class ClosePairs(NamedTuple):
    """The close pairs of a block of rows: those that keep their digits around a nearer center, and the others."""

    centered: list[tuple[Tensor, Tensor]]  # which pairs, (b, m), and x_j less the center of column j, (m, d)
    alone: Tensor  # which pairs must be taken by differences                                         (b, m)


@dataclass(frozen=True)
class SortedBatch:
    """A batch centered and sorted by class, so that row i's class is the size[i] rows that end with last[i].

    That is why the fast losses are fast: they never make an m x m mask, they only touch the few positives of each row.
    """

    order: Tensor  # row s of this batch is row order[s] of the caller's                              (m,)
    raw: Tensor  # the caller's embeddings: the differences of close pairs are taken here, unrounded  (m, d)
    X: Tensor  # raw[order] less the batch mean                                                       (m, d)
    sq: Tensor  # ‖x_i‖²                                                                              (m,)
    sq_max: float
    last: Tensor  # the last row of row i's class ...                                                 (m,)
    size: Tensor  # ... and how many it has                                                           (m,)
    largest: int  # the size of the largest class
    n_classes: int
    n_pairs: int  # |P|: every i < j of one class

    @staticmethod
    def of(embeddings: Tensor, labels: Tensor) -> "SortedBatch":
        """Sort, center, and check that every number is finite."""
        labels, order = labels.sort(stable=True)
        X = embeddings.index_select(0, order)
        X -= X.mean(dim=0)
        sq = torch.linalg.vector_norm(X, dim=1).square_()
        total, sq_max = torch.stack((sq.sum(), sq.amax())).tolist()
        check_finite(embeddings, total)
        counts = labels.unique_consecutive(return_counts=True)[1]
        last, sizes, m = counts.cumsum(0).sub_(1), counts.tolist(), len(labels)
        return SortedBatch(
            order=order,
            raw=embeddings,
            X=X,
            sq=sq,
            sq_max=sq_max,
            last=last.repeat_interleave(counts, output_size=m),
            size=counts.repeat_interleave(counts, output_size=m),
            largest=max(sizes),
            n_classes=len(sizes),
            n_pairs=sum(size * (size - 1) for size in sizes) // 2,
        )

    def blocks(self, max_bytes: int) -> list[slice]:
        """Blocks of rows, a few of which fit the budget."""
        m = len(self.raw)
        most = BLOCK_ROWS.get(self.raw.device.type, BLOCK_ROWS_ELSEWHERE)
        b = max(1, min(most, m, max_bytes // (8 * m * self.raw.element_size())))
        return [slice(a, min(a + b, m)) for a in range(0, m, b)]

    def distance_blocks(self, max_bytes: int) -> Iterator[tuple[slice, Tensor, Tensor, Tensor, Tensor, bool]]:
        """Rows and their distances, block by block, the positives apart.

        Yields the rows, D with all but the negatives infinite (b, m), :meth:`positives` and their D (b, size), and whether
        close pairs were among them. D is overwritten by the next block.
        """
        blocks = self.blocks(max_bytes)
        space = self.X.new_empty(blocks[0].stop, len(self.X))
        for rows in blocks:
            D = self.products(rows, out=space[: rows.stop - rows.start])
            close = self.distances(D, rows)
            cols, real = self.positives(rows)
            D_pos = D.gather(1, cols)
            yield rows, D.scatter_(1, cols, torch.inf), cols, real, D_pos, close

    def products(self, rows: slice, out: Tensor) -> Tensor:
        """‖x_j‖² - 2 x_i·x_j of these rows, the one matrix product.                              (b, m)"""
        return torch.addmm(self.sq, self.X[rows], self.X.T, alpha=-2, out=out)

    def distances(self, D: Tensor, rows: slice) -> bool:
        """Turn the products of these rows into distances, in place; whether close pairs were among them.

        The diagonal is infinite: no image is its own neighbour.
        """
        D += self.sq[rows, None]  # D² so far                                                         (b, m)
        D.diagonal(rows.start).fill_(torch.inf)
        close = not D.amin().item() >= 2 * CLOSE * self.sq_max
        if close:
            i, j = self._nearer_centers(D, rows, recompute=True).alone.nonzero(as_tuple=True)
            if len(i) > MANY * D.numel():
                D.copy_(_by_differences(self.raw[self.order[rows]], self.raw[self.order]))
                D.diagonal(rows.start).fill_(torch.inf)
                return True
            for part in self._parts(i):
                difference = self.raw[self.order[i[part] + rows.start]] - self.raw[self.order[j[part]]]
                D[i[part], j[part]] = difference.square().sum(dim=1)
        D.sqrt_()
        return close

    def close(self, D: Tensor, rows: slice) -> ClosePairs:
        """The close pairs among these distances, for :meth:`by_differences`."""
        return self._nearer_centers(D.square(), rows, recompute=False)

    def by_differences(self, M: Tensor, rows: slice, close: ClosePairs, dX: Tensor) -> None:
        """Add M_ij (x_j - x_i) of close pairs to the gradient from the differences, and take them out of M.

        M·X less its row sums times X would lose them: 1 / D is in M, and what is left of X after the subtraction is noise.
        """
        for shared, E in close.centered:
            W = torch.where(shared, M, 0)
            dX[rows] += W @ E - W.sum(dim=1, keepdim=True) * E[rows]
            M.masked_fill_(shared, 0)
        i, j = close.alone.logical_and(M != 0).nonzero(as_tuple=True)
        weights = M[i, j]
        M[i, j] = 0
        for part in self._parts(i):
            s = i[part] + rows.start
            difference = self.raw[self.order[j[part]]] - self.raw[self.order[s]]
            dX.index_add_(0, s, difference.mul_(weights[part, None]))

    def _nearer_centers(self, D2: Tensor, rows: slice, *, recompute: bool) -> ClosePairs:
        """Center each column on the first row of the block that it is close to, again while many pairs are close.

        Clusters that are far apart get a center each. With ``recompute``, D² of the pairs that share a center is computed
        again around it, in place.
        """
        close = _close(D2, self.sq[rows], self.sq)
        centered: list[tuple[Tensor, Tensor]] = []
        while len(centered) < LEVELS and close.count_nonzero() > MANY * close.numel():
            close.diagonal(rows.start).fill_(True)
            near, center = close.byte().max(dim=0)  # the first row of the block, if there is one     (m,)
            close.diagonal(rows.start).fill_(False)
            E = self.raw.index_select(0, self.order)
            E -= E.index_select(0, rows.start + center)  # x_j - c_j                                  (m, d)
            sq = E.square().sum(dim=1)
            shared = (center[rows, None] == center).logical_and_(near.bool())  #                      (b, m)
            shared.diagonal(rows.start).fill_(False)
            if recompute:
                D2.copy_(torch.where(shared, torch.addmm(sq, E[rows], E.T, alpha=-2).add_(sq[rows, None]), D2))
            shared.logical_and_(_close(D2, sq[rows], sq).logical_not_())
            close.logical_and_(~shared)
            centered.append((shared, E))
        return ClosePairs(centered, close)

    def _parts(self, pairs: Tensor) -> list[slice]:
        step = max(1, (1 << 21) // self.raw.shape[1])  # 8 MB of float32 at a time
        return [slice(at, at + step) for at in range(0, len(pairs), step)]

    def positives(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The columns of these rows' classes, largest first, and which of them are positives of the row.     2 x (b, size)

        Classes differ in size: a short row repeats its first column. The row itself is in it too. Neither is a positive.
        """
        last, size = self.last[rows, None], self.size[rows, None]
        t = torch.arange(int(size.max()), device=last.device)
        cols = last - torch.minimum(t, size - 1)
        own = torch.arange(rows.start, rows.stop, device=last.device)[:, None]
        return cols, (cols != own).logical_and_(t < size)

    def in_callers_order(self, rows: Tensor) -> Tensor:
        """Undo the sorting of an (m, d) tensor."""
        return rows.index_select(0, self.order.argsort())


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast, no TF32, no bfloat16 passes: cancellation in D² would turn their rounding into wrong distances."""
    products = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [each.fp32_precision for each in products]
    if not torch.is_autocast_enabled(device.type) and all(precision in ("none", "ieee") for precision in before):
        yield
        return
    for each in products:
        each.fp32_precision = "ieee"
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for each, precision in zip(products, before, strict=True):
            each.fp32_precision = precision


def workspace(like: Tensor, *shapes: tuple[int, int]) -> list[Tensor]:
    """Uninitialized matrices that share one allocation.

    glibc gives several large allocations back to the kernel after each call, and the page faults of the next call took up to
    a fifth of its time; one allocation it keeps.
    """
    sizes = [rows * cols for rows, cols in shapes]
    return [part.view(shape) for part, shape in zip(like.new_empty(sum(sizes)).split(sizes), shapes, strict=True)]


def _close(D2: Tensor, sq_rows: Tensor, sq_cols: Tensor) -> Tensor:
    """Where the matrix product has too few digits of D² left; every D² < 0 is among these."""
    return D2.detach() < CLOSE * (sq_rows[:, None] + sq_cols[None, :]).detach()


def _by_differences(X: Tensor, Y: Tensor) -> Tensor:
    """All distances without the matrix product: slower, but with no digits lost and no list of pairs."""
    return torch.cdist(X, Y, compute_mode="donot_use_mm_for_euclid_dist")

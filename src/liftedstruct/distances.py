r"""Euclidean distances within a batch, $D_{ij} = \lVert x_i - x_j \rVert_2$, and masks of positive and negative pairs.

The squared distances come from one matrix product, as in the paper: $D^2 = \tilde x 1^\top + 1 \tilde x^\top - 2 X X^\top$,
with two safeguards. First, the batch mean is subtracted, which changes no distance and preserves precision for embeddings far
from the origin. Second, if a pair is so close that cancellation makes the product inaccurate (`CLOSE`), its distance is
computed from the difference of the two vectors. Equal vectors therefore have distance exactly zero on every machine. In a batch
of tight, well-separated clusters, most pairs within a cluster are that close. A second product, centered within each cluster,
is accurate for them and much cheaper than computing all the differences.
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

# Below D² = CLOSE · (‖x_i‖² + ‖x_j‖²), cancellation costs more than three digits of D².
CLOSE = 1e-3
MANY = 0.02  # fraction of close pairs above which a block of rows is centered again within each of its clusters
LEVELS = 3  # levels of nested clusters; pairs that are still close are computed from differences

# Rows per block. On a CPU, a block stays in the cache for all passes over it (256 was the fastest of 64..1024 for
# m = 1,024..4,096). Accelerators are faster with few, large kernels.
BLOCK_ROWS = {"cpu": 256}
BLOCK_ROWS_ELSEWHERE = 4096


def unit_scale(largest: float) -> float:
    """Return the power of two that scales a number to between 1/2 and 1, so squares fit in float32. The scaling is exact."""
    return 2.0 ** min(max(-math.frexp(largest)[1], -500), 500)


def positive_mask(labels: Tensor) -> Tensor:
    """Return an (m, m) mask that is true where i and j are different images of the same class."""
    return (labels[:, None] == labels[None, :]).fill_diagonal_(False)


def negative_mask(labels: Tensor) -> Tensor:
    """Return an (m, m) mask that is true where i and j belong to different classes."""
    return labels[:, None] != labels[None, :]


def pairwise_distances(embeddings: Tensor) -> Tensor:
    """Compute all distances of a batch, (m, m), differentiable to any order; the gradient is zero where D = 0."""
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
    """Close pairs of a block of rows: those that are accurate around a nearer center, and the others."""

    centered: list[tuple[Tensor, Tensor]]  # mask of the pairs, (b, m), and x_j minus the center of column j, (m, d)
    alone: Tensor  # mask of the pairs that must be computed from differences                         (b, m)


@dataclass(frozen=True)
class SortedBatch:
    """Batch centered and sorted by class: the class of row i consists of the size[i] rows that end at last[i].

    With this layout, the fast losses need no m x m masks and touch only the few positives of each row.
    """

    order: Tensor  # row s of this batch is row order[s] of the caller's batch                        (m,)
    raw: Tensor  # the caller's embeddings before centering, for the differences of close pairs       (m, d)
    X: Tensor  # raw[order] minus the batch mean                                                      (m, d)
    sq: Tensor  # ‖x_i‖²                                                                              (m,)
    sq_max: float
    last: Tensor  # last row of row i's class ...                                                     (m,)
    size: Tensor  # ... and the size of that class                                                    (m,)
    largest: int  # size of the largest class
    n_classes: int
    n_pairs: int  # |P|: number of pairs i < j of the same class

    @staticmethod
    def of(embeddings: Tensor, labels: Tensor) -> "SortedBatch":
        """Sort by class, center, and check that all values are finite."""
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
        """Split the rows into blocks that are small enough for a few of them to fit in `max_bytes`."""
        m = len(self.raw)
        most = BLOCK_ROWS.get(self.raw.device.type, BLOCK_ROWS_ELSEWHERE)
        b = max(1, min(most, m, max_bytes // (8 * m * self.raw.element_size())))
        return [slice(a, min(a + b, m)) for a in range(0, m, b)]

    def distance_blocks(self, max_bytes: int) -> Iterator[tuple[slice, Tensor, Tensor, Tensor, Tensor, bool]]:
        """Yield the distances block by block, with the positives separate.

        Each item is (rows, D, cols, real, D_pos, close): D is infinite except at the negatives, (b, m); `positives` returns
        cols and real; D_pos are the distances at cols, (b, size); close says whether there are close pairs. The next block
        overwrites D.
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
        """Compute ‖x_j‖² - 2 x_i·x_j for these rows, the one matrix product.                     (b, m)"""
        return torch.addmm(self.sq, self.X[rows], self.X.T, alpha=-2, out=out)

    def distances(self, D: Tensor, rows: slice) -> bool:
        """Turn the products of these rows into distances, in place, and return whether there are close pairs.

        The diagonal is infinite: an image is not its own neighbor.
        """
        D += self.sq[rows, None]  # D², inaccurate for close pairs                                    (b, m)
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
        """Find the close pairs among these distances, for `by_differences`."""
        return self._nearer_centers(D.square(), rows, recompute=False)

    def by_differences(self, M: Tensor, rows: slice, close: ClosePairs, dX: Tensor) -> None:
        """Add M_ij (x_j - x_i) of the close pairs, computed from differences, to the gradient, and zero these entries of M.

        M·X minus the row sums of M times X is inaccurate for them: M contains 1 / D, and the subtraction leaves only noise.
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
        """Center each column on the first row of the block that it is close to, and repeat while many pairs are close.

        Clusters that are far apart get one center each. With `recompute`, D² of the pairs that share a center is recomputed
        around it, in place.
        """
        close = _close(D2, self.sq[rows], self.sq)
        centered: list[tuple[Tensor, Tensor]] = []
        while len(centered) < LEVELS and close.count_nonzero() > MANY * close.numel():
            close.diagonal(rows.start).fill_(True)
            near, center = close.byte().max(dim=0)  # first close row of the block, if any            (m,)
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
        """Return the columns of each row's class, in descending order, and a mask of the positives.          2 x (b, size)

        Rows of smaller classes repeat the first column of their class. Each row also contains itself. Neither is a positive.
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
    """Disable autocast, TF32 and bfloat16 products: cancellation in D² would turn their rounding into wrong distances."""
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
    """Create uninitialized matrices that share one allocation.

    With several large allocations, glibc returns their memory to the kernel after each call, and the page faults of the next
    call take up to a fifth of its time. A single allocation is kept and reused.
    """
    sizes = [rows * cols for rows, cols in shapes]
    return [part.view(shape) for part, shape in zip(like.new_empty(sum(sizes)).split(sizes), shapes, strict=True)]


def _close(D2: Tensor, sq_rows: Tensor, sq_cols: Tensor) -> Tensor:
    """Return a mask of the pairs for which the matrix product is too inaccurate; it includes every D² < 0."""
    return D2.detach() < CLOSE * (sq_rows[:, None] + sq_cols[None, :]).detach()


def _by_differences(X: Tensor, Y: Tensor) -> Tensor:
    """Compute all distances without the matrix product: slower, but accurate and without a list of pairs."""
    return torch.cdist(X, Y, compute_mode="donot_use_mm_for_euclid_dist")

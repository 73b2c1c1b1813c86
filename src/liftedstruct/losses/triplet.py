r"""The triplet loss of Weinberger, Blitzer and Saul (NIPS 2006), over all triplets of a batch or as the paper states it.

**All triplets** :math:`\mathcal T` of a labelled batch, anchor a, positive p and negative n (``triplets="all"``):

.. math:: J = \frac{1}{2|\mathcal T|} \sum_{(a,p,n)\in\mathcal T} \bigl[D_{ap}^2 - D_{an}^2 + \alpha\bigr]_+

**Eq. 2** of the paper (``triplets="rows"``) is the same over m/3 given triplets:

.. math:: J = \frac{3}{2m} \sum_i^{m/3} \bigl[D_{ia,ip}^2 - D_{ia,in}^2 + \alpha\bigr]_+

Paper to code: rows 3t, 3t + 1, 3t + 2 of the batch are anchor a, positive p and negative n of triplet t.

**Requirements**: two images of one class and one of another, otherwise the loss is 0; ``"rows"`` needs rows in multiples of
three, laid out in triplets (``TripletSampler``). **Relations**: ``"semi-hard"`` has one negative for each (a, p), chosen in the
batch as in FaceNet (Schroff, Kalenichenko and Philbin, CVPR 2015); it is chosen for the anchor alone, where the lifted
structured loss mines both images of every pair.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from liftedstruct.distances import SortedBatch, full_precision, pairwise_distances
from liftedstruct.losses.closed_form import closed_form
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_embeddings, as_labels, check_finite, check_margin, pick

__all__ = ["TripletLoss", "triplet_loss"]

Triplets = Literal["all", "semi-hard", "rows", "rows-semi-hard"]
TRIPLETS = dict.fromkeys(get_args(Triplets))
MAX_BYTES = 1 << 26  # of a block of rows


def triplet_loss(embeddings: EmbeddingsLike, labels: LabelsLike, margin: float = 1.0, *, triplets: Triplets = "all") -> Tensor:
    r"""The triplet loss of a batch.

    Args:
        embeddings: (m, d), any float type.
        labels: (m,), class labels.
        margin: the paper's :math:`\alpha`, on squared distances.
        triplets: ``"all"`` triplets of the batch; ``"semi-hard"`` takes every anchor and positive, and as negative the nearest
            image of another class that is farther away than the positive; where all are nearer, the farthest of them.
            ``"rows"`` takes rows 3t, 3t + 1, 3t + 2 as anchor, positive and negative, Eq. 2, and ``"rows-semi-hard"`` anchor
            and positive of these and the semi-hard negative of the whole batch.

    Returns:
        The loss, a scalar tensor. It is 0, and still has a graph, for a batch without a positive or without a negative.

    >>> import torch
    >>> x = torch.tensor([[0.0], [1.0], [1.5]])
    >>> triplet_loss(x, ["a", "a", "b"], margin=2.0, triplets="rows").item()  # 3 / (2 * 3) * (1 - 2.25 + 2)
    0.375
    >>> triplet_loss(x, ["a", "a", "b"], margin=2.0).item()  # ((1 - 2.25 + 2) + (1 - 0.25 + 2)) / (2 * 2)
    0.875

    """
    X = as_embeddings(embeddings)
    y, alpha, m = as_labels(labels, X), check_margin(margin), len(X)
    pick(TRIPLETS, triplets, "triplets")
    semi_hard = triplets.endswith("semi-hard")
    if not triplets.startswith("rows"):
        return _triplet_closed(X, y, alpha, semi_hard, plain=lambda x: _weighted(x, y, alpha, semi_hard)[0])
    if m % 3:
        raise ValueError(
            f"triplet_loss needs triplets in rows 3t, 3t + 1, 3t + 2, so a multiple of three rows, got {m}. "
            "Drop rows, sample with TripletSampler, or pass triplets='all'."
        )
    choose = _negatives_op if torch.compiler.is_compiling() else _negatives
    a, p, n = X[0::3], X[1::3], X.index_select(0, choose(X.detach(), y, semi_hard))  #                (m/3, d)
    D2_ap, D2_an = (a - p).square().sum(dim=1), (a - n).square().sum(dim=1)  #                        (m/3,)
    return 3 / (2 * m) * (D2_ap - D2_an + alpha).clamp_min(0).sum()


class TripletLoss(nn.Module):
    """Triplet loss over all or semi-hard triplets of a batch, or Eq. 2 on rows.

    :func:`triplet_loss` as a module.

    Args:
        margin: how much larger the squared distance to the negative should be than that to the positive.
        triplets: "all" of the batch, "semi-hard" negatives, or those in "rows" 3t, 3t + 1, 3t + 2, also as "rows-semi-hard".
    """

    def __init__(self, margin: float = 1.0, *, triplets: Triplets = "all") -> None:
        super().__init__()
        pick(TRIPLETS, triplets, "triplets")
        self.margin, self.triplets = check_margin(margin), triplets
        self.layout: str | None = "triplets" if triplets.startswith("rows") else None

    def forward(self, embeddings: EmbeddingsLike, labels: LabelsLike) -> Tensor:
        return triplet_loss(embeddings, labels, self.margin, triplets=self.triplets)

    def extra_repr(self) -> str:
        return f"margin={self.margin}, triplets={self.triplets!r}"


def _weighted(embeddings: Tensor, labels: Tensor, margin: float, semi_hard: bool) -> tuple[Tensor, Tensor]:
    r"""The loss over triplets of the whole batch, differentiable at will, and half its gradient.

    A triplet above 0 adds :math:`D_{ap}^2` and takes :math:`D_{an}^2` away. With :math:`w_{ij}` the number of active triplets
    with pair ij, signed, the loss is :math:`\sum_{ij} w_{ij} D_{ij}^2 = \mathrm{tr}\, X^\top L X` plus their margins, with
    the Laplacian :math:`L = \mathrm{diag}(S 1) - S` of :math:`S = w + w^\top`. Its gradient is :math:`2 L X`.
    """
    with full_precision(embeddings.device):
        batch = SortedBatch.of(embeddings.detach(), labels)
        S, margins = _active(batch, margin, semi_hard)
        X = embeddings.index_select(0, batch.order).to(S.dtype)
        X = X - X.detach().mean(dim=0)
        LX = S.sum(dim=1, keepdim=True) * X - S @ X  #                                                (m, d)
        loss = (X * LX).sum() + margins
        return loss.to(embeddings.dtype), batch.in_callers_order(LX).to(embeddings.dtype)


def _triplet(embeddings: Tensor, labels: Tensor, margin: float, semi_hard: bool, gradient: bool) -> tuple[Tensor, Tensor]:
    loss, half = _weighted(embeddings, labels, margin, semi_hard)
    return loss, 2 * half


_triplet_closed = closed_form(_triplet)


def _active(batch: SortedBatch, margin: float, semi_hard: bool) -> tuple[Tensor, float]:
    """S, and the margins of the active triplets; both over twice the number of triplets.                       (m, m), ()"""
    m, active = len(batch.X), 0
    wide = torch.float32 if batch.X.device.type == "mps" else torch.float64  # the sums have terms of both signs
    W = batch.X.new_zeros((m, m), dtype=wide)
    if batch.n_pairs == 0 or batch.n_classes < 2:
        return W, 0.0
    for rows, D, cols, real, D_pos, _ in batch.distance_blocks(MAX_BYTES):
        D2_an, D2_ap = D.square_(), D_pos.square_().masked_fill_(~real, -torch.inf)  #                (b, m), (b, size)
        if semi_hard:
            D2_an, n = D2_an.sort(dim=1, stable=True)
            last = (m - 1 - batch.size[rows, None]).expand_as(cols)  # the farthest negative
            at = torch.searchsorted(D2_an, D2_ap, right=True).minimum(last)
            counts = (D2_ap - D2_an.gather(1, at) + margin > 0).to(W.dtype)
            W[rows].scatter_add_(1, n.gather(1, at), -counts)
        else:
            D2_ap, order = D2_ap.sort(dim=1)
            cols = cols.gather(1, order)
            at = torch.searchsorted(D2_ap + margin, D2_an, right=True)  # positives before it are inactive (b, m)
            W[rows] -= D2_ap.shape[1] - at
            before = at.new_zeros(len(at), D2_ap.shape[1] + 1).scatter_add_(1, at, torch.ones_like(at))
            counts = before.cumsum(dim=1)[:, :-1].masked_fill_(D2_ap == -torch.inf, 0).to(W.dtype)
        W[rows].scatter_add_(1, cols, counts)
        active += int(counts.sum())
    n_triplets = int(((batch.size - 1) * (1 if semi_hard else m - batch.size)).sum())
    return (W + W.T).div_(2 * n_triplets), margin * active / (2 * n_triplets)


def _negatives(embeddings: Tensor, labels: Tensor, semi_hard: bool) -> Tensor:
    """For each anchor in rows 3t the row of its negative, after the checks that depend on values.          (m/3,)"""
    wrong = (labels[0::3] != labels[1::3]) | (labels[0::3] == labels[2::3])
    if wrong.any():
        t = int(wrong.nonzero()[0])
        raise ValueError(
            f"triplet_loss needs anchor and positive of one class and a negative of another, got labels "
            f"{labels[3 * t : 3 * t + 3].tolist()} in rows {3 * t} to {3 * t + 2}. Sample with TripletSampler."
        )
    check_finite(embeddings, torch.linalg.vector_norm(embeddings).square().item())
    if not semi_hard:
        return torch.arange(2, len(labels), 3, device=labels.device)
    D = pairwise_distances(embeddings)[0::3]  #                                                       (m/3, m)
    D_ap = D.gather(1, 3 * torch.arange(len(D), device=D.device)[:, None] + 1)
    other = labels[0::3, None] != labels[None, :]
    nearest, at = D.masked_fill(~(other & (D_ap < D)), torch.inf).min(dim=1)
    return torch.where(nearest.isfinite(), at, D.masked_fill(~other, -1).argmax(dim=1))


# An opaque operator for torch.compile, which cannot trace the checks.
_negatives_op = torch.library.custom_op("liftedstruct::triplet_negatives", _negatives, mutates_args=())


@_negatives_op.register_fake
def _(embeddings: Tensor, labels: Tensor, semi_hard: bool) -> Tensor:
    return labels.new_empty(len(labels) // 3)

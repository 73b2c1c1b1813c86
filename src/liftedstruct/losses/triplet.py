r"""Triplet loss (Weinberger, Blitzer and Saul, NIPS 2006), over all triplets of a batch or as in the lifted structured paper.

**All triplets** of a labeled batch (`triplets="all"`), the set $T$ of anchors a, positives p and negatives n:

$$
J = \frac{1}{2|T|} \sum_{(a,p,n)\in T} \bigl[D_{ap}^2 - D_{an}^2 + \alpha\bigr]_+
$$

**Eq. 2** of the paper (`triplets="rows"`), the same over m/3 given triplets:

$$
J = \frac{3}{2m} \sum_i^{m/3} \bigl[D_{ia,ip}^2 - D_{ia,in}^2 + \alpha\bigr]_+
$$

Paper to code: rows 3t, 3t + 1, 3t + 2 of the batch are anchor a, positive p and negative n of triplet t.

**Requirements**: two images of one class and one of another; otherwise the loss is 0. `"rows"` needs a multiple of three rows,
laid out in triplets (`TripletSampler`). **Relations**: `"semi-hard"` uses one negative per (a, p), chosen within the batch as
in FaceNet (Schroff, Kalenichenko and Philbin, CVPR 2015). It is chosen for the anchor only, while the lifted structured loss
mines negatives for both images of every pair.
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
MAX_BYTES = 1 << 26  # per block of rows


def triplet_loss(embeddings: EmbeddingsLike, labels: LabelsLike, margin: float = 1.0, *, triplets: Triplets = "all") -> Tensor:
    r"""Compute the triplet loss of a batch.

    Args:
        embeddings: (m, d), any float type.
        labels: (m,), class labels.
        margin: the paper's $\alpha$, on squared distances.
        triplets: `"all"` uses all triplets of the batch. `"semi-hard"` uses every anchor and positive with one negative, the
            nearest one that is farther away than the positive, or the farthest one if there is none. `"rows"` uses rows 3t,
            3t + 1, 3t + 2 as anchor, positive and negative (Eq. 2). `"rows-semi-hard"` uses these anchors and positives with
            the semi-hard negatives of the whole batch.

    Returns:
        The loss, a scalar tensor. For a batch without a positive or without a negative, it is 0 and `backward` still
        works.

    Raises:
        ValueError: if `triplets` requires rows laid out in triplets and they are not, or if an input is invalid.

    Examples:
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
            f"triplet_loss needs triplets in rows 3t, 3t + 1, 3t + 2, and thus a multiple of three rows, got {m}. "
            "Drop rows, sample with TripletSampler, or pass triplets='all'."
        )
    choose = _negatives_op if torch.compiler.is_compiling() else _negatives
    a, p, n = X[0::3], X[1::3], X.index_select(0, choose(X.detach(), y, semi_hard))  #                (m/3, d)
    D2_ap, D2_an = (a - p).square().sum(dim=1), (a - n).square().sum(dim=1)  #                        (m/3,)
    return 3 / (2 * m) * (D2_ap - D2_an + alpha).clamp_min(0).sum()


class TripletLoss(nn.Module):
    """Triplet loss over all or semi-hard triplets of a batch, or over triplets of rows (Eq. 2).

    Module version of `triplet_loss`.

    Args:
        margin: margin by which the squared distance to the negative should exceed the squared distance to the positive.
        triplets: "all" triplets of the batch, "semi-hard" negatives, "rows" for the triplets in rows 3t, 3t + 1, 3t + 2 (the
            paper's Eq. 2), or "rows-semi-hard" for the anchors and positives of these rows with semi-hard negatives.

    Examples:
        >>> import torch
        >>> TripletLoss(margin=2.0)(torch.tensor([[0.0], [1.0], [1.5]]), ["a", "a", "b"]).item()
        0.875

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
    r"""Compute the loss over triplets of the whole batch, differentiable to any order, and half its gradient.

    An active triplet adds $D_{ap}^2$ and subtracts $D_{an}^2$. With $w_{ij}$ the signed number of active triplets that contain
    pair ij, divided by $2|T|$, the loss is $\sum_{ij} w_{ij} D_{ij}^2 = \text{tr}\, X^\top L X$ plus the active
    triplets' margins over $2|T|$. $L = \text{diag}(S 1) - S$ is the Laplacian of $S = w + w^\top$; the gradient is $2 L X$.
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
    """Return S and the total margin of the active triplets, divided by twice the number of triplets.           (m, m), ()"""
    m, active = len(batch.X), 0
    wide = torch.float32 if batch.X.device.type == "mps" else torch.float64  # terms of both signs may cancel
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
    """Run the checks that depend on values, and return the row of each anchor's negative.                  (m/3,)"""
    wrong = (labels[0::3] != labels[1::3]) | (labels[0::3] == labels[2::3])
    if wrong.any():
        t = int(wrong.nonzero()[0])
        raise ValueError(
            f"triplet_loss needs an anchor and a positive of one class and a negative of another, got labels "
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


# An opaque operator, because torch.compile cannot trace the checks.
_negatives_op = torch.library.custom_op("liftedstruct::triplet_negatives", _negatives, mutates_args=())


@_negatives_op.register_fake
def _(embeddings: Tensor, labels: Tensor, semi_hard: bool) -> Tensor:
    return labels.new_empty(len(labels) // 3)

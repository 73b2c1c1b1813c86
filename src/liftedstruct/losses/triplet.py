r"""The triplet loss of Weinberger, Blitzer and Saul (NIPS 2006) as the paper states it, **Eq. 2**:

.. math:: J = \frac{3}{2m} \sum_i^{m/3} \bigl[D_{ia,ip}^2 - D_{ia,in}^2 + \alpha\bigr]_+

Paper to code: rows 3t, 3t + 1, 3t + 2 of the batch are anchor a, positive p and negative n of triplet t.

**Requirements**: rows in multiples of three, laid out in triplets (``batches.TripletBatches``). **Relations**: with
``negative="semi-hard"`` the negative is chosen in the batch as in FaceNet (Schroff, Kalenichenko and Philbin, CVPR 2015); it
is chosen for the anchor alone, where the lifted structured loss mines both images of every pair.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from liftedstruct.distances import pairwise_distances
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_embeddings, as_labels, check_finite, check_margin, pick

__all__ = ["TripletLoss", "triplet_loss"]

Negative = Literal["given", "semi-hard"]


def triplet_loss(
    embeddings: EmbeddingsLike, labels: LabelsLike, margin: float = 1.0, *, negative: Negative = "given"
) -> Tensor:
    r"""Eq. 2 on a batch of triplets.

    Args:
        embeddings: (m, d), any float type; rows 3t, 3t + 1, 3t + 2 are anchor, positive and negative.
        labels: (m,), class labels; anchor and positive share one, the negative has another.
        margin: the paper's :math:`\alpha`, on squared distances.
        negative: ``"given"`` takes row 3t + 2. ``"semi-hard"`` takes, for each anchor, the nearest image of another class in
            the whole batch that is farther away than the positive; where all are nearer, the farthest of them.

    Returns:
        The loss, a scalar tensor.

    >>> import torch
    >>> x = torch.tensor([[0.0], [1.0], [1.5]])
    >>> triplet_loss(x, ["a", "a", "b"], margin=2.0).item()  # 3 / (2 * 3) * (1 - 2.25 + 2)
    0.375

    """
    X = as_embeddings(embeddings)
    y, alpha, m = as_labels(labels, X), check_margin(margin), len(X)
    pick(dict.fromkeys(get_args(Negative)), negative, "negative")
    if m % 3:
        raise ValueError(
            f"triplet_loss needs triplets in rows 3t, 3t + 1, 3t + 2, so a multiple of three rows, got {m}. "
            "Drop rows, or sample with TripletBatches."
        )
    choose = _negatives_op if torch.compiler.is_compiling() else _negatives
    a, p, n = X[0::3], X[1::3], X.index_select(0, choose(X.detach(), y, negative))  #                 (m/3, d)
    D2_ap, D2_an = (a - p).square().sum(dim=1), (a - n).square().sum(dim=1)  #                        (m/3,)
    return 3 / (2 * m) * (D2_ap - D2_an + alpha).clamp_min(0).sum()


def _negatives(embeddings: Tensor, labels: Tensor, negative: str) -> Tensor:
    """For each anchor the row of its negative, after the checks that depend on values.                      (m/3,)"""
    wrong = (labels[0::3] != labels[1::3]) | (labels[0::3] == labels[2::3])
    if wrong.any():
        t = int(wrong.nonzero()[0])
        raise ValueError(
            f"triplet_loss needs anchor and positive of one class and a negative of another, got labels "
            f"{labels[3 * t : 3 * t + 3].tolist()} in rows {3 * t} to {3 * t + 2}. Sample with TripletBatches."
        )
    check_finite(embeddings, torch.linalg.vector_norm(embeddings).square().item())
    if negative == "semi-hard":
        return _semi_hard(embeddings, labels)
    return torch.arange(2, len(labels), 3, device=labels.device)


# An opaque operator for torch.compile, which cannot trace the checks.
_negatives_op = torch.library.custom_op("liftedstruct::triplet_negatives", _negatives, mutates_args=())


@_negatives_op.register_fake
def _(embeddings: Tensor, labels: Tensor, negative: str) -> Tensor:
    return labels.new_empty(len(labels) // 3)


def _semi_hard(X: Tensor, y: Tensor) -> Tensor:
    """For each anchor the row of its negative in the whole batch.                                           (m/3,)"""
    D = pairwise_distances(X)[0::3]  #                                                                (m/3, m)
    D_ap = D.gather(1, 3 * torch.arange(len(D), device=D.device)[:, None] + 1)
    other = y[0::3, None] != y[None, :]
    farther = D.masked_fill(~(other & (D_ap < D)), torch.inf)
    nearest, at = farther.min(dim=1)
    farthest = D.masked_fill(~other, -1).argmax(dim=1)
    return torch.where(nearest.isfinite(), at, farthest)


class TripletLoss(nn.Module):
    """:func:`triplet_loss` as a module."""

    def __init__(self, margin: float = 1.0, *, negative: Negative = "given") -> None:
        super().__init__()
        pick(dict.fromkeys(get_args(Negative)), negative, "negative")
        self.margin, self.negative = check_margin(margin), negative

    def forward(self, embeddings: EmbeddingsLike, labels: LabelsLike) -> Tensor:
        return triplet_loss(embeddings, labels, self.margin, negative=self.negative)

    def extra_repr(self) -> str:
        return f"margin={self.margin}, negative={self.negative!r}"

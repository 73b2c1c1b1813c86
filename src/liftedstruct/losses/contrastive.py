r"""The contrastive loss of Hadsell, Chopra and LeCun (CVPR 2006) as the paper states it, **Eq. 1**:

.. math:: J = \frac1m \sum_{(i,j)}^{m/2} y_{ij} D_{ij}^2 + (1 - y_{ij}) [\alpha - D_{ij}]_+^2

Paper to code: rows 2t and 2t + 1 of the batch are pair t; :math:`y_{ij}` is 1 where their labels are equal.

**Requirements**: an even number of rows, laid out in pairs (``batches.PairBatches``), some positive and some negative: positive
pairs alone are all pulled to one point, and negative pairs alone say nothing about classes, so a batch of four rows or more
that has only one kind is a warning. In particular, ``batches.BalancedBatches`` of an even number of images per class has no
negative pair at all. **Relations**: it sees m/2 edges of a
batch; :func:`~liftedstruct.losses.lifted_struct.lifted_struct_loss` sees all of them.
"""

import warnings

import torch
from torch import Tensor, nn

from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_embeddings, as_labels, check_finite, check_margin

__all__ = ["ContrastiveLoss", "contrastive_loss"]


def contrastive_loss(embeddings: EmbeddingsLike, labels: LabelsLike, margin: float = 1.0) -> Tensor:
    r"""Eq. 1 on a batch of pairs.

    Args:
        embeddings: (m, d), any float type, m even; rows 2t and 2t + 1 are pair t.
        labels: (m,), class labels of the images, not of the pairs.
        margin: the paper's :math:`\alpha`; a negative pair farther apart than this contributes 0.

    Returns:
        The loss, a scalar tensor. The gradient of a negative pair at distance 0 is 0.

    Warns:
        UserWarning: two pairs or more, all positive or all negative.

    >>> import torch
    >>> x = torch.tensor([[0.0], [2.0], [0.0], [0.5]])  # a positive pair at 2, a negative one at 0.5
    >>> contrastive_loss(x, [3, 3, 3, 4]).item()  # (2² + (1 - 0.5)²) / 4
    1.0625

    """
    X = as_embeddings(embeddings)
    y, alpha, m = as_labels(labels, X), check_margin(margin), len(X)
    if m % 2:
        raise ValueError(
            f"contrastive_loss needs pairs in rows 2t and 2t + 1, so an even number of rows, got {m}. "
            "Drop a row, or sample with PairBatches."
        )
    D2 = (X[0::2] - X[1::2]).square().sum(dim=1)  # D_ij²                                             (m/2,)
    find = _positives_op if torch.compiler.is_compiling() else _positives
    y_ij = find(X.detach(), D2.detach(), y)  #                                                        (m/2,)
    apart = D2 > 0
    D = torch.where(apart, torch.where(apart, D2, 1.0).sqrt(), 0.0)  # no slope at 0                  (m/2,)
    return torch.where(y_ij, D2, (alpha - D).clamp_min(0).square()).sum() / m


def _positives(embeddings: Tensor, D2: Tensor, labels: Tensor) -> Tensor:
    """Which pairs are positive, y_ij, after the checks that depend on values."""
    y_ij = labels[0::2] == labels[1::2]
    total, n_positive = torch.stack((D2.sum(), y_ij.sum())).tolist()
    check_finite(embeddings, total)
    if len(y_ij) > 1 and n_positive in (0, len(y_ij)):
        what = "positive, which only pull together" if n_positive else "negative, which only push apart"
        warnings.warn(
            f"contrastive_loss needs positive and negative pairs in rows 2t and 2t + 1, got {len(y_ij)} pairs that are all "
            f"{what}. Sample with PairBatches.",
            stacklevel=3,
        )
    return y_ij


# An opaque operator for torch.compile, which cannot trace the checks.
_positives_op = torch.library.custom_op("liftedstruct::contrastive_positives", _positives, mutates_args=())


@_positives_op.register_fake
def _(embeddings: Tensor, D2: Tensor, labels: Tensor) -> Tensor:
    return torch.empty_like(D2, dtype=torch.bool)


class ContrastiveLoss(nn.Module):
    """:func:`contrastive_loss` as a module."""

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = check_margin(margin)

    def forward(self, embeddings: EmbeddingsLike, labels: LabelsLike) -> Tensor:
        return contrastive_loss(embeddings, labels, self.margin)

    def extra_repr(self) -> str:
        return f"margin={self.margin}"

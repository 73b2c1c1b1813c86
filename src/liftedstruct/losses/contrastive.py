r"""Contrastive loss (Hadsell, Chopra and LeCun, CVPR 2006), over all pairs of a batch or as in the lifted structured paper.

**All pairs** of a labeled batch (`pairs="all"`), with positive pairs $\mathcal P$ and negative pairs $\mathcal N$:

$$
J = \frac12 \Bigl( \frac{1}{|\mathcal P|} \sum_{(i,j)\in\mathcal P} D_{ij}^2
    + \frac{1}{|\mathcal N|} \sum_{(i,k)\in\mathcal N} [\alpha - D_{ik}]_+^2 \Bigr)
$$

**Eq. 1** of the paper (`pairs="rows"`), over m/2 given pairs. If half of these are positive, it is half of the
expression above over the same pairs:

$$
J = \frac1m \sum_{(i,j)}^{m/2} y_{ij} D_{ij}^2 + (1 - y_{ij}) [\alpha - D_{ij}]_+^2
$$

Paper to code: rows 2t and 2t + 1 of the batch form pair t; $y_{ij}$ is 1 if their labels are equal.

**Requirements**: both positive and negative pairs. Positive pairs alone pull everything to one point, and negative pairs alone
only push embeddings apart, so a batch with two or more pairs that are all of one kind triggers a warning. `"rows"` needs an
even number of rows, laid out in pairs (`PairSampler`); in this layout, a `BalancedSampler` with an even number of images per
class yields no negative pairs. **Relations**: the pairs are independent of each other, while `lifted_struct_loss` weights the
negatives of a pair against each other.
"""

import warnings
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from liftedstruct.distances import SortedBatch, full_precision, negative_mask, pairwise_distances, positive_mask
from liftedstruct.losses.closed_form import closed_form
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_embeddings, as_labels, check_finite, check_margin, pick

__all__ = ["ContrastiveLoss", "contrastive_loss", "contrastive_loss_plain"]

Pairs = Literal["all", "rows"]
PAIRS = dict.fromkeys(get_args(Pairs))
MAX_BYTES = 1 << 26  # per block of rows


def contrastive_loss(embeddings: EmbeddingsLike, labels: LabelsLike, margin: float = 1.0, *, pairs: Pairs = "all") -> Tensor:
    r"""Compute the contrastive loss of a batch.

    Args:
        embeddings: (m, d), any float type.
        labels: (m,), class labels of the images, not of the pairs.
        margin: the paper's $\alpha$; a negative pair farther apart than this contributes 0.
        pairs: `"all"` uses every pair of the batch, in blocks of rows; `"rows"` uses the pairs in rows 2t and 2t + 1 (Eq. 1).

    Returns:
        The loss, a scalar tensor. The gradient of a negative pair at distance 0 is 0. Without positive pairs or without
        negative pairs, the corresponding term is 0.

    Raises:
        ValueError: if `pairs="rows"` and the number of rows is odd, or if an input is invalid.

    Warns:
        UserWarning: if there are two or more pairs and all are positive or all are negative.

    Examples:
        >>> import torch
        >>> x = torch.tensor([[0.0], [2.0], [0.0], [0.5]])  # a positive pair at 2, a negative one at 0.5
        >>> contrastive_loss(x, [3, 3, 3, 4], pairs="rows").item()  # (2² + (1 - 0.5)²) / 4
        1.0625
        >>> round(contrastive_loss(x, [3, 3, 3, 4]).item(), 4)  # ((2² + 0² + 2²) / 3 + (0.5² + 0² + 0.5²) / 3) / 2
        1.4167

    """
    X = as_embeddings(embeddings)
    y, alpha, m = as_labels(labels, X), check_margin(margin), len(X)
    pick(PAIRS, pairs, "pairs")
    if pairs == "all":
        return _contrastive_closed(X, y, alpha, plain=partial(contrastive_loss_plain, labels=y, margin=alpha))
    if m % 2:
        raise ValueError(
            f"contrastive_loss needs pairs in rows 2t and 2t + 1, and thus an even number of rows, got {m}. "
            "Drop a row, sample with PairSampler, or pass pairs='all'."
        )
    D2 = (X[0::2] - X[1::2]).square().sum(dim=1)  # D_ij²                                             (m/2,)
    find = _positives_op if torch.compiler.is_compiling() else _positives
    y_ij = find(X.detach(), D2.detach(), y)  #                                                        (m/2,)
    apart = D2 > 0
    D = torch.where(apart, torch.where(apart, D2, 1.0).sqrt(), 0.0)  # gradient 0 at D = 0            (m/2,)
    return torch.where(y_ij, D2, (alpha - D).clamp_min(0).square()).sum() / m


class ContrastiveLoss(nn.Module):
    """Contrastive loss over all pairs of a batch, or over pairs of rows (Eq. 1).

    Module version of `contrastive_loss`.

    Args:
        margin: distance beyond which a negative pair contributes no loss.
        pairs: "all" pairs of the batch, or "rows" for the pairs in rows 2t and 2t + 1 (the paper's Eq. 1).

    Examples:
        >>> import torch
        >>> ContrastiveLoss(margin=1.0)(torch.tensor([[0.0], [2.0], [2.5]]), [3, 3, 4]).item()  # (2² + (0² + 0.5²) / 2) / 2
        2.0625

    """

    def __init__(self, margin: float = 1.0, *, pairs: Pairs = "all") -> None:
        super().__init__()
        pick(PAIRS, pairs, "pairs")
        self.margin, self.pairs = check_margin(margin), pairs
        self.layout: str | None = "pairs" if pairs == "rows" else None

    def forward(self, embeddings: EmbeddingsLike, labels: LabelsLike) -> Tensor:
        return contrastive_loss(embeddings, labels, self.margin, pairs=self.pairs)

    def extra_repr(self) -> str:
        return f"margin={self.margin}, pairs={self.pairs!r}"


def contrastive_loss_plain(embeddings: Tensor, labels: Tensor, margin: float = 1.0) -> Tensor:
    """Compute the loss over all pairs term by term: a readable version for the tests and for second derivatives."""
    P, N = positive_mask(labels), negative_mask(labels)  #                                            (m, m)
    D = pairwise_distances(embeddings)  # D_ij                                                        (m, m)
    pull = torch.where(P, D, 0).square().sum() / max(1, int(P.sum()))
    push = torch.where(N, (margin - D).clamp_min(0), 0).square().sum() / max(1, int(N.sum()))
    return (pull + push) / 2


def _contrastive(embeddings: Tensor, labels: Tensor, margin: float, gradient: bool) -> tuple[Tensor, Tensor]:
    r"""Compute the loss over all pairs and its gradient, block by block.

    $\partial J / \partial D$ divided by D is $1 / |\mathcal P|$ for a positive pair and
    $-[\alpha - D_{ik}]_+ / (D_{ik} |\mathcal N|)$ for a negative pair; this matrix is `-M`.
    """
    with full_precision(embeddings.device):
        batch, m = SortedBatch.of(embeddings, labels), len(embeddings)
        n_positive, n_negative = batch.n_pairs, m * (m - 1) // 2 - batch.n_pairs
        _warn_of_one_kind(n_positive, n_negative, "pairs", "BalancedSampler")
        loss, dX = embeddings.new_zeros(()), torch.zeros_like(embeddings)
        for rows, D, cols, real, D_pos, close in batch.distance_blocks(MAX_BYTES):
            which = batch.close(D.scatter(1, cols, D_pos), rows) if close and gradient else None
            D_pos.masked_fill_(~real, 0)  #                                                           (b, size)
            H = (margin - D).clamp_min_(0)  # [α - D_ik]+                                             (b, m)
            # 4 rather than 2: each pair is counted twice
            loss += D_pos.square().sum() / (4 * max(1, n_positive)) + H.square().sum() / (4 * max(1, n_negative))
            if gradient:
                M = H.div_(D).masked_fill_(D == 0, 0).div_(max(1, n_negative))
                M.scatter_add_(1, cols, real.to(M.dtype).div_(-max(1, n_positive)))
                if which is not None:
                    batch.by_differences(M, rows, which, dX)
                dX[rows] += M @ batch.X - M.sum(dim=1, keepdim=True) * batch.X[rows]
        return loss, batch.in_callers_order(dX)


_contrastive_closed = closed_form(_contrastive)


def _positives(embeddings: Tensor, D2: Tensor, labels: Tensor) -> Tensor:
    """Run the checks that depend on values, and return which pairs of rows are positive, y_ij."""
    y_ij = labels[0::2] == labels[1::2]
    total, n_positive = torch.stack((D2.sum(), y_ij.sum())).tolist()
    check_finite(embeddings, total)
    _warn_of_one_kind(int(n_positive), len(y_ij) - int(n_positive), "pairs in rows 2t and 2t + 1", "PairSampler")
    return y_ij


# An opaque operator, because torch.compile cannot trace the checks.
_positives_op = torch.library.custom_op("liftedstruct::contrastive_positives", _positives, mutates_args=())


@_positives_op.register_fake
def _(embeddings: Tensor, D2: Tensor, labels: Tensor) -> Tensor:
    return torch.empty_like(D2, dtype=torch.bool)


def _warn_of_one_kind(n_positive: int, n_negative: int, pairs: str, sampler: str) -> None:
    if n_positive + n_negative > 1 and not (n_positive and n_negative):
        what = "positive and only pull embeddings together" if n_positive else "negative and only push embeddings apart"
        warnings.warn(
            f"contrastive_loss needs positive and negative {pairs}, got {n_positive + n_negative} pairs that are all {what}. "
            f"Sample with {sampler}.",
            stacklevel=4,
        )

r"""Lifted structured loss (Song, Xiang, Jegelka and Savarese, CVPR 2016) and the objective it bounds.

**Eq. 4**, the smooth upper bound used for training (`lifted_struct_loss`):

$$
\tilde J_{ij} = \log\Bigl(\sum_{(i,k)\in\mathcal N} e^{\alpha - D_{ik}} + \sum_{(j,l)\in\mathcal N} e^{\alpha - D_{jl}}\Bigr)
    + D_{ij}
$$

$$
\tilde J = \frac{1}{2|\mathcal P|} \sum_{(i,j)\in\mathcal P} \max(0, \tilde J_{ij})^2
$$

**Eq. 3**, the objective itself (`structured_hinge_loss`), has $\max(\max_k \alpha - D_{ik}, \max_l \alpha - D_{jl})$ in place
of the logarithm.

Paper to code: $D_{ij} = \lVert x_i - x_j \rVert / \tau$ is `D`, where $\tau$ is `temperature`, 1 in the paper; $\alpha$ is
`margin`; $\mathcal P$ contains every pair i < j of the same class in the batch (not only the pairs that the batch was built
from); $\mathcal N$ contains all pairs of different classes.

**Requirements**: at least two equal labels and two different labels; otherwise the loss is 0. **Recommendations**: embeddings
without normalization, or normalized embeddings with a temperature of about 0.05. On the unit sphere at temperature 1, the bound
cannot fall below about 13 at m = 128, whatever the model learns.
**Relations**: in the paper's form, the contrastive and triplet losses use m/2 and 2m/3 edges of a batch; these two losses use
all m(m - 1)/2.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn

from liftedstruct.distances import SortedBatch, full_precision, negative_mask, pairwise_distances, positive_mask, workspace
from liftedstruct.losses.closed_form import closed_form
from liftedstruct.runtime.checks import (
    EmbeddingsLike,
    LabelsLike,
    as_embeddings,
    as_labels,
    check_count,
    check_margin,
    check_temperature,
)

__all__ = [
    "LiftedStructLoss",
    "StructuredHingeLoss",
    "lifted_struct_loss",
    "lifted_struct_loss_plain",
    "structured_hinge_loss",
    "structured_hinge_loss_plain",
]

MAX_BYTES = 1 << 30  # fits one m x m float32 matrix up to about m = 16,000; larger batches are computed block by block


def lifted_struct_loss(
    embeddings: EmbeddingsLike, labels: LabelsLike, margin: float = 1.0, temperature: float = 1.0, *, max_bytes: int = MAX_BYTES
) -> Tensor:
    r"""Compute the lifted structured loss of a batch: Eq. 4, the smooth upper bound.

    Value and gradient are computed in closed form, in $O(m^2)$ time and memory. Second derivatives (`create_graph=True`) use
    `lifted_struct_loss_plain` and its m x m matrices; they are not available under `torch.compile`.

    Args:
        embeddings: (m, d), any float type. Half-precision types, also under autocast, are computed in float32.
        labels: (m,), integers of any size or strings.
        margin: the paper's $\alpha$.
        temperature: $\tau$, the divisor of the distances.
        max_bytes: memory budget. If one m x m matrix does not fit, the same value and gradient are computed block by block, in
            about twice the time and with memory that grows linearly with m. The objective can then be evaluated over a whole
            training set, as the paper defines it.

    Returns:
        The loss, a scalar tensor. Without a positive pair, it is 0 and `backward` still works. A pair without a negative
        contributes 0 and is counted in $|\mathcal P|$.

    Raises:
        ValueError: if the embeddings are not finite, or if a shape, a label type or a setting is invalid.

    Examples:
        >>> import torch
        >>> x = torch.tensor([[0.0], [1.0], [3.0]])  # a and a at distance 1; c at 3 and at 2
        >>> round(lifted_struct_loss(x, ["a", "a", "c"]).item(), 4)  # (log(e^-2 + e^-1) + 1)² / 2
        0.0491

    """
    X = _scaled(embeddings, temperature)
    y, alpha, budget = as_labels(labels, X), check_margin(margin), check_count("max_bytes", max_bytes)
    return _lifted_struct_closed(X, y, alpha, budget, plain=partial(lifted_struct_loss_plain, labels=y, margin=alpha))


def structured_hinge_loss(
    embeddings: EmbeddingsLike,
    labels: LabelsLike,
    margin: float = 1.0,
    temperature: float = 1.0,
    *,
    plus: bool = False,
    max_bytes: int = MAX_BYTES,
) -> Tensor:
    r"""Compute the structured hinge loss of a batch: Eq. 3, the objective with the nested maximum.

    The gradient is a subgradient. If two computed distances are equal, as for duplicates, it goes to the image that comes
    first in the batch. It is 0 where the hinge is exactly 0.

    Args:
        embeddings: (m, d), any float type.
        labels: (m,), integers of any size or strings.
        margin: the paper's $\alpha$.
        temperature: $\tau$, the divisor of the distances.
        plus: use the variant in the paper's footnote, $\max_k(\alpha - D_{ik}) + \max_l(\alpha - D_{jl})$, which pushes away
            the nearest negatives of **both** images.
        max_bytes: memory budget; rows are processed in blocks that are small enough for a few of them to fit.

    Returns:
        The loss, a scalar tensor. Without `plus`, it never exceeds `lifted_struct_loss`.

    Raises:
        ValueError: if the embeddings are not finite, or if a shape, a label type or a setting is invalid.

    Examples:
        >>> import torch
        >>> x = torch.tensor([[0.0], [1.0], [3.0]])
        >>> structured_hinge_loss(x, [7, 7, 9], margin=2.0).item()  # (max(2 - 3, 2 - 2) + 1)² / 2
        0.5

    """
    X = _scaled(embeddings, temperature)
    y, alpha, budget = as_labels(labels, X), check_margin(margin), check_count("max_bytes", max_bytes)
    plain = partial(structured_hinge_loss_plain, labels=y, margin=alpha, plus=plus)
    return _structured_hinge_closed(X, y, alpha, plus, budget, plain=plain)


class LiftedStructLoss(nn.Module):
    """Lifted structured loss of the paper: the smooth upper bound, Eq. 4.

    Module version of `lifted_struct_loss`.

    Args:
        margin: the paper's alpha, the margin by which negatives should be farther away than positives.
        temperature: divisor of the distances; use about 0.05 for normalized embeddings.

    Examples:
        >>> import torch
        >>> loss = LiftedStructLoss(margin=1.0)
        >>> round(loss(torch.tensor([[0.0], [1.0], [3.0]]), ["a", "a", "c"]).item(), 4)
        0.0491

    """

    layout: str | None = None

    def __init__(self, margin: float = 1.0, temperature: float = 1.0) -> None:
        super().__init__()
        self.margin, self.temperature = check_margin(margin), check_temperature(temperature)

    def forward(self, embeddings: EmbeddingsLike, labels: LabelsLike) -> Tensor:
        return lifted_struct_loss(embeddings, labels, self.margin, self.temperature)

    def starting_distance(self, batch_size: int) -> float:
        """Return the distance to all negatives at which a pair at distance 0 becomes inactive, with two images per class."""
        return self.temperature * (self.margin + math.log(2 * (batch_size - 2)))

    def extra_repr(self) -> str:
        return f"margin={self.margin}, temperature={self.temperature}"


class StructuredHingeLoss(nn.Module):
    """Structured hinge loss: the non-smooth objective of the paper, Eq. 3.

    Module version of `structured_hinge_loss`.

    Args:
        margin: the paper's alpha, the margin by which negatives should be farther away than positives.
        temperature: divisor of the distances; use about 0.05 for normalized embeddings.
        plus: push away the nearest negatives of both images of a pair (the paper's footnote).

    Examples:
        >>> import torch
        >>> StructuredHingeLoss(margin=2.0)(torch.tensor([[0.0], [1.0], [3.0]]), [7, 7, 9]).item()
        0.5

    """

    layout: str | None = None

    def __init__(self, margin: float = 1.0, temperature: float = 1.0, *, plus: bool = False) -> None:
        super().__init__()
        self.margin, self.temperature, self.plus = check_margin(margin), check_temperature(temperature), plus

    def forward(self, embeddings: EmbeddingsLike, labels: LabelsLike) -> Tensor:
        return structured_hinge_loss(embeddings, labels, self.margin, self.temperature, plus=self.plus)

    def extra_repr(self) -> str:
        return f"margin={self.margin}, temperature={self.temperature}, plus={self.plus}"


def _scaled(embeddings: EmbeddingsLike, temperature: float) -> Tensor:
    """Return the embeddings divided by τ, which divides all distances by τ."""
    X, tau = as_embeddings(embeddings), check_temperature(temperature)
    return X if tau == 1 else X / tau


# The two equations as written in the paper: readable versions for the tests and for second derivatives.


def lifted_struct_loss_plain(embeddings: Tensor, labels: Tensor, margin: float = 1.0) -> Tensor:
    """Compute Eq. 4 term by term, with the gradient from autograd."""
    P, N = positive_mask(labels), negative_mask(labels)  #                                            (m, m)
    if not P.any() or not N.any():
        return (embeddings * 0).sum()
    D = pairwise_distances(embeddings)  # D_ij                                                        (m, m)
    r = (margin - D).masked_fill(~N, -torch.inf).logsumexp(dim=1)  # log Σ_k e^(α - D_ik)             (m,)
    i, j = P.triu(1).nonzero(as_tuple=True)
    J_ij = torch.logaddexp(r[i], r[j]) + D[i, j]  #                                                   (|P|,)
    return J_ij.clamp_min(0).square().sum() / (2 * len(J_ij))


def structured_hinge_loss_plain(embeddings: Tensor, labels: Tensor, margin: float = 1.0, plus: bool = False) -> Tensor:
    """Compute Eq. 3 term by term, with the subgradient from autograd."""
    P, N = positive_mask(labels), negative_mask(labels)  #                                            (m, m)
    if not P.any() or not N.any():
        return (embeddings * 0).sum()
    D = pairwise_distances(embeddings)  # D_ij                                                        (m, m)
    hardest = (margin - D).masked_fill(~N, -torch.inf).max(dim=1).values  # max_k α - D_ik            (m,)
    i, j = P.triu(1).nonzero(as_tuple=True)
    both = torch.stack((hardest[i], hardest[j]))
    J_ij = (both.sum(dim=0) if plus else both.max(dim=0).values) + D[i, j]  #                         (|P|,)
    return J_ij.clamp_min(0).square().sum() / (2 * len(J_ij))


# The fast versions: value and gradient together, in closed form, on the batch sorted by class.


def _lifted_struct(embeddings: Tensor, labels: Tensor, margin: float, max_bytes: int, gradient: bool) -> tuple[Tensor, Tensor]:
    r"""Compute Eq. 4 and its gradient.

    With $r_i = \log \sum_k e^{\alpha - D_{ik}}$, the bound is $\tilde J_{ij} = \log(e^{r_i} + e^{r_j}) + D_{ij}$. With
    $g_{ij} = \max(0, \tilde J_{ij}) / |P|$ and $w_i = \sum_j g_{ij} e^{r_i} / (e^{r_i} + e^{r_j})$, the paper's
    $\partial \tilde J / \partial D$ is $g_{ij}$ for a positive pair and, summed over the positive pairs that share it,
    $-w_i e^{\alpha - D_{ik} - r_i} - w_k e^{\alpha - D_{ik} - r_k}$ for a negative pair. Divided by D, this matrix is `-M`.
    """
    with full_precision(embeddings.device):
        batch = SortedBatch.of(embeddings, labels)
        loss = embeddings.new_zeros(())
        if batch.n_pairs == 0 or batch.n_classes < 2:
            return loss, embeddings.new_zeros(embeddings.shape)
        (m, d), blocks, itemsize = embeddings.shape, batch.blocks(max_bytes), embeddings.element_size()
        b = blocks[0].stop
        positives_bytes = (9 + 2 * itemsize) * m * batch.largest
        few = positives_bytes <= max_bytes // 4  # keep the positives instead of recomputing them
        keep = few and (m + 3 * b) * m * itemsize + positives_bytes <= max_bytes  # also keep D
        D_kept, spare, spare_2, dX = workspace(embeddings, (m if keep else b, m), (b, m), (b, m), (m, d))
        if keep:
            batch.products(slice(0, m), out=D_kept)
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        J_kept: list[Tensor] = []
        close = [False] * len(blocks)  # whether each block has close pairs
        r, s, log_w, nearest = embeddings.new_empty(4, m)

        def distances(rows: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            """Return D of these rows, infinite at the positives, the columns and mask of the positives, and their D."""
            D = D_kept[rows] if keep else batch.products(rows, out=D_kept[: rows.stop - rows.start])
            close[rows.start // b] = batch.distances(D, rows)
            cols, real = batch.positives(rows)
            D_pos = D.gather(1, cols)  #                                                              (b, size)
            return D.scatter_(1, cols, torch.inf), cols, real, D_pos

        for rows in blocks:  # r_i = log Σ_k e^(α - D_ik)
            D, cols, real, D_pos = distances(rows)
            torch.amin(D, dim=1, out=nearest[rows])  # min_k D_ik                                     (b,)
            E = torch.sub(nearest[rows, None], D, out=spare[: len(D)]).exp_()
            r[rows] = E.sum(dim=1).log_().sub_(nearest[rows]).add_(margin)
            if few:
                kept.append((cols, real, D_pos))

        def bound(rows: slice, cols: Tensor, real: Tensor, D_pos: Tensor) -> tuple[Tensor, Tensor]:
            """Return log(e^r_i + e^r_j), and max(0, J_ij) for the positives j of i."""
            L = torch.logaddexp(r[rows, None], r[cols])
            return L, (L + D_pos).clamp_min_(0).masked_fill_(~real, 0)

        for at, rows in enumerate(blocks):  # the loss, and s_i = log w_i + α - r_i for the weights of row i's negatives
            cols, real, D_pos = kept[at] if few else distances(rows)[1:]
            L, J = bound(rows, cols, real, D_pos)
            loss += (J * (J / (4 * batch.n_pairs))).sum()  # 4 rather than 2: each pair is counted twice
            w = torch.sub(r[rows, None], L, out=L).exp_().mul_(J).sum(dim=1).div_(batch.n_pairs)
            torch.log(w, out=log_w[rows])
            if few:
                J_kept.append(J)
        torch.sub(log_w, r, out=s).add_(margin)
        if not gradient:
            return loss, embeddings.new_zeros(embeddings.shape)

        touching = nearest.amin().item() == 0
        apart = torch.zeros_like(embeddings) if any(close) else None  # gradient of the close pairs
        for at, rows in enumerate(blocks):  # M overwrites D
            D, cols, real, D_pos = (D_kept[rows], *kept[at]) if keep else distances(rows)
            if touching:
                D.masked_fill_(D == 0, torch.inf)  # gradient 0: identical points have no direction
            which = batch.close(D.scatter(1, cols, D_pos), rows) if close[at] else None
            E = torch.sub(s[rows, None], D, out=spare[: len(D)]).exp_()
            E_k = torch.sub(s[None, :], D, out=spare_2[: len(D)])
            E += torch.minimum(E_k, log_w[None, :], out=E_k).exp_()  # D_ik and D_ki may differ in their last digit
            M = torch.div(E, D, out=D)
            g = (J_kept[at] if few else bound(rows, cols, real, D_pos)[1]).div_(batch.n_pairs)
            M.scatter_add_(1, cols, g.div_(D_pos).masked_fill_(D_pos == 0, 0).neg_())
            if which is not None and apart is not None:
                batch.by_differences(M, rows, which, apart)
            if not keep:
                torch.mm(M, batch.X, out=dX[rows])
                dX[rows] -= M.sum(dim=1, keepdim=True) * batch.X[rows]
        if keep:
            torch.mm(D_kept, batch.X, out=dX)
            dX.addcmul_(D_kept.sum(dim=1, keepdim=True), batch.X, value=-1)
        if apart is not None:
            dX += apart
        return loss, batch.in_callers_order(dX)


def _structured_hinge(
    embeddings: Tensor, labels: Tensor, margin: float, plus: bool, max_bytes: int, gradient: bool
) -> tuple[Tensor, Tensor]:
    r"""Compute Eq. 3 and a subgradient. Only the nearest negative of each row matters, so nothing of size m x m is kept."""
    with full_precision(embeddings.device):
        batch = SortedBatch.of(embeddings, labels)
        dX = embeddings.new_zeros(embeddings.shape)
        loss = embeddings.new_zeros(())
        if batch.n_pairs == 0 or batch.n_classes < 2:
            return loss, dX
        m = len(embeddings)
        nearest = embeddings.new_empty(m)  # min_k D_ik ...
        k = torch.empty_like(batch.order)  # ... and its k, in the caller's order
        for rows, D, *_ in batch.distance_blocks(max_bytes):
            torch.amin(D, dim=1, out=nearest[rows])
            k[rows] = batch.order.expand_as(D).masked_fill(nearest[rows, None] != D, m).amin(dim=1)

        w = torch.empty_like(nearest)  # weight of the push between row i and its nearest negative
        for rows, D, cols, real, D_pos, close in batch.distance_blocks(max_bytes):
            n_i, n_j = nearest[rows, None], nearest[cols]
            J = ((2 * margin - n_i - n_j if plus else margin - torch.minimum(n_i, n_j)) + D_pos).clamp_min_(0)
            J.masked_fill_(~real, 0)
            loss += (J * (J / (4 * batch.n_pairs))).sum()  # 4 rather than 2: each pair is counted twice
            if not gradient:
                continue
            g = J / batch.n_pairs
            which = batch.close(D.scatter(1, cols, D_pos), rows) if close else None
            M = D.zero_().scatter_add_(1, cols, torch.where(D_pos > 0, -g / D_pos, 0.0))
            if which is not None:
                batch.by_differences(M, rows, which, dX)
            dX[rows] += M @ batch.X - M.sum(dim=1, keepdim=True) * batch.X[rows]
            if not plus:  # only the nearer of the two negatives counts; in a tie, the first image's
                g = g * ((n_i < n_j) | ((n_i == n_j) & (batch.order[rows, None] < batch.order[cols])))
            w[rows] = g.sum(dim=1)
        if gradient:
            push = torch.where(nearest > 0, w / nearest, 0.0)[:, None] * (embeddings[batch.order] - embeddings[k])
            dX = batch.in_callers_order(dX - push).index_add_(0, k, push)
        return loss, dX


_lifted_struct_closed = closed_form(_lifted_struct)
_structured_hinge_closed = closed_form(_structured_hinge)

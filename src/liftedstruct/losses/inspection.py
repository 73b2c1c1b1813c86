r"""Inspection of the lifted structured loss on one batch: active pairs, weights of the negatives, and signs of collapse.

Eq. 4 has a product structure that makes this cheap. The weight of negative k in pair (i, j) is

$$
\frac{e^{\alpha - D_{ik}}}{e^{\tilde J_{ij} - D_{ij}}}
= \underbrace{e^{r_i} / (e^{r_i} + e^{r_j})}_{\text{share of side } i} \cdot
  \underbrace{e^{\alpha - D_{ik} - r_i}}_{\text{weight of } k \text{ for } i}
$$

so one (m, m) matrix of weights and two shares per pair determine all of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from liftedstruct.distances import negative_mask, pairwise_distances, positive_mask
from liftedstruct.runtime.checks import (
    EmbeddingsLike,
    LabelsLike,
    as_embeddings,
    as_labels,
    check_finite,
    check_margin,
    check_temperature,
)

__all__ = ["BatchInspection", "effective_rank", "inspect_batch"]


@dataclass(frozen=True)
class BatchInspection:
    """Result of `inspect_batch`. All tensors are detached; means over an empty set are NaN.

    Attributes:
        loss: the lifted structured loss of the batch.
        collapsed_loss: the loss if all embeddings were identical, the mean of (α + log(|N_i| + |N_j|))² / 2; 0 without pairs.
        pairs: (|P|, 2), the positive pairs i < j.
        J: (|P|,), J_ij of Eq. 4 before the hinge.
        active: (|P|,), J_ij > 0.
        side_shares: (|P|, 2), fractions of the pair's push on the negatives of i and of j; rows sum to 1.
        negative_weights: (m, m), softmax of α - D_ik over the negatives of row i; rows sum to 1, positives are 0.
        effective_negatives: (m,), e^entropy of each row of the weights, the number of negatives that share the push.
        pull: (m,), norm of the part of image i's gradient that comes from positive pairs.
        push: (m,), norm of the part that comes from negative pairs.
        opposition: (m,), cosine between the two parts; -1 where they point in opposite directions, NaN where one is 0.
        mean_norm: mean norm of the embeddings.
        positive_distance: mean distance of the positive pairs.
        negative_distance: mean distance of the negative pairs.
        effective_rank: e^entropy of the normalized singular values of the centered batch; 0 if all embeddings are equal.

    """

    loss: float
    collapsed_loss: float
    pairs: Tensor
    J: Tensor
    active: Tensor
    side_shares: Tensor
    negative_weights: Tensor
    effective_negatives: Tensor
    pull: Tensor
    push: Tensor
    opposition: Tensor
    mean_norm: float
    positive_distance: float
    negative_distance: float
    effective_rank: float

    @property
    def active_share(self) -> float:
        """Fraction of the positive pairs that still have a gradient."""
        return int(self.active.sum()) / len(self.active) if len(self.active) else float("nan")

    @property
    def pull_share(self) -> float:
        """Fraction of the summed gradient norms that comes from positive pairs, 0 to 1; the rest comes from negative pairs."""
        pull, push = self.pull.sum().item(), self.push.sum().item()
        return pull / (pull + push) if pull + push else float("nan")

    def pair_weights(self, pair: int) -> Tensor:
        """Return the softmax weights of the negatives in one positive pair, for i and for j, (2, m); they sum to 1."""
        return self.side_shares[pair, :, None] * self.negative_weights[self.pairs[pair]]

    def __str__(self) -> str:
        rows = (
            ("loss", f"{self.loss:.4g}", f"{self.collapsed_loss:.4g} if all embeddings were identical"),
            ("active pairs", f"{self.active_share:.1%}", f"of {len(self.pairs)} positive pairs"),
            ("positive distance", f"{self.positive_distance:.4g}", "mean over positive pairs"),
            ("negative distance", f"{self.negative_distance:.4g}", "mean over negative pairs"),
            ("effective negatives", f"{self.effective_negatives.mean().item():.4g}", "mean number that share the push"),
            ("pull share", f"{self.pull_share:.1%}", "of the gradient norms, from positive pairs"),
            ("mean norm", f"{self.mean_norm:.4g}", "of the embeddings"),
            ("effective rank", f"{self.effective_rank:.4g}", "dimensions in use"),
        )
        return "\n".join(f"{name:<20} {value:>8}  {note}" for name, value, note in rows)


@torch.no_grad()
def inspect_batch(
    embeddings: EmbeddingsLike, labels: LabelsLike, margin: float = 1.0, temperature: float = 1.0
) -> BatchInspection:
    r"""Inspect the lifted structured loss on one batch: active pairs, weights of the negatives, and signs of collapse.

    Args:
        embeddings: (m, d), any float type.
        labels: (m,), integers of any size or strings.
        margin: the paper's $\alpha$.
        temperature: divisor of the embeddings; distances, norms and gradients refer to the scaled embeddings.

    Returns:
        A `BatchInspection`. `print` shows it as a table.

    Examples:
        >>> import torch
        >>> seen = inspect_batch(torch.zeros(4, 2), [0, 0, 1, 1])  # a collapsed batch
        >>> round(seen.loss, 4), round(seen.collapsed_loss, 4), seen.effective_rank  # (1 + log 4)² / 2
        (2.8472, 2.8472, 0.0)
        >>> seen.pair_weights(0).tolist()  # both negatives have equal weights, on both sides
        [[0.0, 0.0, 0.25, 0.25], [0.0, 0.0, 0.25, 0.25]]

    """
    X = as_embeddings(embeddings).detach() / check_temperature(temperature)
    y, alpha = as_labels(labels, X), check_margin(margin)
    check_finite(X, X.square().sum().item())
    P, N = positive_mask(y), negative_mask(y)  #                                                      (m, m)
    D = pairwise_distances(X)  #                                                                      (m, m)
    r = (alpha - D).masked_fill(~N, -torch.inf).logsumexp(dim=1)  #                                   (m,)
    weights = torch.where(N, (alpha - D - r[:, None]).exp(), 0.0)  #                                  (m, m)
    pairs = P.triu(1).nonzero()
    i, j = pairs.unbind(1)
    L = torch.logaddexp(r[i], r[j])
    J = L + D[i, j]  #                                                                                (|P|,)
    shares = torch.where(L.isfinite()[:, None], (torch.stack((r[i], r[j]), dim=1) - L[:, None]).exp(), 0.0)
    g = J.clamp_min(0) / max(1, len(J))  # ∂J/∂D_ij                                                   (|P|,)
    w = torch.zeros_like(r).index_add_(0, i, g * shares[:, 0]).index_add_(0, j, g * shares[:, 1])
    pull = torch.zeros_like(D)
    pull[i, j] = pull[j, i] = g
    push = w[:, None] * weights
    G_pull, G_push = _through_distances(pull, D, X), _through_distances(-push - push.T, D, X)
    n_negatives = N.sum(dim=1)
    collapsed = (alpha + (n_negatives[i] + n_negatives[j]).to(X.dtype).log()).clamp_min(0).square() / 2
    return BatchInspection(
        loss=(J.clamp_min(0).square().sum() / (2 * max(1, len(J)))).item(),
        collapsed_loss=collapsed.mean().item() if len(J) else 0.0,
        pairs=pairs,
        J=J,
        active=J > 0,
        side_shares=shares,
        negative_weights=weights,
        effective_negatives=torch.where(n_negatives > 0, torch.special.entr(weights).sum(dim=1).exp(), 0.0),
        pull=G_pull.norm(dim=1),
        push=G_push.norm(dim=1),
        opposition=(G_pull * G_push).sum(dim=1) / (G_pull.norm(dim=1) * G_push.norm(dim=1)),
        mean_norm=X.norm(dim=1).mean().item(),
        positive_distance=D[P].mean().item(),
        negative_distance=D[N].mean().item(),
        effective_rank=effective_rank(X),
    )


def _through_distances(dD: Tensor, D: Tensor, X: Tensor) -> Tensor:
    """Turn a symmetric gradient with respect to D into the gradient with respect to X."""
    W = torch.where(D > 0, dD / D, 0.0)
    return torch.stack([W[i] @ (X[i] - X) for i in range(len(X))])  # differences are accurate even for small D


def effective_rank(X: Tensor) -> float:
    """Return e^entropy of the normalized singular values of the centered batch, or 0 if all rows are equal."""
    C = (X - X[0]).cpu().double()  # subtract one row first, so that equal rows are exactly 0
    C -= C.mean(dim=0)
    sigma = torch.linalg.eigvalsh(C.T @ C if len(C) > C.shape[1] else C @ C.T).clamp_min(0).sqrt()
    sigma = sigma[sigma > sigma.max() * max(C.shape) * torch.finfo(X.dtype).eps]
    return torch.special.entr(sigma / sigma.sum()).sum().exp().item() if len(sigma) else 0.0

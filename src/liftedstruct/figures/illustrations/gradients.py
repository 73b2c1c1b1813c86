r"""Gradients of a loss with respect to its points and the distances between them.

A loss that depends only on distances has $\partial J / \partial x_i = \sum_j \partial J / \partial D_{ij} \cdot u_{ij}$ with
$u_{ij} = (x_i - x_j) / D_{ij}$. If the directions $u_{ij}$ are linearly independent, the gradient with respect to the points,
from autograd, determines $\partial J / \partial D_{ij}$, and thus which distances the loss uses.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from liftedstruct.losses import contrastive_loss, triplet_loss

__all__ = ["Loss", "contrastive_rows", "distance_gradients", "negative_gradient", "pair_gradients", "triplet_rows"]

Loss = Callable[[Tensor, Tensor, float], Tensor]

contrastive_rows = partial(contrastive_loss, pairs="rows")  # Eq. 1 of the paper
triplet_rows = partial(triplet_loss, triplets="rows")  # Eq. 2 of the paper

ROUNDING = 1e-9  # relative to the largest gradient; smaller gradients are set to 0


def negative_gradient(loss: Loss, X: Tensor, y: Tensor, margin: float) -> Tensor:
    """Return -∂J/∂X, the direction in which the loss moves each point.                                       (m, d)"""
    X = X.detach().clone().requires_grad_()
    (dX,) = torch.autograd.grad(loss(X, y, margin), X)
    return -dX


def distance_gradients(loss: Loss, X: Tensor, y: Tensor, margin: float) -> Tensor:
    """Return ∂J/∂D of every pair, (m, m), symmetric; exactly 0 where the loss does not use the distance.

    The points must be in general position (m points that span m - 1 dimensions), so that the distances are independent.

    Examples:
        >>> X = torch.eye(4, dtype=torch.float64)  # all at distance √2
        >>> G = distance_gradients(contrastive_rows, X, torch.tensor([0, 0, 1, 2]), 1.0)
        >>> G[0].round(decimals=12).tolist()  # 2 √2 / m; the others are not pairs
        [0.0, 0.707106781187, 0.0, 0.0]

    """
    dX, G = -negative_gradient(loss, X, y, margin), X.new_zeros(len(X), len(X))
    for i in range(len(X)):
        others = [j for j in range(len(X)) if j != i]
        G[i, others] = _components(X[i] - X[others], dX[i])
    return _without_rounding((G + G.T) / 2)


def pair_gradients(loss: Loss, X: Tensor, pair: tuple[int, int], negatives: list[int], margin: float) -> tuple[float, Tensor]:
    """Return J_ij of one positive pair, and ∂(J_ij² / 2)/∂D from either image to each negative, (2, len(negatives)).

    The loss is evaluated on the pair and these negatives, each in its own class, so the pair is the only positive pair and the
    mean over pairs is its $J_{ij}^2 / 2$. A negative off the line through the pair has two independent directions, one per
    image, so its gradient determines both components.
    """
    X = X[[*pair, *negatives]]
    y = torch.tensor([0, 0, *range(1, len(negatives) + 1)])
    dX = -negative_gradient(loss, X, y, margin)
    gradients = torch.stack([_components(X[k] - X[:2], dX[k]) for k in range(2, len(X))], dim=1)
    return (2 * loss(X, y, margin).item()) ** 0.5, _without_rounding(gradients)


def _components(differences: Tensor, gradient: Tensor) -> Tensor:
    """Return the coefficients, (n,), of the gradient, (d,), along the directions of the differences, (n, d)."""
    U = differences / differences.norm(dim=1, keepdim=True)  #                                        (n, d)
    coefficients: Tensor = torch.linalg.lstsq(U.T, gradient[:, None]).solution[:, 0]
    return coefficients


def _without_rounding(gradients: Tensor) -> Tensor:
    return torch.where(gradients.abs() > ROUNDING * gradients.abs().max(), gradients, 0.0)

r"""What a loss asks of its points and of their distances, read off the gradient that autograd gives for the points.

A loss of distances moves point i by :math:`\partial J / \partial x_i = \sum_j \partial J / \partial D_{ij} \cdot u_{ij}` with
:math:`u_{ij} = (x_i - x_j) / D_{ij}`. Where the directions :math:`u_{ij}` are linearly independent there is one solution for
the slopes :math:`\partial J / \partial D_{ij}`, so a loss that hides its distances still tells which of them it uses.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from liftedstruct.losses import contrastive_loss, triplet_loss

__all__ = ["Loss", "contrastive_rows", "descent", "distance_slopes", "pair_slopes", "triplet_rows"]

Loss = Callable[[Tensor, Tensor, float], Tensor]

contrastive_rows = partial(contrastive_loss, pairs="rows")  # Eq. 1 ...
triplet_rows = partial(triplet_loss, triplets="rows")  # ... and Eq. 2, as the paper states them

ROUNDING = 1e-9  # of the largest slope; what is smaller is 0


def descent(loss: Loss, X: Tensor, y: Tensor, margin: float) -> Tensor:
    """The direction in which the loss moves each point, -∂J/∂X.                                              (m, d)"""
    X = X.detach().clone().requires_grad_()
    (dX,) = torch.autograd.grad(loss(X, y, margin), X)
    return -dX


def distance_slopes(loss: Loss, X: Tensor, y: Tensor, margin: float) -> Tensor:
    """∂J/∂D of every pair, (m, m), symmetric; exactly 0 where the loss does not look at the distance.

    The points must be in general position (m points that span m - 1 dimensions): then all distances are free of one another.

    >>> X = torch.eye(4, dtype=torch.float64)  # all at distance √2
    >>> slopes = distance_slopes(contrastive_rows, X, torch.tensor([0, 0, 1, 2]), 1.0)
    >>> slopes[0].round(decimals=12).tolist()  # 2 √2 / m; the others are no pairs
    [0.0, 0.707106781187, 0.0, 0.0]

    """
    dX, G = -descent(loss, X, y, margin), X.new_zeros(len(X), len(X))
    for i in range(len(X)):
        others = [j for j in range(len(X)) if j != i]
        G[i, others] = _along(X[i] - X[others], dX[i])
    return _without_rounding((G + G.T) / 2)


def pair_slopes(loss: Loss, X: Tensor, pair: tuple[int, int], negatives: list[int], margin: float) -> tuple[float, Tensor]:
    r"""J_ij of one positive pair, and ∂(J_ij² / 2)/∂D from either image to each negative, (2, len(negatives)).

    The loss sees the pair and these negatives, each negative of a class of its own, so that the pair is the only positive one
    and the mean over pairs is this pair's :math:`J_{ij}^2 / 2`. A negative that is not on the line through the pair is then
    moved along two directions, one for each image, and its gradient gives both slopes.
    """
    X = X[[*pair, *negatives]]
    y = torch.tensor([0, 0, *range(1, len(negatives) + 1)])
    dX = -descent(loss, X, y, margin)
    slopes = torch.stack([_along(X[k] - X[:2], dX[k]) for k in range(2, len(X))], dim=1)
    return (2 * loss(X, y, margin).item()) ** 0.5, _without_rounding(slopes)


def _along(differences: Tensor, gradient: Tensor) -> Tensor:
    """How much of each direction, (n,), makes up the gradient, (d,)."""
    U = differences / differences.norm(dim=1, keepdim=True)  #                                        (n, d)
    slopes: Tensor = torch.linalg.lstsq(U.T, gradient[:, None]).solution[:, 0]
    return slopes


def _without_rounding(slopes: Tensor) -> Tensor:
    return torch.where(slopes.abs() > ROUNDING * slopes.abs().max(), slopes, 0.0)

r"""Initializations of the head, `embedding = weight · feature + bias`.

The scale of an unnormalized embedding matters: while distances are far below $\alpha$, the lifted structured loss is near its
collapsed value; when they are far above, only the nearest negative of a pair counts. So each initialization has a `scale`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from liftedstruct.runtime.settings import Positive

__all__ = ["HEADS", "pca", "principal_components"]

Features = Callable[[], Tensor]  # computes features of training images, (n, width)


def uniform(head: nn.Linear, features: Features, *, scale: Positive = 1.0) -> None:
    """Initialize uniformly in ±sqrt(3 / fan-in) with zero bias, as in the authors' code.

    Args:
        scale: factor of the weights.

    """
    bound = scale * math.sqrt(3 / head.in_features)
    nn.init.uniform_(head.weight, -bound, bound)
    nn.init.zeros_(head.bias)


def orthogonal(head: nn.Linear, features: Features, *, scale: Positive = 1.0) -> None:
    """Initialize with random orthogonal directions and zero bias.

    Args:
        scale: norm of each direction.

    """
    nn.init.orthogonal_(head.weight, gain=scale)
    nn.init.zeros_(head.bias)


def pca(head: nn.Linear, features: Features, *, scale: Positive = 1.0) -> None:
    """Initialize with the principal components of the trunk's features on training images, centered at their mean.

    Args:
        scale: norm of each component.

    """
    F = features().double().cpu()  #                                                                  (n, width)
    _fill(head, scale * principal_components(F, head.out_features), F.mean(dim=0))


def principal_components(F: Tensor, count: int) -> Tensor:
    """Return `count` orthogonal directions, largest variance first.                                   (count, width)

    If there are fewer images than directions, the remaining directions have zero variance. If `count` is larger than the
    width, the second half of the directions is mapped to the remaining dimensions by a random orthogonal matrix, which
    preserves distances.
    """
    centered = F - F.mean(dim=0)
    _, directions = torch.linalg.eigh(centered.T @ centered)  # columns, smallest variance first      (width, width)
    V: Tensor = directions.flip(1).T[:count]
    strongest = V.gather(1, V.abs().argmax(dim=1, keepdim=True))
    V = V * strongest.sign()  # the sign of an eigenvector is arbitrary: make its largest entry positive
    if count <= len(V):
        return V
    first, rest = V[: len(V) // 2], V[len(V) // 2 :]
    return torch.cat((first, nn.init.orthogonal_(torch.empty(count - len(first), len(rest), dtype=V.dtype)) @ rest))


def _fill(head: nn.Linear, weight: Tensor, mean: Tensor) -> None:
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(-weight @ mean)


HEADS: dict[str, Callable[..., None]] = {"orthogonal": orthogonal, "pca": pca, "uniform": uniform}

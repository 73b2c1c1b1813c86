r"""Ways to initialize the head, ``embedding = weight · feature + bias``.

The scale of a raw embedding matters: the lifted structured loss is near its collapsed value while distances are far below
:math:`\alpha`, and has no gradient left where they are far above. So each initialization has a scale.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from liftedstruct.runtime.settings import Positive

__all__ = ["HEADS", "pca", "principal_components", "reduced"]

Features = Callable[[], Tensor]  # computes features of training images, (n, width)


def uniform(head: nn.Linear, features: Features, *, scale: Positive = 1.0) -> None:
    """Uniform in ±sqrt(3 / fan-in), bias 0: the paper's last layer, as the authors' code fills it.

    Args:
        scale: factor of the weights.

    """
    bound = scale * math.sqrt(3 / head.in_features)
    nn.init.uniform_(head.weight, -bound, bound)
    nn.init.zeros_(head.bias)


def orthogonal(head: nn.Linear, features: Features, *, scale: Positive = 1.0) -> None:
    """Random orthogonal directions, bias 0, which keep distances of features as well as possible.

    Args:
        scale: length of each direction.

    """
    nn.init.orthogonal_(head.weight, gain=scale)
    nn.init.zeros_(head.bias)


def pca(head: nn.Linear, features: Features, *, scale: Positive = 1.0) -> None:
    """The principal components of the trunk's features on training images, around their mean.

    Args:
        scale: length of each component.

    """
    F = features().double().cpu()  #                                                                  (n, width)
    _fill(head, scale * principal_components(F, head.out_features), F.mean(dim=0))


def reduced(head: nn.Linear, dim: int, features: Tensor) -> nn.Linear:
    """A head of ``dim`` dimensions: the principal components of what this one makes of the features, around their mean.

    Of all orthogonal projections onto so few dimensions it is the one that keeps most of the squared distances.
    """
    weight, bias = head.weight.detach().double().cpu(), head.bias.detach().double().cpu()
    F = features.double().cpu()  #                                                                    (n, width)
    narrow = nn.Linear(head.in_features, dim).to(head.weight)
    _fill(narrow, principal_components(F @ weight.T + bias, dim) @ weight, F.mean(dim=0))
    return narrow


def principal_components(F: Tensor, count: int) -> Tensor:
    """Orthogonal directions, that of most variance first; where few images have few, others follow. (count, width)

    Of more than there are features, all directions, turned into so many dimensions at random: distances stay what they are.
    """
    centred = F - F.mean(dim=0)
    _, directions = torch.linalg.eigh(centred.T @ centred)  # columns, least variance first           (width, width)
    V: Tensor = directions.flip(1).T[:count]
    strongest = V.gather(1, V.abs().argmax(dim=1, keepdim=True))
    V = V * strongest.sign()  # eigenvectors have no sign of their own: the strongest entry is positive
    return V if count <= len(V) else nn.init.orthogonal_(torch.empty(count, len(V), dtype=V.dtype)) @ V


def _fill(head: nn.Linear, weight: Tensor, mean: Tensor) -> None:
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(-weight @ mean)


HEADS: dict[str, Callable[..., None]] = {"orthogonal": orthogonal, "pca": pca, "uniform": uniform}

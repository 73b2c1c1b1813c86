r"""Ways to start the last layer, ``embedding = weight · feature + bias``.

The scale of the raw embedding matters: the lifted structured loss is near its collapsed value while distances are far below
:math:`\alpha`, and has no gradient left where they are far above. So each start comes with a scale.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["FROM_FEATURES", "HEADS", "narrowed", "orthogonal", "pca", "uniform", "whitened"]

SHRINKAGE = 0.6  # measured on held-out training classes of CUB-200-2011, of 0.1, 0.3 and 0.6


def uniform(head: nn.Linear, scale: float, features: Tensor | None = None, labels: Tensor | None = None) -> None:
    """Uniform in ±sqrt(3 / fan-in), bias 0: the paper's last layer, as the authors' code fills it."""
    bound = scale * math.sqrt(3 / head.in_features)
    nn.init.uniform_(head.weight, -bound, bound)
    nn.init.zeros_(head.bias)


def orthogonal(head: nn.Linear, scale: float, features: Tensor | None = None, labels: Tensor | None = None) -> None:
    """Random directions at right angles, each of length ``scale``, bias 0: distances of features are kept as well as can be."""
    nn.init.orthogonal_(head.weight, gain=scale)
    nn.init.zeros_(head.bias)


def pca(head: nn.Linear, scale: float, features: Tensor | None = None, labels: Tensor | None = None) -> None:
    """The principal components of the trunk's features on training images, each of length ``scale``, around their mean."""
    assert features is not None
    F = features.double().cpu()  #                                                                    (n, width)
    _fill(head, scale * _components(F, head.out_features), F.mean(dim=0))


def whitened(head: nn.Linear, scale: float, features: Tensor | None = None, labels: Tensor | None = None) -> None:
    r"""The principal components of features that were made to vary alike within the classes, around their mean.

    With S the covariance within the classes of the training images, drawn towards a multiple of the unit matrix,
    the features go through :math:`S^{-1/2}` first: what changes from image to image of one class counts less, what does not
    counts more. On the average direction the map has length ``scale``.
    """
    assert features is not None
    assert labels is not None
    F, y = features.double().cpu(), labels.cpu()  #                                                   (n, width), (n,)
    mean, width = F.mean(dim=0), F.shape[1]
    _, group = y.unique(return_inverse=True)
    sums = torch.zeros(int(group.max()) + 1, width, dtype=F.dtype).index_add_(0, group, F)
    within = F - (sums / group.bincount()[:, None])[group]  #                                         (n, width)
    S = within.T @ within / len(F)
    level = S.trace() / width
    if level == 0:  # no class has two different images
        return pca(head, scale, features)
    variances, axes = torch.linalg.eigh((1 - SHRINKAGE) * S + SHRINKAGE * level * torch.eye(width, dtype=F.dtype))
    root = axes * (level / variances).sqrt() @ axes.T  # S^(-1/2) up to a factor                      (width, width)
    return _fill(head, scale * _components((F - mean) @ root, head.out_features) @ root, mean)


def narrowed(head: nn.Linear, dim: int, features: Tensor) -> nn.Linear:
    """A head of ``dim`` dimensions: the principal components of what this one makes of the features, around their mean.

    Of all projections at right angles onto so few dimensions it is the one that keeps most of the squared distances.
    """
    weight, bias = head.weight.detach().double().cpu(), head.bias.detach().double().cpu()
    F = features.double().cpu()  #                                                                    (n, width)
    narrow = nn.Linear(head.in_features, dim).to(head.weight)
    _fill(narrow, _components(F @ weight.T + bias, dim) @ weight, F.mean(dim=0))
    return narrow


def _components(F: Tensor, count: int) -> Tensor:
    """Directions at right angles, that of most variance first; where few images have few, others follow. (count, width)

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


HEADS: dict[str, Callable[[nn.Linear, float, Tensor | None, Tensor | None], None]] = {
    "orthogonal": orthogonal,
    "pca": pca,
    "uniform": uniform,
    "whitened": whitened,
}
FROM_FEATURES = {"pca", "whitened"}  # heads that start from features of training images

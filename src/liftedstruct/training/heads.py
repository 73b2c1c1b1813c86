r"""Ways to start the last layer, ``embedding = weight · feature + bias``.

The scale of the raw embedding matters: the lifted structured loss is near its collapsed value while distances are far below
:math:`\alpha`, and has no gradient left where they are far above. So each start comes with a scale.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["HEADS", "check_pca", "orthogonal", "pca", "uniform"]


def uniform(head: nn.Linear, scale: float, features: Tensor | None) -> None:
    """Uniform in ±sqrt(3 / fan-in), bias 0: the paper's last layer, as the authors' code fills it."""
    bound = scale * math.sqrt(3 / head.in_features)
    nn.init.uniform_(head.weight, -bound, bound)
    nn.init.zeros_(head.bias)


def orthogonal(head: nn.Linear, scale: float, features: Tensor | None) -> None:
    """Random directions at right angles, each of length ``scale``, bias 0: distances of features are kept as well as can be."""
    nn.init.orthogonal_(head.weight, gain=scale)
    nn.init.zeros_(head.bias)


def pca(head: nn.Linear, scale: float, features: Tensor | None) -> None:
    """The principal components of the trunk's features on training images, each of length ``scale``, around their mean."""
    assert features is not None
    check_pca(head.out_features, *features.shape)
    F = features.double().cpu()  #                                                                    (n, width)
    mean = F.mean(dim=0)
    _, directions = torch.linalg.eigh((F - mean).T @ (F - mean))  # columns, least variance first     (width, width)
    V = directions.flip(1).T[: head.out_features]  #                                                  (dim, width)
    strongest = V.gather(1, V.abs().argmax(dim=1, keepdim=True))
    V = V * strongest.sign()  # eigenvectors have no sign of their own: the strongest entry is positive
    with torch.no_grad():
        head.weight.copy_(scale * V)
        head.bias.copy_(-scale * V @ mean)


def check_pca(dim: int, n: int, width: int) -> None:
    """Raise if n images cannot tell so many directions of their features."""
    most = min(n - 1, width)
    if dim > most:
        raise ValueError(
            f"head pca must have at most {most} dimensions ({width} features of {n} images), "
            f"got dim {dim}. Pass a smaller dim, or head orthogonal."
        )


HEADS: dict[str, Callable[[nn.Linear, float, Tensor | None], None]] = {
    "orthogonal": orthogonal,
    "pca": pca,
    "uniform": uniform,
}

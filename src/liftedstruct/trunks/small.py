"""Small convolutional network to train from scratch, for tests and for images of 16 to 96 pixels."""

from pathlib import Path

from torch import nn

from liftedstruct.trunks.base import Trunk
from liftedstruct.trunks.layers import ConvUnit
from liftedstruct.trunks.weights import load_weights, read_tensors

__all__ = ["small"]


def small(weights: str | Path | None = None, pretrained: bool = True) -> Trunk:
    """Four 3 x 3 convolutions, 128 features, no pretrained weights; for tests and tiny images.

    It uses group normalization, so the features of an image do not depend on the other images of its batch.

    Args:
        weights: file with the tensors of this network. Default: random weights.
        pretrained: ignored, since there are no pretrained weights.

    """

    def norm(channels: int) -> nn.Module:
        return nn.GroupNorm(8, channels)

    stages = {
        "stem": [ConvUnit(3, 32, 3, 2, norm=norm)],
        "stage1": [ConvUnit(32, 64, 3, 2, norm=norm)],
        "stage2": [ConvUnit(64, 96, 3, 2, norm=norm)],
        "stage3": [ConvUnit(96, 128, 3, norm=norm)],
    }
    trunk = Trunk("small", stages, input_size=64, num_features=128, mean=(127.5,) * 3, std=(63.75,) * 3, min_size=8)
    if weights is not None:
        load_weights(trunk, read_tensors(weights), weights)
    return trunk

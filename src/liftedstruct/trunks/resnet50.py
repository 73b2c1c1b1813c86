"""ResNet-50 (He et al. 2016) up to its global pooling, in the layout of torchvision and timm: 2,048 features.

Four stages of bottlenecks: a 1 x 1 convolution reduces the channels, a 3 x 3 convolution works on them, and a 1 x 1 convolution
expands them to four times the width; the input is added to the result. As in torchvision ("v1.5"), the 3 x 3 convolution of the
first block of a stage has the stride, not the 1 x 1 convolution before it as in the paper. Pixels are scaled with the mean and
standard deviation of ImageNet.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.functional import relu

from liftedstruct.trunks.base import IMAGENET_MEAN, IMAGENET_STD, Trunk
from liftedstruct.trunks.layers import ConvUnit, unit_names
from liftedstruct.trunks.weights import load_weights, read_tensors

__all__ = ["resnet50"]

STEM, EXPANSION = 64, 4


class ResidualStage(NamedTuple):
    """One stage. The stride applies to its first block."""

    blocks: int
    width: int
    stride: int


STAGES = (ResidualStage(3, 64, 1), ResidualStage(4, 128, 2), ResidualStage(6, 256, 2), ResidualStage(3, 512, 2))
_unit = partial(ConvUnit, norm=nn.BatchNorm2d)


class ResidualBottleneck(nn.Module):
    """Bottleneck with a skip connection, which is a 1 x 1 convolution if the shapes differ."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.reduce = _unit(inputs, width, 1)
        self.convolve = _unit(width, width, 3, stride)
        self.expand = _unit(width, outputs, 1, activation=None)
        nn.init.zeros_(self.expand.norm.weight)  # type: ignore[arg-type]  # without weights, a block starts as its skip connection
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else _unit(inputs, outputs, 1, stride, activation=None)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.expand(self.convolve(self.reduce(x)))
        return relu(y.add_(self.skip(x)), inplace=True)


def resnet50(weights: str | Path | None = None, pretrained: bool = True) -> Trunk:
    """ResNet-50, 2,048 features, 224 px; weights from a file.

    Args:
        weights: torchvision's or timm's `resnet50`, as .pth, .pt or .safetensors. The classifier in it is ignored.
        pretrained: must be False if no file is given, since no package provides the weights.

    """
    if weights is None and pretrained:
        raise ValueError(
            "resnet50 must be given a weights file, since no package provides one. Pass weights FILE, or weights random."
        )
    trunk = _network()
    if weights is not None:
        load_weights(trunk, read_tensors(weights), weights, _names(trunk))
    return trunk


def _network() -> Trunk:
    stages: dict[str, list[nn.Module]] = {"stem": [_unit(3, STEM, 7, 2), nn.MaxPool2d(3, 2, padding=1)]}
    inputs = STEM
    for i, stage in enumerate(STAGES):
        blocks: list[nn.Module] = []
        for block in range(stage.blocks):
            blocks.append(ResidualBottleneck(inputs, stage.width, 1 if block else stage.stride))
            inputs = EXPANSION * stage.width
        stages[f"layer{i + 1}"] = blocks
    return Trunk(
        "resnet50",
        stages,
        input_size=224,
        num_features=inputs,
        mean=[255 * each for each in IMAGENET_MEAN],
        std=[255 * each for each in IMAGENET_STD],
        suggested={"freeze": 2, "crop": 224},
    )


def _names(trunk: Trunk) -> dict[str, str]:
    """Map the trunk's tensor names to those of torchvision and timm, which number the convolutions and norms of a block."""
    units = {"layers.stem.0": ("conv1", "bn1")}
    for stage, modules in trunk.stages.items():
        for i in range(len(modules) if stage != "stem" else 0):
            own, block = f"layers.{stage}.{i}", f"{stage}.{i}"
            for number, part in enumerate(("reduce", "convolve", "expand"), start=1):
                units[f"{own}.{part}"] = (f"{block}.conv{number}", f"{block}.bn{number}")
            units[f"{own}.skip"] = (f"{block}.downsample.0", f"{block}.downsample.1")
    return unit_names(trunk, units)

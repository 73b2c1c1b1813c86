"""The layers that trunks are built from: TensorFlow's padding, local response normalisation, a convolution and what follows."""

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, pad
from torch.nn.utils.fusion import fuse_conv_bn_eval

__all__ = ["ConvUnit", "LocalResponseNorm", "MaxPool", "SameConv2d", "folded", "same_padding"]

M = TypeVar("M", bound=nn.Module)


def same_padding(length: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME: zeros before and after, such that ceil(length / stride) places come out; the odd one goes after.

    >>> same_padding(224, kernel=7, stride=2), same_padding(227, kernel=7, stride=2)
    ((2, 3), (3, 3))
    """
    total = max((-(-length // stride) - 1) * stride + kernel - length, 0)
    return total // 2, total - total // 2


class SameConv2d(nn.Conv2d):
    """A convolution with square kernel and SAME padding for whatever size comes in; its own padding counts for nothing."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        (top, bottom), (left, right) = (same_padding(length, kernel, stride) for length in x.shape[2:])
        padding = (top, left)
        if padding != (bottom, right):  # only torch's symmetric padding comes without a copy
            x, padding = pad(x, (left, right, top, bottom)), (0, 0)
        return conv2d(x, self.weight, self.bias, self.stride, padding, groups=self.groups)


class MaxPool(nn.Module):
    """A maximum over squares, every second place: Caffe's (the last square may stick out) or TensorFlow's SAME."""

    def __init__(self, kernel: int = 3, same: bool = False) -> None:
        super().__init__()
        self.kernel, self.same = kernel, same

    def forward(self, x: Tensor) -> Tensor:
        # SAME pads an even side by one after its end, which is what ceil_mode does, and an odd one by one on both sides.
        height, width = (length % 2 if self.same else 0 for length in x.shape[2:])
        return max_pool2d(x, self.kernel, 2, padding=(height, width), ceil_mode=True)


class LocalResponseNorm(nn.Module):
    r"""Krizhevsky's normalisation across neighbouring channels, :math:`y_c = x_c / (k + a \sum_{c'} x_{c'}^2)^\beta`.

    The sum goes over the ``size`` channels around c, fewer at the ends; a is per channel (torch and Caffe divide theirs by
    the size). The sum is a product with a band of ones, which channels-last memory likes better than a moving window.
    """

    band: Tensor

    def __init__(self, channels: int, size: int, a: float, beta: float, k: float) -> None:
        super().__init__()
        self.beta, self.k = beta, k
        c = torch.arange(channels)
        band = a * ((c[:, None] - c).abs() <= size // 2).float()
        self.register_buffer("band", band[:, :, None, None], persistent=False)  # (channels, channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # squares need the range of float32
            x = x.float()
            s = conv2d(x.square(), self.band) + self.k
            return x * s.pow(-self.beta)


class ConvUnit(nn.Module):
    """A convolution, its normalisation and its activation; an odd kernel, padded to keep the size where the stride is 1."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        *,
        groups: int = 1,
        norm: Callable[[int], nn.Module] | None = None,
        activation: type[nn.ReLU | nn.ReLU6] | None = nn.ReLU,
        same: bool = False,
    ) -> None:
        super().__init__()
        kind = SameConv2d if same and stride > 1 else nn.Conv2d
        self.conv = kind(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=norm is None)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        self.norm = nn.Identity() if norm is None else norm(outputs)
        self.activation = nn.Identity() if activation is None else activation(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.norm(self.conv(x)))
        return y


def folded(module: M) -> M:
    """A copy for inference: batch normalisation with its fixed statistics becomes part of the convolution before it."""
    module = copy.deepcopy(module).eval().requires_grad_(False)
    for unit in module.modules():
        if isinstance(unit, ConvUnit) and isinstance(unit.norm, nn.BatchNorm2d):
            unit.conv = fuse_conv_bn_eval(unit.conv, unit.norm)
            unit.norm = nn.Identity()
    return module

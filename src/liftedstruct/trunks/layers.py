"""Building blocks of trunks: TensorFlow's padding, local response normalization, convolution with norm and activation."""

import copy
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, pad
from torch.nn.utils.fusion import fuse_conv_bn_eval

__all__ = ["ConvUnit", "LocalResponseNorm", "MaxPool", "SameConv2d", "folded", "same_padding", "unit_names"]

M = TypeVar("M", bound=nn.Module)


def same_padding(length: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return how many zeros TensorFlow's SAME padding adds before and after, for ceil(length / stride) outputs.

    If the total is odd, the extra zero goes after.

    Examples:
        >>> same_padding(224, kernel=7, stride=2), same_padding(227, kernel=7, stride=2)
        ((2, 3), (3, 3))
    """
    total = max((-(-length // stride) - 1) * stride + kernel - length, 0)
    return total // 2, total - total // 2


class SameConv2d(nn.Conv2d):
    """Convolution with a square kernel and SAME padding for any input size. Its `padding` attribute is ignored."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        (top, bottom), (left, right) = (same_padding(length, kernel, stride) for length in x.shape[2:])
        padding = (top, left)
        if padding != (bottom, right):  # conv2d itself only pads symmetrically; other padding needs a copy
            x, padding = pad(x, (left, right, top, bottom)), (0, 0)
        return conv2d(x, self.weight, self.bias, self.stride, padding, groups=self.groups)


class MaxPool(nn.Module):
    """Max pooling with stride 2, padded like Caffe (the last window may extend past the edge) or TensorFlow's SAME."""

    def __init__(self, kernel: int = 3, same: bool = False) -> None:
        super().__init__()
        self.kernel, self.same = kernel, same

    def forward(self, x: Tensor) -> Tensor:
        # SAME pads an even side by one at its end, like ceil_mode, and an odd side by one at both ends.
        height, width = (length % 2 if self.same else 0 for length in x.shape[2:])
        return max_pool2d(x, self.kernel, 2, padding=(height, width), ceil_mode=True)


class LocalResponseNorm(nn.Module):
    r"""Local response normalization across channels (Krizhevsky et al. 2012): $y_c = x_c / (k + a \sum_{c'} x_{c'}^2)^\beta$.

    The sum is over the `size` channels around c, fewer at the ends. `a` is not divided by `size`, unlike alpha in torch and
    Caffe. The sum is computed as a product with a band matrix, which is faster in channels-last memory than a moving window.
    """

    band: Tensor

    def __init__(self, channels: int, size: int, a: float, beta: float, k: float) -> None:
        super().__init__()
        self.beta, self.k = beta, k
        c = torch.arange(channels)
        band = a * ((c[:, None] - c).abs() <= size // 2).float()
        self.register_buffer("band", band[:, :, None, None], persistent=False)  # (channels, channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # squares can overflow in half precision
            x = x.float()
            s = conv2d(x.square(), self.band) + self.k
            return x * s.pow(-self.beta)


class ConvUnit(nn.Module):
    """Convolution, normalization and activation. The kernel size is odd; the padding preserves the spatial size at stride 1."""

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


def unit_names(network: nn.Module, units: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Map the tensor names of a network of `ConvUnit`s to other names, given those of the convolution and norm of each unit."""
    names = {}
    for own in network.state_dict():
        unit, kind, leaf = own.rsplit(".", 2)
        names[own] = f"{units[unit][kind == 'norm']}.{leaf}"
    return names


def folded(module: M) -> M:
    """Return a copy for inference, with batch normalization folded into the preceding convolutions."""
    module = copy.deepcopy(module).eval().requires_grad_(False)
    for unit in module.modules():
        if isinstance(unit, ConvUnit) and isinstance(unit.norm, nn.BatchNorm2d):
            unit.conv = fuse_conv_bn_eval(unit.conv, unit.norm)
            unit.norm = nn.Identity()
    return module

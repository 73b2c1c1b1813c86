"""Reference implementations of the networks on the tensors of the weights files: explicit padding, no modules."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, max_pool2d, pad

GOOGLENET = {  # inputs, then 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}
LITE0 = [  # inputs, outputs, kernel, stride, expansion
    (32, 16, 3, 1, 1),
    *((16, 24, 3, 2, 6), (24, 24, 3, 1, 6)),
    *((24, 40, 5, 2, 6), (40, 40, 5, 1, 6)),
    *((40, 80, 3, 2, 6), (80, 80, 3, 1, 6), (80, 80, 3, 1, 6)),
    *((80, 112, 5, 1, 6), (112, 112, 5, 1, 6), (112, 112, 5, 1, 6)),
    *((112, 192, 5, 2, 6), (192, 192, 5, 1, 6), (192, 192, 5, 1, 6), (192, 192, 5, 1, 6)),
    (192, 320, 3, 1, 6),
]


def random_weight(out: int, inputs: int, kernel: int) -> Tensor:
    return torch.randn(out, inputs, kernel, kernel) * math.sqrt(2 / (inputs * kernel**2))


def batch_norm_tensors(prefix: str, channels: int) -> dict[str, Tensor]:
    return {
        f"{prefix}.weight": 0.5 + torch.rand(channels),
        f"{prefix}.bias": 0.2 * torch.randn(channels),
        f"{prefix}.running_mean": 0.2 * torch.randn(channels),
        f"{prefix}.running_var": 0.5 + torch.rand(channels),
        f"{prefix}.num_batches_tracked": torch.tensor(7),
    }


def normalized(x: Tensor, tensors: Mapping[str, Tensor], prefix: str) -> Tensor:
    mean, var, weight, bias = (tensors[f"{prefix}.{name}"] for name in ("running_mean", "running_var", "weight", "bias"))
    return batch_norm(x, mean, var, weight, bias, eps=1e-3)


def same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad like TensorFlow's SAME, for an output length of ceil(n / stride): half before, the rest after."""
    pads: list[int] = []
    for n in (x.shape[3], x.shape[2]):
        total = max((math.ceil(n / stride) - 1) * stride + kernel - n, 0)
        pads += [total // 2, total - total // 2]
    return pad(x, pads, value=value)


def caffe_pool(x: Tensor, kernel: int) -> Tensor:
    """Max-pool with stride 2 and ceil((n - kernel) / 2) + 1 outputs; values past the edge are ignored."""
    ends = [(math.ceil((n - kernel) / 2)) * 2 + kernel - n for n in (x.shape[3], x.shape[2])]
    return max_pool2d(pad(x, (0, max(ends[0], 0), 0, max(ends[1], 0)), value=-math.inf), kernel, 2)


def response_norm(x: Tensor, size: int, a: float, beta: float, k: float) -> Tensor:
    """Compute local response normalization by definition, channel by channel."""
    y = torch.empty_like(x)
    for c in range(x.shape[1]):
        near = x[:, max(c - size // 2, 0) : c + size // 2 + 1]
        y[:, c] = x[:, c] / (k + a * near.square().sum(dim=1)) ** beta
    return y


def lite0(tensors: Mapping[str, Tensor], pixels: Tensor) -> Tensor:
    """Return the pooled features of EfficientNet-Lite0, with the tensor names of the pip package."""
    t, x = tensors, (pixels.permute(0, 3, 1, 2) - 127.0) / 128
    x = normalized(conv2d(same(x, 3, 2), t["_conv_stem.weight"], stride=2), t, "_bn0").clamp(0, 6)
    for b, (inputs, outputs, kernel, stride, expansion) in enumerate(LITE0):
        y, block = x, f"_blocks.{b}."
        if expansion > 1:
            y = normalized(conv2d(y, t[f"{block}_expand_conv.weight"]), t, f"{block}_bn0").clamp(0, 6)
        weight = t[f"{block}_depthwise_conv.weight"]
        y = conv2d(same(y, kernel, stride), weight, stride=stride, groups=inputs * expansion)
        y = normalized(y, t, f"{block}_bn1").clamp(0, 6)
        y = normalized(conv2d(y, t[f"{block}_project_conv.weight"]), t, f"{block}_bn2")
        x = x + y if stride == 1 and inputs == outputs else y
    return normalized(conv2d(x, t["_conv_head.weight"]), t, "_bn1").clamp(0, 6).mean(dim=(2, 3))


def lite0_tensors() -> dict[str, Tensor]:
    """Return random tensors with the names and shapes of the pip package."""
    tensors = {"_conv_stem.weight": random_weight(32, 3, 3), **batch_norm_tensors("_bn0", 32)}
    for b, (inputs, outputs, kernel, _, expansion) in enumerate(LITE0):
        block, wide = f"_blocks.{b}.", inputs * expansion
        if expansion > 1:
            tensors[f"{block}_expand_conv.weight"] = random_weight(wide, inputs, 1)
            tensors |= batch_norm_tensors(f"{block}_bn0", wide)
        tensors[f"{block}_depthwise_conv.weight"] = random_weight(wide, 1, kernel)
        tensors |= batch_norm_tensors(f"{block}_bn1", wide)
        tensors[f"{block}_project_conv.weight"] = random_weight(outputs, wide, 1)
        tensors |= batch_norm_tensors(f"{block}_bn2", outputs)
    tensors |= {"_conv_head.weight": random_weight(1280, 320, 1), **batch_norm_tensors("_bn1", 1280)}
    return tensors | {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}

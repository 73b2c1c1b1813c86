"""What all trunks have in common: pixels in, pooled features out, stages that can be frozen, and where the weights are from."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from liftedstruct.runtime.checks import pick

__all__ = ["POOLS", "RANDOM", "Trunk"]

RANDOM = "random weights"
POOLS: dict[str, Callable[[Tensor], Tensor]] = {  # the last map, (b, num_features, h, w), to features, (b, num_features)
    "avg": lambda x: x.mean(dim=(2, 3)),
    "avg+max": lambda x: x.mean(dim=(2, 3)) + x.amax(dim=(2, 3)),
    "max": lambda x: x.amax(dim=(2, 3)),
}


class Trunk(nn.Module):
    """A convolutional network up to its last pooling, with the pixel scaling that it was trained with.

    Args:
        name: its name in ``TRUNKS``.
        stages: the network in order, stem first.
        input_size: side of the crops that it was trained with; others work too.
        num_features: number of features.
        mean: of the pixels of each channel, red first, subtracted from 0..255.
        std: by which they are divided then.
        min_size: side of the smallest images that it takes.
        variant: which of the variants of this network it is, where there are several.
        suggested: settings of :class:`~liftedstruct.TrainConfig` that suit it, where a run leaves them open: pool, crop,
            train_crop, freeze, pretrained_mix.

    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        stages: Mapping[str, Sequence[nn.Module]],
        *,
        input_size: int,
        num_features: int,
        mean: Sequence[float],
        std: Sequence[float] = (1.0, 1.0, 1.0),
        min_size: int = 32,
        variant: str = "",
        suggested: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.name, self.variant = name, variant
        self.input_size, self.num_features, self.min_size = input_size, num_features, min_size
        self.suggested = {"pool": "avg+max", "crop": input_size, "freeze": 0, "pretrained_mix": 0.0, **(suggested or {})}
        self.options: dict[str, Any] = {"variant": variant} if variant else {}  # passed to make_trunk to rebuild the trunk
        self.weights = RANDOM  # where they are from, with a checksum
        self.pool = "avg"  # how the last map becomes features, a name in POOLS; set_pool changes it
        self.layers = nn.ModuleDict({stage: nn.Sequential(*modules) for stage, modules in stages.items()})
        self.register_buffer("mean", torch.tensor(mean), persistent=False)
        self.register_buffer("std", torch.tensor(std), persistent=False)

    @property
    def stages(self) -> dict[str, list[nn.Module]]:
        """The modules of each stage, stem first."""
        return {name: list(stage.children()) for name, stage in self.layers.items()}

    def unstaged_parameters(self) -> list[nn.Parameter]:
        """Parameters of no stage, such as the position embedding of a transformer; they are frozen with the first."""
        staged = {id(p) for modules in self.stages.values() for module in modules for p in module.parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in staged]

    def set_pool(self, pool: str) -> "Trunk":
        """Let the last map become features by its average (as the network was trained), its maximum, or the sum of both."""
        pick(POOLS, pool, "pool")
        self.pool = pool
        return self

    def describe(self) -> str:
        """Name, variant and weights, for the protocol beside a score."""
        return f"{self.name} ({self.variant} variant), {self.weights}" if self.variant else f"{self.name}, {self.weights}"

    def scale(self, pixels: Tensor) -> Tensor:
        """Bytes (b, h, w, 3) to the floats (b, 3, h, w) that the network was trained with, in channels-last memory."""
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
            kind = str(pixels.dtype).removeprefix("torch.")
            raise ValueError(
                f"pixels must be uint8 of shape (b, h, w, 3), got {kind} of shape {tuple(pixels.shape)}. Pass crops of bytes."
            )
        x = pixels.to(torch.float32, memory_format=torch.contiguous_format)
        rows, width = x.view(*x.shape[:2], -1), x.shape[2]  # whole rows at a time: three numbers are too short a loop
        rows.sub_(self.mean.repeat(width)).div_(self.std.repeat(width))
        return x.permute(0, 3, 1, 2)

    def forward(self, scaled: Tensor) -> Tensor:
        """Pooled features, (b, num_features), of scaled pixels; the last map is pooled whatever its size."""
        height, width = scaled.shape[2:]
        if min(height, width) < self.min_size:
            raise ValueError(
                f"{self.name} must have images of at least {self.min_size} x {self.min_size} pixels, got {height} x {width}. "
                "Use larger crops, or the trunk 'small'."
            )
        x = scaled
        for stage in self.layers.values():
            x = stage(x)
        return POOLS[self.pool](x)

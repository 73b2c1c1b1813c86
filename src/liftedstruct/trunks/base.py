"""Base class of all trunks: pixels in, pooled features out, stages that can be frozen, and the origin of the weights."""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from liftedstruct.runtime.checks import pick
from liftedstruct.trunks.layers import folded

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "OWN", "POOLS", "RANDOM", "Trunk"]

# ImageNet statistics of pixels in 0..1
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OWN = "own"  # value of `pool` if the network pools its features itself
RANDOM = "random weights"
POOLS: dict[str, Callable[[Tensor], Tensor]] = {  # feature map (b, num_features, h, w) -> features (b, num_features)
    "avg": lambda x: x.mean(dim=(2, 3)),
    "avg+max": lambda x: x.mean(dim=(2, 3)) + x.amax(dim=(2, 3)),
    "max": lambda x: x.amax(dim=(2, 3)),
}


class Trunk(nn.Module):
    """Network up to its pooled features, with the pixel scaling that it was trained with.

    Args:
        name: name of the trunk in `TRUNKS`.
        stages: modules of each stage, in order, stem first.
        input_size: side of the crops that the network was trained with, in pixels. Other sizes work too.
        num_features: number of pooled features.
        mean: mean of each RGB channel, subtracted from pixels in 0..255.
        std: divisor of each RGB channel, applied after the mean is subtracted.
        min_size: smallest supported image side, in pixels.
        variant: variant of the network, if it has several.
        suggested: defaults of `TrainConfig` settings for this trunk, used if a run does not set them: `pool`, `crop`,
            `train_crop`, `freeze`, `lr`. If `pool` is `own`, the last stage returns features instead of a map.

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
        self.suggested = {"pool": "avg+max", "crop": input_size, "freeze": 0, "lr": 1e-4, **(suggested or {})}
        self.options: dict[str, Any] = {"variant": variant} if variant else {}  # passed to make_trunk to rebuild the trunk
        self.weights = RANDOM  # origin of the weights, with a checksum
        self.pool = OWN if self.suggested["pool"] == OWN else "avg"  # OWN or a key of POOLS; set_pool changes it
        self.layers = nn.ModuleDict({stage: nn.Sequential(*modules) for stage, modules in stages.items()})
        self.folded_stages: dict[
            str, nn.Module
        ] = {}  # copies of frozen stages that forward uses instead; not in the state dict
        self.register_buffer("mean", torch.tensor(mean), persistent=False)
        self.register_buffer("std", torch.tensor(std), persistent=False)

    @property
    def stages(self) -> dict[str, list[nn.Module]]:
        """Modules of each stage, stem first."""
        return {name: list(stage.children()) for name, stage in self.layers.items()}

    def unstaged_parameters(self) -> list[nn.Parameter]:
        """Return the parameters outside all stages, such as position embeddings. They are frozen with the first stage."""
        staged = {id(p) for modules in self.stages.values() for module in modules for p in module.parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in staged]

    def fold_frozen(self) -> None:
        """Use copies of the frozen leading stages from now on, with their batch norms folded into the convolutions.

        The copies do not follow later changes of the stages: call it again after loading weights or moving to another device.
        """
        frozen = takewhile(lambda each: not any(p.requires_grad for p in each[1].parameters()), self.layers.items())
        self.folded_stages = {name: folded(stage) for name, stage in frozen}

    def set_pool(self, pool: str) -> "Trunk":
        """Set the pooling of the feature map: `avg` (as the network was trained), `max`, or `avg+max`, their sum."""
        if self.pool != OWN:
            pick(POOLS, pool, "pool")
        elif pool != OWN:
            raise ValueError(f"pool must not be set for {self.name}, which pools its own features, got {pool!r}. Leave it out.")
        self.pool = pool
        return self

    def describe(self) -> str:
        """Return name, variant and origin of the weights in one line."""
        return f"{self.name} ({self.variant} variant), {self.weights}" if self.variant else f"{self.name}, {self.weights}"

    def scale(self, pixels: Tensor) -> Tensor:
        """Scale uint8 pixels (b, h, w, 3) to the network's float input (b, 3, h, w), in channels-last memory format."""
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
            kind = str(pixels.dtype).removeprefix("torch.")
            raise ValueError(
                f"pixels must be uint8 of shape (b, h, w, 3), got {kind} of shape {tuple(pixels.shape)}. Pass uint8 crops."
            )
        x = pixels.to(torch.float32, memory_format=torch.contiguous_format)
        rows, width = x.view(*x.shape[:2], -1), x.shape[2]  # whole rows: an inner loop over 3 channels is slow
        rows.sub_(self.mean.repeat(width)).div_(self.std.repeat(width))
        return x.permute(0, 3, 1, 2)

    def forward(self, scaled: Tensor) -> Tensor:
        """Return the pooled features, (b, num_features), of scaled pixels. The feature map may have any size."""
        height, width = scaled.shape[2:]
        if min(height, width) < self.min_size:
            raise ValueError(
                f"images for {self.name} must be at least {self.min_size} x {self.min_size} pixels, got {height} x {width}. "
                "Use larger crops, or the trunk 'small'."
            )
        x = scaled
        for name, stage in self.layers.items():
            x = self.folded_stages.get(name, stage)(x)
        return x if self.pool == OWN else POOLS[self.pool](x)

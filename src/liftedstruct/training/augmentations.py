"""Augmentations of training images: crops, flips and color jitter."""

from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from liftedstruct.data import Indices, PackedImages
from liftedstruct.runtime.settings import Fraction, Range

__all__ = ["AUGMENTATIONS", "color_jittered"]

GRAY = torch.tensor([0.299, 0.587, 0.114])  # luminance weights of red, green and blue


def center_crop(packed: PackedImages, rows: Indices, size: int, rng: np.random.Generator) -> Tensor:
    """Crop at the center, without randomness."""
    return torch.from_numpy(packed.center_crops(rows, size))


def random_crop(
    packed: PackedImages,
    rows: Indices,
    size: int,
    rng: np.random.Generator,
    *,
    hflip: bool = True,
    color_jitter: Fraction = 0.0,
) -> Tensor:
    """Crop at a random position, without resizing.

    Args:
        hflip: flip each crop horizontally with probability 0.5.
        color_jitter: maximum relative change of brightness, contrast and saturation.

    """
    return random_resized_crop(packed, rows, size, rng, min_crop_scale=0.0, hflip=hflip, color_jitter=color_jitter)


def random_resized_crop(
    packed: PackedImages,
    rows: Indices,
    size: int,
    rng: np.random.Generator,
    *,
    min_crop_scale: Annotated[float, Range(0, 1)] = 0.3,
    hflip: bool = True,
    color_jitter: Fraction = 0.0,
) -> Tensor:
    """Crop at a random position and scale, and resize to the crop size.

    Args:
        min_crop_scale: minimum fraction of the image area that a crop covers; 0 disables resizing.
        hflip: flip each crop horizontally with probability 0.5.
        color_jitter: maximum relative change of brightness, contrast and saturation.

    """
    crops = torch.from_numpy(packed.random_crops(rows, size, rng=rng, hflip=hflip, min_scale=min_crop_scale))
    return color_jittered(crops, color_jitter, rng) if color_jitter else crops


def color_jittered(crops: Tensor, strength: float, rng: np.random.Generator) -> Tensor:
    """Jitter brightness, contrast and saturation of each crop, as one affine map of its pixels.

    Brightness scales each pixel, contrast its difference from the mean gray level of the crop, and saturation its difference
    from its own gray level. Each factor is drawn uniformly from 1 - strength to 1 + strength. Crops are uint8, (m, h, w, 3).
    """
    factors = 1 + strength * rng.uniform(-1, 1, (3, len(crops), 1, 1, 1))
    brightness, contrast, saturation = torch.from_numpy(factors).float()
    x = crops.float()
    gray = (x @ GRAY).unsqueeze(-1)  #                                                            (m, h, w, 1)
    level = gray.mean(dim=(1, 2), keepdim=True)  #                                                (m, 1, 1, 1)
    gray.mul_(brightness * contrast * (1 - saturation)).add_(level * (brightness * (1 - contrast)))
    x.mul_(brightness * contrast * saturation).add_(gray)
    return x.round_().clamp_(0, 255).byte()


AUGMENTATIONS: dict[str, Callable[..., Tensor]] = {
    "center_crop": center_crop,
    "random_crop": random_crop,
    "random_resized_crop": random_resized_crop,
}

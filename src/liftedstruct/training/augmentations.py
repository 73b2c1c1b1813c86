"""Crops to train on: where they are cut, flipped, and in which light."""

from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from liftedstruct.data import Indices, PackedImages
from liftedstruct.runtime.settings import Fraction, Range

__all__ = ["AUGMENTATIONS", "color_jittered"]

GREY = torch.tensor([0.299, 0.587, 0.114])  # luminance of red, green and blue


def center_crop(packed: PackedImages, rows: Indices, size: int, rng: np.random.Generator) -> Tensor:
    """The center crop, always the same."""
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
    """Crops at random positions, not scaled.

    Args:
        hflip: flip each crop with probability 1/2.
        color_jitter: largest relative change of brightness, contrast and saturation.

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
    """Crops of random position and scale, resized to the same side.

    Args:
        min_crop_scale: smallest share of an image's area that a crop shows; 0 does not scale.
        hflip: flip each crop with probability 1/2.
        color_jitter: largest relative change of brightness, contrast and saturation.

    """
    crops = torch.from_numpy(packed.random_crops(rows, size, rng=rng, hflip=hflip, min_scale=min_crop_scale))
    return color_jittered(crops, color_jitter, rng) if color_jitter else crops


def color_jittered(crops: Tensor, strength: float, rng: np.random.Generator) -> Tensor:
    r"""Crops, (m, h, w, 3) bytes, each in another light: one affine map of its pixels, by three random factors.

    Brightness multiplies a pixel, contrast its difference from the mean grey of the crop, and saturation its difference from
    its own grey; each by :math:`1 \pm` at most the strength.
    """
    factors = 1 + strength * rng.uniform(-1, 1, (3, len(crops), 1, 1, 1))
    brightness, contrast, saturation = torch.from_numpy(factors).float()
    x = crops.float()
    grey = (x @ GREY).unsqueeze(-1)  #                                                            (m, h, w, 1)
    level = grey.mean(dim=(1, 2), keepdim=True)  #                                                (m, 1, 1, 1)
    grey.mul_(brightness * contrast * (1 - saturation)).add_(level * (brightness * (1 - contrast)))
    x.mul_(brightness * contrast * saturation).add_(grey)
    return x.round_().clamp_(0, 255).byte()


AUGMENTATIONS: dict[str, Callable[..., Tensor]] = {
    "center_crop": center_crop,
    "random_crop": random_crop,
    "random_resized_crop": random_resized_crop,
}

"""Trunks: networks that map uint8 images to pooled features. One file per network family."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from liftedstruct.runtime.settings import choose
from liftedstruct.trunks.base import POOLS, RANDOM, Trunk
from liftedstruct.trunks.efficientnet_lite import efficientnet_lite0, efficientnet_lite1, efficientnet_lite2
from liftedstruct.trunks.googlenet import googlenet
from liftedstruct.trunks.layers import folded
from liftedstruct.trunks.resnet50 import resnet50
from liftedstruct.trunks.small import small
from liftedstruct.trunks.vit import vit_base, vit_small

__all__ = ["DEFAULT_TRUNK", "POOLS", "RANDOM", "TRUNKS", "Trunk", "folded", "make_trunk"]

DEFAULT_TRUNK = "efficientnet_lite0"
ADAPTED = ("timm", "transformers")  # packages with adapters, for names such as timm:resnet50


class _Trunks(dict[str, Callable[..., Trunk]]):
    """Registry of trunks by name. Names with the prefix of an `ADAPTED` package resolve without importing the package."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and name.partition(":")[0] in ADAPTED and ":" in name)

    def __missing__(self, name: str) -> Callable[..., Trunk]:
        def adapted(weights: str | Path | None = None, pretrained: bool = True) -> Trunk:
            """Trunk from another package."""
            from liftedstruct.trunks.adapters import ADAPTERS

            return ADAPTERS[name.partition(":")[0]](name, weights, pretrained)

        return adapted


# Each entry takes weights and pretrained like make_trunk, plus its own options.
TRUNKS: dict[str, Callable[..., Trunk]] = _Trunks(
    efficientnet_lite0=efficientnet_lite0,
    efficientnet_lite1=efficientnet_lite1,
    efficientnet_lite2=efficientnet_lite2,
    googlenet=googlenet,
    resnet50=resnet50,
    small=small,
    vit_base=vit_base,
    vit_small=vit_small,
)


def make_trunk(name: str = DEFAULT_TRUNK, weights: str | Path | None = None, pretrained: bool = True, **options: Any) -> Trunk:
    """Create a trunk by name, in evaluation mode and channels-last memory format.

    Args:
        name: one of `TRUNKS`, `timm:<model>` or `transformers:<folder>`.
        weights: file to load the weights from. No code in it is executed.
        pretrained: if no file is given, load the trunk's pretrained weights; `small` has none, and `googlenet`
            requires a file. False keeps random weights.
        options: options of the trunk, such as `variant` of `googlenet`.

    """
    trunk = choose("trunk", TRUNKS, {"name": name, **options}).make(weights, pretrained)
    trunk.options = {**options, **trunk.options}
    if ":" not in name:
        trunk.name = name  # the registry key: Embedder.load passes it to make_trunk
    trunk.to(memory_format=torch.channels_last)
    eval_trunk: Trunk = trunk.eval()
    return eval_trunk

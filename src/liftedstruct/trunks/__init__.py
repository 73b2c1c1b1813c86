"""One file per family of networks. A trunk maps the bytes of images to pooled features."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from liftedstruct.runtime.settings import choose
from liftedstruct.trunks.base import POOLS, RANDOM, Trunk
from liftedstruct.trunks.efficientnet_lite import efficientnet_lite0, efficientnet_lite1, efficientnet_lite2
from liftedstruct.trunks.googlenet import googlenet
from liftedstruct.trunks.layers import folded
from liftedstruct.trunks.small import small

__all__ = ["DEFAULT_TRUNK", "POOLS", "RANDOM", "TRUNKS", "Trunk", "folded", "make_trunk"]

DEFAULT_TRUNK = "efficientnet_lite0"
ADAPTED = ("timm", "transformers")  # packages that trunks can be taken from, by names such as timm:resnet50


class _Trunks(dict[str, Callable[..., Trunk]]):
    """Trunks by name, those of other packages included, which are imported when asked for."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and name.partition(":")[0] in ADAPTED and ":" in name)

    def __missing__(self, name: str) -> Callable[..., Trunk]:
        def adapted(weights: str | Path | None = None, pretrained: bool = True) -> Trunk:
            """A trunk of another package."""
            from liftedstruct.trunks.adapters import ADAPTERS

            return ADAPTERS[name.partition(":")[0]](name, weights, pretrained)

        return adapted


# An entry takes weights and pretrained, as make_trunk does, and options of its own.
TRUNKS: dict[str, Callable[..., Trunk]] = _Trunks(
    efficientnet_lite0=efficientnet_lite0,
    efficientnet_lite1=efficientnet_lite1,
    efficientnet_lite2=efficientnet_lite2,
    googlenet=googlenet,
    small=small,
)


def make_trunk(name: str = DEFAULT_TRUNK, weights: str | Path | None = None, pretrained: bool = True, **options: Any) -> Trunk:
    """A trunk by its name, in evaluation mode and channels-last memory.

    Args:
        name: one of ``TRUNKS``, ``timm:<model>`` or ``transformers:<folder>``.
        weights: file to take the weights from; nothing in it is run.
        pretrained: without a file, take the weights that come with the trunk, if any do; otherwise random ones.
        options: of that trunk.

    """
    trunk = choose("trunk", TRUNKS, {"name": name, **options}).make(weights, pretrained)
    trunk.options = {**options, **trunk.options}
    if ":" not in name:
        trunk.name = name  # by which it is made again
    trunk.to(memory_format=torch.channels_last)
    eval_trunk: Trunk = trunk.eval()
    return eval_trunk

"""One file per family of networks. A trunk takes the bytes of images to pooled features; an embedder goes on from there."""

from collections.abc import Callable
from pathlib import Path

import torch

from liftedstruct.runtime.checks import pick
from liftedstruct.trunks.base import POOLS, Trunk
from liftedstruct.trunks.efficientnet_lite import efficientnet_lite0, efficientnet_lite1, efficientnet_lite2
from liftedstruct.trunks.googlenet import googlenet
from liftedstruct.trunks.small import small

__all__ = ["DEFAULT_TRUNK", "POOLS", "TRUNKS", "Trunk", "make_trunk"]

DEFAULT_TRUNK = "efficientnet_lite0"
TRUNKS: dict[str, Callable[..., Trunk]] = {
    "efficientnet_lite0": efficientnet_lite0,
    "efficientnet_lite1": efficientnet_lite1,
    "efficientnet_lite2": efficientnet_lite2,
    "googlenet": googlenet,
    "small": small,
}


def make_trunk(name: str = DEFAULT_TRUNK, weights: str | Path | None = None, pretrained: bool = True, form: str = "") -> Trunk:
    """A trunk by its name, in evaluation mode and channels-last memory.

    Args:
        name: one of ``TRUNKS``, ``timm:<model>`` or ``transformers:<folder>``.
        weights: file to take the weights from; nothing in it is run.
        pretrained: without a file, take the weights that come with the trunk, if any do; otherwise random ones.
        form: of a googlenet, where no file of weights tells it.

    """
    package = name.partition(":")[0] if isinstance(name, str) and ":" in name else ""
    if package:
        from liftedstruct.trunks.adapters import ADAPTERS

        trunk = pick(ADAPTERS, package, "the package before the colon of a trunk")(name, weights, pretrained)
    else:
        trunk = pick(TRUNKS, name, "trunk")(weights, pretrained, form)
    trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # missing in torch's own types
    return trunk.eval()

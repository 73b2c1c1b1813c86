"""Adapters for networks of other packages: `timm:<name>` and `transformers:<path>`. The packages are imported on first use."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from liftedstruct.runtime.extras import require
from liftedstruct.trunks.base import IMAGENET_MEAN, IMAGENET_STD, OWN, Trunk
from liftedstruct.trunks.weights import load_weights, read_tensors

__all__ = ["ADAPTERS", "AdaptedTrunk", "timm_trunk", "transformers_trunk"]


class AdaptedTrunk(Trunk):
    """Trunk that wraps a network of another package. Its stages are the top-level children of the network, in order."""

    def __init__(self, name: str, network: nn.Module, *, num_features: int, input_size: int, mean: Any, std: Any) -> None:
        super().__init__(
            name,
            {},
            input_size=input_size,
            num_features=num_features,
            mean=[255 * each for each in mean],
            std=[255 * each for each in std],
            min_size=1,
            suggested={"pool": OWN},
        )
        self.network = network

    @property
    def stages(self) -> dict[str, list[nn.Module]]:
        return {name: [part] for name, part in self.network.named_children()}

    def forward(self, scaled: Tensor) -> Tensor:
        try:
            return self.pooled(scaled)
        except torch.OutOfMemoryError:
            raise
        except (AssertionError, ValueError, RuntimeError) as error:
            (height, width), reason = scaled.shape[2:], str(error).partition("\n")[0].rstrip(".")
            if height == width == self.input_size:
                raise
            raise ValueError(
                f"images for {self.name} must have a size that it supports, got {height} x {width}: {reason}. "
                f"Use crops of {self.input_size}."
            ) from error

    def pooled(self, scaled: Tensor) -> Tensor:
        """Return the pooled features of a batch, (b, num_features)."""
        y: Tensor = self.network(scaled)
        return y


class TransformersTrunk(AdaptedTrunk):
    """Trunk that wraps a vision model of transformers. Uses its pooled output, or the mean of its tokens if it has none."""

    def pooled(self, scaled: Tensor) -> Tensor:
        output = self.network(pixel_values=scaled)
        y: Tensor | None = getattr(output, "pooler_output", None)
        return output.last_hidden_state.mean(dim=1) if y is None else y.flatten(1)


def timm_trunk(name: str, weights: str | Path | None = None, pretrained: bool = True) -> Trunk:
    """Create a timm model without its classifier. timm finds (and may download) the pretrained weights."""
    timm = require("timm", "timm")
    model = name.removeprefix("timm:")
    if not timm.is_model(model):
        raise ValueError(f"model must be a timm model, got {model!r}. Search with timm.list_models('*{model[:4]}*').")
    network = timm.create_model(model, pretrained=pretrained and weights is None, num_classes=0)
    cfg = network.pretrained_cfg
    trunk = AdaptedTrunk(
        name,
        network,
        num_features=getattr(network, "head_hidden_size", network.num_features),
        input_size=cfg.get("input_size", (3, 224, 224))[-1],
        mean=cfg.get("mean", IMAGENET_MEAN),
        std=cfg.get("std", IMAGENET_STD),
    )
    return _filled(trunk, weights, f"timm's {cfg.get('tag') or 'own'} weights" if pretrained else None)


def transformers_trunk(name: str, weights: str | Path | None = None, pretrained: bool = True) -> Trunk:
    """Create a transformers vision model from a folder or its name on the hub, with the scaling of its image processor."""
    transformers = require("transformers", "transformers")
    path = name.removeprefix("transformers:")
    if Path(path).is_dir():
        path = str(Path(path).resolve())
        name = f"transformers:{path}"  # absolute, so that a run can be resumed from any folder
    try:
        if pretrained and weights is None:
            network = transformers.AutoModel.from_pretrained(path, use_safetensors=True, trust_remote_code=False)
        else:
            config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
            network = transformers.AutoModel.from_config(config, trust_remote_code=False)
        processor, _ = transformers.ImageProcessingMixin.get_image_processor_dict(path)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} must be a transformers model with an image processor, got: {reason}") from error
    settings, size = network.config, processor.get("size", 224)
    num_features = getattr(settings, "hidden_size", None) or settings.hidden_sizes[-1]
    side = size if isinstance(size, int) else size.get("height") or size.get("shortest_edge")
    mean, std = processor.get("image_mean", IMAGENET_MEAN), processor.get("image_std", IMAGENET_STD)
    trunk = TransformersTrunk(name, network, num_features=num_features, input_size=int(side), mean=mean, std=std)
    return _filled(trunk, weights, f"weights of {Path(path).name}" if pretrained else None)


def _filled(trunk: Trunk, weights: str | Path | None, own: str | None) -> Trunk:
    """Load the weights of a file into the trunk, if one is given, or record where its pretrained weights are from."""
    if weights is not None:
        load_weights(trunk, {f"network.{key}": value for key, value in read_tensors(weights).items()}, weights)
    elif own is not None:
        trunk.weights = own
    return trunk


ADAPTERS = {"timm": timm_trunk, "transformers": transformers_trunk}

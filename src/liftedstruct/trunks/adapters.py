"""Trunks of other packages, for whoever has them: ``timm:<name>`` and ``transformers:<path>``, imported when asked for."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from liftedstruct.runtime.extras import require
from liftedstruct.trunks.base import Trunk
from liftedstruct.trunks.weights import load_weights, read_tensors

__all__ = ["ADAPTERS", "AdaptedTrunk", "timm_trunk", "transformers_trunk"]

OWN = "own"  # way of pooling
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, where a model does not say


class AdaptedTrunk(Trunk):
    """A network of another package; its stages are the parts that it has at the top, in their order."""

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
        self.network, self.pool = network, OWN

    @property
    def stages(self) -> dict[str, list[nn.Module]]:
        return {name: [part] for name, part in self.network.named_children()}

    def set_pool(self, pool: str) -> Trunk:
        if pool != OWN:
            raise ValueError(f"pool must be left out, {self.name} pools its features itself, got {pool!r}. Leave it out.")
        return self

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
                f"{self.name} must have images that it can take, got {height} x {width}: {reason}. "
                f"Use crops of {self.input_size}."
            ) from error

    def pooled(self, scaled: Tensor) -> Tensor:
        """Features of a batch, (b, num_features)."""
        y: Tensor = self.network(scaled)
        return y


class TransformersTrunk(AdaptedTrunk):
    """A vision model of transformers: its pooled output, or the mean of its tokens where it has none."""

    def pooled(self, scaled: Tensor) -> Tensor:
        output = self.network(pixel_values=scaled)
        y: Tensor | None = getattr(output, "pooler_output", None)
        return output.last_hidden_state.mean(dim=1) if y is None else y.flatten(1)


def timm_trunk(name: str, weights: str | Path | None = None, pretrained: bool = True) -> Trunk:
    """A model of timm by its name there, without its classifier; timm finds (and may fetch) the pretrained weights."""
    timm = require("timm", "timm")
    model = name.removeprefix("timm:")
    if not timm.is_model(model):
        raise ValueError(f"timm must have the model {model!r}, it has not. Look for it with timm.list_models('*{model[:4]}*').")
    network = timm.create_model(model, pretrained=pretrained and weights is None, num_classes=0)
    about = network.pretrained_cfg
    trunk = AdaptedTrunk(
        name,
        network,
        num_features=getattr(network, "head_hidden_size", network.num_features),
        input_size=about.get("input_size", (3, 224, 224))[-1],
        mean=about.get("mean", MEAN),
        std=about.get("std", STD),
    )
    return _filled(trunk, weights, f"timm's {about.get('tag') or 'own'} weights" if pretrained else None)


def transformers_trunk(name: str, weights: str | Path | None = None, pretrained: bool = True) -> Trunk:
    """A vision model of transformers in a folder, or by its name on the hub, with the scaling of its image processor."""
    transformers = require("transformers", "transformers")
    path = name.removeprefix("transformers:")
    if Path(path).is_dir():
        path = str(Path(path).resolve())
        name = f"transformers:{path}"  # a run goes on from any folder
    try:
        if pretrained and weights is None:
            network = transformers.AutoModel.from_pretrained(path, use_safetensors=True, trust_remote_code=False)
        else:
            config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
            network = transformers.AutoModel.from_config(config, trust_remote_code=False)
        about, _ = transformers.ImageProcessingMixin.get_image_processor_dict(path)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} must be a model of transformers with an image processor, got: {reason}") from error
    settings, size = network.config, about.get("size", 224)
    num_features = getattr(settings, "hidden_size", None) or settings.hidden_sizes[-1]
    side = size if isinstance(size, int) else size.get("height") or size.get("shortest_edge")
    mean, std = about.get("image_mean", MEAN), about.get("image_std", STD)
    trunk = TransformersTrunk(name, network, num_features=num_features, input_size=int(side), mean=mean, std=std)
    return _filled(trunk, weights, f"weights of {Path(path).name}" if pretrained else None)


def _filled(trunk: Trunk, weights: str | Path | None, own: str | None) -> Trunk:
    """The trunk with the weights of a file, if there is one; and a word on where they are from."""
    if weights is not None:
        load_weights(trunk, {f"network.{key}": value for key, value in read_tensors(weights).items()}, weights)
    elif own is not None:
        trunk.weights = own
    return trunk


ADAPTERS = {"timm": timm_trunk, "transformers": transformers_trunk}

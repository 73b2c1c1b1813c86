from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, max_pool2d, pad

from liftedstruct.embedder import Embedder
from liftedstruct.trunks import TRUNKS, folded, make_trunk
from liftedstruct.trunks.resnet50 import _names
from trunks.plain_networks import batch_norm_tensors, random_weight

BLOCKS = [  # stage, block, inputs, width, stride
    *((1, 0, 64, 64, 1), (1, 1, 256, 64, 1), (1, 2, 256, 64, 1)),
    *((2, 0, 256, 128, 2), (2, 1, 512, 128, 1), (2, 2, 512, 128, 1), (2, 3, 512, 128, 1)),
    *((3, 0, 512, 256, 2), (3, 1, 1024, 256, 1), (3, 2, 1024, 256, 1)),
    *((3, 3, 1024, 256, 1), (3, 4, 1024, 256, 1), (3, 5, 1024, 256, 1)),
    *((4, 0, 1024, 512, 2), (4, 1, 2048, 512, 1), (4, 2, 2048, 512, 1)),
]


def plain_resnet50(t: Mapping[str, Tensor], pixels: Tensor) -> Tensor:
    """Return the mean-pooled features, from the tensors of torchvision's file: explicit padding, no modules."""

    def unit(x: Tensor, conv: str, norm: str, kernel: int = 1, stride: int = 1) -> Tensor:
        y = conv2d(pad(x, (kernel // 2,) * 4), t[f"{conv}.weight"], stride=stride)
        mean, var, weight, bias = (t[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias"))
        return batch_norm(y, mean, var, weight, bias, eps=1e-5)

    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = ((pixels / 255 - mean) / std).permute(0, 3, 1, 2)
    x = unit(x, "conv1", "bn1", 7, 2).clamp(min=0)
    x = max_pool2d(pad(x, (1, 1, 1, 1), value=-torch.inf), 3, 2)
    for stage, number, _, _, stride in BLOCKS:
        block = f"layer{stage}.{number}."
        y = unit(x, f"{block}conv1", f"{block}bn1").clamp(min=0)
        y = unit(y, f"{block}conv2", f"{block}bn2", 3, stride).clamp(min=0)
        y = unit(y, f"{block}conv3", f"{block}bn3")
        x = unit(x, f"{block}downsample.0", f"{block}downsample.1", 1, stride) if number == 0 else x
        x = (x + y).clamp(min=0)
    return x.mean(dim=(2, 3))


def torchvision_tensors() -> dict[str, Tensor]:
    """Return random tensors with torchvision's names and shapes. The last norm of a block is small, as in trained networks."""
    torch.manual_seed(0)

    def units() -> Iterator[tuple[str, str, int, int, int]]:
        yield "conv1", "bn1", 64, 3, 7
        for stage, number, inputs, width, _ in BLOCKS:
            block = f"layer{stage}.{number}."
            yield f"{block}conv1", f"{block}bn1", width, inputs, 1
            yield f"{block}conv2", f"{block}bn2", width, width, 3
            yield f"{block}conv3", f"{block}bn3", 4 * width, width, 1
            if number == 0:
                yield f"{block}downsample.0", f"{block}downsample.1", 4 * width, inputs, 1

    tensors: dict[str, Tensor] = {}
    for conv, norm, outputs, inputs, kernel in units():
        tensors |= {f"{conv}.weight": random_weight(outputs, inputs, kernel), **batch_norm_tensors(norm, outputs)}
        if norm.endswith("bn3"):
            tensors[f"{norm}.weight"] *= 0.3
    return tensors | {"fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resnet50") / "resnet50.pth"
    torch.save(torchvision_tensors(), path)
    return path


@pytest.mark.parametrize(("height", "width"), [(64, 64), (67, 90)])
def test_matches_the_reference(file: Path, height: int, width: int) -> None:
    trunk = make_trunk("resnet50", file)
    pixels = torch.randint(0, 256, (2, height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = plain_resnet50(torchvision_tensors(), pixels)
        torch.testing.assert_close(trunk(trunk.scale(pixels)), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(folded(trunk)(trunk.scale(pixels)), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1
    assert sum(isinstance(module, torch.nn.BatchNorm2d) for module in folded(trunk).modules()) == 0


def test_names_and_sizes_are_those_of_torchvision() -> None:
    trunk = make_trunk("resnet50", pretrained=False)
    names = _names(trunk)
    assert set(names) == set(trunk.state_dict())
    parameters = {names[own] for own, _ in trunk.named_parameters()}
    assert len(parameters | {"fc.weight", "fc.bias"}) == 161
    assert sum(parameter.numel() for parameter in trunk.parameters()) + 2048 * 1000 + 1000 == 25_557_032
    assert set(names.values()) == set(torchvision_tensors()) - {"fc.weight", "fc.bias"}
    assert {
        "conv1.weight",
        "bn1.bias",
        "layer1.0.downsample.0.weight",
        "layer3.5.bn2.weight",
        "layer4.2.conv3.weight",
    } < parameters
    assert not {"layer1.1.downsample.0.weight", "conv1.bias"} & parameters
    assert (trunk.input_size, trunk.num_features) == (224, 2048)
    assert list(trunk.stages) == ["stem", "layer1", "layer2", "layer3", "layer4"]
    assert [len(modules) for modules in trunk.stages.values()] == [2, 3, 4, 6, 3]
    assert (trunk.suggested["freeze"], trunk.suggested["crop"]) == (2, 224)
    assert trunk.describe() == "resnet50, random weights"
    torch.testing.assert_close(trunk.mean, torch.tensor([123.675, 116.28, 103.53]))
    torch.testing.assert_close(trunk.std, torch.tensor([58.395, 57.12, 57.375]))


def test_weights_come_from_a_file(file: Path, tmp_path: Path) -> None:
    assert make_trunk("resnet50", file).describe().startswith("resnet50, resnet50.pth (sha256 ")
    with pytest.raises(ValueError, match=r"resnet50 must be given a weights file, .* Pass weights FILE, or weights random\."):
        make_trunk("resnet50")
    tensors = torchvision_tensors()
    del tensors["layer2.3.bn3.bias"]
    save_file(tensors, tmp_path / "part.safetensors")
    with pytest.raises(ValueError, match=r"weights of resnet50: layer2\.3\.bn3\.bias must be \(512,\), got no such layer"):
        make_trunk("resnet50", tmp_path / "part.safetensors")
    assert TRUNKS["resnet50"].__doc__


def test_embedder_round_trip(file: Path, tmp_path: Path) -> None:
    torch.manual_seed(2)
    embedder = Embedder(make_trunk("resnet50", file), dim=8, crop=64).eval()
    again = Embedder.load(embedder.save(tmp_path))
    pixels = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    with torch.inference_mode():
        assert torch.equal(again.eval()(pixels), embedder(pixels))
    assert again.trunk.describe() == embedder.trunk.describe()

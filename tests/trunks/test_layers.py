import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import conv2d, max_pool2d

from liftedstruct.trunks.layers import ConvUnit, LocalResponseNorm, MaxPool, SameConv2d, folded, same_padding
from trunks.plain_networks import caffe_pool, response_norm, same


@given(st.integers(1, 300), st.sampled_from([1, 3, 5, 7]), st.integers(1, 3))
def test_same_padding_gives_the_right_length(length: int, kernel: int, stride: int) -> None:
    before, after = same_padding(length, kernel, stride)
    assert 0 <= after - before <= 1
    total = before + after
    if total:  # no more than needed
        assert (length + total - kernel) // stride + 1 == math.ceil(length / stride)
        assert (length + total - 1 - kernel) // stride + 1 < math.ceil(length / stride)


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize(("height", "width"), [(16, 16), (15, 17), (16, 13), (3, 2)])
def test_same_convolution_and_pool(kernel: int, height: int, width: int) -> None:
    x = torch.randn(2, 4, height, width)
    conv = SameConv2d(4, 4, kernel, 2, groups=2)
    torch.testing.assert_close(conv(x), conv2d(same(x, kernel, 2), conv.weight, conv.bias, stride=2, groups=2))
    expected = max_pool2d(same(x, 3, 2, value=-math.inf), 3, 2)
    assert expected.shape[2:] == (math.ceil(height / 2), math.ceil(width / 2))
    assert MaxPool(same=True)(x).equal(expected)


@pytest.mark.parametrize(("length", "out"), [(112, 56), (113, 56), (114, 57), (56, 28), (28, 14), (14, 7), (3, 1), (2, 1)])
def test_pooling_matches_caffe(length: int, out: int) -> None:
    x = torch.randn(1, 2, length, length)
    assert MaxPool()(x).shape == (1, 2, out, out)
    assert MaxPool()(x).equal(caffe_pool(x, 3))


def test_local_response_norm_by_hand() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1, 1)
    y = LocalResponseNorm(4, size=3, a=0.5, beta=0.5, k=2.0)(x).flatten()
    sums = [1 + 4, 1 + 4 + 9, 4 + 9 + 16, 9 + 16]
    torch.testing.assert_close(y, torch.tensor([c / math.sqrt(2 + 0.5 * s) for c, s in zip((1, 2, 3, 4), sums, strict=True)]))


def test_local_response_norm_matches_torch_and_the_definition() -> None:
    x = 50 * torch.randn(2, 16, 3, 5, dtype=torch.float64).float()
    ours = LocalResponseNorm(16, size=5, a=1e-4 / 5, beta=0.75, k=1.0)(x)
    torch.testing.assert_close(ours, nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)(x))
    torch.testing.assert_close(LocalResponseNorm(16, 11, 1e-4, 0.5, 2.0)(x), response_norm(x, 11, 1e-4, 0.5, 2.0))


def test_local_response_norm_keeps_its_range_under_autocast() -> None:
    x = torch.full((1, 8, 1, 1), 300.0)  # its square overflows float16
    with torch.autocast("cpu", torch.float16):
        y = LocalResponseNorm(8, 5, 1e-4, 0.75, 1.0)(x.half())
    torch.testing.assert_close(y, response_norm(x, 5, 1e-4, 0.75, 1.0))


def test_folding_keeps_the_output_and_the_original() -> None:
    net = nn.Sequential(
        ConvUnit(3, 8, 3, 2, norm=nn.BatchNorm2d, same=True),
        ConvUnit(8, 8, 5, groups=8, norm=nn.BatchNorm2d, activation=None),
        ConvUnit(8, 4, 1),
    )
    for _ in range(3):
        net(torch.randn(8, 3, 14, 14))  # update the running statistics
    x = torch.randn(2, 3, 14, 14)
    copy = folded(net)
    assert net.training
    assert not any(isinstance(module, nn.BatchNorm2d) for module in copy.modules())
    assert sum(isinstance(module, nn.BatchNorm2d) for module in net.modules()) == 2
    torch.testing.assert_close(copy(x), net.eval()(x))

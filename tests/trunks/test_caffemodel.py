import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from liftedstruct.trunks.caffemodel import read_caffemodel
from liftedstruct.trunks.weights import read_tensors

Array = NDArray[np.float32]


def varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def blob(array: Array, *, old: bool = False, packed: bool = True, double: bool = False) -> bytes:
    number, kind, code = (8, 1, "<d") if double else (5, 5, "<f")
    if packed:
        data = field(number, array.astype(code).tobytes())
    else:
        data = b"".join(varint(number << 3 | kind) + struct.pack(code, value) for value in array.flat)
    if old:
        shape = (1,) * (4 - array.ndim) + array.shape
        return b"".join(varint(i + 1 << 3) + varint(n) for i, n in enumerate(shape)) + data
    dims = b"".join(map(varint, array.shape))
    return field(7, field(1, dims) if packed else b"".join(varint(1 << 3) + varint(n) for n in array.shape)) + data


def net(layers: dict[str, list[Array]], *, old: bool = False, packed: bool = True, double: bool = False) -> bytes:
    """Return a file as Caffe writes it: the net's name, then its layers with name, kind, bottom and blobs."""
    content = field(1, b"a net") + field(3, b"data")
    for name, arrays in layers.items():
        blobs = [blob(array, old=old, packed=packed, double=double) for array in arrays]
        if old:
            layer = field(2, b"bottom") + field(4, name.encode()) + varint(5 << 3) + varint(4)
            content += field(2, layer + b"".join(field(6, each) for each in blobs))
        else:
            layer = field(1, name.encode()) + field(2, b"Convolution") + varint(10 << 3) + varint(1)
            content += field(100, layer + b"".join(field(7, each) for each in blobs))
    return content


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_reads_what_caffe_writes(tmp_path: Path, old: bool, packed: bool, double: bool) -> None:
    weight = np.random.default_rng(0).normal(size=(5, 3, 2, 200)).astype(np.float32)
    bias = np.arange(5, dtype=np.float32)
    file = tmp_path / "net.caffemodel"
    file.write_bytes(net({"conv": [weight, bias], "relu": [], "grüße": [bias]}, old=old, packed=packed, double=double))
    tensors = read_caffemodel(file)
    assert list(tensors) == ["conv/0", "conv/1", "grüße/0"]
    assert tensors["conv/0"].equal(torch.from_numpy(weight))
    assert tensors["conv/1"].shape == ((1, 1, 1, 5) if old else (5,))
    assert tensors["conv/1"].flatten().equal(torch.from_numpy(bias))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = net({"conv": [np.ones((2, 3), np.float32)], "fc": [np.ones(7, np.float32)]})
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    at, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    content = data.draw(st.sampled_from([cut, whole[:at] + bytes([byte]) + whole[at + 1 :], data.draw(st.binary())]))
    file = tmp_path_factory.mktemp("damaged") / "net.caffemodel"
    file.write_bytes(content)
    try:
        tensors, message = read_tensors(file), ""
    except ValueError as error:
        tensors, message = {}, str(error)
    if tensors:  # a damaged file may still parse, with other names and numbers
        assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    else:
        assert message.startswith(f"{file} must be a complete .caffemodel file of tensors, got: ")
        assert "\n" not in message

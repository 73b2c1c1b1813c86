"""Reader for the blobs of .caffemodel files, without Caffe: a minimal parser of the protocol buffer format.

A message is a sequence of fields. Each has a key (number * 8 + wire type) and a value: a varint (type 0), eight bytes (1), a
length and that many bytes (2: text, a packed array or another message), or four bytes (5). Field numbers are from caffe.proto:

    NetParameter          2 layers (old, V1LayerParameter)   100 layer (LayerParameter)
    LayerParameter        1 name   7 blobs
    V1LayerParameter      4 name   6 blobs
    BlobProto             1..4 num, channels, height, width (old)   5 data (floats)   7 shape   8 double_data
    BlobShape             1 dim
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

__all__ = ["read_caffemodel"]

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
LAYERS = {2: (4, 6), 100: (1, 7)}  # field of NetParameter -> fields of name and blobs in its layers


def read_caffemodel(file: Path) -> dict[str, Tensor]:
    """Read blob i of layer L as tensor "L/i". Blob 0 of a convolution is its weight, 1 its bias. Unnamed layers are ignored."""
    tensors = {}
    for number, kind, layer in _fields(memoryview(file.read_bytes())):
        if number not in LAYERS or kind != BYTES:
            continue
        name_field, blobs_field = LAYERS[number]
        name, blobs = "", []
        for field, _, value in _fields(_message(layer)):
            if field == name_field:
                name = bytes(_message(value)).decode("utf-8", "replace")
            elif field == blobs_field:
                blobs.append(_blob(_message(value)))
        tensors.update({f"{name}/{i}": blob for i, blob in enumerate(blobs) if name})
    if not tensors:
        raise ValueError("no layers with blobs")
    return tensors


def _blob(message: memoryview) -> Tensor:
    old_shape, shape, data = [1, 1, 1, 1], None, []
    for number, _, value in _fields(message):
        if number <= 4 and isinstance(value, int):
            old_shape[number - 1] = value
        elif number == 7:
            shape = _dims(_message(value))
        elif number in (5, 8):  # packed, or one at a time
            dtype = np.dtype("<f4" if number == 5 else "<f8")
            data.append(np.frombuffer(_message(value), dtype))
    numbers = np.concatenate([*data, np.zeros(0, np.float32)]).astype(np.float32)
    return torch.from_numpy(numbers.reshape(old_shape if shape is None else shape))


def _dims(message: memoryview) -> list[int]:
    dims: list[int] = []
    for number, _, value in _fields(message):
        if number == 1 and isinstance(value, int):
            dims.append(value)
        elif number == 1:
            at, packed = 0, _message(value)
            while at < len(packed):
                dim, at = _varint(packed, at)
                dims.append(dim)
    return dims


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number instead of a message")
    return value


def _fields(message: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield number, kind and value of each field. Four- and eight-byte values stay bytes: the field defines their type."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(message, at)
            yield key >> 3, kind, value
            continue
        if kind == BYTES:
            length, at = _varint(message, at)
        elif kind in (EIGHT, FOUR):
            length = 8 if kind == EIGHT else 4
        else:
            raise ValueError(f"not a protocol buffer, field of kind {kind} at byte {at}")
        if at + length > len(message):
            raise ValueError("truncated, or not a protocol buffer")
        yield key >> 3, kind, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return an integer stored as seven bits per byte, low bits first, and the position after it."""
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("truncated, or not a protocol buffer")

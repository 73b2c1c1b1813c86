import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from liftedstruct.runtime import arrays
from liftedstruct.trunks import make_trunk
from liftedstruct.trunks.weights import READERS, read_tensors


class Trap:
    """Object that creates a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_every_file_type(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(2, 3), "b": torch.arange(4.0)}
    torch.save(tensors, tmp_path / "a.pth")
    torch.save({"state_dict": tensors, "epoch": 3}, tmp_path / "b.pt")
    save_file(tensors, tmp_path / "c.safetensors")
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    np.savez(tmp_path / "d.npz", **arrays)
    for name in ("a.pth", "b.pt", "c.safetensors", "d.npz"):
        found = read_tensors(tmp_path / name)
        assert set(found) == {"a", "b"}
        assert all(found[key].equal(tensors[key]) for key in tensors)


@pytest.mark.parametrize("suffix", [".pth", ".npz"])
def test_no_code_runs(tmp_path: Path, suffix: str) -> None:
    file, mark = tmp_path / f"trap{suffix}", tmp_path / "mark"
    if suffix == ".npz":
        np.savez(file, a=np.array(Trap(mark), dtype=object))
    else:
        torch.save({"a": torch.ones(1), "b": Trap(mark)}, file)
    with pytest.raises(ValueError, match=r"must be a complete \.\w+ file of tensors, got: .*Download it again"):
        read_tensors(file)
    assert not mark.exists()


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".npz", ".safetensors", ".caffemodel"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", pickle.dumps([1, 2], protocol=2), b"PK\x03\x04" + bytes(40)])
def test_files_of_another_kind(tmp_path: Path, suffix: str, content: bytes) -> None:
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"weights\.\w+ must be a complete \.\w+ file of tensors, got: [^\n]+$"):
        read_tensors(file)


def test_headers_that_claim_more_than_the_file_holds(tmp_path: Path) -> None:
    array = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**15,)}
    np.lib.format.write_array_header_1_0(array, header)
    (tmp_path / "a.npz").write_bytes(array.getvalue())
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("a.npy", array.getvalue())
    about = json.dumps({"a": {"dtype": "F32", "shape": [10**15], "data_offsets": [0, 4 * 10**15]}}).encode()
    (tmp_path / "c.safetensors").write_bytes(struct.pack("<Q", len(about)) + about)
    torch.save({"a": torch.ones(4)}, tmp_path / "d.pth", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "d.pth").read_bytes()
    at = whole.index(b"K\x04", whole.index(b"cpu"))  # the number of elements
    (tmp_path / "d.pth").write_bytes(whole[:at] + b"\x8a\x08" + struct.pack("<q", 10**15) + whole[at + 2 :])
    for name in ("a.npz", "b.npz", "c.safetensors", "d.pth"):
        with pytest.raises(ValueError, match=r"must be a complete \.\w+ file of tensors, got: [^\n]+ Download it again\.$"):
            read_tensors(tmp_path / name)


def test_a_torch_file_that_expands_beyond_the_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"a": torch.zeros(10**5)}, tmp_path / "a.pth")
    with (
        zipfile.ZipFile(tmp_path / "a.pth") as stored,
        zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    monkeypatch.setattr(arrays, "available_bytes", lambda: 10**5)
    assert len(read_tensors(tmp_path / "a.pth")["a"]) == 10**5
    with pytest.raises(
        ValueError, match=r"got: it expands from [\d,]+ to 40\d,\d+ bytes, and 100,000 bytes of memory are free"
    ):
        read_tensors(tmp_path / "b.pth")


def test_memory_errors_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Path) -> dict[str, torch.Tensor]:
        raise MemoryError

    monkeypatch.setitem(READERS, ".caffemodel", full)
    (tmp_path / "a.caffemodel").touch()
    with pytest.raises(
        ValueError, match=r"must be a complete \.caffemodel file of tensors, got: MemoryError\. Download it again"
    ):
        read_tensors(tmp_path / "a.caffemodel")


def test_other_objects(tmp_path: Path) -> None:
    torch.save([torch.ones(1)], tmp_path / "list.pth")
    torch.save({"a": torch.ones(1), "b": "text"}, tmp_path / "text.pth")
    np.savez(tmp_path / "text.npz", a=np.array("text"))
    for name in ("list.pth", "text.pth", "text.npz"):
        with pytest.raises(ValueError, match="must be a complete"):
            read_tensors(tmp_path / name)


def test_wrong_paths(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"weights must be a file of type \.caffemodel, \.npz, .*, got 'weights\.h5'\. Convert it"
    ):
        read_tensors("weights.h5")
    with pytest.raises(ValueError, match=r"weights must be an existing file, got .*gone\.pth\. Check the path\."):
        read_tensors(tmp_path / "gone.pth")


def test_the_first_mismatched_layer_is_named(tmp_path: Path) -> None:
    state = {name: tensor.contiguous() for name, tensor in make_trunk("small").state_dict().items()}
    file = tmp_path / "small.safetensors"
    save_file(state | {"more": torch.ones(1)}, file)
    trunk = make_trunk("small", file)
    assert all(trunk.state_dict()[name].equal(tensor) for name, tensor in state.items())
    assert trunk.describe().startswith("small, small.safetensors (sha256 ")
    save_file(
        state | {"layers.stage2.0.conv.weight": torch.ones(96, 32, 3, 3), "layers.stage3.0.conv.weight": torch.ones(1)}, file
    )
    with pytest.raises(
        ValueError, match=r"layers\.stage2\.0\.conv\.weight must be \(96, 64, 3, 3\), got \(96, 32, 3, 3\)\. Pass"
    ):
        make_trunk("small", file)
    del state["layers.stem.0.norm.bias"]
    save_file(state, file)
    with pytest.raises(
        ValueError, match=r"must hold weights of small: layers\.stem\.0\.norm\.bias must be \(32,\), got no such layer"
    ):
        make_trunk("small", file)

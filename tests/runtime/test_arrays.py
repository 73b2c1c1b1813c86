import io
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy

from liftedstruct.runtime import arrays
from liftedstruct.runtime.arrays import load_arrays

GIGABYTE = 10**9


def npy_bytes(shape: tuple[int, ...], descr: str = "|u1", data: bytes = b"") -> bytes:
    """Return a .npy file whose header declares a shape, with any data."""
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue() + data


def npz_bytes(content: bytes, kind: int = zipfile.ZIP_STORED, declared: int | None = None) -> bytes:
    """Return a .npz file with one member, a.npy, whose directory entry may declare another size."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as archive:
        archive.writestr("a.npy", content)
    whole = bytearray(stream.getvalue())
    if declared is not None:
        whole[(at := whole.index(b"PK\x01\x02") + 24) : at + 4] = struct.pack("<I", declared)
    return bytes(whole)


def refusal(file: Path) -> str:
    """Return the error message for a file, after checking that at most a megabyte was allocated."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
            load_arrays(file)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
    return str(caught.value)


def test_round_trip(tmp_path: Path) -> None:
    some: dict[str, Any] = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.array(["x", "yz"]),
        "c": np.array(3),
        "d": np.empty((0, 2)),
    }
    np.savez(tmp_path / "some.npz", **some)
    np.savez_compressed(tmp_path / "zeros.npz", a=np.zeros(10**6), b=np.asfortranarray(some["a"]))
    np.save(tmp_path / "one.npy", some["a"])
    found = load_arrays(tmp_path / "some.npz")
    assert list(found) == list(some)
    assert all(found[name].dtype == some[name].dtype and np.array_equal(found[name], some[name]) for name in some)
    assert not load_arrays(tmp_path / "zeros.npz")["a"].any()
    assert np.array_equal(load_arrays(tmp_path / "zeros.npz")["b"], some["a"])
    assert np.array_equal(load_arrays(tmp_path / "one.npy")["arr_0"], some["a"])
    assert list(load_arrays(tmp_path / "some.npz", ("c", "none"))) == ["c"]
    with pytest.raises(FileNotFoundError):
        load_arrays(tmp_path / "none.npz")


@pytest.mark.parametrize("n", [GIGABYTE, 10**17, 10**30])
def test_a_header_that_declares_more_than_the_file_holds(tmp_path: Path, n: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(npy_bytes((n,), data=bytes(8)))
    assert refusal(file) == f"it declares {n:,} bytes (uint8, shape ({n},)) but has 8"
    file.write_bytes(npz_bytes(npy_bytes((n, 2), "<f8", bytes(8))))
    assert refusal(file) == f"'a' declares {16 * n:,} bytes (float64, shape ({n}, 2)) but has 8"
    file.write_bytes(npy_bytes((n,), "<U0"))
    assert "but has 0" in refusal(file)
    file.write_bytes(npy_bytes((-n,), data=bytes(8)))
    assert "but has 8" in refusal(file)


def test_a_member_that_declares_more_than_it_can_hold(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        file.write_bytes(npz_bytes(npy_bytes((GIGABYTE,), data=bytes(8)), kind, declared=GIGABYTE + 128))
        assert refusal(file) == "'a.npy' declares 1,000,000,128 bytes, more than it can hold"


def test_an_archive_that_expands_to_more_than_the_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(10**6, np.uint8), b=np.zeros(3))
    np.savez(tmp_path / "b.npz", a=np.zeros(10**6, np.uint8))
    monkeypatch.setattr(arrays, "available_bytes", lambda: 900_000)
    reason = r"it expands from 1,\d+ to 1,000,280 bytes, and 900,000 bytes of memory are free"
    with pytest.raises(ValueError, match=reason):
        load_arrays(tmp_path / "a.npz")
    assert list(load_arrays(tmp_path / "a.npz", ["b"])) == ["b"]
    assert len(load_arrays(tmp_path / "b.npz")["a"]) == 10**6  # not compressed: the file is as large


def test_a_header_of_a_gigabyte_of_blanks(tmp_path: Path) -> None:
    blanks = b"\x93NUMPY\x02\x00" + struct.pack("<I", 10**8) + bytes(b" " * 10**8)
    (tmp_path / "a.npz").write_bytes(npz_bytes(blanks, zipfile.ZIP_DEFLATED))
    assert "EOF: reading array header" in refusal(tmp_path / "a.npz")


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}, None]))
    np.savez(tmp_path / "a.npz", labels=np.array([{}, None]))
    assert refusal(tmp_path / "a.npy") == "it holds Python objects"
    assert refusal(tmp_path / "a.npz") == "'labels' holds Python objects"


def test_an_allocation_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))

    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(npy, "read_array", full)
    assert refusal(tmp_path / "a.npy") == "its arrays do not fit into memory"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, None]))
    content = npy_bytes((5,), "<f4", bytes(20))
    whole = content if kind is None else npz_bytes(content, kind)
    at, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("damaged") / "file"
    file.write_bytes(data.draw(st.sampled_from([whole[:at], whole[:at] + bytes([byte]) + whole[at + 1 :]])))
    message = ""
    try:
        load_arrays(file)
    except ValueError as error:
        message = str(error)
    assert "\n" not in message

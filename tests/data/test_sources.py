import bz2
import gc
import gzip
import io
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from liftedstruct.data import FolderSource, MemorySource, TarSource
from liftedstruct.data.decoding import ImageError, load_rgb

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "tgz": gzip.compress,
    "tar.bz2": bz2.compress,
    "tar.xz": lzma.compress,
}


def png(value: int, size: int = 4) -> bytes:
    file = io.BytesIO()
    Image.new("L", (size, size), value).save(file, "png")
    return file.getvalue()


def tar_of(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.LNKTYPE, target
            tar.addfile(member)
    return file.getvalue()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "x y\n.png"
    file.write_bytes(png(7))
    source = FolderSource(tmp_path)
    with source.open("a/x y\n.png") as image:
        assert image.getpixel((0, 0)) == 7
    with FolderSource(Path("elsewhere")).open(str(file)) as image:  # an absolute path is used as is
        assert image.size == (4, 4)
    before = source.fingerprint("a/x y\n.png")
    assert source.fingerprint("a/x y\n.png") == before
    file.write_bytes(png(7, size=5))
    assert source.fingerprint("a/x y\n.png") != before
    file.unlink()
    file.symlink_to("nowhere")
    for gone in ("a/x y\n.png", "a/y.png"):
        with pytest.raises(FileNotFoundError):
            source.fingerprint(gone)


@pytest.mark.parametrize("suffix", PACKERS)
def test_tar(tmp_path: Path, temporary: Path, suffix: str) -> None:
    odd = os.fsdecode(b"set/\xff e\xcc\x81\n.png")
    files = {"./set/a.png": png(1), "set/b.png": png(2), odd: png(3), "set/empty.png": b""}
    archive = tmp_path / f"set.{suffix}"
    archive.write_bytes(PACKERS[suffix](tar_of(files, {"set/link.png": "set/b.png"})))
    source = TarSource(archive)
    assert list(source.members) == ["set/a.png", "set/b.png", odd, "set/empty.png", "set/link.png"]
    for name, value in {"set/a.png": 1, "set/b.png": 2, odd: 3, "set/link.png": 2}.items():
        assert source.read(name) == png(value)
        assert source.open(name).getpixel((0, 0)) == value
    assert source.read("set/empty.png") == b""

    assert TarSource(archive).fingerprint(odd) == source.fingerprint(odd) != source.fingerprint("set/a.png")
    before = source.fingerprint(odd)
    os.utime(archive, ns=(0, 0))
    assert source.fingerprint(odd) != before

    for ask in (source.read, source.open, source.fingerprint):
        with pytest.raises(FileNotFoundError, match=r"set\.t.*' has no member 'set/no\\n\.png'$"):
            ask("set/no\n.png")
    assert not list(temporary.iterdir())
    file: Any = source._tar.fileobj
    del source, ask
    gc.collect()
    assert file.closed


def test_many_threads_read_one_archive(tmp_path: Path) -> None:
    archive = tmp_path / "set.tgz"
    archive.write_bytes(gzip.compress(tar_of({f"{i}.png": png(i) for i in range(100)})))
    source = TarSource(archive)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(source.read, (f"{i}.png" for i in range(100)))) == [png(i) for i in range(100)]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot remove an open file")
def test_a_process_that_is_killed_leaves_nothing_behind(tmp_path: Path, temporary: Path) -> None:
    archive = tmp_path / "set.tgz"
    archive.write_bytes(gzip.compress(tar_of({"a.png": png(1)})))
    code = "import os, signal; from pathlib import Path; from liftedstruct.data import TarSource\n"
    code += f"source = TarSource(Path({str(archive)!r})); source.read('a.png'); os.kill(os.getpid(), signal.SIGTERM)"
    child = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(temporary)}, check=False)
    assert child.returncode == -15
    assert not list(temporary.iterdir())


def sparse_tar(pieces: list[tuple[int, int]], size: int, stored: bytes) -> bytes:
    """Return a GNU tar with a sparse file, hole.bin, and a hard link to it."""
    header = bytearray(tarfile.TarInfo("hole.bin").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"%011o\0" % len(stored)
    header[156:157] = b"S"
    for i, piece in enumerate(pieces):
        header[386 + 24 * i : 386 + 24 * (i + 1)] = b"%011o\0%011o\0" % piece
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    link = tarfile.TarInfo("link.bin")
    link.type, link.linkname = tarfile.LNKTYPE, "hole.bin"
    return bytes(header) + stored.ljust(512, b"\0") + link.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


@pytest.mark.parametrize("suffix", PACKERS)
def test_sparse_members_are_whole(tmp_path: Path, suffix: str) -> None:
    archive = tmp_path / f"set.{suffix}"
    archive.write_bytes(PACKERS[suffix](sparse_tar([(0, 2), (1024, 2)], 1030, b"abcd")))
    source = TarSource(archive)
    for name in ("hole.bin", "link.bin"):
        assert source.read(name) == b"ab" + bytes(1022) + b"cd" + bytes(4)


def indexed(archive: Path) -> tuple[TarSource, int]:
    """Return the source of an archive, and the peak memory of indexing it."""
    tracemalloc.start()
    source = TarSource(archive)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return source, peak


def test_sparse_members_take_no_memory_before_they_are_read(tmp_path: Path) -> None:
    archive = tmp_path / "set.tar"
    archive.write_bytes(sparse_tar([(0, 2)], 60 << 20, b"ab"))
    source, peak = indexed(archive)
    assert peak < 1 << 20  # of 60
    assert len(source.read("hole.bin")) == 60 << 20


def test_huge_sparse_members_are_refused(tmp_path: Path) -> None:
    archive = tmp_path / "set.tar"
    archive.write_bytes(sparse_tar([(0, 2)], 8_000_000_000, b"ab"))
    reason = r"a sparse file must have at most 67,108,864 bytes, got 8,000,000,000\. Store it whole\."
    with pytest.raises(ImageError, match=f"^broken: {reason}$"):
        load_rgb(TarSource(archive), "hole.bin")
    for pieces in ([(4, 2), (0, 2)], [(0, 4), (2, 2)], [(1000, 100)]):
        archive.write_bytes(sparse_tar(pieces, 1030, b"abcd"))
        with pytest.raises(ValueError, match="a sparse file must have its pieces in order, got one at"):
            TarSource(archive).read("hole.bin")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_huge_headers_are_not_read(tmp_path: Path, temporary: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("a.png")
    member.type, member.size = kind, 50 << 20
    archive = tmp_path / "set.tgz"
    archive.write_bytes(gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes((50 << 20) + 1024), compresslevel=1))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"must be a readable tar archive, got: a header of 52,428,800 bytes\. Download"):
        TarSource(archive)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 << 20  # of 50


def test_headers_of_headers_without_end(tmp_path: Path) -> None:
    member = tarfile.TarInfo("a.png")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 512
    archive = tmp_path / "set.tar"
    archive.write_bytes((member.tobuf(tarfile.GNU_FORMAT) + b"a" * 512) * 2000)
    with pytest.raises(ValueError, match=r"must be a readable tar archive, got: .+\. Download it again\.$"):
        TarSource(archive)


def test_a_compressed_archive_is_never_in_memory(tmp_path: Path, temporary: Path) -> None:
    noise = np.random.default_rng(0).integers(256, size=1 << 20, dtype=np.uint8).tobytes()
    archive = tmp_path / "set.tgz"
    archive.write_bytes(gzip.compress(tar_of({f"{i}.png": noise for i in range(24)}), compresslevel=1))
    source, peak = indexed(archive)
    assert peak < 6 << 20  # of 24
    assert source.read("23.png") == noise


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("damage", ["truncated", "flipped", "other", "empty"])
def test_a_damaged_archive_is_an_error(tmp_path: Path, temporary: Path, suffix: str, damage: str) -> None:
    noise = np.random.default_rng(0).integers(256, size=5000, dtype=np.uint8).tobytes()
    content = PACKERS[suffix](tar_of({"a.png": noise}))
    if damage == "truncated":
        content = content[:3000]
    elif damage == "flipped":
        content = content[:20] + bytes(255 - byte for byte in content[20:200]) + content[200:]
    else:
        content = b"" if damage == "empty" else b"no archive at all" * 100
    archive = tmp_path / f"a\nb.{suffix}"
    archive.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"a\\nb\.t.*' must be a readable tar archive, got: .+\. Download it again\.$"
    ) as caught:
        TarSource(archive)
    assert "\n" not in str(caught.value)
    assert not list(temporary.iterdir())


def test_no_room_to_decompress(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "set.tgz"
    archive.write_bytes(gzip.compress(tar_of({"a.png": png(1)})))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(
        ValueError, match=r"set\.tgz' must fit into the temporary folder .* got a full disk\. Set TMPDIR to a folder"
    ):
        TarSource(archive)
    assert not list(temporary.iterdir())


def test_images_in_memory() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)
    source = MemorySource(images)
    for i in range(3):
        np.testing.assert_array_equal(np.asarray(source.open(str(i))), images[i])
    prints = [source.fingerprint(str(i)) for i in range(3)]
    assert len(set(prints)) == 3
    assert prints == [MemorySource(images.copy()).fingerprint(str(i)) for i in range(3)]
    assert MemorySource(images[::-1]).fingerprint("0") == prints[2]
    assert MemorySource(images.reshape(3, 4, 5, 3)).fingerprint("0") != prints[0]
    changed = images.copy()
    changed[1, 4, 3, 2] ^= 1
    assert MemorySource(changed).fingerprint("1") != prints[1]

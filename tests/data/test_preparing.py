import errno
import hashlib
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data.sets import listed, make_set, noise, pack
from liftedstruct.data import FolderSource, ImageSet, OtherDatasetError, PackedImages, preparing, read_images
from liftedstruct.data.decoding import content_hash, decode
from liftedstruct.data.packed import IMAGES, META, PROGRESS
from liftedstruct.data.preparing import CONTENTS_PART, LOCK, PART
from liftedstruct.data.products import product_images
from liftedstruct.runtime.atomic import is_temporary

NAMES = ("space in name.png", "new\nline.png", "grüße 日本 🙂.png", os.fsdecode(b"latin \xe9.png"), "-rf.png", "quote\"'.png")


def encoded(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


@dataclass(frozen=True)
class CountingSource(FolderSource):
    """Folder source that records which images were opened, and raises the given errors."""

    opened: list[str] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)

    def open(self, path: str) -> Image.Image:
        self.opened.append(path)
        if path in self.errors:
            raise self.errors[path]
        return super().open(path)


def counting(image_set: ImageSet, **errors: Exception) -> tuple[ImageSet, CountingSource]:
    source = CountingSource(image_set.root, errors={f"{name}.png": error for name, error in errors.items()})
    return replace(image_set, source=source), source


@pytest.fixture(autouse=True)
def save_progress_after_each_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "CHUNK", 1)
    monkeypatch.setattr(preparing, "SYNC_SECONDS", -1)


def content(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    return make_set(tmp_path / "images")


def test_what_is_in_it(tmp_path: Path) -> None:
    image_set = make_set(tmp_path / "images", 14, NAMES)
    packed = pack(image_set, tmp_path / "a" / "b")  # created if missing
    assert len(packed) == 14
    assert packed.paths == image_set.paths
    assert packed.labels.tolist() == image_set.labels.tolist()
    assert packed.labels.dtype == np.int64
    assert packed.class_names == image_set.class_names
    assert packed.super_classes == image_set.super_classes
    for part in ("train", "validation", "test"):
        assert getattr(packed, part).tolist() == getattr(image_set, part).tolist()
    assert (packed.size, packed.resize_mode, packed.name, packed.left_out) == (16, "squash", "noise", ())
    plain = np.load(tmp_path / "a" / "b" / "images.npy", mmap_mode="r")
    assert plain.shape == (14, 16, 16, 3)
    for i, path in enumerate(image_set.paths):
        assert (plain[i] == decode(image_set.source, path, 16)).all()
    assert sorted(content(packed.folder)) == ["contents.npy", "images.npy", "labels.npy", "meta.json", "paths.json"]
    assert "14 images of noise at 16 x 16" in repr(packed)


def test_workers_do_not_change_the_bytes(images: ImageSet, tmp_path: Path) -> None:
    pack(images, tmp_path / "one", workers=1)
    pack(images, tmp_path / "five", workers=5)
    assert content(tmp_path / "one") == content(tmp_path / "five")


def test_resize_mode_is_used(images: ImageSet, tmp_path: Path) -> None:
    assert (pack(images, tmp_path / "packed", resize_mode="letterbox").images[:, :2] == 255).all()  # 40 x 30: 12 of 16 rows
    with pytest.raises(ValueError, match=r"resize_mode must be one of letterbox, squash, trim-letterbox, got 'crop'"):
        pack(images, tmp_path / "packed", resize_mode="crop")


def test_second_time_does_nothing(images: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = pack(images, tmp_path / "packed")
    before = content(first.folder)
    counted, source = counting(images)
    second = pack(counted, tmp_path / "packed", progress=True)
    assert source.opened == []
    assert second.checksum == first.checksum
    assert content(first.folder) == before
    assert capsys.readouterr().err == f"{tmp_path / 'packed'} already contains these 12 images, nothing to do\n"
    pack(counted, tmp_path / "packed", force=True)
    assert sorted(source.opened) == sorted(images.paths)
    assert content(first.folder) == before


def test_where_the_images_are_is_no_part_of_the_checksum(images: ImageSet, tmp_path: Path) -> None:
    moved = images.root.rename(tmp_path / "elsewhere")
    there = replace(images, root=moved, source=FolderSource(moved))
    moved.rename(images.root)
    first = pack(images, tmp_path / "packed").checksum
    images.root.rename(moved)
    assert pack(there, tmp_path / "packed").checksum == first


def rewritten(image_set: ImageSet) -> ImageSet:
    noise(99).save(image_set.root / image_set.paths[5])
    return image_set


CHANGED: dict[str, tuple[Callable[[ImageSet], ImageSet], dict[str, Any]]] = {
    r"size is 16, not 8": (lambda s: s, {"size": 8}),
    r"resize_mode is 'squash', not 'letterbox'": (lambda s: s, {"resize_mode": "letterbox"}),
    r"name is 'noise', not 'other'": (lambda s: replace(s, name="other"), {}),
    r"images is 12, not 11; the list of images changed": (lambda s: s.subset(np.arange(11)), {}),
    r"the list of images changed": (lambda s: replace(s, paths=s.paths[::-1]), {}),
    r"the labels or class names changed": (lambda s: replace(s, labels=(s.labels + 1) % 4), {}),
    r"the split into .* changed": (lambda s: replace(s, test_classes=np.array([0])), {}),
    r"image files changed": (rewritten, {}),
}


@pytest.mark.parametrize("message", CHANGED)
@pytest.mark.parametrize("interrupted", [False, True])
def test_changes_are_noticed(images: ImageSet, tmp_path: Path, message: str, interrupted: bool) -> None:
    folder = tmp_path / "packed"
    if interrupted:
        stopped, _ = counting(images, **{"007": OSError("no")})
        with pytest.raises(ValueError, match="every image must be readable"):
            pack(stopped, folder, bad_images="stop")
    else:
        pack(images, folder)
    before = content(folder)
    change, options = CHANGED[message]
    changed = change(images)
    with pytest.raises(ValueError, match=f"packed contains (a dataset|an interrupted prepare) with .*{message}.*force=True"):
        pack(changed, folder, **options)
    assert content(folder) == before
    remade = pack(changed, folder, force=True, **options)
    assert len(remade) == len(changed)
    pack(changed, tmp_path / "clean", **options)
    assert content(folder) == content(tmp_path / "clean")


def test_unreadable_ones_are_listed(images: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted, _ = counting(images, **{"002": PermissionError(errno.EACCES, "denied"), "007": OSError("image file is truncated")})
    packed = pack(counted, tmp_path / "packed")
    assert packed.left_out == (("002.png", "no permission"), ("007.png", "truncated"))
    kept = [i for i in range(12) if i not in (2, 7)]
    assert packed.paths == tuple(images.paths[i] for i in kept)
    assert packed.labels.tolist() == images.labels[kept].tolist()
    clean = pack(images, tmp_path / "clean")
    assert (packed.images == clean.images[kept]).all()
    assert np.load(packed.folder / IMAGES).shape[0] == 10
    assert json.loads((packed.folder / META).read_text())["left_out"][1] == {"path": "007.png", "reason": "truncated"}
    line = capsys.readouterr().err
    assert line.startswith("warning: 2 of 12 images were left out, listed in ")
    assert line.endswith("meta.json; the first is '002.png': no permission\n")


def test_truncated_ones_are_listed_or_stop(images: ImageSet, tmp_path: Path) -> None:
    file = images.root / "003.png"
    file.write_bytes(file.read_bytes()[:2000])
    (images.root / "004.png").write_bytes(b"")
    listed = pack(images, tmp_path / "list")
    assert listed.left_out == (("003.png", "truncated"), ("004.png", "empty file"))
    with pytest.raises(ValueError, match=r"bad_images is 'list', not 'stop'"):
        pack(images, tmp_path / "list", bad_images="stop")
    with pytest.raises(ValueError, match=r"every image must be readable, got '003.png': truncated\. Fix it, or pass"):
        pack(images, tmp_path / "stop", bad_images="stop")
    assert pack(images, tmp_path / "stop", bad_images="list").left_out == listed.left_out  # resumes


def test_more_than_half_unreadable_is_an_error(images: ImageSet, tmp_path: Path) -> None:
    for path in images.paths[:6]:
        (images.root / path).write_bytes(b"no")
    assert len(pack(images, tmp_path / "half")) == 6
    (images.root / images.paths[6]).write_bytes(b"no")
    with pytest.raises(ValueError, match=r"at least half of the images .*, got 7 unreadable of 12; .*liftedstruct check"):
        pack(images, tmp_path / "packed")
    assert content(tmp_path / "packed") == {}  # nothing to resume, and no obstacle for the next prepare
    with pytest.raises(ValueError, match="at least one image, got none"):
        pack(images.subset(np.arange(0)), tmp_path / "none")


@pytest.mark.parametrize("name", ["EIO", "ESTALE", "ENOMEM", "EMFILE", "ENFILE", "ENXIO", "ENOENT"])
@pytest.mark.parametrize("bad_images", ["list", "stop"])
def test_a_source_that_goes_away_is_no_smaller_set(tmp_path: Path, name: str, bad_images: str) -> None:
    image_set, folder = make_set(tmp_path / "images", 40), tmp_path / "packed"
    gone, source = counting(image_set)
    source.errors.update({path: OSError(getattr(errno, name), "failed") for path in image_set.paths[24:]})
    for _ in range(2):
        with pytest.raises(
            OSError, match=r"'024\.png': (cannot be read: failed|missing)\. .* run prepare again to resume"
        ) as e:
            pack(gone, folder, bad_images=bad_images)
        assert "\n" not in str(e.value)
        with pytest.raises(ValueError, match="must be completely prepared"):
            PackedImages(folder)
    counted, source = counting(image_set)
    pack(counted, folder, bad_images=bad_images)
    assert sorted(source.opened) == list(image_set.paths[24:])
    assert content(folder) == content(pack(image_set, tmp_path / "clean", bad_images=bad_images).folder)


def test_a_source_that_is_away_from_the_start(images: ImageSet, tmp_path: Path) -> None:
    class Away(FolderSource):
        def fingerprint(self, path: str) -> str:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match=r"'000\.png': .*Input/output error\. .* run prepare again"):
        pack(replace(images, source=Away(images.root)), tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_a_folder_that_goes_away(images: ImageSet, tmp_path: Path) -> None:
    """The files disappear halfway. The next run still lacks them and fails; the one after that resumes."""
    folder, away = tmp_path / "packed", tmp_path / "away"

    class Unmounted(CountingSource):
        def open(self, path: str) -> Image.Image:
            if path == "007.png":
                self.root.rename(away)
            return super().open(path)

    with pytest.raises(OSError, match=r"'007\.png': missing\. .*to resume"):
        pack(replace(images, source=Unmounted(images.root)), folder, workers=1)
    before = content(folder)
    with pytest.raises(ValueError, match=r"image files changed .*missing now"):
        pack(images, folder)
    assert content(folder) == before
    away.rename(images.root)
    assert content(pack(images, folder).folder) == content(pack(images, tmp_path / "clean").folder)


def test_interrupted_resumes(images: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean = content(pack(images, tmp_path / "clean").folder)
    stopped, _ = counting(images, **{"007": KeyboardInterrupt()})  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        pack(stopped, tmp_path / "packed")
    with pytest.raises(ValueError, match=r"packed must be completely prepared, .* interrupted prepare\. Run prepare again"):
        PackedImages(tmp_path / "packed")
    counted, source = counting(images)
    pack(counted, tmp_path / "packed", progress=True)
    assert sorted(source.opened) == [f"{i:03}.png" for i in range(7, 12)]
    assert content(tmp_path / "packed") == clean
    assert "after 7 of 12 images" in capsys.readouterr().err


def test_kill(tmp_path: Path) -> None:
    """Kill a process while it decodes; flushed rows are not decoded again, and the final bytes are the same."""
    image_set = make_set(tmp_path / "images", 60)
    folder, script = tmp_path / "packed", tmp_path / "script.py"
    script.write_text(f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from dataclasses import replace
from pathlib import Path
from data.sets import listed
from data.test_preparing import CountingSource
from liftedstruct.data import prepare, preparing
class Slow(CountingSource):
    def open(self, path):
        time.sleep(0.02)
        return super().open(path)
preparing.CHUNK, preparing.SYNC_SECONDS = 1, -1
image_set = listed(Path({str(image_set.root)!r}), {image_set.paths!r})
image_set = replace(image_set, source=Slow(image_set.root))
prepare(image_set, {str(folder)!r}, size=16, workers=1, progress=False)
""")
    process = subprocess.Popen([sys.executable, script])
    done, deadline = 0, time.monotonic() + 60
    while done < 10 and time.monotonic() < deadline:
        time.sleep(0.005)
        done = json.loads((folder / PROGRESS).read_text())["processed"] if (folder / PROGRESS).exists() else 0
    with pytest.raises(ValueError, match=rf"one prepare at a time, but is in use by process {process.pid}"):
        pack(image_set, folder)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = json.loads((folder / PROGRESS).read_text())["processed"]
    assert 10 <= done < 60
    with pytest.raises(ValueError, match="must be completely prepared"):
        PackedImages(folder)
    counted, source = counting(image_set)
    pack(counted, folder)
    assert sorted(source.opened) == [f"{i:03}.png" for i in range(done, 60)]
    pack(image_set, tmp_path / "clean")
    assert content(folder) == content(tmp_path / "clean")


class Killed(BaseException):
    """Simulated death of the process."""


@pytest.mark.slow
@pytest.mark.parametrize("replacing", [False, True])
def test_death_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replacing: bool) -> None:
    """Whatever was last written to disk, a partial dataset is never read as complete, and prepare resumes."""
    image_set = make_set(tmp_path / "images", 5)
    (image_set.root / "001.png").write_bytes(b"")
    clean = pack(image_set, tmp_path / "clean")
    old = make_set(tmp_path / "old", 7)
    deaths = 0
    for life in itertools.count():
        folder, left = tmp_path / "packed", [life]
        shutil.rmtree(folder, ignore_errors=True)
        if replacing:
            pack(old, folder)

        def mortal(call: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
            def step(*arguments: Any, **options: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return call(*arguments, **options)

            return step

        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "unlink", "open"):
                patch.setattr(os, name, mortal(getattr(os, name)))
            try:
                pack(image_set, folder, force=replacing, workers=1)
                survived = True
            except Killed:
                survived, deaths = False, deaths + 1
        if (folder / META).exists():  # complete: the new dataset, or still the old one
            found = PackedImages(folder)
            assert found.checksum == clean.checksum or (replacing and len(found) == 7)
            assert len(found) == 7 or (found.images == clean.images).all()
        else:
            with pytest.raises(ValueError, match=r"must be (completely prepared|a prepared dataset)"):
                PackedImages(folder)
        try:
            pack(image_set, folder)  # resumes, even if the old dataset still exists
        except OtherDatasetError:
            assert len(PackedImages(folder)) == 7  # the new one had not started
            pack(image_set, folder, force=True)
        after = {
            name: data
            for name, data in content(folder).items()
            if name not in (PROGRESS, LOCK, CONTENTS_PART) and not is_temporary(name)
        }
        assert after == content(clean.folder)  # the excluded files may remain after a death between the last steps
        if survived:
            break
    assert deaths > 20


def test_full_disk(images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10**9))
    with pytest.raises(OSError, match=r"packed must have 5\.53 GB free, got 1\.00 GB\. Free some space, or choose"):
        pack(images, tmp_path / "packed", size=12390)
    assert not (tmp_path / "packed" / PART).exists()
    assert len(pack(images, tmp_path / "packed")) == 12  # the smaller size, without force


def test_a_failing_force_leaves_the_old_set(images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "packed"
    before = content(pack(images, folder).folder)
    with pytest.raises(OSError, match=r"packed must have .* GB free"):
        pack(images, folder, size=10**6, force=True)
    assert content(folder) == before
    other = make_set(tmp_path / "other", 12)
    stopped, _ = counting(other, **{"007": OSError(errno.EIO, "failed")})
    with pytest.raises(OSError, match="to resume"):
        pack(stopped, folder, size=8, force=True)
    assert PackedImages(folder).size == 16  # still the old one
    assert {name: data for name, data in content(folder).items() if name not in (PART, CONTENTS_PART, PROGRESS)} == before
    assert len(pack(images, folder)) == 12  # nothing to do
    with pytest.raises(ValueError, match=r"contains a dataset with .*: size is 16, not 9"):
        pack(images, folder, size=9)
    counted, source = counting(other)
    assert pack(counted, folder, size=8).size == 8  # resumes, without force
    assert sorted(source.opened) == list(other.paths[7:])
    assert content(folder) == content(pack(other, tmp_path / "clean", size=8).folder)
    bad = make_set(tmp_path / "bad")
    for path in bad.paths[3:]:
        (bad.root / path).write_bytes(b"")
    with pytest.raises(ValueError, match="at least half of the images must be readable, got 9 unreadable of 12"):
        pack(bad, folder, force=True)
    assert sorted(content(folder)) == ["contents.npy", "images.npy", "labels.npy", "meta.json", "paths.json"]
    assert len(pack(other, folder, size=8)) == 12


def test_disk_fills_up(images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room, open_at = [5000], preparing._open_at

    class Filling(io.FileIO):
        def write(self, data: Any) -> int:
            if room[0] <= 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            written = super().write(memoryview(data).cast("B")[: min(room[0], 500)])  # part of a row
            room[0] -= written
            return written

    def open_on_it(file: Path, length: int) -> Any:
        open_at(file, length).close()
        stream = io.BufferedWriter(Filling(file, "r+"))
        stream.seek(length)
        return stream

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_open_at", open_on_it)
        with pytest.raises(OSError, match=r"the disk of .*packed is full\. Free some space and run prepare again"):
            pack(images, tmp_path / "packed")
    assert json.loads((tmp_path / "packed" / PROGRESS).read_text())["processed"] > 2
    with pytest.raises(ValueError, match="must be completely prepared"):
        PackedImages(tmp_path / "packed")
    pack(images, tmp_path / "packed")
    pack(images, tmp_path / "clean")
    assert content(tmp_path / "packed") == content(tmp_path / "clean")


def test_folders_of_others_are_refused(images: ImageSet, tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    for name in ("thesis.tex", "meta.json", "labels.npy"):
        (folder / name).write_text("{}")
        for force in (False, True):
            with pytest.raises(ValueError, match=rf"must be empty or written by prepare, got '{name}' in it \(1 in total\)"):
                pack(images, folder, force=force)
        assert content(folder) == {name: b"{}"}
        (folder / name).unlink()
    with pytest.raises(ValueError, match=r"must be a folder, got an existing file"):
        pack(images, images.root / images.paths[0])
    with pytest.raises(ValueError, match=r"absent must be a prepared dataset, got no valid meta.json"):
        PackedImages(tmp_path / "absent")


def test_stale_lock_is_no_lock(images: ImageSet, tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "prepare.lock").write_text("1\n")  # of a killed process, whose PID is now another's
    assert len(pack(images, tmp_path / "packed")) == 12


def test_progress_in_lines(images: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack(images, tmp_path / "packed", progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("prepare: 12 of 12 images, ")


def test_progress_as_a_bar(
    images: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich treats it as a terminal
    pack(images, tmp_path / "packed", progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "12/12" in captured.err
    assert "/s," in captured.err


def fuzzed(root: Path, count: int) -> dict[str, str]:
    """Write files with every kind of damage, and return what was done to each."""
    rng = np.random.default_rng(0)
    whole = {kind: encoded(noise(1, 48, 64), kind) for kind in ("JPEG", "PNG", "GIF", "WEBP", "AVIF", "TIFF", "BMP", "PPM")}
    bomb = bytearray(encoded(Image.new("1", (8, 8)), "PNG"))
    bomb[16:24] = (60000).to_bytes(4, "big") * 2  # width and height, and the checksum of their chunk
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
    harms = ("truncated", "flipped", "extension", "empty", "bomb", "folder", "garbage", "header", "permission", "pipe", "link")
    chances = np.array([30, 30, 8, 4, 3, 3, 6, 6, 3, 1, 1]) / 95
    done: dict[str, str] = {}
    for i in range(count):
        harm, kind = str(rng.choice(harms, p=chances)), str(rng.choice(list(whole)))
        name = f"{NAMES[i % len(NAMES)]}{i}.{kind.lower() if harm != 'extension' else 'jpg'}"
        file, data = root / name, bytearray(whole[kind])
        if harm == "truncated":
            data = data[: int(rng.integers(1, len(data)))]
        elif harm == "flipped":
            for place in rng.integers(0, len(data), int(rng.integers(1, 20))):
                data[place] ^= 1 << int(rng.integers(8))
        elif harm == "header":
            data[: int(rng.integers(1, 40))] = rng.bytes(int(rng.integers(1, 40)))
        elif harm == "garbage":
            data = bytearray(rng.bytes(int(rng.integers(1, 3000))))
        elif harm in ("empty", "bomb"):
            data = bytearray() if harm == "empty" else bomb
        done[name] = harm
        if harm == "folder":
            file.mkdir()
        elif harm == "pipe":
            os.mkfifo(file)
        elif harm == "link":
            file.symlink_to(root / "nowhere")
        else:
            file.write_bytes(data)
    return done


def test_a_thousand_fuzzed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # save progress at the default interval
    root = tmp_path / "images"
    root.mkdir()
    harms = fuzzed(root, 1000)
    good = encoded(noise(1, 48, 64), "JPEG")
    for i in range(1001):  # at least half must be readable
        (root / f"good {i}.jpg").write_bytes(good)
    paths = (*harms, *(f"good {i}.jpg" for i in range(1001)))
    image_set, source = counting(listed(root, paths))
    denied = {name: PermissionError(errno.EACCES, "denied", name) for name, harm in harms.items() if harm == "permission"}
    source.errors.update(denied)  # simulated, because root can read anything
    packed = pack(image_set, tmp_path / "packed")
    reasons = dict(packed.left_out)
    assert Counter(paths) == Counter([*packed.paths, *reasons])
    assert tuple(path for path in paths if path not in reasons) == packed.paths
    assert all(reason and "\n" not in reason and len(reason) < 150 for reason in reasons.values())
    assert not any(name.startswith("good") for name in reasons)
    for name, harm in harms.items():
        if harm == "extension":
            assert name not in reasons
        elif harm == "permission":
            assert reasons[name] == "no permission"
        elif harm in ("empty", "folder", "bomb", "link", "pipe", "garbage"):
            assert name in reasons, harm
    assert 300 < len(reasons) < 900
    truncated = [name for name, reason in reasons.items() if reason == "truncated"]
    assert len(truncated) > 100


def test_reasons_of_a_folder_source(tmp_path: Path) -> None:
    root = tmp_path / "images"
    root.mkdir()
    harms = {name: harm for name, harm in fuzzed(root, 300).items() if harm in ("empty", "folder", "bomb", "link", "pipe")}
    good = tuple(f"good {i}.png" for i in range(len(harms)))
    for name in good:
        noise(0).save(root / name)
    reasons = dict(pack(listed(root, tuple(harms) + good), tmp_path / "packed").left_out)
    expected = {"empty": "empty file", "folder": "is a folder", "link": "missing", "pipe": "not a regular file"}
    assert {harms[name] for name in reasons} == set(harms.values())
    for name, harm in harms.items():
        assert reasons[name].startswith("too many pixels") if harm == "bomb" else reasons[name] == expected[harm]


CUB = Path(os.environ.get("LIFTEDSTRUCT_DATA") or "nowhere") / "CUB_200_2011.tar"


@pytest.mark.skipif(not CUB.is_file(), reason="LIFTEDSTRUCT_DATA does not name a folder with CUB_200_2011.tar")
def test_all_of_cub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    packed = pack(read_images(CUB), tmp_path / "packed", size=32, workers=None)
    assert (len(packed.train), len(packed.test), len(packed.validation)) == (5864, 5924, 0)
    assert len(packed) == 11788
    assert packed.left_out == ()
    assert len(set(packed.labels[packed.train].tolist())) == len(set(packed.labels[packed.test].tolist())) == 100
    assert packed.images[::1000].std(axis=(1, 2, 3)).min() > 5  # not blank


def test_contents_are_hashes_of_the_files(tmp_path: Path) -> None:
    image_set = make_set(tmp_path / "images", 6)
    shutil.copy(image_set.root / "000.png", image_set.root / "003.png")
    packed, small = pack(image_set, tmp_path / "packed"), pack(image_set, tmp_path / "small", size=8)
    assert packed.contents.dtype == np.uint64
    assert packed.contents.tolist() == small.contents.tolist()  # independent of the prepared size
    digests = [hashlib.blake2b((image_set.root / path).read_bytes(), digest_size=8).digest() for path in image_set.paths]
    assert packed.contents.tolist() == [int.from_bytes(digest, "little") for digest in digests]
    assert packed.contents[0] == packed.contents[3]
    assert len(set(packed.contents.tolist())) == 5


def test_products_have_the_same_hash_at_any_size() -> None:
    one, two = (product_images(4, 2, size) for size in (16, 24))
    assert one.paths == two.paths
    assert [content_hash(one.source, path) for path in one.paths] == [content_hash(two.source, path) for path in two.paths]

import errno
import hashlib
import io
import itertools
import json
import os
import pickle
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
from numpy.typing import NDArray
from PIL import Image

from liftedstruct.data import PackedImages, prepare, preparing, read_images
from liftedstruct.data.decoding import decode
from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.packed_files import CONTENTS_PART, IMAGES, LEFT_OUT, LOCK, META, PART, PROGRESS
from liftedstruct.data.products import product_images
from liftedstruct.data.sources import FolderSource
from liftedstruct.runtime.atomic import is_temporary

Bytes = NDArray[np.uint8]
NAMES = ("space in name.png", "new\nline.png", "grüße 日本 🙂.png", os.fsdecode(b"latin \xe9.png"), "-rf.png", "quote\"'.png")


def noise(seed: int, height: int = 30, width: int = 40) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def make_set(root: Path, n: int = 12, names: tuple[str, ...] = ()) -> ImageSet:
    """PNG files of noise, in four classes: 0 to train, 1 to validate, 2 and 3 to test."""
    root.mkdir(exist_ok=True)
    paths = names + tuple(f"{i:03}.png" for i in range(n - len(names)))
    for i, path in enumerate(paths):
        noise(i).save(root / path)
    return listed(root, paths)


def listed(root: Path, paths: tuple[str, ...]) -> ImageSet:
    labels, classes = np.arange(len(paths), dtype=np.int64) % 4, ("a", "b", "c\n", "d")
    super_classes = ("x", "x", "y", "y")
    return ImageSet("noise", root, FolderSource(root), paths, labels, classes, np.array([2, 3]), np.array([1]), super_classes)


@dataclass(frozen=True)
class CountingSource(FolderSource):
    """A folder that remembers what was opened, and may refuse it."""

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


def pack(image_set: ImageSet, folder: Path, size: int = 16, **options: Any) -> PackedImages:
    return prepare(image_set, folder, size=size, progress=options.pop("progress", False), **options)


def content(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    return make_set(tmp_path / "images")


@pytest.fixture
def packed(images: ImageSet, tmp_path: Path) -> PackedImages:
    return pack(images, tmp_path / "packed", size=32)


def test_what_is_in_it(tmp_path: Path) -> None:
    image_set = make_set(tmp_path / "images", 14, NAMES)
    packed = pack(image_set, tmp_path / "a" / "b")  # made if absent
    assert len(packed) == 14
    assert packed.paths == image_set.paths
    assert packed.labels.tolist() == image_set.labels.tolist()
    assert packed.labels.dtype == np.int64
    assert packed.class_names == image_set.class_names
    assert packed.super_classes == image_set.super_classes
    for part in ("train", "validation", "test"):
        assert getattr(packed, part).tolist() == getattr(image_set, part).tolist()
    assert (packed.size, packed.fit, packed.name, packed.left_out) == (16, "resize", "noise", ())
    plain = np.load(tmp_path / "a" / "b" / "images.npy", mmap_mode="r")
    assert plain.shape == (14, 16, 16, 3)
    for i, path in enumerate(image_set.paths):
        assert (plain[i] == decode(image_set.source, path, 16)).all()
    assert sorted(content(packed.folder)) == ["contents.npy", "images.npy", "labels.npy", "meta.json", "paths.json"]
    assert json.loads((packed.folder / META).read_text())["checksum_of"].endswith("of the image files; not their bytes")
    assert "14 of noise at 16 x 16" in repr(packed)


def test_workers_do_not_change_the_bytes(images: ImageSet, tmp_path: Path) -> None:
    pack(images, tmp_path / "one", workers=1)
    pack(images, tmp_path / "five", workers=5)
    assert content(tmp_path / "one") == content(tmp_path / "five")


def test_fit_is_used(images: ImageSet, tmp_path: Path) -> None:
    assert (pack(images, tmp_path / "packed", fit="letterbox").images[:, :2] == 255).all()  # 40 x 30: 12 of 16 rows
    with pytest.raises(ValueError, match=r"fit must be one of letterbox, resize, trim-letterbox, got 'crop'"):
        pack(images, tmp_path / "packed", fit="crop")


def test_second_time_does_nothing(images: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = pack(images, tmp_path / "packed")
    before = content(first.folder)
    counted, source = counting(images)
    second = pack(counted, tmp_path / "packed", progress=True)
    assert source.opened == []
    assert second.checksum == first.checksum
    assert content(first.folder) == before
    assert capsys.readouterr().err == f"{tmp_path / 'packed'} already holds these 12 images, nothing to do\n"
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
    r"fit is 'resize', not 'letterbox'": (lambda s: s, {"fit": "letterbox"}),
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
    with pytest.raises(ValueError, match=f"packed holds (a set|an interrupted prepare) of other .*{message}.*force=True"):
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
    assert line.startswith("warning: 2 of 12 images are left out and listed in ")
    assert line.endswith("meta.json; the first is '002.png': no permission\n")


def test_truncated_ones_are_kept_by_tolerance(images: ImageSet, tmp_path: Path) -> None:
    file = images.root / "003.png"
    file.write_bytes(file.read_bytes()[:2000])
    (images.root / "004.png").write_bytes(b"")
    listed = pack(images, tmp_path / "list")
    assert listed.left_out == (("003.png", "truncated"), ("004.png", "empty file"))
    packed = pack(images, tmp_path / "tolerate", bad_images="tolerate")
    assert packed.left_out == (("004.png", "empty file"),)
    assert packed.truncated == ("003.png",)
    assert (packed.images[3] == decode(images.source, "003.png", 16, tolerate_truncated=True)).all()
    with pytest.raises(ValueError, match=r"bad_images is 'list', not 'tolerate'"):
        pack(images, tmp_path / "list", bad_images="tolerate")
    with pytest.raises(ValueError, match=r"every image must be readable, '003.png' is not: truncated\. Mend it, or pass"):
        pack(images, tmp_path / "stop", bad_images="stop")
    assert pack(images, tmp_path / "stop", bad_images="list").left_out == listed.left_out  # goes on


def test_more_than_half_unreadable_is_an_error(images: ImageSet, tmp_path: Path) -> None:
    for path in images.paths[:6]:
        (images.root / path).write_bytes(b"no")
    assert len(pack(images, tmp_path / "half")) == 6
    (images.root / images.paths[6]).write_bytes(b"no")
    with pytest.raises(ValueError, match=r"at least half of the images must be readable, 7 of 12 are not; .*doctor"):
        pack(images, tmp_path / "packed")
    assert list(content(tmp_path / "packed")) == [LEFT_OUT]  # nothing to go on from, nothing in the way of the next
    with pytest.raises(ValueError, match="has none"):
        pack(images.subset(np.arange(0)), tmp_path / "none")


def test_most_are_bad_and_all_are_listed(images: ImageSet, tmp_path: Path) -> None:
    folder, good = tmp_path / "packed", (images.root / "000.png").read_bytes()
    for path in images.paths[1:]:
        (images.root / path).write_bytes(b"no" if path != "004.png" else b"")
    with pytest.raises(
        ValueError, match=r"11 of 12 are not; the first is '001\.png': not an .*See them all in .*left-out\.json"
    ):
        pack(images, folder)
    reasons = {each["path"]: each["reason"] for each in json.loads((folder / LEFT_OUT).read_text())["left_out"]}
    assert list(reasons) == list(images.paths[1:])
    assert reasons.pop("004.png") == "empty file"
    assert set(reasons.values()) == {"not an image, or broken at its start"}
    for path in images.paths:
        (images.root / path).write_bytes(good)
    assert len(pack(images, folder)) == 12
    assert LEFT_OUT not in content(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / LEFT_OUT).write_text("[]")  # somebody else's file of that name
    with pytest.raises(ValueError, match=r"must be empty or of an earlier prepare, it holds 'left-out.json'"):
        pack(images, tmp_path / "other")


@pytest.mark.parametrize("name", ["EIO", "ESTALE", "ENOMEM", "EMFILE", "ENFILE", "ENXIO", "ENOENT"])
@pytest.mark.parametrize("bad_images", ["list", "stop", "tolerate"])
def test_a_source_that_goes_away_is_no_smaller_set(tmp_path: Path, name: str, bad_images: str) -> None:
    image_set, folder = make_set(tmp_path / "images", 40), tmp_path / "packed"
    gone, source = counting(image_set)
    source.errors.update({path: OSError(getattr(errno, name), "failed") for path in image_set.paths[24:]})
    for _ in range(2):
        with pytest.raises(
            OSError, match=r"'024\.png' is not: (cannot be read: failed|missing)\. .* run it again, it goes on"
        ) as e:
            pack(gone, folder, bad_images=bad_images)
        assert "\n" not in str(e.value)
        with pytest.raises(ValueError, match="must be finished"):
            PackedImages(folder)
    counted, source = counting(image_set)
    pack(counted, folder, bad_images=bad_images)
    assert sorted(source.opened) == list(image_set.paths[24:])
    assert content(folder) == content(pack(image_set, tmp_path / "clean", bad_images=bad_images).folder)


def test_a_source_that_is_away_from_the_start(images: ImageSet, tmp_path: Path) -> None:
    class Away(FolderSource):
        def fingerprint(self, path: str) -> str:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match=r"'000\.png' is not: .*Input/output error\. .* run it again"):
        pack(replace(images, source=Away(images.root)), tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_a_folder_that_goes_away(images: ImageSet, tmp_path: Path) -> None:
    """Files that are there at the start and not in the middle; the next run comes too early, the one after that goes on."""
    folder, away = tmp_path / "packed", tmp_path / "away"

    class Unmounted(CountingSource):
        def open(self, path: str) -> Image.Image:
            if path == "007.png":
                self.root.rename(away)
            return super().open(path)

    with pytest.raises(OSError, match=r"'007\.png' is not: missing\. .*it goes on from there"):
        pack(replace(images, source=Unmounted(images.root)), folder, workers=1)
    before = content(folder)
    with pytest.raises(ValueError, match=r"image files changed .*; 12 of the image files are missing now\."):
        pack(images, folder)
    assert content(folder) == before
    away.rename(images.root)
    assert content(pack(images, folder).folder) == content(pack(images, tmp_path / "clean").folder)


def test_permission_given_later_is_noticed(images: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "packed"
    denied, _ = counting(images, **{"002": PermissionError(errno.EACCES, "denied"), "007": OSError("bad")})
    assert pack(denied, folder).left_out == (("002.png", "no permission"), ("007.png", "broken: bad"))
    before = content(folder)
    assert len(pack(denied, folder, progress=True)) == 10
    assert "nothing to do" in capsys.readouterr().err
    given, source = counting(images, **{"007": OSError("bad")})
    with pytest.raises(ValueError, match=r"other sources .*: '002\.png' was left out and can be read now\. .*force=True"):
        pack(given, folder)
    assert source.opened.count("007.png") == 0  # what is wrong with it is in the file, which has not changed
    assert content(folder) == before
    assert pack(given, folder, force=True).left_out == (("007.png", "broken: bad"),)


def test_permission_given_during_an_interruption(images: ImageSet, tmp_path: Path) -> None:
    stopped, _ = counting(images, **{"002": PermissionError(errno.EACCES, "no"), "007": OSError(errno.EIO, "failed")})
    with pytest.raises(OSError, match="it goes on from there"):
        pack(stopped, tmp_path / "packed")
    counted, source = counting(images)
    assert pack(counted, tmp_path / "packed").left_out == ()
    assert set(source.opened) == set(images.paths[2:])
    assert content(tmp_path / "packed") == content(pack(images, tmp_path / "clean").folder)


@pytest.mark.parametrize("bad_images", ["list", "tolerate"])
def test_an_interrupt_between_the_list_and_the_count(
    images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad_images: str
) -> None:
    for path in ("003.png", "005.png"):
        (images.root / path).write_bytes((images.root / path).read_bytes()[:2000])
    clean = content(pack(images, tmp_path / "clean", bad_images=bad_images).folder)
    with monkeypatch.context() as patch:

        class Interrupted(list[Any]):
            def append(self, item: Any) -> None:
                super().append(item)
                if len(self) == 2:
                    raise KeyboardInterrupt

        begin = preparing._begin

        def begin_so(*arguments: Any) -> Any:
            state = begin(*arguments)
            state.left_out, state.truncated = Interrupted(), Interrupted()
            return state

        patch.setattr(preparing, "_begin", begin_so)
        with pytest.raises(KeyboardInterrupt):
            pack(images, tmp_path / "packed", bad_images=bad_images)
    file = tmp_path / "packed" / PROGRESS
    record = json.loads(file.read_text())
    assert record["processed"] == 5
    assert len(record["left_out"] + record["truncated"]) == 1
    record["left_out" if bad_images == "list" else "truncated"].append([5, "truncated"] if bad_images == "list" else 5)
    file.write_text(json.dumps(record))  # as such an interrupt left it before
    pack(images, tmp_path / "packed", bad_images=bad_images)
    assert content(tmp_path / "packed") == clean


def test_interrupted_goes_on(images: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean = content(pack(images, tmp_path / "clean").folder)
    stopped, _ = counting(images, **{"007": KeyboardInterrupt()})  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        pack(stopped, tmp_path / "packed")
    with pytest.raises(ValueError, match=r"packed must be finished to be read, its prepare was interrupted\. Run that again"):
        PackedImages(tmp_path / "packed")
    counted, source = counting(images)
    pack(counted, tmp_path / "packed", progress=True)
    assert sorted(source.opened) == [f"{i:03}.png" for i in range(7, 12)]
    assert content(tmp_path / "packed") == clean
    assert "going on after 7 of 12 images" in capsys.readouterr().err


def test_kill(tmp_path: Path) -> None:
    """A process that is killed while it decodes; what it had flushed is not decoded again, and the bytes are the same."""
    image_set = make_set(tmp_path / "images", 60)
    folder, script = tmp_path / "packed", tmp_path / "script.py"
    script.write_text(f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from liftedstruct.data import prepare, preparing
import test_packed
class Slow(test_packed.CountingSource):
    def open(self, path):
        time.sleep(0.02)
        return super().open(path)
preparing.FLUSH_SECONDS = 0
image_set = test_packed.listed(Path({str(image_set.root)!r}), {image_set.paths!r})
image_set = test_packed.replace(image_set, source=Slow(image_set.root))
prepare(image_set, {str(folder)!r}, size=16, workers=1, progress=False)
""")
    process = subprocess.Popen([sys.executable, script])
    done, deadline = 0, time.monotonic() + 60
    while done < 10 and time.monotonic() < deadline:
        time.sleep(0.005)
        done = json.loads((folder / PROGRESS).read_text())["processed"] if (folder / PROGRESS).exists() else 0
    with pytest.raises(ValueError, match=rf"one prepare at a time, it is in use by process {process.pid}"):
        pack(image_set, folder)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = json.loads((folder / PROGRESS).read_text())["processed"]
    assert 10 <= done < 60
    with pytest.raises(ValueError, match="must be finished"):
        PackedImages(folder)
    counted, source = counting(image_set)
    pack(counted, folder)
    assert sorted(source.opened) == [f"{i:03}.png" for i in range(done, 60)]
    pack(image_set, tmp_path / "clean")
    assert content(folder) == content(tmp_path / "clean")


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("anew", [False, True])
def test_death_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: bool) -> None:
    """Whatever is the last thing that reaches the disk, no half of a set reads as whole, and prepare goes on from there."""
    image_set = make_set(tmp_path / "images", 5)
    (image_set.root / "001.png").write_bytes(b"")
    clean = pack(image_set, tmp_path / "clean")
    old = make_set(tmp_path / "old", 7)
    monkeypatch.setattr(preparing, "FLUSH_SECONDS", 0)
    deaths = 0
    for life in itertools.count():
        folder, left = tmp_path / "packed", [life]
        shutil.rmtree(folder, ignore_errors=True)
        if anew:
            pack(old, folder)

        def mortal(call: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
            def step(*arguments: Any, **options: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return call(*arguments, **options)

            return step

        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "unlink", "write", "ftruncate"):
                patch.setattr(os, name, mortal(getattr(os, name)))
            try:
                pack(image_set, folder, force=anew, workers=1)
                survived = True
            except Killed:
                survived, deaths = False, deaths + 1
        if (folder / META).exists():  # then it is whole: the new one, or still the old one
            found = PackedImages(folder)
            assert found.checksum == clean.checksum or (anew and len(found) == 7)
            assert len(found) == 7 or (found.images == clean.images).all()
        else:
            with pytest.raises(ValueError, match=r"must be finished|made by prepare"):
                PackedImages(folder)
        begun = (folder / PART).exists() and json.loads((folder / PROGRESS).read_text())["processed"] > 0
        if (folder / META).exists() and len(PackedImages(folder)) == 7 and not begun:
            with pytest.raises(ValueError, match="holds a set of other sources"):
                pack(image_set, folder)
            pack(image_set, folder, force=True)
        else:
            pack(image_set, folder)  # goes on, also where the old set is still there
        after = {
            name: data
            for name, data in content(folder).items()
            if name not in (PROGRESS, LOCK, CONTENTS_PART) and not is_temporary(name)
        }
        assert after == content(clean.folder)  # those two stay after a death between the last steps, and mean nothing
        if survived:
            break
    assert deaths > 20


def test_full_disk(images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10**9))
    with pytest.raises(OSError, match=r"packed must have 5\.53 GB free, it has 1\.00 GB\. Make room, or choose a smaller size"):
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
    with pytest.raises(OSError, match="it goes on from there"):
        pack(stopped, folder, size=8, force=True)
    assert PackedImages(folder).size == 16  # still the old one
    assert {name: data for name, data in content(folder).items() if name not in (PART, CONTENTS_PART, PROGRESS)} == before
    assert len(pack(images, folder)) == 12  # of which nothing is to be done
    with pytest.raises(ValueError, match="holds a set of other sources or settings: size is 16, not 9"):
        pack(images, folder, size=9)
    counted, source = counting(other)
    assert pack(counted, folder, size=8).size == 8  # goes on, without force
    assert sorted(source.opened) == list(other.paths[7:])
    assert content(folder) == content(pack(other, tmp_path / "clean", size=8).folder)
    bad = make_set(tmp_path / "bad")
    for path in bad.paths[3:]:
        (bad.root / path).write_bytes(b"")
    with pytest.raises(ValueError, match="at least half of the images must be readable, 9 of 12 are not"):
        pack(bad, folder, force=True)
    assert sorted(content(folder)) == ["contents.npy", "images.npy", "labels.npy", LEFT_OUT, "meta.json", "paths.json"]
    assert len(pack(other, folder, size=8)) == 12


def test_force_of_the_same_goes_on(images: ImageSet, tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    before = content(pack(images, folder).folder)
    stopped, _ = counting(images, **{"007": KeyboardInterrupt()})  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        pack(stopped, folder, force=True)
    counted, source = counting(images)
    pack(counted, folder)
    assert sorted(source.opened) == list(images.paths[7:])
    assert content(folder) == before


def test_the_old_set_goes_first_where_both_have_no_room(
    images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "packed"
    pack(images, folder, size=300)
    usage, seen = shutil.disk_usage(tmp_path), []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2_000_000))

    def look(*_: Any) -> None:
        seen.append((folder / IMAGES).exists())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_decode_rest", look)
        with pytest.raises(KeyboardInterrupt):
            pack(images, folder, size=301, force=True)
    assert seen == [False]
    with pytest.raises(OSError, match="must have"):
        pack(images, folder, size=600)
    monkeypatch.undo()
    assert len(pack(images, folder, size=301)) == 12


def test_disk_fills_up(images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, room = os.write, [5000]

    def write_a_little(fd: int, data: memoryview) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(fd, data[: min(room[0], 500)])  # a disk that fills up takes a part of a row
        room[0] -= written
        return written

    monkeypatch.setattr(preparing, "FLUSH_SECONDS", 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_a_little)
        with pytest.raises(OSError, match=r"the disk of .*packed is full\. Make room and run it again, it goes on"):
            pack(images, tmp_path / "packed")
    with pytest.raises(ValueError, match="must be finished"):
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
            with pytest.raises(ValueError, match=rf"must be empty or of an earlier prepare, it holds '{name}' \(1 in all\)"):
                pack(images, folder, force=force)
        assert content(folder) == {name: b"{}"}
        (folder / name).unlink()
    with pytest.raises(ValueError, match=r"there is a file of that name"):
        pack(images, images.root / images.paths[0])
    with pytest.raises(ValueError, match=r"absent must be a folder made by prepare, it has no meta.json of one"):
        PackedImages(tmp_path / "absent")


@pytest.mark.parametrize("name", ["images.npy", "labels.npy"])
def test_damage_is_noticed(packed: PackedImages, images: ImageSet, name: str) -> None:
    file = packed.folder / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"{name} must be as prepare left it, got: .*--force"):
        PackedImages(packed.folder)
    with pytest.raises(ValueError, match=rf"{name} must be as prepare left it, got: .*--force"):
        pack(images, packed.folder, size=32)
    file.unlink()
    with pytest.raises(ValueError, match=rf"{name} must be as prepare left it"):
        PackedImages(packed.folder)
    assert len(pack(images, packed.folder, size=32, force=True)) == 12


def test_other_versions(packed: PackedImages, images: ImageSet) -> None:
    file = packed.folder / META
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 99}))
    with pytest.raises(ValueError, match=r"must be of version 2, got 99\. Make it anew"):
        PackedImages(packed.folder)
    with pytest.raises(ValueError, match=r"its version is 99, not 2"):
        pack(images, packed.folder, size=32)


def test_stale_lock_is_no_lock(images: ImageSet, tmp_path: Path) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "prepare.lock").write_text("1\n")  # of a process that was killed, its number now another's
    assert len(pack(images, tmp_path / "packed")) == 12


def test_progress_in_lines(images: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack(images, tmp_path / "packed", progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("prepare: 12 of 12 images, ")


def test_progress_as_a_bar(
    images: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    pack(images, tmp_path / "packed", progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "12/12" in captured.err
    assert "/s," in captured.err


def test_crops_are_slices(packed: PackedImages) -> None:
    order = np.array([7, 0, 7, 3, 11])
    found = packed.random_crops(order, 20, rng=np.random.default_rng(5))
    rng = np.random.default_rng(5)
    corners, flips = rng.integers(0, 13, (5, 2)), rng.integers(0, 2, 5)
    assert set(flips.tolist()) == {0, 1}
    for row, (i, (y, x), flip) in enumerate(zip(order, corners, flips, strict=True)):
        piece = np.load(packed.folder / IMAGES)[i, y : y + 20, x : x + 20]
        assert (found[row] == (piece[:, ::-1] if flip else piece)).all()
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    middle = packed.centre_crops(order, 21)  # 32 - 21 = 11: five above and left, six below and right
    assert (middle == packed.images[order][:, 5:26, 5:26]).all()
    assert (packed.centre_crops(order, 32) == packed.images[order]).all()


@pytest.mark.parametrize("least_area", [0.0, 0.4])
def test_layouts_and_types_hold_the_same(packed: PackedImages, least_area: float) -> None:
    plain = packed.random_crops([1, 2, 3, 4], 30, rng=np.random.default_rng(1), least_area=least_area)
    for dtype, layout in itertools.product((np.uint8, np.float32), ("nhwc", "nchw")):
        out: NDArray[Any] = np.empty((4, 30, 30, 3) if layout == "nhwc" else (4, 3, 30, 30), dtype)
        how: dict[str, Any] = {"dtype": dtype, "layout": layout, "out": out}
        found = packed.random_crops([1, 2, 3, 4], 30, rng=np.random.default_rng(1), least_area=least_area, **how)
        assert found is out
        assert (found.transpose(0, 2, 3, 1) if layout == "nchw" else found).astype(int).tolist() == plain.tolist()
        assert found.dtype == dtype


def test_mirror_and_the_stream_of_the_generator(packed: PackedImages) -> None:
    a, b, c = (np.random.default_rng(3) for _ in range(3))
    straight = packed.random_crops(range(12), 20, rng=a, mirror=False)
    mirrored = packed.random_crops(range(12), 20, rng=b)
    same = (straight == mirrored).all(axis=(1, 2, 3))
    flipped = (straight == mirrored[:, :, ::-1]).all(axis=(1, 2, 3))
    assert (same ^ flipped).all()
    assert same.any()
    assert flipped.any()
    c.integers(0, 13, (12, 2))
    assert a.bit_generator.state == c.bit_generator.state
    c.integers(0, 2, 12)
    assert b.bit_generator.state == c.bit_generator.state


def test_every_place_comes_and_both_ways(tmp_path: Path) -> None:
    image_set = listed(tmp_path, ("place.png",))
    place = np.zeros((32, 32, 3), np.uint8)
    place[..., 0], place[..., 1] = np.arange(32)[:, None], np.arange(32)  # each pixel says where it is
    Image.fromarray(place).save(tmp_path / "place.png")
    packed = pack(image_set, tmp_path / "packed", size=32)
    for mirror in (False, True):
        crops = packed.random_crops([0] * 6000, 20, rng=np.random.default_rng(0), mirror=mirror).astype(int)
        y, left, right = crops[:, 0, 0, 0], crops[:, 0, 0, 1], crops[:, 0, -1, 1]
        assert (np.abs(right - left) == 19).all()
        counts = Counter(zip(y.tolist(), np.minimum(left, right).tolist(), (left > right).tolist(), strict=True))
        assert set(counts) == set(itertools.product(range(13), range(13), (False, True) if mirror else (False,)))
        assert max(counts.values()) < 3 * 6000 / len(counts)  # about as often each


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> PackedImages:
    """Two images of 32 x 32: one whose pixels say where they are, and noise."""
    root = tmp_path_factory.mktemp("place")
    place = np.zeros((32, 32, 3), np.uint8)
    place[..., 0], place[..., 1] = 8 * np.arange(32)[:, None], 8 * np.arange(32)
    Image.fromarray(place).save(root / "place.png")
    noise(0, 32, 32).save(root / "noise.png")
    return pack(listed(root, ("place.png", "noise.png")), root / "packed", size=32)


def boxes(crops: Bytes) -> NDArray[np.int64]:
    """Where crops of the image of places are from: upper, left, height, width, and whether they are flipped."""
    side, spans = crops.shape[1], {}
    for start, end in itertools.combinations(range(33), 2):
        line = Image.fromarray(8 * np.arange(start, end, dtype=np.uint8)[None])
        spans[np.asarray(line.resize((side, 1), Image.Resampling.BILINEAR)).tobytes()] = (start, end - start)
    assert len(spans) == 32 * 33 // 2  # no two look alike
    found = []
    for crop in crops:
        down, across = crop[:, 0, 0], crop[0, :, 1]
        flipped = across[0] > across[-1]
        (y, height), (x, width) = spans[down.tobytes()], spans[(across[::-1] if flipped else across).tobytes()]
        found.append((y, x, height, width, flipped))
    return np.array(found, dtype=np.int64)


@pytest.mark.parametrize("least_area", [0.1, 0.5, 0.9])
def test_scaled_crops_show_so_much_of_an_image(place: PackedImages, least_area: float) -> None:
    crops = place.random_crops([0] * 1000, 20, rng=np.random.default_rng(0), least_area=least_area)
    y, x, height, width, flipped = boxes(crops).T
    assert ((height + 0.5) * (width + 0.5) >= least_area * 32 * 32).all()  # sides are whole pixels
    share = height * width / 32**2
    assert share.min() < least_area + 0.05
    assert share.max() > 0.95
    assert (np.maximum((height - 0.5) / (width + 0.5), (width - 0.5) / (height + 0.5)) <= 4 / 3).all()
    assert (height > width).mean() > 0.1
    assert (width > height).mean() > 0.1
    assert 0.4 < flipped.mean() < 0.6
    for start, side in ((y, height), (x, width)):
        assert (start == 0).any()
        assert (start + side == 32).any()
        assert abs((start - (32 - side) / 2).mean()) < 0.8  # no corner is preferred


def test_scaled_crops_are_those_of_pillow(place: PackedImages) -> None:
    where = boxes(place.random_crops([0] * 40, 20, rng=np.random.default_rng(1), least_area=0.2))
    found = place.random_crops([1] * 40, 20, rng=np.random.default_rng(1), least_area=0.2)
    assert (where[:, 2:4].min(axis=1) < 20).any()  # enlarged
    assert (where[:, 2:4].max(axis=1) > 20).any()  # and made smaller
    for crop, (y, x, height, width, flipped) in zip(found, where, strict=True):
        piece = Image.fromarray(place.images[1, y : y + height, x : x + width])
        expected = np.asarray(piece.resize((20, 20), Image.Resampling.BILINEAR))
        assert (crop == (expected[:, ::-1] if flipped else expected)).all()
    straight = place.random_crops([1] * 40, 20, rng=np.random.default_rng(1), least_area=0.2, mirror=False)
    assert all((a == (b[:, ::-1] if each[4] else b)).all() for a, b, each in zip(found, straight, where, strict=True))


def test_all_of_an_image(place: PackedImages) -> None:
    for row in (0, 1):
        found = place.random_crops([row] * 20, 32, rng=np.random.default_rng(2), least_area=1.0, mirror=False)
        assert (found == place.images[row]).all()


def test_bad_requests(packed: PackedImages) -> None:
    rng = np.random.default_rng(0)
    for share in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match=rf"least_area must be 0 to 1, got {share}\. 0 cuts crops without scaling them"):
            packed.random_crops([0], 8, rng=rng, least_area=share)
    with pytest.raises(ValueError, match=r"crop must be at most the size of the images, 32, got 33\. Prepare them larger"):
        packed.centre_crops([0], 33)
    with pytest.raises(ValueError, match=r"crop must be a whole number >= 1, got 0"):
        packed.random_crops([0], 0, rng=rng)
    for wrong in ([-1], [12], [0, 99]):
        with pytest.raises(ValueError, match=r"indices must be 0 to 11"):
            packed.centre_crops(wrong, 8)
    with pytest.raises(ValueError, match=r"indices must be a list of integers, got float64"):
        packed.centre_crops(np.array([0.5]), 8)
    with pytest.raises(ValueError, match=r"layout must be one of nchw, nhwc, got 'hwc'"):
        packed.centre_crops([0], 8, layout="hwc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"dtype must be uint8 or float32, got float64"):
        packed.centre_crops([0], 8, dtype=np.float64)
    with pytest.raises(ValueError, match=r"out must be contiguous, uint8 \(1, 8, 8, 3\), got uint8 \(1, 9, 8, 3\)"):
        packed.centre_crops([0], 8, out=np.empty((1, 9, 8, 3), np.uint8))
    assert packed.centre_crops([], 8).shape == (0, 8, 8, 3)


def test_pickled_by_name(packed: PackedImages) -> None:
    data = pickle.dumps(packed)
    assert len(data) < 1000
    again = pickle.loads(data)
    assert again.checksum == packed.checksum
    assert (again.images == packed.images).all()


def test_opening_is_read_only_and_does_not_load(packed: PackedImages) -> None:
    with pytest.raises(ValueError, match="read-only"):
        packed.images[0] = 0
    assert packed.images.base is not None  # the map


def fuzzed(root: Path, count: int) -> dict[str, str]:
    """Files of every kind of harm, and what was done to each."""
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


@pytest.mark.parametrize("bad_images", ["list", "tolerate"])
def test_a_thousand_fuzzed_files(tmp_path: Path, bad_images: str) -> None:
    root = tmp_path / "images"
    root.mkdir()
    harms = fuzzed(root, 1000)
    good = encoded(noise(1, 48, 64), "JPEG")
    for i in range(1001):  # at least half must be readable
        (root / f"good {i}.jpg").write_bytes(good)
    paths = (*harms, *(f"good {i}.jpg" for i in range(1001)))
    image_set, source = counting(listed(root, paths))
    denied = {name: PermissionError(errno.EACCES, "denied", name) for name, harm in harms.items() if harm == "permission"}
    source.errors.update(denied)  # root, who may run this, can read anything
    packed = pack(image_set, tmp_path / "packed", bad_images=bad_images)
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
    assert len(truncated) > 100 if bad_images == "list" else len(packed.truncated) > 50


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


@pytest.mark.skipif(not CUB.is_file(), reason="LIFTEDSTRUCT_DATA names no folder with CUB_200_2011.tar")
def test_all_of_cub(tmp_path: Path) -> None:
    packed = pack(read_images(CUB), tmp_path / "packed", size=32)
    assert (len(packed.train), len(packed.test), len(packed.validation)) == (5864, 5924, 0)
    assert len(packed) == 11788
    assert packed.left_out + packed.truncated == ()
    assert len(set(packed.labels[packed.train].tolist())) == len(set(packed.labels[packed.test].tolist())) == 100
    assert packed.images[::1000].std(axis=(1, 2, 3)).min() > 5  # pictures, not blanks


def test_contents_are_hashes_of_the_files(tmp_path: Path) -> None:
    image_set = make_set(tmp_path / "images", 6)
    shutil.copy(image_set.root / "000.png", image_set.root / "003.png")
    packed, small = pack(image_set, tmp_path / "packed"), pack(image_set, tmp_path / "small", size=8)
    assert packed.contents.dtype == np.uint64
    assert packed.contents.tolist() == small.contents.tolist()  # whatever was made of them
    digests = [hashlib.blake2b((image_set.root / path).read_bytes(), digest_size=8).digest() for path in image_set.paths]
    assert packed.contents.tolist() == [int.from_bytes(digest, "little") for digest in digests]
    assert packed.contents[0] == packed.contents[3]
    assert len(set(packed.contents.tolist())) == 5


def test_a_set_that_is_open_while_it_is_replaced(tmp_path: Path) -> None:
    """What was opened stays as it was, or says that it cannot."""
    packed = pack(make_set(tmp_path / "images", 6), tmp_path / "packed")
    early = PackedImages(packed.folder)
    pixels, sent, _ = packed.images.copy(), pickle.dumps(packed), early.paths
    pack(make_set(tmp_path / "others", 9), tmp_path / "packed", force=True)
    assert (packed.images == pixels).all()
    assert len(early.paths) == 6
    for use in (lambda: packed.paths, lambda: pickle.loads(sent)):
        with pytest.raises(ValueError, match=r"must be as it was when it was opened, it was \S+ and is"):
            use()


def test_an_image_that_can_be_read_again_shifts_the_rows(tmp_path: Path) -> None:
    """The checksum is of names, sizes and times: it does not see which of the files could be read."""
    image_set = make_set(tmp_path / "images", 6)
    counted, _ = counting(image_set, **{"001": PermissionError(errno.EACCES, "Permission denied")})
    packed = pack(counted, tmp_path / "packed")
    sent = pickle.dumps(packed)
    assert len(packed) == 5
    again = pack(image_set, tmp_path / "packed", force=True)
    assert (len(again), again.checksum) == (6, packed.checksum)
    for use in (lambda: packed.paths, lambda: pickle.loads(sent)):
        with pytest.raises(ValueError, match="must be as it was when it was opened"):
            use()


@pytest.mark.parametrize("content", [None, "[]", "{", "5"])
def test_paths_that_are_damaged(tmp_path: Path, content: str | None) -> None:
    packed = pack(make_set(tmp_path / "images", 6), tmp_path / "packed")
    (packed.folder / "paths.json").unlink()
    if content is not None:
        (packed.folder / "paths.json").write_text(content)
    with pytest.raises(
        ValueError, match=r"paths\.json must (be as prepare left it|name 6 images), got.*Prepare it again, --force"
    ):
        _ = packed.paths


def test_products_are_the_same_at_any_size(tmp_path: Path) -> None:
    one, two = (prepare(product_images(4, 2, size), tmp_path / str(size), size=16, progress=False) for size in (16, 24))
    assert one.contents.tolist() == two.contents.tolist()

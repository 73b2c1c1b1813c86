import csv
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from liftedstruct.data import FolderSource, ImageSet, MemorySource
from liftedstruct.data.checkup import CheckUp, check_dataset, write_fixed_list

RNG = np.random.default_rng(0)


def photo(seed: int, width: int = 120, height: int = 90) -> Image.Image:
    """Return a smooth image, like a photograph, different for each seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


class Folder:
    """Dataset that a test fills: four classes, c and d are test classes."""

    def __init__(self, root: Path) -> None:
        self.root, self.paths = root, list[str]()

    def add(self, path: str, image: Image.Image | bytes, **options: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(image, bytes):
            file.write_bytes(image)
        else:
            image.save(file, **options)  # type: ignore[arg-type]
        self.paths.append(path)

    def image_set(self, warnings: tuple[str, ...] = ()) -> ImageSet:
        names = sorted({path.split("/")[0] for path in self.paths})
        labels = np.array([names.index(path.split("/")[0]) for path in self.paths], dtype=np.int64)
        test = np.array([k for k, name in enumerate(names) if name in "cd"], dtype=np.int64)
        source = FolderSource(self.root)
        return ImageSet("folder", self.root, source, tuple(self.paths), labels, tuple(names), test, warnings=warnings)

    def check(self, **options: int) -> CheckUp:
        return check_dataset(self.image_set(), progress=False, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    healthy = Folder(tmp_path / "photos")
    for number, name in enumerate("aabbccdd"):
        healthy.add(f"{name}/{number}.png", photo(number))
    return healthy


def kinds(check_up: CheckUp) -> dict[str, str]:
    return {finding.kind: finding.severity for finding in check_up.findings}


def offenders(folder: Folder, check_up: CheckUp) -> list[str]:
    return [folder.paths[i] for i in check_up.offenders]


def test_a_healthy_set_has_nothing_serious(folder: Folder) -> None:
    check_up = folder.check()
    assert kinds(check_up) == {"class sizes": "note"}
    assert not check_up.serious
    assert check_up.offenders == ()
    assert "8 images of 4 classes" in str(check_up)
    assert str(check_up).endswith("No serious issues.")


def test_unreadable_truncated_tiny_and_flat(folder: Folder) -> None:
    folder.add("a/empty.jpg", b"")
    folder.add("a/text.jpg", b"not a picture at all")
    folder.add("b/cut.jpg", photo(51))
    whole = (folder.root / "b/cut.jpg").read_bytes()
    (folder.root / "b/cut.jpg").write_bytes(whole[: len(whole) // 2])
    folder.add("c/dot.png", photo(52, 8, 8))
    folder.add("d/blank.png", Image.new("RGB", (64, 64), "white"))
    check_up = folder.check()
    found = kinds(check_up)
    assert found["unreadable"] == found["truncated"] == found["single color"] == "serious"
    assert found["tiny"] == "note"
    assert offenders(folder, check_up) == ["a/empty.jpg", "a/text.jpg", "b/cut.jpg", "c/dot.png", "d/blank.png"]
    assert "1 image (empty file): a/empty.jpg" in str(check_up)
    assert check_up.serious


@pytest.mark.parametrize(
    ("path", "kind", "severity", "left_out"),
    [
        ("a/copy.png", "exact duplicates within a class", "note", ["a/copy.png"]),
        ("b/copy.png", "exact duplicates across classes", "serious", ["a/0.png", "b/copy.png"]),
        ("c/copy.png", "exact duplicates across the split", "serious", ["a/0.png", "c/copy.png"]),
    ],
)
def test_exact_duplicates(folder: Folder, path: str, kind: str, severity: str, left_out: list[str]) -> None:
    folder.add(path, photo(0))
    check_up = folder.check()
    assert kinds(check_up)[kind] == severity
    assert offenders(folder, check_up) == left_out
    assert not any(name.startswith("near") for name in kinds(check_up))


@pytest.mark.parametrize(
    ("path", "kind"),
    [("a/near", "within a class"), ("b/near", "across classes"), ("d/near", "across the split")],
)
@pytest.mark.parametrize("change", ["re-encoded", "smaller", "brighter", "cut at the edge"])
def test_near_duplicates(folder: Folder, path: str, kind: str, change: str) -> None:
    image = photo(1)
    if change == "re-encoded":
        folder.add(path + ".jpg", image, quality=40)
    elif change == "smaller":
        folder.add(path + ".png", image.resize((70, 50)))
    elif change == "brighter":
        folder.add(path + ".png", image.point(lambda v: min(255, v + 4)))
    else:
        folder.add(path + ".png", image.crop((1, 1, 119, 89)))
    check_up = folder.check()
    assert f"near duplicates {kind}" in kinds(check_up)
    assert "a/1.png and " in str(check_up)


def test_different_images_are_not_duplicates(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for number in range(200):
        folder.add(f"{'abcd'[number % 4]}/{number}.png", photo(number))
    assert kinds(folder.check(near=16)) == {"class sizes": "note"}


def test_products_on_white_are_not_duplicates(tmp_path: Path) -> None:
    """The same shape in different colors has the same perceptual hash; the thumbnails differ."""
    folder = Folder(tmp_path)
    for number, color in enumerate(["red", "blue", "black", "green"]):
        image = Image.new("RGB", (100, 100), "white")
        image.paste(color, (30, 20, 70, 80))
        folder.add(f"{'abcd'[number]}/{number}.png", image)
    assert not folder.check(near=16).serious


def test_two_small_birds_in_one_sky_are_not_duplicates(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for name, box in (("a", (40, 44, 60, 50)), ("c", (46, 40, 52, 60))):
        image = Image.new("RGB", (100, 100), (130, 140, 150))
        image.paste((160, 160, 160), box)
        folder.add(f"{name}/1.png", image)
    assert not folder.check(near=16).serious


def test_classes(folder: Folder) -> None:
    folder.add("e/only.png", photo(60))
    for number in range(110):
        folder.add(f"a/more{number}.png", photo(100 + number))
    check_up = folder.check()
    text = str(check_up)
    assert "1 with one image and no positive pair: e" in text
    assert "1 to 112 images per class, median 2" in text


def test_class_names_across_the_split(folder: Folder, tmp_path: Path) -> None:
    for number, name in enumerate(["A", "C", " c"]):
        folder.add(f"{name}/1.png", photo(60 + number))
    check_up = folder.check()  # A and a are both training classes
    finding = check_up.findings[0]
    assert (finding.kind, finding.severity) == ("class names across the split", "serious")
    assert finding.message == (
        "1 group of names that differ only in case, whitespace or Unicode normalization, such as "
        "' c' (train), 'C' (train), 'c' (test); merge or rename them"
    )
    assert [folder.paths[i] for i in finding.images] == ["c/4.png", "c/5.png", "C/1.png", " c/1.png"]
    assert offenders(folder, check_up) == ["C/1.png", " c/1.png"]  # the test classes are kept
    left = write_fixed_list(folder.image_set(), check_up, tmp_path / "fixed.csv")
    assert not check_dataset(left, progress=False).serious


def test_warnings_of_the_reader_are_passed_on(folder: Folder) -> None:
    check_up = check_dataset(folder.image_set(("3 of 11,788 images are missing",)), progress=False)
    assert "3 of 11,788 images are missing" in str(check_up)


def test_a_fixed_list_leaves_out_the_offenders_and_touches_no_image(folder: Folder, tmp_path: Path) -> None:
    folder.add("c/copy, of a.png", photo(0))
    folder.add("b/broken\n.jpg", b"x")
    before = {path: path.read_bytes() for path in folder.root.rglob("*") if path.is_file()}
    image_set = folder.image_set()
    check_up = check_dataset(image_set, progress=False)
    file = tmp_path / "lists" / "fixed.csv"
    left = write_fixed_list(image_set, check_up, file)
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["label"] for row in rows] == list("abbccdd")
    assert [row["split"] for row in rows] == ["train"] * 3 + ["test"] * 4
    assert all((file.parent / row["path"]).resolve().exists() for row in rows)
    assert len(left) == len(rows) == 7
    assert {path: path.read_bytes() for path in folder.root.rglob("*") if path.is_file()} == before
    assert [path.name for path in file.parent.iterdir()] == ["fixed.csv"]


def test_an_archive_has_no_fixed_list(folder: Folder) -> None:
    image_set = folder.image_set()
    source = MemorySource(np.zeros((1, 2, 2, 3), np.uint8))
    packed = ImageSet("x", Path("x.tar"), source, image_set.paths, image_set.labels, image_set.class_names, np.arange(1))
    with pytest.raises(ValueError, match=r"images that are files in a folder, got x\.tar\. Write them to a folder"):
        write_fixed_list(packed, folder.check(), Path("list.csv"))


def test_json(folder: Folder) -> None:
    folder.add("c/copy.png", photo(0))
    check_up = folder.check()
    read = json.loads(check_up.to_json(folder.image_set()))
    assert read["serious"] is True
    assert read["n_images"] == 9
    assert read["findings"][0]["kind"] == "exact duplicates across the split"
    assert read["findings"][0]["offenders"] == ["a/0.png", "c/copy.png"]


def test_a_good_copy_of_a_bad_image_stays(folder: Folder) -> None:
    folder.add("b/1 cut.bmp", photo(70))
    whole = (folder.root / "b/1 cut.bmp").read_bytes()
    (folder.root / "b/1 cut.bmp").write_bytes(whole[:-200])
    folder.add("b/2 good.bmp", photo(70))
    check_up = folder.check()
    assert offenders(folder, check_up) == ["b/1 cut.bmp"]


def test_many_copies_of_one_placeholder(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for number in range(1500):
        image = photo(0, 48, 36)
        image.putpixel((number % 48, number // 48), (1, 2, 3))  # all are different
        folder.add(f"a/{number}.png", image)
    folder.add("b/1.png", photo(1))
    check_up = folder.check()
    assert len(check_up.offenders) == 1499


def test_names_are_data(folder: Folder) -> None:
    folder.add("a/\x1b[31mred\n.jpg", b"")
    text = str(folder.check())
    assert "\x1b" not in text
    assert "a/\\x1b[31mred\\n.jpg" in text


def test_bad_input(folder: Folder) -> None:
    with pytest.raises(ValueError, match="near must be at most 16 of the 64 bits, got 17"):
        folder.check(near=17)


def test_a_thousand_broken_files(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    rng = np.random.default_rng(1)
    formats = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "gif": "GIF", "tif": "TIFF", "bmp": "BMP"}
    whole = {}
    for suffix, name in formats.items():
        photo(0, 40, 30).save(tmp_path / f"whole.{suffix}", name)
        whole[suffix] = (tmp_path / f"whole.{suffix}").read_bytes()
    for number in range(1000):
        suffix = list(formats)[number % len(formats)]
        data = bytearray(whole[suffix])
        if number % 4 == 0:
            data = data[: rng.integers(len(data))]
        elif number % 4 == 1:
            for at in rng.integers(len(data), size=rng.integers(1, 20)):
                data[at] ^= 1 << int(rng.integers(8))
        elif number % 4 == 2:
            data = bytearray(rng.bytes(int(rng.integers(200))))
        else:
            suffix = "jpg"
        folder.add(f"{'abcd'[number % 4]}/{number} ü.{suffix}", bytes(data))
    folder.add("a/bomb.png", bomb())
    (tmp_path / "b" / "folder.jpg").mkdir()
    folder.paths.append("b/folder.jpg")
    folder.paths.append("c/gone\n.jpg")
    check_up = folder.check()
    bad = {i for finding in check_up.findings if finding.kind in ("unreadable", "truncated") for i in finding.images}
    readable = {i for i, path in enumerate(folder.paths) if opens(tmp_path / path)}
    assert check_up.n_images == 1003
    assert bad | readable == set(range(1003))
    assert set(range(2, 1000, 4)) <= bad  # noise
    assert {1000, 1001, 1002} <= bad
    assert not bad & set(range(3, 1000, 4))  # intact files with the wrong suffix
    text = str(check_up)
    for reason in ("too many pixels", "is a folder", "missing", "truncated", "not an image"):
        assert reason in text


def bomb() -> bytes:
    """Return a PNG with a header for 60,000 x 60,000 pixels and no data."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + b"\0\0\0\0IEND"


def opens(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            image.load()
        return True
    except Exception:
        return False

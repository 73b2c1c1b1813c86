import itertools
import json
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from data.sets import listed, make_set, noise, pack
from liftedstruct.data import ImageSet, PackedImages
from liftedstruct.data.packed import IMAGES, META

Bytes = NDArray[np.uint8]


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    return make_set(tmp_path / "images")


@pytest.fixture
def packed(images: ImageSet, tmp_path: Path) -> PackedImages:
    return pack(images, tmp_path / "packed", size=32)


@pytest.mark.parametrize("name", ["images.npy", "labels.npy"])
def test_damage_is_noticed(packed: PackedImages, images: ImageSet, name: str) -> None:
    file = packed.folder / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"{name} must be as written by prepare, got: .*--force"):
        PackedImages(packed.folder)
    with pytest.raises(ValueError, match=rf"{name} must be as written by prepare, got: .*--force"):
        pack(images, packed.folder, size=32)
    file.unlink()
    with pytest.raises(ValueError, match=rf"{name} must be as written by prepare"):
        PackedImages(packed.folder)
    assert len(pack(images, packed.folder, size=32, force=True)) == 12


def test_other_versions(packed: PackedImages, images: ImageSet) -> None:
    file = packed.folder / META
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 99}))
    with pytest.raises(ValueError, match=r"must be a prepared dataset of version 3, got version 99\. Run prepare again"):
        PackedImages(packed.folder)
    with pytest.raises(ValueError, match=r"version is 99, not 3"):
        pack(images, packed.folder, size=32)


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
    middle = packed.center_crops(order, 21)  # 32 - 21 = 11: five pixels above and left, six below and right
    assert (middle == packed.images[order][:, 5:26, 5:26]).all()
    assert (packed.center_crops(order, 32) == packed.images[order]).all()


def test_hflip_and_the_stream_of_the_generator(packed: PackedImages) -> None:
    a, b, c = (np.random.default_rng(3) for _ in range(3))
    straight = packed.random_crops(range(12), 20, rng=a, hflip=False)
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
    place[..., 0], place[..., 1] = np.arange(32)[:, None], np.arange(32)  # each pixel encodes its position
    Image.fromarray(place).save(tmp_path / "place.png")
    packed = pack(image_set, tmp_path / "packed", size=32)
    for hflip in (False, True):
        crops = packed.random_crops([0] * 6000, 20, rng=np.random.default_rng(0), hflip=hflip).astype(int)
        y, left, right = crops[:, 0, 0, 0], crops[:, 0, 0, 1], crops[:, 0, -1, 1]
        assert (np.abs(right - left) == 19).all()
        counts = Counter(zip(y.tolist(), np.minimum(left, right).tolist(), (left > right).tolist(), strict=True))
        assert set(counts) == set(itertools.product(range(13), range(13), (False, True) if hflip else (False,)))
        assert max(counts.values()) < 3 * 6000 / len(counts)  # roughly uniform


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> PackedImages:
    """Two images of 32 x 32: one whose pixels encode their positions, and noise."""
    root = tmp_path_factory.mktemp("place")
    place = np.zeros((32, 32, 3), np.uint8)
    place[..., 0], place[..., 1] = 8 * np.arange(32)[:, None], 8 * np.arange(32)
    Image.fromarray(place).save(root / "place.png")
    noise(0, 32, 32).save(root / "noise.png")
    return pack(listed(root, ("place.png", "noise.png")), root / "packed", size=32)


def boxes(crops: Bytes) -> NDArray[np.int64]:
    """Find the boxes of crops of the position image: top, left, height, width, and whether they are flipped."""
    side, spans = crops.shape[1], {}
    for start, end in itertools.combinations(range(33), 2):
        line = Image.fromarray(8 * np.arange(start, end, dtype=np.uint8)[None])
        spans[np.asarray(line.resize((side, 1), Image.Resampling.BILINEAR)).tobytes()] = (start, end - start)
    assert len(spans) == 32 * 33 // 2  # all are different
    found = []
    for crop in crops:
        down, across = crop[:, 0, 0], crop[0, :, 1]
        flipped = across[0] > across[-1]
        (y, height), (x, width) = spans[down.tobytes()], spans[(across[::-1] if flipped else across).tobytes()]
        found.append((y, x, height, width, flipped))
    return np.array(found, dtype=np.int64)


@pytest.mark.parametrize("min_scale", [0.1, 0.5, 0.9])
def test_area_and_aspect_ratio_of_scaled_crops(place: PackedImages, min_scale: float) -> None:
    crops = place.random_crops([0] * 1000, 20, rng=np.random.default_rng(0), min_scale=min_scale)
    y, x, height, width, flipped = boxes(crops).T
    assert ((height + 0.5) * (width + 0.5) >= min_scale * 32 * 32).all()  # sides are whole pixels
    share = height * width / 32**2
    assert share.min() < min_scale + 0.05
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
    where = boxes(place.random_crops([0] * 40, 20, rng=np.random.default_rng(1), min_scale=0.2))
    found = place.random_crops([1] * 40, 20, rng=np.random.default_rng(1), min_scale=0.2)
    assert (where[:, 2:4].min(axis=1) < 20).any()  # upscaled
    assert (where[:, 2:4].max(axis=1) > 20).any()  # and downscaled
    for crop, (y, x, height, width, flipped) in zip(found, where, strict=True):
        piece = Image.fromarray(place.images[1, y : y + height, x : x + width])
        expected = np.asarray(piece.resize((20, 20), Image.Resampling.BILINEAR))
        assert (crop == (expected[:, ::-1] if flipped else expected)).all()
    straight = place.random_crops([1] * 40, 20, rng=np.random.default_rng(1), min_scale=0.2, hflip=False)
    assert all((a == (b[:, ::-1] if each[4] else b)).all() for a, b, each in zip(found, straight, where, strict=True))


def test_all_of_an_image(place: PackedImages) -> None:
    for row in (0, 1):
        found = place.random_crops([row] * 20, 32, rng=np.random.default_rng(2), min_scale=1.0, hflip=False)
        assert (found == place.images[row]).all()


def test_bad_requests(packed: PackedImages) -> None:
    rng = np.random.default_rng(0)
    for share in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match=rf"min_scale must be between 0 and 1, got {share}\. Pass 0"):
            packed.random_crops([0], 8, rng=rng, min_scale=share)
    with pytest.raises(ValueError, match=r"crop must be at most the size of the images, 32, got 33\. Prepare them"):
        packed.center_crops([0], 33)
    with pytest.raises(ValueError, match=r"crop must be a whole number >= 1, got 0"):
        packed.random_crops([0], 0, rng=rng)
    for wrong in ([-1], [12], [0, 99]):
        with pytest.raises(ValueError, match=r"indices must be from 0 to 11"):
            packed.center_crops(wrong, 8)
    with pytest.raises(ValueError, match=r"indices must be a list of integers, got float64"):
        packed.center_crops(np.array([0.5]), 8)
    with pytest.raises(ValueError, match=r"out must be .* uint8 array of shape \(1, 8, 8, 3\), got uint8 \(1, 9, 8, 3\)"):
        packed.center_crops([0], 8, out=np.empty((1, 9, 8, 3), np.uint8))
    assert packed.center_crops([], 8).shape == (0, 8, 8, 3)


def test_pickled_by_name(packed: PackedImages) -> None:
    data = pickle.dumps(packed)
    assert len(data) < 1000
    again = pickle.loads(data)
    assert again.checksum == packed.checksum
    assert (again.images == packed.images).all()


def test_opening_is_read_only_and_does_not_load(packed: PackedImages) -> None:
    with pytest.raises(ValueError, match="read-only"):
        packed.images[0] = 0
    assert packed.images.base is not None  # the memory map


def test_a_set_that_is_open_while_it_is_replaced(tmp_path: Path) -> None:
    packed = pack(make_set(tmp_path / "images", 6), tmp_path / "packed")
    pixels = packed.images.copy()
    pack(make_set(tmp_path / "others", 9), tmp_path / "packed", force=True)
    assert (packed.images == pixels).all()
    assert len(packed.paths) == len(packed) == 6
    assert len(PackedImages(packed.folder)) == 9


@pytest.mark.parametrize("content", [None, "[]", "{", "5"])
def test_paths_that_are_damaged(tmp_path: Path, content: str | None) -> None:
    packed = pack(make_set(tmp_path / "images", 6), tmp_path / "packed")
    (packed.folder / "paths.json").unlink()
    if content is not None:
        (packed.folder / "paths.json").write_text(content)
    with pytest.raises(ValueError, match=r"paths\.json must be as written by prepare, got.*--force"):
        PackedImages(packed.folder)


def test_a_pickle_notices_that_the_dataset_was_replaced(tmp_path: Path) -> None:
    data = pickle.dumps(pack(make_set(tmp_path / "images", 6), tmp_path / "packed"))
    assert len(pickle.loads(data)) == 6
    pack(make_set(tmp_path / "others", 9), tmp_path / "packed", force=True)
    with pytest.raises(ValueError, match="prepare has replaced it"):
        pickle.loads(data)

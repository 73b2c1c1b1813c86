import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from liftedstruct.data import ArraySource, ImageSet, prepare
from liftedstruct.samplers import HardNegativeSampler
from liftedstruct.training import TrainConfig, inputs
from liftedstruct.training.inputs import (
    Ahead,
    Batch,
    difficult_neighbours,
    fitting_size,
    random_views,
    recoloured,
    split,
)
from training.sets import products


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 30), st.integers(1, 6), st.integers(1, 8), st.integers(0, 99))
def test_difficult_neighbours_by_loops(n: int, classes: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    y = rng.integers(classes, size=n)
    expected = np.full((n, count), -1)
    for i in range(n):
        others = sorted((float(((X[i] - X[j]).astype(np.float64) ** 2).sum()), j) for j in range(n) if y[j] != y[i])
        near = [j for _, j in others[:count]]
        expected[i, : len(near)] = near
    table = difficult_neighbours(X, y, count)
    assert table.tolist() == expected.tolist()


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_difficult_neighbours_of_small_and_large_classes(sizes: list[int], large: int, count: int, seed: int) -> None:
    """On points of a grid, where most distances are tied, with classes that are large from any size on."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    X = rng.integers(3, size=(len(y), 2)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "LARGE", large)
        patch.setattr(inputs, "QUERIES", 5)
        table = difficult_neighbours(X, y, count)
    for i, found in enumerate(table.tolist()):
        others = sorted((float(((X[i] - X[j]) ** 2).sum()), j) for j in range(len(y)) if y[j] != y[i])
        near = [j for _, j in others[:count]]
        assert found == near + [-1] * (count - len(near))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_difficult_neighbours_of_a_large_class_take_little_memory() -> None:
    code = """
import re
from pathlib import Path
import numpy as np
from liftedstruct.training.inputs import difficult_neighbours
def status(field): return 1024 * int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
y = np.minimum(np.arange(6000), 3000)  # 3,000 classes of one image, and one of 3,000
X = np.random.default_rng(0).normal(size=(6000, 8)).astype(np.float32)
difficult_neighbours(X[2500:3500], y[2500:3500], 10)
before = status("VmRSS")
difficult_neighbours(X, y, 10)
print(status("VmHWM") - before)
"""
    extra = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    assert extra < 6000 * 3000 * 8 / 2  # half of the indices of as many neighbours as the class has images


def test_mined_batches_take_them() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(10), 4)
    X = rng.normal(size=(40, 2)).astype(np.float32)
    table = difficult_neighbours(X, y, 5)
    sampler = HardNegativeSampler(y, 12, seed=0)
    sampler.set_hard_negatives(table)
    batch = sampler.batch(3)
    nearest = {int(table[i, 0]) for i in batch[:6]}
    assert nearest - set(batch[:6]) <= set(batch[6:])


@pytest.mark.parametrize(
    ("batches", "images", "sizes", "expected"),
    [
        ("balanced", 2, [4] * 100, 64),
        ("balanced", 2, [4] * 10, 20),
        ("balanced", 4, [4] * 9 + [3], 36),  # 40 would be more than there are
        ("mined", 2, [4] * 10, 40),
        ("pairs", 2, [3] * 5, 12),
        ("triplets", 2, [4] * 5, 18),
    ],
)
def test_a_batch_that_the_data_can_fill(batches: str, images: int, sizes: list[int], expected: int) -> None:
    assert fitting_size(batches, images, np.repeat(np.arange(len(sizes)), sizes)) == expected


def test_split_is_by_class_and_by_seed(tmp_path: Path) -> None:
    packed = products(tmp_path / "without", validation=0)
    train, held = split(packed, 0.25, 0)
    classes, held_classes = set(packed.labels[train]), set(packed.labels[held])
    assert len(held_classes) == 3
    assert not classes & held_classes
    assert sorted([*train, *held]) == packed.train.tolist()
    assert split(packed, 0.25, 0)[1].tolist() == held.tolist()
    assert any(split(packed, 0.25, seed)[1].tolist() != held.tolist() for seed in (1, 2))
    assert split(packed, 0.0, 0)[1].tolist() == []
    own = products(tmp_path / "own", validation=0.5)
    assert split(own, 0.25, 0)[1].tolist() == own.validation.tolist()  # those of the packed set come first


def test_split_separates_no_names_that_are_alike(tmp_path: Path) -> None:
    names = [*"abcdef", *"ABCDEF", "g", "h"]
    pixels = np.random.default_rng(0).integers(256, size=(28, 8, 8, 3), dtype=np.uint8)
    paths, labels = tuple(map(str, range(28))), np.arange(28) // 2
    image_set = ImageSet("arrays", tmp_path, ArraySource(pixels), paths, labels, tuple(names), np.array([12, 13]))
    packed = prepare(image_set, tmp_path / "packed", size=8, progress=False)
    for seed in range(10):
        train, held = split(packed, 0.5, seed)
        assert len(train) == len(held) == 12
        assert not {names[c].lower() for c in packed.labels[train]} & {names[c].lower() for c in packed.labels[held]}
    assert len(split(packed, 0.9, 0)[0]) == 8  # of two names
    image_set = ImageSet(
        "arrays", tmp_path, ArraySource(pixels), paths, labels // 4, ("a", "A", "b", "B"), np.array([], np.int64)
    )
    with pytest.raises(ValueError, match="validation must have three training classes or more to take from, got 2"):
        split(prepare(image_set, tmp_path / "few", size=8, progress=False), 0.5, 0)


def test_one_batch_ahead() -> None:
    made: list[int] = []
    second = threading.Event()

    def make(step: int) -> Batch:
        made.append(step)
        if step == 1:
            second.set()
        return Batch(np.array([step]), torch.tensor([0]), torch.tensor([step]))

    ahead = Ahead(make)
    assert ahead.take(0, one_more=True).rows.tolist() == [0]
    assert second.wait(10)  # made while step 0 is at work
    assert ahead.take(1, one_more=False).rows.tolist() == [1]
    assert ahead.take(2, one_more=True).rows.tolist() == [2]
    assert ahead.take(7, one_more=False).rows.tolist() == [7]  # another step than was expected
    ahead.close()
    assert made[:3] == [0, 1, 2]


def test_colours_by_loops() -> None:
    crops = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    given = torch.from_numpy(crops.copy())
    found = recoloured(given, 0.6, np.random.default_rng(1)).numpy()
    brightness, contrast, saturation = 1 + 0.6 * np.random.default_rng(1).uniform(-1, 1, (3, 4))
    clipped = 0
    for i, crop in enumerate(crops.astype(np.float64)):
        grey = 0.299 * crop[..., 0] + 0.587 * crop[..., 1] + 0.114 * crop[..., 2]
        level = grey.sum() / 30
        for y, x, c in np.ndindex(5, 6, 3):
            value = grey[y, x] + saturation[i] * (crop[y, x, c] - grey[y, x])
            value = brightness[i] * (level + contrast[i] * (value - level))
            assert abs(found[i, y, x, c] - min(255, max(0, value))) < 0.501
            clipped += not 0 <= value <= 255
    assert clipped > 10
    assert (given.numpy() == crops).all()  # a source may hand out the same bytes again


def test_colours_are_those_of_pillow() -> None:
    """Which rounds after each of the three, and has no room beyond 0 and 255; so these pixels stay within."""
    crops = np.random.default_rng(2).integers(80, 150, (6, 16, 16, 3), dtype=np.uint8)
    found = recoloured(torch.from_numpy(crops), 0.3, np.random.default_rng(3)).numpy()
    factors = 1 + 0.3 * np.random.default_rng(3).uniform(-1, 1, (3, 6))
    for crop, one, (brightness, contrast, saturation) in zip(crops, found, factors.T, strict=True):
        image = ImageEnhance.Color(Image.fromarray(crop)).enhance(saturation)
        image = ImageEnhance.Brightness(ImageEnhance.Contrast(image).enhance(contrast)).enhance(brightness)
        np.testing.assert_allclose(one.astype(int), np.asarray(image).astype(int), atol=3)
        assert np.abs(one.astype(int) - crop).max() > 3


def test_each_crop_has_a_light_of_its_own() -> None:
    """Of a crop of one grey, brightness alone shows: at most a fifth more or less, and all of that comes."""
    light = recoloured(torch.full((2000, 1, 1, 3), 100, dtype=torch.uint8), 0.2, np.random.default_rng(0)).int()
    assert light.dtype == torch.int32
    assert (light == light[..., :1]).all()
    assert set(light[:, 0, 0, 0].tolist()) == set(range(80, 121))


def test_views_to_train_on(tmp_path: Path) -> None:
    packed = products(tmp_path / "products", classes=4)
    rows = packed.train

    def views(seed: int, **changes: object) -> np.ndarray:
        config = TrainConfig("data", "run", **{"train_crop": 20, "least_area": 0.3, **changes})  # type: ignore[arg-type]
        return random_views(packed, rows, config, np.random.default_rng(seed)).numpy()

    plain = views(0)
    assert plain.shape == (len(rows), 20, 20, 3)
    assert (plain == packed.random_crops(rows, 20, rng=np.random.default_rng(0), least_area=0.3)).all()
    assert (views(0) == plain).all()
    assert (views(1) != plain).any()
    assert (views(0, mirror=False) != plain).any()
    cut = views(0, least_area=0.0)
    assert (cut == packed.random_crops(rows, 20, rng=np.random.default_rng(0))).all()
    coloured = views(0, least_area=0.0, colour=0.01)  # hardly another light: the places and flips are the same
    assert (coloured != cut).any()
    assert np.abs(coloured.astype(int) - cut).max() <= 10

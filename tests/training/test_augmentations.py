from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance

from liftedstruct.training.augmentations import AUGMENTATIONS, color_jittered
from training.sets import products


def test_colors_match_loops() -> None:
    crops = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    given = torch.from_numpy(crops.copy())
    found = color_jittered(given, 0.6, np.random.default_rng(1)).numpy()
    brightness, contrast, saturation = 1 + 0.6 * np.random.default_rng(1).uniform(-1, 1, (3, 4))
    clipped = 0
    for i, crop in enumerate(crops.astype(np.float64)):
        gray = 0.299 * crop[..., 0] + 0.587 * crop[..., 1] + 0.114 * crop[..., 2]
        level = gray.sum() / 30
        for y, x, c in np.ndindex(5, 6, 3):
            value = gray[y, x] + saturation[i] * (crop[y, x, c] - gray[y, x])
            value = brightness[i] * (level + contrast[i] * (value - level))
            assert abs(found[i, y, x, c] - min(255, max(0, value))) < 0.501
            clipped += not 0 <= value <= 255
    assert clipped > 10
    assert (given.numpy() == crops).all()  # the input is not changed


def test_colors_match_pillow() -> None:
    """Pillow rounds and clips after each of the three changes, so the pixels are chosen to stay within 0 to 255."""
    crops = np.random.default_rng(2).integers(80, 150, (6, 16, 16, 3), dtype=np.uint8)
    found = color_jittered(torch.from_numpy(crops), 0.3, np.random.default_rng(3)).numpy()
    factors = 1 + 0.3 * np.random.default_rng(3).uniform(-1, 1, (3, 6))
    for crop, one, (brightness, contrast, saturation) in zip(crops, found, factors.T, strict=True):
        image = ImageEnhance.Color(Image.fromarray(crop)).enhance(saturation)
        image = ImageEnhance.Brightness(ImageEnhance.Contrast(image).enhance(contrast)).enhance(brightness)
        np.testing.assert_allclose(one.astype(int), np.asarray(image).astype(int), atol=3)
        assert np.abs(one.astype(int) - crop).max() > 3


def test_each_crop_is_jittered_independently() -> None:
    """On uniform gray crops only brightness has an effect: all values within 20% occur."""
    light = color_jittered(torch.full((2000, 1, 1, 3), 100, dtype=torch.uint8), 0.2, np.random.default_rng(0)).int()
    assert light.dtype == torch.int32
    assert (light == light[..., :1]).all()
    assert set(light[:, 0, 0, 0].tolist()) == set(range(80, 121))


def test_crops(tmp_path: Path) -> None:
    packed = products(tmp_path / "products", classes=4)
    rows = packed.train

    def views(seed: int, name: str = "random_resized_crop", **options: Any) -> np.ndarray:
        crops: np.ndarray = AUGMENTATIONS[name](packed, rows, 20, np.random.default_rng(seed), **options).numpy()
        return crops

    plain = views(0)
    assert plain.shape == (len(rows), 20, 20, 3)
    assert (plain == packed.random_crops(rows, 20, rng=np.random.default_rng(0), min_scale=0.3)).all()
    assert (views(0) == plain).all()
    assert (views(1) != plain).any()
    assert (views(0, hflip=False) != plain).any()
    cut = views(0, "random_crop")
    assert (cut == packed.random_crops(rows, 20, rng=np.random.default_rng(0))).all()
    jittered = views(0, "random_crop", color_jitter=0.01)  # positions and flips are the same
    assert (jittered != cut).any()
    assert np.abs(jittered.astype(int) - cut).max() <= 10
    assert (views(0, "center_crop") == packed.center_crops(rows, 20)).all()

"""Small image sets of noise that the tests of prepared datasets share."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from liftedstruct.data import FolderSource, ImageSet, PackedImages, prepare


def noise(seed: int, height: int = 30, width: int = 40) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def make_set(root: Path, n: int = 12, names: tuple[str, ...] = ()) -> ImageSet:
    """Write PNG files of noise and list them with `listed`; the first files have the given names."""
    root.mkdir(exist_ok=True)
    paths = names + tuple(f"{i:03}.png" for i in range(n - len(names)))
    for i, path in enumerate(paths):
        noise(i).save(root / path)
    return listed(root, paths)


def listed(root: Path, paths: tuple[str, ...]) -> ImageSet:
    """List files in four classes: 0 for training, 1 for validation, 2 and 3 for test."""
    labels, classes = np.arange(len(paths), dtype=np.int64) % 4, ("a", "b", "c\n", "d")
    super_classes = ("x", "x", "y", "y")
    return ImageSet("noise", root, FolderSource(root), paths, labels, classes, np.array([2, 3]), np.array([1]), super_classes)


def pack(image_set: ImageSet, folder: Path, size: int = 16, **options: Any) -> PackedImages:
    return prepare(image_set, folder, size=size, **{"progress": False, "workers": 1, **options})

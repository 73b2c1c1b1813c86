"""Packed images of noise, and small embedders for them."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from liftedstruct.data import FolderSource, ImageSet, PackedImages, prepare
from liftedstruct.embedder import Embedder
from liftedstruct.trunks import make_trunk

N = 23


def noise_images(root: Path) -> PackedImages:
    """Return packed noise at 40 px: a and b are training classes, c is a validation class, d and e are test classes."""
    rng = np.random.default_rng(0)
    names = (os.fsdecode(b"latin \xe9.png"), "grüße 日本.png", *(f"{i:02}.png" for i in range(N - 2)))
    for name in names:
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(root / name)
    labels, classes = np.arange(N, dtype=np.int64) % 5, ("a", "b", "c\n", "d", "e")
    images = ImageSet("noise", root, FolderSource(root), names, labels, classes, np.array([3, 4]), np.array([2]), ())
    return prepare(images, root / "packed", size=40, progress=False)


def split_again(packed: PackedImages, folder: Path, test: list[int], names: tuple[str, ...] | None = None) -> PackedImages:
    """Prepare the same files with another split and, optionally, other class names."""
    images = ImageSet("noise", packed.folder.parent, FolderSource(packed.folder.parent), packed.paths, packed.labels,
                      names or packed.class_names, np.array(test), super_classes=())  # fmt: skip
    return prepare(images, folder, size=24, progress=False)


def make_embedder(dim: int = 16, **options: Any) -> Embedder:
    torch.manual_seed(0)
    return Embedder(make_trunk("small"), dim, crop=32, **options).eval()


def pixels_of(packed: PackedImages, rows: Any) -> torch.Tensor:
    return torch.from_numpy(packed.center_crops(rows, 32))

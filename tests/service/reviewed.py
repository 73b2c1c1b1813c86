"""A catalog with planted errors."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from catalog.shop import make_embedder
from liftedstruct.catalog import Catalog

__all__ = ["WRONG", "make_catalog"]

WRONG = {"3/1.png": ("product 1", "product 3"), "6/4.png": ("product 2", "product 6")}  # given and right


def make_catalog(folder: Path, products: int = 8, images: int = 6) -> Catalog:
    """Create a catalog of patterns, with two wrong labels, a near duplicate, and a test image that leaks from training."""
    rng = np.random.default_rng(0)
    rows = []
    for c in range(products):
        pattern = Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8)).resize((60, 60), Image.Resampling.NEAREST)
        (folder / str(c)).mkdir(parents=True)
        for i in range(images):
            name, picture = f"{c}/{i}.png", Image.new("RGB", (96, 96), (128, 128, 128))
            picture.paste(pattern, (7 * i, 36 - 7 * i))
            picture.save(folder / name)
            rows.append([name, name, WRONG.get(name, (f"product {c}",))[0], "train" if c % 2 else "test"])
    for source, name, part in (("0/0.png", "0/copy.jpg", "test"), ("1/2.png", "1/leak.jpg", "test")):
        Image.open(folder / source).crop((1, 1, 95, 96)).resize((70, 70)).save(folder / name, quality=85)
        rows.append([name, name, f"product {source[0]}", part])
    with (folder / "shop.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "id", "product", "split"], *rows])
    catalog = Catalog.open(folder / "shop", make_embedder(dim=32))
    catalog.add(folder / "shop.csv")
    return catalog

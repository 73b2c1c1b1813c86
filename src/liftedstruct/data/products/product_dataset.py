"""Rendered products as a dataset; each image is rendered when it is opened."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.scene import RENDERER_VERSION, render
from liftedstruct.data.products.shapes import category_of
from liftedstruct.data.sources import Source
from liftedstruct.runtime.checks import check_count

__all__ = ["ProductSource", "class_sizes", "product_images"]

ONLINE_PRODUCTS = (22_634, 120_053, 11_318)  # classes, images and training classes of Stanford Online Products
SHARES = (0.12, 0.14, 0.15, 0.15, 0.14, 0.12, 0.08, 0.05, 0.03, 0.01, 0.01)  # fractions of classes with 2, 3, ..., 12 images


@dataclass(frozen=True)
class ProductSource:
    """Image source that renders paths such as `coffee_maker/00012/3.png`."""

    size: int = 128
    seed: int = 0

    def open(self, path: str) -> Image.Image:
        return Image.fromarray(render(*self._numbers(path), size=self.size, seed=self.seed))

    def fingerprint(self, path: str) -> str:
        self._numbers(path)
        return f"products {RENDERER_VERSION}, size {self.size}, seed {self.seed}: {path}"

    def content(self, path: str) -> str:
        """Return a key of the image's content, independent of its size."""
        return f"products {RENDERER_VERSION}, seed {self.seed}: {path}"

    def _numbers(self, path: str) -> tuple[int, int]:
        """Return the product and image numbers of a path; raise FileNotFoundError if no product has this path."""
        found = re.fullmatch(r".+/(\d+)/(\d+)\.png", path)
        if found is None or path != path_of(int(found[1]), int(found[2]), self.seed):
            raise FileNotFoundError(f"no product has the path {path!r} with seed {self.seed}")
        return int(found[1]), int(found[2])


def product_images(n_classes: int = 1000, images_per_class: int | None = None, size: int = 128, seed: int = 0) -> ImageSet:
    """Return a dataset of `n_classes` rendered products, with `images_per_class` images each or the sizes of `class_sizes`.

    The first `n_classes - n_classes // 2` classes are training classes, the others test classes. With 22,634 classes,
    11,318 are training classes, as in Stanford Online Products.
    """
    sizes = class_sizes(n_classes, images_per_class, seed)
    source: Source = ProductSource(check_count("size", size, 16), seed)
    categories = tuple(category_of(product, seed) for product in range(n_classes))
    n_train = ONLINE_PRODUCTS[2] if n_classes == ONLINE_PRODUCTS[0] else n_classes - n_classes // 2
    return ImageSet(
        name="products",
        root=Path("products"),
        source=source,
        paths=tuple(path_of(product, k, seed) for product, n in enumerate(sizes) for k in range(n)),
        labels=np.repeat(np.arange(n_classes), sizes),
        class_names=tuple(f"{category} {product:05}" for product, category in enumerate(categories)),
        test_classes=np.arange(n_train, n_classes),
        super_classes=categories,
    )


def class_sizes(n_classes: int, images_per_class: int | None = None, seed: int = 0) -> list[int]:
    """Return the number of images per class: 2 to 12 with a mean of 120,053 / 22,634, or exactly `images_per_class`.

    The total is that mean times `n_classes`, rounded. After the draw, one image at a time is added or removed to match it.

    Examples:
        >>> sum(class_sizes(22634))
        120053
    """
    n_classes, seed = check_count("n_classes", n_classes, 2), check_count("seed", seed, 0)
    if images_per_class is not None:
        return [check_count("images_per_class", images_per_class)] * n_classes
    rng = RandomStream("sizes", seed)
    steps = np.cumsum(SHARES[:-1])
    sizes = [2 + int(np.searchsorted(steps, rng(), side="right")) for _ in range(n_classes)]
    missing = round(n_classes * ONLINE_PRODUCTS[1] / ONLINE_PRODUCTS[0]) - sum(sizes)
    step = 1 if missing > 0 else -1
    product = 0
    while missing:
        if 2 <= sizes[product] + step <= 12:
            sizes[product] += step
            missing -= step
        product = (product + 1) % n_classes
    return sizes


def path_of(product: int, image: int, seed: int) -> str:
    """Return the path `<category>/<class>/<image>.png`."""
    return f"{category_of(product, seed).replace(' ', '_')}/{product:05}/{image}.png"

"""Rendering speed of the product images, and how hard they are to retrieve.

    python benchmarks/products.py [--classes 1000] [--out FILE] [--json FILE]

Speed: 128 x 128 images on two threads, compared with pillow decoding 500 x 375 JPEGs and resizing them to 128 x 128 on two
threads; the methods alternate and values are medians. Difficulty: Recall@1 on the test classes of 1,000 classes, 128 x 128,
Euclidean distance, of ImageNet-pretrained EfficientNet-Lite0 features (pooled, 1,280-d) and of color histograms, which should
fail.
"""

import io
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import PIL
import torch
from PIL import Image
from torch import Tensor

from liftedstruct.data import ImageSet
from liftedstruct.data.products import RENDERER_VERSION, product_images, render, write_products
from liftedstruct.data.products.scene import model
from liftedstruct.retrieval import precision_at_1
from liftedstruct.trunks import make_trunk
from machine import processor
from records import Baseline
from table import Table, flags

ROUNDS = 5
CLASSES = 40  # per round


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--classes", type=int, default=1000, help="number of classes; half of them are test classes")
    options = parser.parse_args()
    table = Table()
    say = table.say
    say(f"{processor()}, numba {numba.__version__}, pillow {PIL.__version__}, renderer {RENDERER_VERSION}")
    table.section("images per second, median (lowest to highest)")
    rates = measure()
    for name, values in rates.items():
        say(f"{statistics.median(values):8.0f} ({min(values):.0f} to {max(values):.0f})  {name}")
    rendered, decoded = (statistics.median(rates[name]) for name in ("rendered, two threads", "JPEG decoded, two threads"))
    say(f"{rendered / decoded:8.2f}  times the speed of pillow decoding")
    table.row(
        "rendered at 128 px, two threads", rendered, "images/s", Baseline("JPEGs decoded by pillow, two threads", decoded)
    )
    table.row("rendered at 128 px, one thread", statistics.median(rates["rendered, one thread"]), "images/s")
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        written = len(write_products(folder, 60)) / (time.perf_counter() - begin)
        say(f"{written:8.0f}  written as PNG files, all cores")
        table.row("written as PNG files, all cores", written, "images/s")
    begin = time.perf_counter()
    everything = product_images(22_634)
    listing = time.perf_counter() - begin
    say(f"\n{len(everything):,} images of 22,634 classes, listed in {listing:.2f} s")
    table.row(f"{len(everything):,} images of 22,634 classes, listing", listing, "s")
    table.target("images/s rendered at 128 px, two threads", rendered, minimum=150)
    images = product_images(options.classes)
    test_images = torch.from_numpy(pixels(images))
    labels = torch.from_numpy(images.labels[images.test])
    table.section(f"Recall@1 in %, {len(images.test_classes)} test classes, {len(labels):,} images, 128 px, Euclidean, seed 0")
    recalls = {
        name: 100 * precision_at_1(points, labels)
        for name, points in (
            *zip(("mean color", "color histogram, 16 bins per channel"), color_features(test_images), strict=True),
            ("EfficientNet-Lite0, ImageNet-pretrained", trunk_features(test_images)),
        )
    }
    for name, value in recalls.items():
        say(f"{value:8.1f}  {name}")
    *simple, (name, value) = recalls.items()
    table.row(name, value, "%", *(Baseline(*each) for each in simple))
    table.target("% Recall@1, pretrained trunk", value, minimum=30, maximum=70)
    table.finish(options)


def measure() -> dict[str, list[float]]:
    """Measure images per second of each method, once per round."""
    files = [jpeg(k) for k in range(16)]
    jobs = [[(r * CLASSES + c, k) for c in range(CLASSES) for k in range(5)] for r in range(ROUNDS)]

    def draw(job: tuple[int, int]) -> None:
        render(*job)

    def decode(job: tuple[int, int]) -> None:
        np.asarray(Image.open(io.BytesIO(files[sum(job) % 16])).convert("RGB").resize((128, 128), Image.Resampling.BILINEAR))

    methods: dict[str, tuple[Callable[[tuple[int, int]], None], int]] = {
        "rendered, two threads": (draw, 2),
        "rendered, one thread": (draw, 1),
        "JPEG decoded, two threads": (decode, 2),
    }
    rates: dict[str, list[float]] = {name: [] for name in methods}
    for product in range(12):
        render(product, 0)  # compile
    for batch in jobs:
        for name, (method, threads) in methods.items():
            model.cache_clear()  # rebuild every product
            with ThreadPoolExecutor(threads) as pool:
                begin = time.perf_counter()
                list(pool.map(method, batch))
                rates[name].append(len(batch) / (time.perf_counter() - begin))
    return rates


def jpeg(product: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(render(product, 0, 500)[:375]).save(buffer, "jpeg", quality=90)
    return buffer.getvalue()


def pixels(images: ImageSet) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return the test images, (n, 128, 128, 3)."""
    with ThreadPoolExecutor(2) as pool:
        return np.stack(list(pool.map(lambda i: np.asarray(images.source.open(images.paths[i])), images.test)))


def color_features(images: Tensor) -> tuple[Tensor, Tensor]:
    n = len(images)
    bins = torch.zeros(n, 48)
    for c in range(3):
        cells = (images[..., c].reshape(n, -1) // 16).long() + 16 * c
        bins.scatter_add_(1, cells, torch.ones(cells.shape))
    return torch.stack([image.float().mean(dim=(0, 1)) for image in images]), bins.sqrt()


@torch.inference_mode()
def trunk_features(images: Tensor) -> Tensor:
    """Return pooled features of the pretrained EfficientNet-Lite0, (n, 1280)."""
    trunk = make_trunk("efficientnet_lite0")
    return torch.cat([trunk(trunk.scale(batch)) for batch in images.split(64)])


if __name__ == "__main__":
    main()

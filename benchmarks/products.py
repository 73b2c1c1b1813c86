"""How fast products are rendered and how hard they are to tell apart.

    python benchmarks/products.py [--classes 1000] [--out FILE] [--json FILE]

Speed: images of 128 x 128 on two threads, beside what two threads of pillow make of 500 x 375 JPEG files in the same run
(decoded and resized to 128 x 128); they take turns, and the figures are medians. Hardness: Recall@1 on the test half of 1,000
classes, 128 x 128, Euclidean: features of EfficientNet-Lite0 as ImageNet left it (pooled, 1,280 numbers, no training here), and
histograms of colour, which must not do.
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
from records import Beside
from table import Table, flags

ROUNDS = 5
CLASSES = 40  # a round


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--classes", type=int, default=1000, help="of which half are told apart")
    options = parser.parse_args()
    table = Table()
    say = table.say
    say(f"{processor()}, numba {numba.__version__}, pillow {PIL.__version__}, renderer {RENDERER_VERSION}")
    table.section("images per second, median (lowest to highest)")
    rates = measure()
    for name, values in rates.items():
        say(f"{statistics.median(values):8.0f} ({min(values):.0f} to {max(values):.0f})  {name}")
    rendered, decoded = (statistics.median(rates[name]) for name in ("rendered, two threads", "JPEG decoded, two threads"))
    say(f"{rendered / decoded:8.2f}  times pillow's decoding")
    table.row("rendered at 128 px, two threads", rendered, "images/s", Beside("JPEGs decoded by pillow, two threads", decoded))
    table.row("rendered at 128 px, one thread", statistics.median(rates["rendered, one thread"]), "images/s")
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        written = len(write_products(folder, 60)) / (time.perf_counter() - begin)
        say(f"{written:8.0f}  written as PNG files, all cores")
        table.row("written as PNG files, all cores", written, "images/s")
    begin = time.perf_counter()
    everything = product_images(22_634)
    listing = time.perf_counter() - begin
    say(f"\n{len(everything):,} images of 22,634 classes listed in {listing:.2f} s")
    table.row(f"{len(everything):,} images of 22,634 classes listed", listing, "s")
    table.bar("images/s rendered at 128 px on two threads", rendered, least=150)
    images = product_images(options.classes)
    pictures = torch.from_numpy(pixels(images))
    labels = torch.from_numpy(images.labels[images.test])
    table.section(f"Recall@1 in %, {len(images.test_classes)} test classes, {len(labels):,} images, 128 px, Euclidean, seed 0")
    recalls = {
        name: 100 * precision_at_1(points, labels)
        for name, points in (
            *zip(("mean colour", "histograms of 16 bins a channel, square roots"), colours(pictures), strict=True),
            ("EfficientNet-Lite0, ImageNet, untrained on products", trunk_features(pictures)),
        )
    }
    for name, value in recalls.items():
        say(f"{value:8.1f}  {name}")
    *simple, (name, value) = recalls.items()
    table.row(name, value, "%", *(Beside(*each) for each in simple))
    table.bar("% Recall@1 of the untrained trunk", value, least=30, most=70)
    table.finish(options)


def measure() -> dict[str, list[float]]:
    """Images per second of each method, one figure a round."""
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
        render(product, 0)  # compiles
    for batch in jobs:
        for name, (method, threads) in methods.items():
            model.cache_clear()  # every product is built anew
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
    """The test images, (n, 128, 128, 3)."""
    with ThreadPoolExecutor(2) as pool:
        return np.stack(list(pool.map(lambda i: np.asarray(images.source.open(images.paths[i])), images.test)))


def colours(pictures: Tensor) -> tuple[Tensor, Tensor]:
    n = len(pictures)
    bins = torch.zeros(n, 48)
    for c in range(3):
        cells = (pictures[..., c].reshape(n, -1) // 16).long() + 16 * c
        bins.scatter_add_(1, cells, torch.ones(cells.shape))
    return torch.stack([image.float().mean(dim=(0, 1)) for image in pictures]), bins.sqrt()


@torch.inference_mode()
def trunk_features(pictures: Tensor) -> Tensor:
    """Pooled features of EfficientNet-Lite0 as ImageNet left it, (n, 1280)."""
    trunk = make_trunk("efficientnet_lite0")
    return torch.cat([trunk(trunk.scale(batch)) for batch in pictures.split(64)])


if __name__ == "__main__":
    main()

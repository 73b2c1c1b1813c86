"""Speed of preparing and reading images, compared with pillow and a standard PyTorch dataset in the same run.

    python benchmarks/images.py [--images 1000] [--out FILE] [--json FILE]

The script generates 500 x 375 JPEGs in a temporary folder. `prepare`, which writes its file to disk, is compared with pillow's
decode-and-resize in as many processes as it has threads; their start is not timed and they write nothing. Batches of 128 random
crops with horizontal flip are read from the packed dataset and by decoding the JPEGs on every read, each in one thread. The
methods alternate, so that a slow phase of the machine affects all of them; values are medians. On a shared machine, only the
ratios are meaningful. Memory is the anonymous memory of a separate process: pages of a memory map belong to the page cache.
"""

import argparse
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image, features
from torch import Tensor

from liftedstruct.data import FolderSource, ImageSet, PackedImages, prepare
from liftedstruct.data.decoding import FILTER
from machine import processor, status_bytes
from records import Baseline
from table import Table, flags, seconds

WORKERS, BATCH, SIZE, CROP, ROUNDS = 2, 128, 256, 227, 9


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--images", type=int, default=1000, help="number of JPEGs to generate")
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)  # run in a separate process
    options = parser.parse_args()
    if options.memory:
        print(*peak_bytes(PackedImages(options.memory)))
        return
    table = Table()
    say = table.say
    torch.set_num_threads(1)
    jpeg = f"libjpeg{'-turbo' if features.check('libjpeg_turbo') else ''} {features.version('jpg')}"
    say(f"{processor()}, pillow {PIL.__version__}, {jpeg}, numpy {np.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        image_set = photographs(folder / "photographs", options.images)
        kilobytes = statistics.mean(each.stat().st_size for each in image_set.root.iterdir()) / 1e3
        say(f"{len(image_set)} JPEGs of 500 x 375, {kilobytes:.0f} kB each, to {SIZE} x {SIZE}; medians of {ROUNDS} rounds")
        measure_prepare(image_set, folder, table)
        measure_batches(image_set, PackedImages(folder / "packed"), table)
    table.finish(options)


def measure_prepare(image_set: ImageSet, folder: Path, table: Table) -> None:
    """Measure images per second of prepare and of pillow alone, alternately."""
    paths = [str(image_set.root / path) for path in image_set.paths]
    ours: list[float] = []
    bare: list[float] = []
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(decode_bare, paths[: 8 * WORKERS]))  # start the processes and import
        for _ in range(ROUNDS):
            bare.append(seconds(lambda: sum(pool.map(decode_bare, paths, chunksize=16))))
            ours.append(
                seconds(lambda: prepare(image_set, folder / "packed", size=SIZE, workers=WORKERS, progress=False, force=True))
            )
    again = seconds(lambda: prepare(image_set, folder / "packed", size=SIZE, workers=WORKERS, progress=False))
    n, a, b = len(image_set), statistics.median(ours), statistics.median(bare)
    ratio = statistics.median(x / y for x, y in zip(ours, bare, strict=True))
    table.section(f"{n:,} JPEGs of 500 x 375 to {SIZE} x {SIZE}")
    table.say(f"prepare, {WORKERS} threads, to disk         {n / a:8.0f} images/s")
    table.say(f"pillow alone, {WORKERS} processes          {n / b:8.0f} images/s")
    table.say(f"prepare again, unchanged     {1e3 * again:8.1f} ms")
    table.row(
        f"prepare, {WORKERS} threads, to disk",
        n / a,
        "images/s",
        Baseline(f"pillow alone, {WORKERS} processes", n / b, 1 / ratio),
    )
    table.row("prepare again, unchanged", 1e3 * again, "ms")
    table.target(f"images/s, prepare, {WORKERS} cores", n / a, minimum=250)
    table.target("times pillow's decode-and-resize, prepare", ratio, maximum=1.2)


def decode_bare(path: str) -> int:
    with Image.open(path) as image:
        return int(np.asarray(image.convert("RGB").resize((SIZE, SIZE), FILTER)).shape[0])


class UsualDataset(torch.utils.data.Dataset[Tensor]):
    """Standard dataset: open, convert, resize, crop, flip, to a uint8 tensor."""

    def __init__(self, paths: list[str]) -> None:
        self.paths, self.rng = paths, np.random.default_rng(0)

    def __getitem__(self, i: int) -> Tensor:
        with Image.open(self.paths[i]) as file:
            image = file.convert("RGB").resize((SIZE, SIZE), FILTER)
        y, x = self.rng.integers(0, SIZE - CROP + 1, 2)
        image = image.crop((int(x), int(y), int(x) + CROP, int(y) + CROP))
        if self.rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image))


def measure_batches(image_set: ImageSet, packed: PackedImages, table: Table) -> None:
    """Measure milliseconds per batch of crops from the memory map and from JPEGs, and the memory of many batches."""
    usual, rng = UsualDataset([str(image_set.root / path) for path in image_set.paths]), np.random.default_rng(0)
    out = np.empty((BATCH, CROP, CROP, 3), np.uint8)

    def indices() -> NDArray[np.int64]:
        return rng.integers(0, len(packed), BATCH)

    def stack() -> Tensor:
        return torch.stack([usual[int(i)] for i in indices()])

    methods: dict[str, Callable[[], object]] = {
        "from the memory map, uint8": lambda: packed.random_crops(indices(), CROP, rng=rng),
        "  into a preallocated batch": lambda: packed.random_crops(indices(), CROP, rng=rng, out=out),
        "  center crops, uint8": lambda: packed.center_crops(indices(), CROP),
        "from the JPEGs": stack,
    }
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(ROUNDS):
        for name, method in methods.items():
            method()
            times[name] += [seconds(method) for _ in range(1 if method is stack else 8)]
    table.section(f"{BATCH} random crops of {CROP} px with horizontal flip, one thread")
    decoding = 1e3 * statistics.median(times["from the JPEGs"])
    for name, each in times.items():
        if name != "from the JPEGs":
            table.row(name.strip(), 1e3 * statistics.median(each), "ms", Baseline("from the JPEGs", decoding))
        table.say(f"{name:<28} {1e3 * statistics.median(each):14.2f} ms {BATCH / statistics.median(each):10.0f} images/s")
    faster = statistics.median(times["from the JPEGs"]) / statistics.median(times["from the memory map, uint8"])
    child = subprocess.run([sys.executable, __file__, "--memory", str(packed.folder)], capture_output=True, check=True)
    grown, batch = map(int, child.stdout.split())
    table.say(f"additional memory over 300 batches: {grown / 1e6:.0f} MB, size of one batch: {batch / 1e6:.0f} MB")
    table.section("memory while reading 300 such batches")
    table.row("additional anonymous memory", grown / 1e6, "MB", Baseline("one batch", batch / 1e6))
    table.target("times faster than decoding JPEGs on every read", faster, minimum=20)
    table.target("batches of memory while reading 300 batches", grown / batch, maximum=3)


def peak_bytes(packed: PackedImages) -> tuple[int, int]:
    """Return the peak increase of anonymous memory while reading 300 batches, and the size of one batch."""
    rng = np.random.default_rng(0)
    before = peak = status_bytes("RssAnon")
    for _ in range(300):
        batch = packed.random_crops(rng.integers(0, len(packed), BATCH), CROP, rng=rng)
        peak = max(peak, status_bytes("RssAnon"))
    return peak - before, batch.nbytes


def photographs(folder: Path, count: int) -> ImageSet:
    """Generate JPEGs of quality 90 with smooth colors, hard edges and sensor noise."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        colors = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
        for _ in range(12):
            x, y, w, h = rng.integers((0, 0, 20, 20), (480, 355, 160, 160))
            colors.paste(tuple(int(v) for v in rng.integers(0, 256, 3)), (int(x), int(y), int(x + w), int(y + h)))
        grain = np.asarray(colors) + rng.normal(0, 8, (375, 500, 1))
        Image.fromarray(grain.clip(0, 255).astype(np.uint8)).save(folder / f"{i:05}.jpg", quality=90)
    paths = tuple(sorted(each.name for each in folder.iterdir()))
    labels = np.arange(count) % 10
    return ImageSet("photographs", folder, FolderSource(folder), paths, labels, tuple("abcdefghij"), np.arange(5, 10))


if __name__ == "__main__":
    main()

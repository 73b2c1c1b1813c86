"""How fast images are prepared and read, beside what pillow and the usual PyTorch data set take, all in one run.

    python benchmarks/images.py [--images 1000] [--out FILE] [--json FILE]

Makes its own photographs of 500 x 375 in a temporary folder. Prepare is held against pillow's bare decode-and-resize in as many
processes as it has threads, their start not counted; nothing is written there, prepare writes its file to the disk. Batches
of 128 random crops with mirror are read from the packed set, and by decoding the JPEGs on every read, in one thread each.
Methods take turns, so that a slow moment of the machine hits them alike; the figures are medians. Only ratios mean anything
on a shared machine. Memory is measured in a process of its own, and is what is anonymous: the pages of a map are the system's,
which takes them back when it likes.
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
from records import Beside
from table import Table, flags, seconds

WORKERS, BATCH, SIZE, CROP, ROUNDS = 2, 128, 256, 227, 9


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--images", type=int, default=1000, help="how many photographs to make")
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)  # what the process of its own runs
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
    """Images per second of prepare and of pillow alone, taken in turns."""
    paths = [str(image_set.root / path) for path in image_set.paths]
    ours: list[float] = []
    bare: list[float] = []
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(decode_bare, paths[: 8 * WORKERS]))  # the processes have started and imported
        for _ in range(ROUNDS):
            bare.append(seconds(lambda: sum(pool.map(decode_bare, paths, chunksize=16))))
            ours.append(
                seconds(lambda: prepare(image_set, folder / "packed", size=SIZE, workers=WORKERS, progress=False, force=True))
            )
    again = seconds(lambda: prepare(image_set, folder / "packed", size=SIZE, workers=WORKERS, progress=False))
    n, a, b = len(image_set), statistics.median(ours), statistics.median(bare)
    ratio = statistics.median(x / y for x, y in zip(ours, bare, strict=True))
    table.section(f"{n:,} JPEGs of 500 x 375 to {SIZE} x {SIZE}")
    table.say(f"prepare, {WORKERS} threads, to the disk     {n / a:8.0f} images/s")
    table.say(f"pillow alone, {WORKERS} processes          {n / b:8.0f} images/s")
    table.say(f"prepare again, nothing changed     {1e3 * again:8.1f} ms")
    table.row(
        f"prepare, {WORKERS} threads, to the disk",
        n / a,
        "images/s",
        Beside(f"pillow alone, {WORKERS} processes", n / b, 1 / ratio),
    )
    table.row("prepare again, nothing changed", 1e3 * again, "ms")
    table.bar(f"images/s prepared on {WORKERS} cores", n / a, least=250)
    table.bar("times pillow's bare decode-and-resize", ratio, most=1.2)


def decode_bare(path: str) -> int:
    with Image.open(path) as image:
        return int(np.asarray(image.convert("RGB").resize((SIZE, SIZE), FILTER)).shape[0])


class UsualDataset(torch.utils.data.Dataset[Tensor]):
    """What most training code does: open, convert, resize, crop, mirror, to a tensor; here already without the floats."""

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
    """Milliseconds per batch of crops from the map and from the JPEGs, and the memory that many batches take."""
    usual, rng = UsualDataset([str(image_set.root / path) for path in image_set.paths]), np.random.default_rng(0)
    out = np.empty((BATCH, CROP, CROP, 3), np.uint8)

    def indices() -> NDArray[np.int64]:
        return rng.integers(0, len(packed), BATCH)

    def stack() -> Tensor:
        return torch.stack([usual[int(i)] for i in indices()])

    methods: dict[str, Callable[[], object]] = {
        "from the map, uint8": lambda: packed.random_crops(indices(), CROP, rng=rng),
        "  into a given batch": lambda: packed.random_crops(indices(), CROP, rng=rng, out=out),
        "  center crops, uint8": lambda: packed.center_crops(indices(), CROP),
        "from the JPEGs": stack,
    }
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(ROUNDS):
        for name, method in methods.items():
            method()
            times[name] += [seconds(method) for _ in range(1 if method is stack else 8)]
    table.section(f"{BATCH} random crops of {CROP}, mirrored by chance, one thread")
    decoding = 1e3 * statistics.median(times["from the JPEGs"])
    for name, each in times.items():
        if name != "from the JPEGs":
            table.row(name.strip(), 1e3 * statistics.median(each), "ms", Beside("from the JPEGs", decoding))
        table.say(f"{name:<28} {1e3 * statistics.median(each):14.2f} ms {BATCH / statistics.median(each):10.0f} images/s")
    faster = statistics.median(times["from the JPEGs"]) / statistics.median(times["from the map, uint8"])
    child = subprocess.run([sys.executable, __file__, "--memory", str(packed.folder)], capture_output=True, check=True)
    grown, batch = map(int, child.stdout.split())
    table.say(f"memory beyond the process's own over 300 batches: {grown / 1e6:.0f} MB, one batch has {batch / 1e6:.0f} MB")
    table.section("memory of reading 300 such batches")
    table.row("anonymous, beyond the process's own", grown / 1e6, "MB", Beside("one batch", batch / 1e6))
    table.bar("times faster than decoding on each read", faster, least=20)
    table.bar("batches of memory while reading 300 of them", grown / batch, most=3)


def peak_bytes(packed: PackedImages) -> tuple[int, int]:
    """What reading 300 batches adds to the anonymous memory at its highest, and the size of a batch."""
    rng = np.random.default_rng(0)
    before = peak = status_bytes("RssAnon")
    for _ in range(300):
        batch = packed.random_crops(rng.integers(0, len(packed), BATCH), CROP, rng=rng)
        peak = max(peak, status_bytes("RssAnon"))
    return peak - before, batch.nbytes


def photographs(folder: Path, count: int) -> ImageSet:
    """Smooth colours, hard edges and the grain of a sensor, as JPEGs of quality 90."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        colours = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
        for _ in range(12):
            x, y, w, h = rng.integers((0, 0, 20, 20), (480, 355, 160, 160))
            colours.paste(tuple(int(v) for v in rng.integers(0, 256, 3)), (int(x), int(y), int(x + w), int(y + h)))
        grain = np.asarray(colours) + rng.normal(0, 8, (375, 500, 1))
        Image.fromarray(grain.clip(0, 255).astype(np.uint8)).save(folder / f"{i:05}.jpg", quality=90)
    paths = tuple(sorted(each.name for each in folder.iterdir()))
    labels = np.arange(count) % 10
    return ImageSet("photographs", folder, FolderSource(folder), paths, labels, tuple("abcdefghij"), np.arange(5, 10))


if __name__ == "__main__":
    main()

"""How fast images are embedded, beside the trunk alone and a plain PyTorch loop; and the untrained trunks on real birds.

    python benchmarks/embedding.py [--parts speed untrained] [--trunk NAME] [--batches 4] [--data FOLDER [--packed FOLDER]]

The plain loop is what one writes first: crops to floats, (x - 127) / 128, the network in evaluation mode without gradients, the
memory settings that glibc comes with; it runs in a process of its own, since those settings are a process's, and only its loop
is timed. The bare trunk gets one batch of scaled pixels again and again, in channels-last memory that is kept; folded, its
batch normalisation is part of the convolutions, as it is when embedding. All take turns, figures are medians. With a folder of
real data (``LIFTEDSTRUCT_DATA``) the Recall@K of both pretrained trunks is measured too.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import normalize

from liftedstruct.data import FolderSource, ImageSet, PackedImages, prepare, read_images
from liftedstruct.embedder import Embedder
from liftedstruct.embeddings import embed
from liftedstruct.retrieval import recall_at_k
from liftedstruct.runtime.memory import kept_memory
from liftedstruct.trunks import TRUNKS, Trunk, make_trunk
from liftedstruct.trunks.layers import folded
from machine import processor
from records import Baseline
from table import Table, flags, seconds

BATCH, SIZE, ROUNDS, KS = 64, 256, 5, (1, 2, 4, 8)
PARTS = ("speed", "untrained")
UNTRAINED = {  # trunk -> crop, Recall@1, 2, 4, 8 in % on the test half of CUB-200-2011 by Euclidean distance and by cosine
    "googlenet": (227, (41.0, 53.9, 66.2, 78.3), (45.2, 57.5, 69.8, 80.1)),
    "efficientnet_lite0": (224, (53.9, 66.4, 76.8, 85.7), (55.0, 66.5, 77.3, 86.2)),
}


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument("--trunk", choices=sorted(TRUNKS), default="efficientnet_lite0")
    parser.add_argument("--batches", type=int, default=4, help="batches of 64 images in a round")
    parser.add_argument("--data", type=Path, default=os.environ.get("LIFTEDSTRUCT_DATA"), help="folder of real data")
    parser.add_argument(
        "--packed", type=Path, help="where its images are, or will be, prepared; a temporary folder if not given"
    )
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)  # what the process of its own runs
    options = parser.parse_args()
    if options.plain:
        print(plain_rate(options.trunk, PackedImages(options.plain), options.batches))
        return
    table = Table()
    table.say(f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as folder:
        if "speed" in options.parts:
            with kept_memory():
                measure_embedding(options.trunk, noise(Path(folder)), options.batches, table)
        if "untrained" in options.parts and options.data is None:
            table.skip("untrained trunks on CUB-200-2011", "LIFTEDSTRUCT_DATA is not set")
        elif "untrained" in options.parts:
            measure_untrained(options.data, options.packed or Path(folder) / "cub", table)
    table.finish(options)


def measure_embedding(name: str, packed: PackedImages, batches: int, table: Table) -> None:
    """Images per second of the plain loop, of the bare trunk and of embed, taken in turns."""
    trunk = make_trunk(name, pretrained=False)
    embedder, crop = Embedder(trunk, 64), trunk.input_size
    rows = np.tile(np.arange(BATCH), batches)
    scaled = trunk.scale(torch.from_numpy(packed.center_crops(rows[:BATCH], crop)))

    def bare(network: Trunk) -> None:
        with torch.inference_mode():
            for _ in range(batches):
                network(scaled)

    methods: dict[str, Callable[[], object]] = {
        "bare trunk": partial(bare, trunk),
        "bare trunk, folded": partial(bare, folded(trunk)),
        "embedding": partial(embed, embedder, packed, rows),
    }
    rates: dict[str, list[float]] = {what: [] for what in ("plain loop, default memory", *methods)}
    for method in methods.values():
        method()
    for _ in range(ROUNDS):
        rates["plain loop, default memory"].append(plain_in_its_own_process(name, packed, batches))
        for what, method in methods.items():
            rates[what].append(len(rows) / seconds(method))
    table.section(f"{name}, {crop} x {crop}, batches of {BATCH}, images/s, medians of {ROUNDS} rounds of {len(rows)} images")
    for what, values in rates.items():
        table.say(f"{statistics.median(values):8.1f}  {what}")
    beside = []
    for what, least in (("bare trunk", 0.9), ("bare trunk, folded", 0.9), ("plain loop, default memory", 3.0)):
        ratio = statistics.median(x / y for x, y in zip(rates["embedding"], rates[what], strict=True))
        beside.append(Baseline(what, statistics.median(rates[what]), ratio))
        table.target(f"times the speed of the {what}, embedding", ratio, minimum=least)
    table.row("embedding", statistics.median(rates["embedding"]), "images/s", *beside)


def plain_in_its_own_process(name: str, packed: PackedImages, batches: int) -> float:
    settings = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, __file__, "--plain", str(packed.folder), "--trunk", name, "--batches", str(batches)]
    return float(subprocess.run(command, env=settings, capture_output=True, text=True, check=True).stdout)


def plain_rate(name: str, packed: PackedImages, batches: int) -> float:
    """Images per second of the loop that one writes first."""
    trunk = TRUNKS[name](pretrained=False).eval()
    head = torch.nn.Linear(trunk.num_features, 64)

    def loop(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                pixels = torch.from_numpy(packed.center_crops(range(BATCH), trunk.input_size)).permute(0, 3, 1, 2)
                head(trunk((pixels.float() - 127) / 128)).numpy()

    loop(1)
    return batches * BATCH / seconds(lambda: loop(batches))


def measure_untrained(data: Path, folder: Path, table: Table) -> None:
    """Recall@K of the pretrained trunks on the test half of CUB-200-2011."""
    packed = prepare(read_images(data / "CUB_200_2011.tar"), folder, size=SIZE)
    for name, (crop, *expected) in UNTRAINED.items():
        weights = data / "googlenet_imagenet.npz" if name == "googlenet" else None
        embedder = Embedder(make_trunk(name, weights), dim=0, crop=crop)
        result = embed(embedder, packed, packed.test, progress=True)
        X, labels = torch.from_numpy(result.embeddings), torch.from_numpy(result.labels)
        table.section(
            f"{embedder.trunk.describe()}, untrained, {crop} centre crop, {len(result):,} test images of {packed.name}"
        )
        for distance, points, published in zip(("Euclidean", "cosine"), (X, normalize(X)), expected, strict=True):
            found = [100 * share for share in recall_at_k(points, labels, KS).values()]
            table.say(f"  {distance:<10} R@{', '.join(map(str, KS))}: " + " ".join(f"{value:.1f}" for value in found))
            for k, value, noted in zip(KS, found, published, strict=True):
                table.row(f"Recall@{k}, {distance}", value, "%", Baseline("noted", noted))
            most = max(abs(a - b) for a, b in zip(found, published, strict=True))
            table.target(f"points off the noted recalls, {name}, {distance}", most, maximum=0.5)


def noise(folder: Path) -> PackedImages:
    """A batch of random images, packed."""
    root, rng = folder / "noise", np.random.default_rng(0)
    root.mkdir()
    paths = tuple(f"{i:03}.png" for i in range(BATCH))
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)).save(root / path)
    labels = np.arange(BATCH, dtype=np.int64) % 4
    images = ImageSet("noise", root, FolderSource(root), paths, labels, tuple("abcd"), np.array([2, 3]))
    return prepare(images, folder / "packed", size=SIZE, progress=False)


if __name__ == "__main__":
    main()

"""Embedding speed compared with the trunk alone and a plain PyTorch loop, and Recall@K of the pretrained trunks on CUB.

    python benchmarks/embedding.py [--parts speed pretrained] [--trunk NAME] [--batches 4] [--data FOLDER [--packed FOLDER]]

The plain loop converts crops to floats, computes (x - 127) / 128 and runs the network in evaluation mode without gradients,
with glibc's default allocator settings. It runs in a separate process, since these settings are per process, and only the
loop is timed. The trunk alone processes the same batch of scaled pixels repeatedly, in channels-last memory that is reused;
"folded" means that batch norms are folded into the convolutions, as in `embed`. The methods alternate; values are medians.
With --data or LIFTEDSTRUCT_DATA, the Recall@K of both pretrained trunks is computed too.
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
PARTS = ("speed", "pretrained")
PRETRAINED = {  # trunk -> crop, Recall@1, 2, 4, 8 in % on the test classes of CUB-200-2011, Euclidean and cosine
    "googlenet": (227, (41.0, 53.9, 66.2, 78.3), (45.2, 57.5, 69.8, 80.1)),
    "efficientnet_lite0": (224, (53.9, 66.4, 76.8, 85.7), (55.0, 66.5, 77.3, 86.2)),
}


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument("--trunk", choices=sorted(TRUNKS), default="efficientnet_lite0")
    parser.add_argument("--batches", type=int, default=4, help="batches of 64 images per round")
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("LIFTEDSTRUCT_DATA"),
        help="folder with CUB-200-2011 and the GoogLeNet weights",
    )
    parser.add_argument("--packed", type=Path, help="folder of the prepared images (default: temporary)")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)  # run in a separate process
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
        if "pretrained" in options.parts and options.data is None:
            table.skip("pretrained trunks on CUB-200-2011", "LIFTEDSTRUCT_DATA is not set")
        elif "pretrained" in options.parts:
            measure_pretrained(options.data, options.packed or Path(folder) / "cub", table)
    table.finish(options)


def measure_embedding(name: str, packed: PackedImages, batches: int, table: Table) -> None:
    """Measure images per second of the plain loop, the trunk alone and embed, alternately."""
    trunk = make_trunk(name, pretrained=False)
    embedder, crop = Embedder(trunk, 64), trunk.input_size
    rows = np.tile(np.arange(BATCH), batches)
    scaled = trunk.scale(torch.from_numpy(packed.center_crops(rows[:BATCH], crop)))

    def bare(network: Trunk) -> None:
        with torch.inference_mode():
            for _ in range(batches):
                network(scaled)

    methods: dict[str, Callable[[], object]] = {
        "trunk alone": partial(bare, trunk),
        "trunk alone, folded": partial(bare, folded(trunk)),
        "embed": partial(embed, embedder, packed, rows),
    }
    rates: dict[str, list[float]] = {what: [] for what in ("plain PyTorch loop", *methods)}
    for method in methods.values():
        method()
    for _ in range(ROUNDS):
        rates["plain PyTorch loop"].append(plain_in_separate_process(name, packed, batches))
        for what, method in methods.items():
            rates[what].append(len(rows) / seconds(method))
    table.section(f"{name}, {crop} x {crop}, batches of {BATCH}, images/s, medians of {ROUNDS} rounds of {len(rows)} images")
    for what, values in rates.items():
        table.say(f"{statistics.median(values):8.1f}  {what}")
    baselines = []
    for what, least in (("trunk alone", 0.9), ("trunk alone, folded", 0.9), ("plain PyTorch loop", 3.0)):
        ratio = statistics.median(x / y for x, y in zip(rates["embed"], rates[what], strict=True))
        baselines.append(Baseline(what, statistics.median(rates[what]), ratio))
        table.target(f"times the speed of the {what}, embed", ratio, minimum=least)
    table.row("embed", statistics.median(rates["embed"]), "images/s", *baselines)


def plain_in_separate_process(name: str, packed: PackedImages, batches: int) -> float:
    settings = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, __file__, "--plain", str(packed.folder), "--trunk", name, "--batches", str(batches)]
    return float(subprocess.run(command, env=settings, capture_output=True, text=True, check=True).stdout)


def plain_rate(name: str, packed: PackedImages, batches: int) -> float:
    """Return images per second of the plain loop."""
    trunk = TRUNKS[name](pretrained=False).eval()
    head = torch.nn.Linear(trunk.num_features, 64)

    def loop(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                pixels = torch.from_numpy(packed.center_crops(range(BATCH), trunk.input_size)).permute(0, 3, 1, 2)
                head(trunk((pixels.float() - 127) / 128)).numpy()

    loop(1)
    return batches * BATCH / seconds(lambda: loop(batches))


def measure_pretrained(data: Path, folder: Path, table: Table) -> None:
    """Compute Recall@K of the pretrained trunks on the test classes of CUB-200-2011."""
    packed = prepare(read_images(data / "CUB_200_2011.tar"), folder, size=SIZE)
    for name, (crop, *expected) in PRETRAINED.items():
        weights = data / "googlenet_imagenet.npz" if name == "googlenet" else None
        embedder = Embedder(make_trunk(name, weights), dim=0, crop=crop)
        result = embed(embedder, packed, packed.test, progress=True)
        X, labels = torch.from_numpy(result.embeddings), torch.from_numpy(result.labels)
        table.section(f"{name}, {crop} px center crop, {packed.name} test classes")
        for distance, points, published in zip(("Euclidean", "cosine"), (X, normalize(X)), expected, strict=True):
            found = [100 * share for share in recall_at_k(points, labels, KS).values()]
            table.say(f"  {distance:<10} R@{', '.join(map(str, KS))}: " + " ".join(f"{value:.1f}" for value in found))
            for k, value, reference in zip(KS, found, published, strict=True):
                table.row(f"Recall@{k}, {distance}", value, "%", Baseline("reference", reference))
            most = max(abs(a - b) for a, b in zip(found, published, strict=True))
            table.target(f"points off the reference, {name}, {distance}", most, maximum=0.5)


def noise(folder: Path) -> PackedImages:
    """Return a packed batch of random images."""
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

"""Overhead of a training step over the network itself, memory of gradient caching, and embedding speed.

    python benchmarks/training.py [--parts step ...] [--out FILE] [--json FILE]

The baseline is the trunk's forward and backward pass on scaled pixels alone. It alternates with whole steps of the training
loop (batch, crops, scaling, head, loss, clipping, optimizer, log) on the same pixels. Memory is the peak resident size of a
separate process. Embedding is measured as in `benchmarks/embedding.py`.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from embedding import measure_embedding, noise
from liftedstruct.data import PackedImages, prepare
from liftedstruct.data.products import product_images
from liftedstruct.embedder import Embedder
from liftedstruct.losses import lifted_struct_loss
from liftedstruct.runtime.memory import kept_memory
from liftedstruct.training import RunFolder, TrainConfig
from liftedstruct.training.caching import batch_gradient
from liftedstruct.training.inputs import Batch
from liftedstruct.training.loop import Training
from liftedstruct.training.optimizers import training_mode
from liftedstruct.trunks import DEFAULT_TRUNK, Trunk, make_trunk
from machine import processor, status_bytes
from records import Baseline
from table import Table, flags

ROUNDS = 10
PARTS = ("step", "caching", "embedding")
CROP, CHUNK, SMALL_CROP = 224, 32, 64


class TimedTraining(Training):
    """Training that alternates with the trunk alone."""

    def prepare_bare(self) -> None:
        self.steps: list[float] = []
        self.bares: list[float] = []
        self.begin = time.perf_counter()

    def _take_step(self, batch: Batch) -> None:
        super()._take_step(batch)
        self.steps.append(time.perf_counter() - self.begin)  # includes the loop since the last baseline pass
        self.learner.optimizer.zero_grad()
        trunk = self.embedder.trunk
        scaled, gradient = trunk.scale(batch.inputs), torch.ones(len(batch.inputs), trunk.num_features)
        begin = time.perf_counter()
        trunk(scaled).backward(gradient)
        self.bares.append(time.perf_counter() - begin)
        self.begin = time.perf_counter()


def measure_step(table: Table, m: int = 64) -> None:
    """Compare a whole training step with the trunk's forward and backward pass."""
    with kept_memory(), tempfile.TemporaryDirectory() as folder:
        image_set = product_images(64, 4, size=64)
        packed = prepare(image_set, Path(folder) / "data", size=256, progress=False)
        config = TrainConfig(
            str(packed.folder), str(Path(folder) / "run"), batch_size=m, crop=CROP, train_crop=CROP, steps=ROUNDS + 2,
            freeze=0, min_dim=0, ema_decay=0.0, pretrained_mix=0.0, validate_every=0, checkpoint_minutes=60, log_every=5,
            clip_norm=1.0,
        )  # fmt: skip
        training = timed(config, packed)
    ratios = [step / bare for step, bare in zip(training.steps[2:], training.bares[2:], strict=True)]  # two warm-up steps
    step, bare = statistics.median(training.steps[2:]), statistics.median(training.bares[2:])
    table.section(f"training step, {config.trunk}, {m} images of {CROP} px")
    table.say(f"{config.trunk}, {m} images of {CROP} px: step {step:.3f} s, trunk forward and backward {bare:.3f} s (medians)")
    ratio = statistics.median(ratios)
    table.row("whole step", step, "s", Baseline("trunk forward and backward", bare, 1 / ratio))
    table.target("times the trunk forward and backward, training step", ratio, maximum=1.05)


def timed(config: TrainConfig, packed: PackedImages) -> TimedTraining:
    embedder = Embedder(calibrated_trunk(config.trunk.name), config.dim, crop=config.crop)
    folder = RunFolder(config.out)
    with folder.locked():
        training = TimedTraining(config, folder, packed, embedder, False)
        training.start(None)
        training.prepare_bare()
        training.run()
    return training


@torch.no_grad()
def calibrated_trunk(name: str = DEFAULT_TRUNK) -> Trunk:
    """Return a trunk with random weights and batch norm statistics of its input."""
    torch.manual_seed(0)
    trunk = make_trunk(name, pretrained=False)
    for module in trunk.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    trunk.train()(trunk.scale(torch.randint(256, (CHUNK, SMALL_CROP, SMALL_CROP, 3), dtype=torch.uint8)))
    return trunk.eval()


def measure_caching(table: Table) -> None:
    """Compare gradient caching of 512 images with plain batches: memory with a batch of 64, gradient with the same 512."""
    peaks = {}
    table.section(f"gradient caching, {DEFAULT_TRUNK}, {CROP} px, peak memory")
    for m, chunk in ((64, 0), (512, CHUNK)):
        child = subprocess.run([sys.executable, __file__, "--memory", str(m), str(chunk)], capture_output=True, check=True)
        peak, own = map(float, child.stdout.split())
        peaks[m] = peak
        how = f"in chunks of {chunk}" if chunk else "at once"
        table.say(f"m = {m:3} {how}: peak {peak / 1e6:,.0f} MB ({own / 1e6:,.0f} MB before)")
    table.row(f"512 images in chunks of {CHUNK}", peaks[512] / 1e6, "MB", Baseline("64 images at once", peaks[64] / 1e6))
    table.target("times the memory of a plain batch of 64, gradient caching of 512", peaks[512] / peaks[64], maximum=1)
    table.target("1e-5 relative difference of the gradients, m = 512", 1e5 * difference(512, CHUNK), maximum=1)


def example(m: int, crop: int) -> tuple[Embedder, Tensor, Tensor]:
    embedder = Embedder(calibrated_trunk(), 64, crop=crop)
    training_mode(embedder, freeze_statistics=True)
    return embedder, torch.randint(256, (m, crop, crop, 3), dtype=torch.uint8), torch.arange(m) // 2


def peak_bytes(m: int, chunk: int) -> tuple[int, int]:
    """Return the peak resident size and the size before the gradient."""
    with kept_memory():
        embedder, pixels, labels = example(m, CROP)
        before = status_bytes("VmRSS")
        batch_gradient(embedder, pixels, lambda X: lifted_struct_loss(X, labels), chunk=chunk)
        return status_bytes("VmHWM"), before


def difference(m: int, chunk: int) -> float:
    """Return the largest difference between chunked and whole-batch gradients, relative to the largest gradient."""
    embedder, pixels, labels = example(m, SMALL_CROP)
    gradients = []
    for size in (0, chunk):
        embedder.zero_grad()
        batch_gradient(embedder, pixels, lambda X: lifted_struct_loss(X, labels), chunk=size)
        gradients.append(torch.cat([p.grad.flatten() for p in embedder.parameters() if p.grad is not None]))
    return ((gradients[0] - gradients[1]).abs().max() / gradients[0].abs().max()).item()


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument("--memory", type=int, nargs=2, help=argparse.SUPPRESS)  # run in a separate process
    options = parser.parse_args()
    if options.memory:
        print(*peak_bytes(*options.memory))
        return
    table = Table()
    table.say(f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    if "step" in options.parts:
        measure_step(table)
    if "caching" in options.parts:
        measure_caching(table)
    if "embedding" in options.parts:
        with kept_memory(), tempfile.TemporaryDirectory() as folder:
            measure_embedding(DEFAULT_TRUNK, noise(Path(folder)), 4, table)
    table.finish(options)


if __name__ == "__main__":
    main()

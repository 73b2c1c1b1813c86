"""Time and memory of the lifted structured loss: one forward and backward pass, with its baselines in the same run.

    python benchmarks/losses.py [--largest 4096] [--out FILE] [--json FILE]

Columns: ours (the public function, with input checks), the plain version under autograd, pytorch-metric-learning if its
(pairs x negatives) tensors fit in memory, and the two matrix products that any such loss needs (X·Xᵀ and M·X). The methods
alternate, a few calls each, so that a slow phase of the machine affects all of them; values are medians. On a shared machine,
only the ratios are meaningful. Memory is the peak resident size of a separate process minus its size before the call.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import LiftedStructureLoss
from torch import Tensor

from liftedstruct import lifted_struct_loss
from liftedstruct.losses.lifted_struct import lifted_struct_loss_plain
from machine import available_bytes, processor, status_bytes
from records import Baseline
from table import Table, flags

DIMENSIONS = 512
ROUNDS = 7
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
PEER = LiftedStructureLoss(neg_margin=1, pos_margin=0, distance=LpDistance(normalize_embeddings=False))


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--largest", type=int, default=4096, help="largest batch size to time")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)  # run in a separate process
    options = parser.parse_args()
    if options.memory:
        print(*peak_bytes(options.memory))
        return
    table = Table()
    say = table.say
    say(f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, float32, d = {DIMENSIONS}")
    say("milliseconds per forward and backward pass, median")
    for k in (2, 4):
        table.section(f"k = {k} images per class")
        say(f"{'m':>6} {'ours':>9} {'plain':>9} {'peer':>9} {'bare':>9} {'peer/ours':>10} {'plain/ours':>10} {'ours/bare':>10}")
        for m in (m for m in SIZES if m <= options.largest):
            ours, plain, peer, bare = measure(m, k)
            versus = f"{peer / ours:10.1f}" if peer else f"{'':>10}"
            say(
                f"{m:6} {ours:9.3f} {plain:9.3f} {f'{peer:9.1f}' if peer else '-'.rjust(9)} {bare:9.3f} "
                f"{versus} {plain / ours:10.2f} {ours / bare:10.2f}"
            )
            table.row(
                f"m = {m:,}",
                ours,
                "ms",
                Baseline("Eq. 4 with autograd", plain),
                Baseline("pytorch-metric-learning", peer or None),
                Baseline("two matrix products", bare),
                note="" if peer else "pytorch-metric-learning: out of memory",
            )
            if peer and k == 4 and m in (128, 256):
                table.target(
                    f"times faster than pytorch-metric-learning, m = {m}, k = 4", peer / ours, minimum={128: 80, 256: 300}[m]
                )
            if m >= 1024:
                table.target(f"times the two matrix products, m = {m}, k = {k}", ours / bare, maximum=1.8)
    table.section("peak additional memory")
    for m in (4096, 16384):
        child = subprocess.run([sys.executable, __file__, "--memory", str(m)], capture_output=True, check=True)
        peak, seconds = map(float, child.stdout.split())
        how = "one matrix" if m == 4096 else "block by block"
        say(f"{m:6} {peak / 1e6:9.0f} MB, {peak / (4 * m * m):.2f} matrices of m x m float32 ({how}, {seconds:.1f} s)")
        table.row(f"m = {m:,}, {how}", peak / 1e6, "MB", Baseline("one m x m matrix", 4 * m * m / 1e6), note=f"{seconds:.1f} s")
        if m == 4096:
            table.target(f"m x m matrices of memory, m = {m}", peak / (4 * m * m), maximum=6)
        else:
            table.target(f"GB of memory, m = {m}", peak / 1e9, maximum=2)
    table.finish(options)


def example(m: int, k: int) -> tuple[Tensor, Tensor]:
    X = torch.randn(m, DIMENSIONS, generator=torch.Generator().manual_seed(m)).requires_grad_()
    return X, torch.arange(m) // k


def measure(m: int, k: int) -> tuple[float, float, float, float]:
    """Return milliseconds of ours, plain, peer (0 if out of memory) and the two products, measured alternately."""
    X, y = example(m, k)
    raw = X.detach()

    def step(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            X.grad = None
            loss(X, y).backward()

        return run

    def bare() -> None:
        G = raw @ raw.T
        G @ raw

    methods: list[Callable[[], None]] = [step(lifted_struct_loss), bare, step(lifted_struct_loss_plain)]
    pairs, negatives = m * (k - 1), m * (m - k)
    if 12 * 4 * pairs * negatives < available_bytes():
        methods.append(step(PEER))
    times: list[list[float]] = [[] for _ in methods]
    for turn in range(ROUNDS):
        for method, measured in zip(methods, times, strict=True):
            if turn > 2 and measured[0] > 0.5:
                continue  # three rounds are enough for slow methods
            begin = time.perf_counter()
            method()  # discarded if short: caches and heap are still those of the previous method
            first = time.perf_counter() - begin
            if first > 0.5:
                measured.append(first)
                continue
            for _ in range(max(1, min(50, int(0.15 / first)))):
                begin = time.perf_counter()
                method()
                measured.append(time.perf_counter() - begin)
    ours, products, plain, *peer = (1e3 * statistics.median(each) for each in times)
    return ours, plain, peer[0] if peer else 0.0, products


def peak_bytes(m: int) -> tuple[int, float]:
    """Return the increase of the peak resident size during one call on m images, and its duration in seconds."""
    X, y = example(m, 4)
    before, begin = status_bytes("VmRSS"), time.perf_counter()
    lifted_struct_loss(X, y).backward()
    return status_bytes("VmHWM") - before, time.perf_counter() - begin


if __name__ == "__main__":
    main()

"""Speed and memory of the metrics, compared with faiss and scikit-learn in the same run.

    python benchmarks/evaluation.py [--parts recall ...] [--million] [--birds] [--bisection] [--out FILE] [--json FILE]

Recall@K: 60,502 x 512 with about 5.3 images per class, the size of the test classes of Stanford Online Products. faiss lists
the K nearest neighbors of every image (IndexFlatL2, its own threads); ours computes the rank of the first positive, hence
every K at once, including input checks. They alternate.

Affinity propagation: 5,924 synthetic points, or with --birds the 5,924 test images of CUB-200-2011 (pooled features of the
pretrained EfficientNet-Lite0, 1,280-d), if LIFTEDSTRUCT_DATA names the folder with its tar (features are cached in build/).
One iteration is timed as the difference between a long and a short run. --bisection also runs the search for K = 100 with
scikit-learn's affinity propagation: same bracket, same interpolation, each step from zero messages, since it has no warm
start; this takes minutes. Sparse: 60,502 points, K = 11,316.

Memory is the peak resident size of a separate process minus its size before the call.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import liftedstruct as ls
from liftedstruct.clustering.exemplars import Clustering
from liftedstruct.clustering.messages import Messages, Similarities
from liftedstruct.clustering.preference_search import PreferenceSearch, Step
from liftedstruct.clustering.similarities import all_pairs, guess_preference
from liftedstruct.trunks import make_trunk
from machine import processor, status_bytes
from records import Baseline
from table import Table, flags

KS = (1, 10, 100, 1000)
ROUNDS = 3
PARTS = ("recall", "affinity", "sparse", "agreement", "small")
FEATURES = Path(__file__).parent.parent / "build" / "cub-lite0-test.npz"

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--million", action="store_true", help="also Recall@K of 1,000,000 x 64, about ten minutes")
    parser.add_argument("--birds", action="store_true", help="affinity propagation on CUB-200-2011 from LIFTEDSTRUCT_DATA")
    parser.add_argument("--bisection", action="store_true", help="also bisection with scikit-learn, takes minutes")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)  # run in a separate process
    options = parser.parse_args()
    if options.alone:
        print(*alone(*options.alone))
        return
    table = Table()
    table.say(f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, float32")
    parts: dict[str, Callable[[], None]] = {
        "recall": lambda: recall(table, options.rounds, options.million),
        "affinity": lambda: affinity(table, options.birds, options.bisection),
        "sparse": lambda: sparse(table),
        "agreement": lambda: agreement(table),
        "small": lambda: small(table),
    }
    for part in options.parts:
        parts[part]()
    table.finish(options)


def recall(table: Table, rounds: int, million: bool) -> None:
    X, y = products(60_502, 512)
    ls.recall_at_k(*products(100, 512))  # compile, or load from the cache
    times: dict[str, list[float]] = {"ours": [], "faiss, k = 11": [], "faiss, k = 1001": []}
    for _ in range(rounds):
        begin = time.perf_counter()
        found = ls.recall_at_k(X, y, KS)
        times["ours"].append(time.perf_counter() - begin)
        for k in (11, 1001):
            times[f"faiss, k = {k}"].append(faiss_seconds(X, k))
    table.section("Recall@K of 60,502 x 512")
    table.say(f"{', '.join(f'{100 * share:.1f} ({k})' for k, share in found.items())}")
    ours = statistics.median(times["ours"])
    for name, measured in times.items():
        seconds = statistics.median(measured)
        table.say(f"{name:>16} {seconds:7.1f} s {seconds / ours:6.2f} x   ({', '.join(f'{s:.1f}' for s in measured)})")
    theirs = (Baseline(name, statistics.median(measured)) for name, measured in times.items() if name != "ours")
    table.row("K = 1, 10, 100, 1,000", ours, "s", *theirs)
    table.target("times faster than faiss, k = 11", statistics.median(times["faiss, k = 11"]) / ours, minimum=1.4)
    table.target("times faster than faiss, k = 1001", statistics.median(times["faiss, k = 1001"]) / ours, minimum=2)
    for n, d, most in ((60_502, 512, 1), *(((1_000_000, 64, 2),) if million else ())):
        peak, seconds = in_a_process("recall", n, d)
        if n == 1_000_000:
            table.section(f"Recall@K of {n:,} x {d}")
            table.row("K = 1, 10, 100, 1,000", seconds, "s")
        table.say(f"{n:9,} x {d:3} {peak / 1e6:6.0f} MB of additional memory, {seconds:.1f} s")
        table.row("additional memory", peak / 1e6, "MB")
        table.target(f"GB of memory, Recall@K of {n:,} x {d}", peak / 1e9, maximum=most)


def affinity(table: Table, real: bool, bisection: bool) -> None:
    data = os.environ.get("LIFTEDSTRUCT_DATA")
    if real and not data:
        table.skip("affinity propagation on CUB-200-2011", "LIFTEDSTRUCT_DATA is not set")
    X, y, what = birds(Path(data)) if real and data else synthetic()
    n = len(X)
    table.section(f"affinity propagation, {n:,} points, {what}")
    similarities = all_pairs(torch.from_numpy(X - X.mean(axis=0)).double())
    S = similarities.values.reshape(n, -1)[:, :n].astype(np.float64)
    messages = Messages(similarities, 0.9, np.full(n, guess_preference(torch.from_numpy(X), 100), np.float32))
    preference = float(messages.preferences[0])
    messages.iterate()
    iterations: list[tuple[float, float]] = []
    for _ in range(3):
        theirs = (peer(S, preference, 12)[2] - peer(S, preference, 2)[2]) / 10
        begin = time.perf_counter()
        for _ in range(20):
            messages.iterate()
        ours = (time.perf_counter() - begin) / 20
        iterations.append((ours, theirs))
        table.say(f"  one iteration: ours {1e3 * ours:.1f} ms, scikit-learn {1e3 * theirs:.0f} ms, {theirs / ours:.1f} x")
    ratio = statistics.median(theirs / ours for ours, theirs in iterations)
    ours, theirs = (1e3 * statistics.median(each) for each in zip(*iterations, strict=True))
    table.row("one iteration", ours, "ms", Baseline("scikit-learn", theirs, ratio))
    table.target("times faster than scikit-learn, one iteration", ratio, minimum=6)
    del messages
    begin = time.perf_counter()
    found = ls.affinity_propagation(X, n_clusters=100)
    ours = time.perf_counter() - begin
    dense = ls.nmi(y, found.labels)
    table.say(f"  {found}: {ours:.1f} s, NMI {100 * dense:.1f}")
    table.target("clusters for K = 100", found.n_clusters, minimum=99, maximum=101)
    begin = time.perf_counter()
    graph = ls.affinity_propagation(X, n_clusters=100, neighbors=297)
    quicker = time.perf_counter() - begin
    sparse = ls.nmi(y, graph.labels)
    table.say(f"  {graph}: {quicker:.1f} s, NMI {100 * sparse:.1f}")
    table.target("points of NMI between all pairs and the neighbor graph", 100 * abs(dense - sparse), maximum=1)
    baselines, note = [], f"{found.n_clusters} clusters in {len(found.history)} steps, NMI {100 * dense:.1f} %"
    if bisection:
        begin = time.perf_counter()
        steps = bisect_with_peer(similarities, S, guess_preference(torch.from_numpy(X), 100), X)
        theirs = time.perf_counter() - begin
        trail = ", ".join(f"{-preference:.0f}: {clusters}" for preference, clusters in steps)
        table.say(f"  the same bisection with scikit-learn: {theirs:.0f} s, {theirs / ours:.1f} x")
        table.say(f"    steps (-preference: clusters) {trail}")
        table.target("times faster than scikit-learn, bisection to K = 100", theirs / ours, minimum=20)
        baselines, note = [Baseline("scikit-learn", theirs)], f"{note}; scikit-learn took {len(steps)} steps"
    table.row("to 100 clusters, all pairs", ours, "s", *baselines, note=note)
    note = f"{graph.n_clusters} clusters in {len(graph.history)} steps, NMI {100 * sparse:.1f} %"
    table.row("to 100 clusters, 297 neighbors", quicker, "s", note=note)


def sparse(table: Table) -> None:
    table.section("affinity propagation on the neighbor graph, 60,502 x 512, K = 11,316")
    peak, seconds, clusters, score = in_a_process("sparse", 60_502, 512)
    table.say(f"  {clusters:,.0f} clusters, {seconds:.0f} s, {peak / 1e9:.2f} GB of additional memory, NMI {100 * score:.1f}")
    table.row("50 neighbors", seconds, "s", note=f"{clusters:,.0f} clusters, NMI {100 * score:.1f} %")
    table.row("additional memory", peak / 1e9, "GB")
    table.target("minutes, affinity propagation on the neighbor graph", seconds / 60, maximum=10)
    table.target("GB of memory, affinity propagation on the neighbor graph", peak / 1e9, maximum=8)
    table.target("clusters over K = 11,316", clusters / 11_316, minimum=0.99, maximum=1.01)


def agreement(table: Table) -> None:
    rng = np.random.default_rng(0)
    y, clusters = rng.integers(0, 11_316, (2, 60_502))
    clusters[::2] = y[::2]
    table.section("60,502 points, 11,316 classes, 11,316 clusters")
    for name, seconds in (("NMI", fastest(lambda: ls.nmi(y, clusters))), ("F1", fastest(lambda: ls.pairwise_f1(y, clusters)))):
        table.say(f"{name:>21} {1e3 * seconds:7.2f} ms")
        table.row(name, 1e3 * seconds, "ms")
        table.target(f"seconds, {name} of 60,502 points", seconds, maximum=0.5)


def small(table: Table) -> None:
    X, y = products(100, 64)
    table.section("100 x 64")
    calls: dict[str, Callable[[], object]] = {
        "recall_at_k": lambda: ls.recall_at_k(X, y),
        "map_at_r": lambda: ls.map_at_r(X, y),
        "nearest_neighbors": lambda: ls.nearest_neighbors(X, 5),
        "affinity_propagation": lambda: ls.affinity_propagation(X, n_clusters=18),
        "kmeans": lambda: ls.kmeans(X, 18),
        "nmi": lambda: ls.nmi(y, y),
        "pairwise_f1": lambda: ls.pairwise_f1(y, y),
        "evaluate": lambda: ls.evaluate(X, y),
    }
    for name, call in calls.items():
        seconds = fastest(call)
        table.say(f"{name:>21} {1e3 * seconds:7.2f} ms")
        table.row(name, 1e3 * seconds, "ms")
        table.target(f"ms, {name} of 100 images", 1e3 * seconds, maximum=100)


def products(n: int, d: int) -> tuple[Rows, Labels]:
    """Return noisy classes of 5.3 images on average, with a medium Recall@1."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, max(2, int(n / 5.3)), n)
    X = rng.standard_normal((y.max() + 1, d), dtype=np.float32)[y]
    X += rng.standard_normal((n, d), dtype=np.float32) * rng.uniform(0.5, 3, (n, 1)).astype(np.float32)
    return X, y


def birds(data: Path) -> tuple[Rows, Labels, str]:
    """Return the features of the CUB-200-2011 test images, computed once."""
    if not FEATURES.exists():
        packed = ls.prepare(ls.read_images(data / "CUB_200_2011.tar"), FEATURES.parent / "cub")
        ls.embed(ls.Embedder(make_trunk("efficientnet_lite0"), dim=0, crop=224), packed, packed.test).save(FEATURES)
    with np.load(FEATURES) as arrays:
        return arrays["embeddings"], arrays["labels"], "CUB-200-2011 test classes, pretrained EfficientNet-Lite0"


def synthetic() -> tuple[Rows, Labels, str]:
    """Return synthetic points, as many as the CUB-200-2011 test images and in as many classes."""
    rng = np.random.default_rng(0)
    y = np.arange(5924) % 100
    X = rng.standard_normal((100, 64), dtype=np.float32)[y] + rng.standard_normal((5924, 64), dtype=np.float32)
    return X, y, "synthetic"


def peer(S: NDArray[np.float64], preference: float, iterations: int) -> tuple[Labels, int, float]:
    """Run scikit-learn and return exemplars, iterations and seconds."""
    from sklearn.cluster import affinity_propagation

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin = time.perf_counter()
        exemplars, _, done = affinity_propagation(
            S, preference=preference, damping=0.9, max_iter=iterations, random_state=0, return_n_iter=True
        )
    return exemplars, done, time.perf_counter() - begin


def bisect_with_peer(similarities: Similarities, S: NDArray[np.float64], guess: float, X: Rows) -> list[tuple[float, int]]:
    """Run our preference search with scikit-learn for its steps."""

    class Theirs(PreferenceSearch):
        def step(self, preference: float, cold: bool = False, hurry: bool = False) -> Step:
            if self.steps and self.steps[-1].preference == preference:
                return self.steps[-1]  # the same preference from zero messages gives the same result
            exemplars, done, _ = peer(S, preference, 1000)
            exemplars = exemplars if len(exemplars) else np.zeros(1, np.int64)  # it returns none if it does not converge
            chosen = exemplars[S[:, exemplars].argmax(axis=1)]
            step = Step(preference, Clustering(exemplars, chosen, 0.0), done, True)
            self.steps.append(step)
            return step

    theirs = Theirs(similarities, 0.9, 1000, 15)
    largest = 4 * float(np.square(X - X.mean(axis=0)).sum(axis=1).max())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.find(100, guess, largest, None)
    return [(step.preference, step.n_clusters) for step in theirs.steps]


def faiss_seconds(X: Rows, k: int) -> float:
    import faiss

    begin = time.perf_counter()
    index = faiss.IndexFlatL2(X.shape[1])
    index.add(X)
    index.search(X, k)
    return time.perf_counter() - begin


def fastest(call: Callable[[], object]) -> float:
    """Return the best of ten durations after a warm-up call, in seconds."""
    call()
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def in_a_process(what: str, n: int, d: int) -> list[float]:
    command = [sys.executable, __file__, "--alone", what, str(n), str(d)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


def alone(what: str, n: str, d: str) -> list[float]:
    """Return the increase of the peak resident size, seconds, and for clustering the number of clusters and NMI."""
    X, y = products(int(n), int(d))
    ls.recall_at_k(*products(100, 64))  # compile
    ls.affinity_propagation(products(100, 64)[0], n_clusters=10, neighbors=40)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before, begin = status_bytes("VmRSS"), time.perf_counter()
    scores: list[float] = []
    if what == "recall":
        ls.recall_at_k(X, y, KS)
    else:
        found = ls.affinity_propagation(X, n_clusters=11_316, neighbors=50, progress=True)
        scores = [found.n_clusters, ls.nmi(y, found.labels)]
    return [status_bytes("VmHWM") - before, time.perf_counter() - begin, *scores]


if __name__ == "__main__":
    main()

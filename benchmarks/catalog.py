"""Catalogs beside the bare engines: encoding image files, the search for a photo, and the stores.

    python benchmarks/catalog.py [--parts encode photo stores million] [--rounds N] [--small] [--out FILE] [--json FILE]

encode: 2,000 JPEG files of 500 x 375 through `Embedder.encode`, with the pretrained EfficientNet-Lite0, beside decoding and
resizing alone and the folded trunk alone, each with all cores; and with onnxruntime, from an exported folder.

photo: one file to its ten nearest of 60,502 x 512, beside decoding, trunk and faiss.IndexFlatL2 alone.

stores: exact search for one vector among 60,502 x 64, and rows added per second, for each store that is installed.

million: a local store of 1,000,000 x 64. Searches are for ten items, beside faiss.IndexFlatL2 with the same threads, which
returns indices only. A filter keeps one percent, by an indexed field, and is a new one at every repetition, so nothing is kept
from an earlier search. SQLite alone writes the same columns, ready texts and vectors, without checks and checksums, in one
transaction, with WAL and synchronous = FULL.

The methods alternate, and a ratio is the median over the rounds. --small is a quick trial, whose numbers mean nothing.
"""

import contextlib
import importlib
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np
import torch

import liftedstruct as ls
from evaluation import products
from images import photographs
from liftedstruct.catalog import Catalog
from liftedstruct.data import MemorySource
from liftedstruct.embedder import Embedder, load
from liftedstruct.encoding import Preprocessing
from liftedstruct.exporting import export
from liftedstruct.runtime.limits import available_cores
from liftedstruct.runtime.memory import kept_memory
from liftedstruct.trunks import folded, make_trunk
from machine import processor
from records import Baseline
from table import Table, flags, seconds

BATCH, K, DIM, CATEGORIES = 64, 10, 64, 100
STORES = {"local": "", "postgresql": "postgresql", "milvus, file": "milvus", "milvus, server": "milvus-server"}
OPEN = """
import sys, time
begin = time.perf_counter()
import faiss
import numpy as np
import liftedstruct.catalog.local
from liftedstruct.catalog import Catalog
imported = time.perf_counter()
catalog = Catalog.open(sys.argv[1])
catalog.search(np.ones(int(sys.argv[2]), np.float32), k=10)
print(imported - begin, time.perf_counter() - imported)
"""

Times = dict[str, list[float]]


class Sizes(NamedTuple):
    """Numbers of files, of rows of each part, of queries, and of repetitions of a short measurement."""

    files: int = 2000
    shop: int = 60_502
    rows: int = 1_000_000
    queries: int = 10_000
    repeats: int = 30


def main() -> None:
    parser = flags(__doc__)
    parts: dict[str, Callable[[Table, Sizes, int, Path], None]] = {
        "encode": encode,
        "photo": photo,
        "stores": stores,
        "million": million,
    }
    parser.add_argument("--parts", nargs="+", choices=parts, default=tuple(parts), help="what to measure")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the long measurements")
    parser.add_argument("--small", action="store_true", help="a quick trial with small sizes")
    options = parser.parse_args()
    sizes = Sizes(128, 5000, 20_000, 500, 5) if options.small else Sizes()
    table = Table()
    table.say(f"{processor()}, torch {torch.__version__}, faiss {faiss.__version__}, {torch.get_num_threads()} threads")
    faiss.omp_set_num_threads(torch.get_num_threads())
    for part in options.parts:
        with tempfile.TemporaryDirectory() as folder:
            parts[part](table, sizes, options.rounds, Path(folder))
    table.finish(options)


# --- images --------------------------------------------------------------------------------------------------------------


def encode(table: Table, sizes: Sizes, rounds: int, folder: Path) -> None:
    images, (embedder, exported) = photographs(folder / "images", sizes.files), embedders(folder)
    files, network = [str(folder / "images" / name) for name in images.paths], folded(embedder)
    crops = np.empty((len(files), embedder.crop, embedder.crop, 3), np.uint8)
    preprocessing, source = Preprocessing(embedder.size, embedder.resize_mode, embedder.crop), MemorySource(files)

    def decode_one(i: int) -> None:
        crops[i] = preprocessing.crop_of(source, str(i))

    def decode_all() -> None:
        with ThreadPoolExecutor(available_cores()) as pool:
            list(pool.map(decode_one, range(len(files))))

    @torch.inference_mode()
    def trunk_alone() -> None:
        for at in range(0, len(files), BATCH):
            network(torch.from_numpy(crops[at : at + BATCH])).numpy()

    for each in (embedder, exported):
        each.encode(files[:BATCH])
    with kept_memory():
        decode_all()
        times = alternate(
            {
                "torch": lambda: embedder.encode(files),
                "decoding": decode_all,
                "trunk": trunk_alone,
                "onnxruntime": lambda: exported.encode(files),
            },
            rounds,
        )
    table.section(f"{len(files):,} JPEG files of 500 x 375, {embedder.trunk.name}, {embedder.crop} x {embedder.crop}")
    rates = {name: len(files) / statistics.median(each) for name, each in times.items()}
    for name, rate in rates.items():
        table.say(f"{rate:8.1f} images/s  {name}")
    both, most = ratio(times, "torch", "decoding", "trunk"), 1.05
    sums = 1 / (1 / rates["decoding"] + 1 / rates["trunk"])
    table.row("encode", rates["torch"], "images/s", Baseline("decoding, then the trunk", sums, 1 / both))
    faster = 1 / ratio(times, "onnxruntime", "torch")
    table.row("encode, onnxruntime", rates["onnxruntime"], "images/s", Baseline("encode, torch", rates["torch"], faster))
    table.target("times the time of decoding and the trunk alone, encode", both, maximum=most)


def photo(table: Table, sizes: Sizes, rounds: int, folder: Path) -> None:
    images, (embedder, _) = photographs(folder / "images", 10), embedders(folder)
    files, network = [str(folder / "images" / name) for name in images.paths], folded(embedder)
    X, labels = products(sizes.shop, embedder.width)
    index = faiss.IndexFlatL2(embedder.width)
    index.add(X)
    preprocessing, source = Preprocessing(embedder.size, embedder.resize_mode, embedder.crop), MemorySource(files)
    crops = np.stack([preprocessing.crop_of(source, str(i)) for i in range(len(files))])
    names = ["search", "decoding", "trunk", "faiss"]
    times: Times = {name: [] for name in names}
    with Catalog.open(folder / "store", embedder) as catalog, torch.inference_mode():
        catalog.add_vectors([str(i) for i in range(len(X))], X, [str(label) for label in labels])
        catalog.search(files[0], K)
        for _ in range(max(1, sizes.repeats // 3)):
            searched = [seconds(lambda i=i: catalog.search(files[i], K)) for i in range(len(files))]  # type: ignore[misc]
            with kept_memory():  # the bare trunk at its best; a search returns the memory when it ends
                network(torch.from_numpy(crops[:1]))
                alone = [
                    (
                        seconds(lambda i=i: preprocessing.crop_of(source, str(i))),  # type: ignore[misc]
                        seconds(lambda i=i: network(torch.from_numpy(crops[i : i + 1])).numpy()),  # type: ignore[misc]
                        seconds(lambda i=i: index.search(X[i : i + 1], K)),  # type: ignore[misc]
                    )
                    for i in range(len(files))
                ]
            for name, values in zip(names, (searched, *zip(*alone, strict=True)), strict=True):
                times[name].append(statistics.median(values))
    table.section(f"one photo to its top {K} of {len(X):,} x {embedder.width}")
    ms = milliseconds(table, times)
    most = ratio(times, *names)
    table.row("search", ms["search"], "ms", Baseline("decoding + trunk + faiss", sum(ms.values()) - ms["search"], 1 / most))
    table.target("times the time of decoding, trunk and faiss alone, search for a photo", most, maximum=1.15)


def embedders(folder: Path) -> tuple[Embedder, Embedder]:
    """Return an embedder for torch, and the same for onnxruntime."""
    embedder = Embedder(make_trunk("efficientnet_lite0"), dim=512).eval()
    exported = load(export(embedder.save(folder / "embedder.safetensors"), folder / "exported"))
    assert exported.onnx is not None
    return embedder, exported


# --- stores --------------------------------------------------------------------------------------------------------------


def stores(table: Table, sizes: Sizes, rounds: int, folder: Path) -> None:
    import pytest

    sys.path.append(str(Path(__file__).parent.parent / "tests" / "catalog"))
    new_address = contextlib.contextmanager(importlib.import_module("servers").new_address)
    X, labels = products(sizes.shop, DIM)
    ids, names = [str(i) for i in range(len(X))], [str(label) for label in labels]
    Q = X[: sizes.repeats] + np.float32(0.01)
    table.section(f"stores, {len(X):,} x {DIM}")
    rates: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        catalogs: dict[str, Catalog] = {}
        for name, scheme in STORES.items():
            try:
                address = stack.enter_context(new_address(scheme, folder))
                catalogs[name] = stack.enter_context(Catalog.open(address, small_embedder()))
            except (pytest.skip.Exception, ValueError) as missing:
                table.skip(name, str(missing))
                continue
            rates[name] = len(X) / seconds(lambda name=name: catalogs[name].add_vectors(ids, X, names))  # type: ignore[misc]
            table.say(f"{rates[name]:10,.0f} rows/s added  {name}")
        methods = {name: lambda i, catalog=catalog: catalog.search(Q[i % len(Q)], K) for name, catalog in catalogs.items()}
        ms = milliseconds(table, alternate_numbered(methods, sizes.repeats))
    for what, values, unit in (("exact search, one query", ms, "ms"), ("add", rates, "rows/s")):
        table.row(what, values["local"], unit, *(Baseline(name, each) for name, each in values.items() if name != "local"))


def million(table: Table, sizes: Sizes, rounds: int, folder: Path) -> None:
    n, m, rng = sizes.rows, sizes.queries, np.random.default_rng(0)
    points, labels = products(n + m, DIM)
    X, Q = points[:n], points[n:]
    ids, names = [f"item {i}" for i in range(n)], [f"product {label}" for label in labels[:n]]
    metadata = [{"category": f"c{each}"} for each in rng.integers(0, CATEGORIES, n)]
    table.section(f"local store, {n:,} x {DIM}")
    bare = seconds(lambda: write_with_sqlite(folder / "bare.sqlite", ids, names, metadata, X))
    with Catalog.open(folder / "store", small_embedder()) as catalog:
        ours = seconds(lambda: catalog.add_vectors(ids, X, names, metadata))
        table.say(f"{n / ours:10,.0f} rows/s added, {n / bare:,.0f} by SQLite alone")
        table.row("add all rows", ours, "s", Baseline("SQLite", bare))
        table.target("times the speed of SQLite alone, adding rows", bare / ours, minimum=0.5)
        indexing = seconds(lambda: catalog.index_field("category"))
        first = seconds(lambda: catalog.search(Q[0], K))
        table.say(f"{indexing:10.2f} s to index a field, {first:.2f} s for the first search after adding")
        table.row("index a field", indexing, "s")
        table.row("first search after adding", first, "s", note="reads the vectors from SQLite")
    with Catalog.open(folder / "store") as catalog:
        unfiltered = seconds(lambda: catalog.search(Q[0], K))
        filtered = seconds(lambda: catalog.search(Q[0], K, where="category = c0"))
        table.say(f"{unfiltered:10.2f} s for the first search after opening, {filtered:.2f} s for the first one with a filter")
        table.row("first search with a filter", filtered, "s", note="checks all rows and indexes, once after opening")
        index = faiss.IndexFlatL2(DIM)
        index.add(X)
        search(table, catalog, index, Q, sizes.repeats)
    open_again(table, folder / "store", rounds)
    ls.recall_at_k(*products(200, DIM), (1,), queries=Q[:9], query_labels=np.arange(9) % 3)  # compile, or load from the cache
    found = {}

    def recall() -> None:
        found["ours"] = ls.recall_at_k(X, labels[:n], (1,), queries=Q, query_labels=labels[n:])[1]

    def nearest() -> None:
        found["faiss"] = float(np.mean(labels[index.search(Q, 1)[1][:, 0]] == labels[n:]))

    times = alternate({"ours": recall, "faiss": nearest}, rounds)
    table.say(f"Recall@1 {100 * found['ours']:.3f} %; of all queries, {100 * found['faiss']:.3f} % by faiss")
    ours, theirs = (statistics.median(times[name]) for name in ("ours", "faiss"))
    faster = 1 / ratio(times, "ours", "faiss")
    table.say(f"{ours:10.2f} s for Recall@1 of {m:,} queries, {theirs:.2f} s by faiss")
    table.row(f"Recall@1 of {m:,} queries", ours, "s", Baseline("faiss, k = 1", theirs, faster))
    table.target("times the speed of faiss, Recall@1", faster, minimum=1)


def search(table: Table, catalog: Catalog, index: "faiss.IndexFlatL2", Q: np.ndarray, repeats: int) -> None:
    """Compare searches for one query and for 100, with and without a filter, and faiss."""
    new = iter(range(10**6))

    def filtered(Q: np.ndarray) -> None:
        catalog.search(Q, K, where=f"category = c{next(new) % CATEGORIES}")

    for what, m, many, times_faster in (("one query", 1, repeats, 1), ("100 queries", 100, max(3, repeats // 3), 5)):
        times = alternate_numbered(
            {
                "search": lambda i, m=m: catalog.search(Q[i : i + m], K),  # type: ignore[misc]
                "faiss": lambda i, m=m: index.search(Q[i : i + m], K),  # type: ignore[misc]
                "filtered": lambda i, m=m: filtered(Q[i : i + m]),  # type: ignore[misc]
            },
            many,
        )
        table.say(f"{what}:")
        ms = milliseconds(table, times)
        slower, faster = ratio(times, "search", "faiss"), ratio(times, "search", "filtered")
        table.row(f"top {K}, {what}", ms["search"], "ms", Baseline("faiss", ms["faiss"], 1 / slower))
        table.row(f"top {K} of 1 %, {what}", ms["filtered"], "ms", Baseline("without the filter", ms["search"], faster))
        table.target(f"times the time of faiss, {what}", slower, maximum=1.2)
        table.target(f"times the speed of a search without the filter, {what}", faster, minimum=times_faster)


def open_again(table: Table, store: Path, rounds: int) -> None:
    """Open a store in new processes."""
    command = [sys.executable, "-c", OPEN, str(store), str(DIM)]
    outputs = [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout for _ in range(rounds)]
    imports, opening = (statistics.median(each) for each in zip(*(map(float, out.split()) for out in outputs), strict=True))
    table.say(f"{opening:10.2f} s to open and search in a new process, after {imports:.2f} s of imports")
    table.row("open and search, new process", opening, "s", note=f"after {imports:.1f} s of imports")
    table.target("seconds to open and search in a new process", opening, maximum=2)


def write_with_sqlite(file: Path, ids: list[str], names: list[str], metadata: list[dict[str, str]], X: np.ndarray) -> None:
    db = sqlite3.connect(file, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(
        "CREATE TABLE items (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, product TEXT NOT NULL, "
        "path TEXT NOT NULL, content TEXT NOT NULL, metadata TEXT NOT NULL, vector BLOB NOT NULL, sum INTEGER NOT NULL)"
    )
    rows = zip(ids, names, (f'{{"category": "{each["category"]}"}}' for each in metadata), X, strict=True)
    db.execute("BEGIN IMMEDIATE")
    db.executemany("INSERT INTO items (id, product, path, content, metadata, vector, sum) VALUES (?, ?, '', '', ?, ?, 0)", rows)
    db.execute("COMMIT")
    db.close()


def small_embedder() -> Embedder:
    """Return an embedder of the right dimension, for catalogs whose vectors are ready."""
    torch.manual_seed(0)
    return Embedder(make_trunk("small"), dim=DIM).eval()


# --- times ---------------------------------------------------------------------------------------------------------------


def alternate(methods: Mapping[str, Callable[[], object]], rounds: int) -> Times:
    """Return the durations of each method, once per round."""
    return alternate_numbered({name: lambda _, method=method: method() for name, method in methods.items()}, rounds, warm=0)  # type: ignore[misc]


def alternate_numbered(methods: Mapping[str, Callable[[int], object]], rounds: int, warm: int = 1) -> Times:
    """Return the durations of each method, once per round, which it is passed, after some rounds that are not timed."""
    times: Times = {name: [] for name in methods}
    for i in range(-warm, rounds):
        for name, method in methods.items():
            begin = time.perf_counter()
            method(max(i, 0))
            if i >= 0:
                times[name].append(time.perf_counter() - begin)
    return times


def ratio(times: Times, ours: str, *theirs: str) -> float:
    """Return the median over the rounds of the duration of one method, divided by that of others in sequence."""
    rounds = zip(times[ours], *(times[name] for name in theirs), strict=True)
    return float(statistics.median(mine / sum(others) for mine, *others in rounds))


def milliseconds(table: Table, times: Times) -> dict[str, float]:
    """Print and return the median of each method."""
    found = {name: 1e3 * statistics.median(each) for name, each in times.items()}
    for name, value in found.items():
        table.say(f"{value:10.2f} ms  {name}")
    return found


if __name__ == "__main__":
    main()

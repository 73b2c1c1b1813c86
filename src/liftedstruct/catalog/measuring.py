"""What an approximate index of a catalog costs and gains, beside the exact search: recall, latency and memory."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from liftedstruct.catalog.store import Nearest, Vectors
from liftedstruct.evaluation.scores import Estimate, rate_of
from liftedstruct.runtime.checks import check_count

if TYPE_CHECKING:
    from liftedstruct.catalog.catalog import Catalog

__all__ = ["Measured", "measure"]


@dataclass(frozen=True)
class Measured:
    """Result of `measure`.

    Attributes:
        index: name of the index.
        k: number of matches.
        recall: how many of the k nearest items the index finds, on average.
        queries: number of queries.
        milliseconds: median and 99th percentile of the time of one query, by index.
        megabytes: memory or disk of the search, by index.
        build_seconds: time to build the index; 0 if there was one.

    """

    index: str
    k: int
    recall: Estimate
    queries: int
    milliseconds: dict[str, tuple[float, float]]
    megabytes: dict[str, float]
    build_seconds: float

    def __str__(self) -> str:
        lines = [f"recall of {self.index}, top {self.k}  {self.recall} (95 % interval), {self.queries:,} queries"]
        for name, (median, slow) in self.milliseconds.items():
            lines.append(f"{name:<8} {median:8.2f} ms median, {slow:8.2f} ms 99th percentile, {self.megabytes[name]:8.1f} MB")
        return "\n".join([*lines, f"built in {self.build_seconds:.1f} s"])


def measure(
    catalog: "Catalog", index: str = "hnsw", queries: Vectors | None = None, k: int = 10, n: int = 500, seed: int = 0
) -> Measured:
    """Measure an approximate index beside the exact search, one query at a time.

    Args:
        catalog: catalog with more than k items.
        index: name of the index; it is built if there is none.
        queries: (m, d), embeddings of queries. Default: n items, each without itself among the matches.
        k: number of matches.
        n: number of items that are drawn as queries.
        seed: seed of the choice.

    """
    items = list(catalog.items()) if queries is None else []
    table, own = catalog.table, np.full(0 if queries is None else len(queries), -1)
    if queries is None:
        drawn = np.random.default_rng(seed).permutation(len(items))[: check_count("n", n)]
        chosen = [items[i] for i in sorted(drawn.tolist())]
        queries, own = catalog.vectors(chosen), np.array([item.seq for item in chosen])
    wanted, count = check_count("k", k) + 1, catalog.count()
    if count < wanted or not len(queries):
        raise ValueError(f"a catalog must have more than k = {k} items to measure it, got {count}. Add images.")
    begin = time.perf_counter()
    catalog.store.build(table, index)
    built = time.perf_counter() - begin
    found: dict[str, Nearest] = {}
    milliseconds: dict[str, tuple[float, float]] = {}
    for name in ("exact", index):
        catalog.store.nearest(table, queries[:1], wanted, None, name)  # warm up
        times, found[name] = [], []
        for q in queries:
            begin = time.perf_counter()
            found[name] += catalog.store.nearest(table, q[None], wanted, None, name)
            times.append(1e3 * (time.perf_counter() - begin))
        milliseconds[name] = float(np.median(times)), float(np.quantile(times, 0.99))
    hits = np.array(
        [len(_top(a, i, k) & _top(b, i, k)) / k for (_, a), (_, b), i in zip(found["exact"], found[index], own, strict=True)]
    )
    return Measured(
        index=index,
        k=k,
        recall=rate_of(hits, np.arange(len(hits)), seed),
        queries=len(queries),
        milliseconds=milliseconds,
        megabytes={name: catalog.store.size(table, name) / 1e6 for name in ("exact", index)},
        build_seconds=built,
    )


def _top(seqs: NDArray[np.int64], own: int, k: int) -> set[int]:
    return set(seqs[seqs != own][:k].tolist())

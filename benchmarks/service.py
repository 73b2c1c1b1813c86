"""The service over loopback: latency of searches at several numbers of connections, and mixed traffic for minutes.

    python benchmarks/service.py [--parts load soak] [--minutes M] [--small] [--out FILE] [--json FILE]

load: searches for the ten nearest of 60,502 x 512 random unit vectors, by vector, as JSON over 1, 8 and 64 connections to
`liftedstruct serve` in a process of its own; each connection sends its next query when it has its answer. Beside them, as many
threads that each search faiss.IndexFlatL2 in this process for one vector at a time. Half a minute each at most.

soak: eight connections search by vector, image and item, list, add and remove items, and read thumbnails, for --minutes. No
answer may have a status of 500 or more; at the end, every item that was acknowledged must be there, and every one that was
removed must not; and the memory of the server must not grow by more than 5 % after the first minute.

The clients are in one process, and share the cores with the server. --small is a quick trial, whose numbers mean nothing.
"""

import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import faiss
import numpy as np
import torch

from images import photographs
from liftedstruct.catalog import Catalog
from liftedstruct.embedder import Embedder
from liftedstruct.trunks import make_trunk
from machine import kilobytes, processor
from records import Baseline
from table import Table, flags

K, CONNECTIONS, TALKERS = 10, (1, 8, 64), 8
MOST_SECONDS, WARM_SECONDS, STEP_SECONDS = 30, 60, 2
GROWTH = 1.05

Milliseconds = list[float]


class Sizes(NamedTuple):
    """Rows and dimensions, queries, and images of the mixed traffic."""

    rows: int = 60_502
    dim: int = 512
    queries: int = 2000
    images: int = 64


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--parts", nargs="+", choices=("load", "soak"), default=("load", "soak"), help="what to measure")
    parser.add_argument("--minutes", type=float, default=0.5, help="duration of the mixed traffic")
    parser.add_argument("--small", action="store_true", help="a quick trial with small sizes")
    options = parser.parse_args()
    sizes = Sizes(2000, 16, 64, 8) if options.small else Sizes()
    table = Table()
    table.say(f"{processor()}, torch {torch.__version__}, faiss {faiss.__version__}, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as folder:
        if "load" in options.parts:
            load(table, sizes, Path(folder))
        if "soak" in options.parts:
            soak(table, sizes, Path(folder), 60 * options.minutes)
    table.finish(options)


# --- searches ------------------------------------------------------------------------------------------------------------


def load(table: Table, sizes: Sizes, folder: Path) -> None:
    X, Q = unit_vectors(sizes.rows, sizes.dim, 0), unit_vectors(sizes.queries, sizes.dim, 1)
    with Catalog.open(folder / "load", embedder_of(sizes.dim)) as catalog:
        catalog.add_vectors([str(i) for i in range(len(X))], X)
    index = faiss.IndexFlatL2(sizes.dim)
    index.add(X)
    table.section(f"search by vector over HTTP, {len(X):,} x {sizes.dim}")
    with server_of(folder / "load") as (port, _):
        for connections in CONNECTIONS:
            ours, answers = asyncio.run(search_over(port, Q, connections))
            theirs = search_in_threads(index, Q, connections)
            same = np.mean([answers[i] == index.search(Q[i : i + 1], 1)[1][0, 0] for i in list(answers)[:100]])
            assert same > 0.99, "the nearest items differ"  # except for ties in float32
            for what, at in (("median", 50), ("99th percentile", 99)):
                mine, bare = (float(np.percentile(each, at)) for each in (ours, theirs))
                name = f"{connections} connection{'s' * (connections > 1)}, {what}"
                table.say(f"{mine:10.2f} ms  {name}; faiss in threads {bare:.2f} ms")
                table.row(name, mine, "ms", Baseline("faiss in as many threads", bare))
            table.say(f"{len(ours):10,} searches")


async def search_over(port: int, Q: np.ndarray, connections: int) -> tuple[Milliseconds, dict[int, int]]:
    """Return the milliseconds of each search, and the nearest item of each query."""
    bodies = [json.dumps({"vector": q.tolist(), "k": K}).encode() for q in Q]
    times, nearest, numbers = list[float](), dict[int, int](), iter(range(len(Q)))
    end = time.perf_counter() + MOST_SECONDS

    async def talk() -> None:
        async with talking(port) as ask:
            await ask("POST", "/search", bodies[0], "application/json")  # not timed
            for i in numbers:
                begin = time.perf_counter()
                status, content = await ask("POST", "/search", bodies[i], "application/json")
                times.append(1e3 * (time.perf_counter() - begin))
                assert status == 200, content
                nearest[i] = int(json.loads(content)["matches"][0]["id"])
                if time.perf_counter() > end:
                    return

    await asyncio.gather(*(talk() for _ in range(connections)))
    return times, nearest


def search_in_threads(index: Any, Q: np.ndarray, count: int) -> Milliseconds:
    numbers, times, end = iter(range(len(Q))), list[float](), time.perf_counter() + MOST_SECONDS

    def search(_: int) -> None:
        for i in numbers:
            begin = time.perf_counter()
            index.search(Q[i : i + 1], K)
            times.append(1e3 * (time.perf_counter() - begin))
            if time.perf_counter() > end:
                return

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(search, range(count)))
    return times


# --- mixed traffic -------------------------------------------------------------------------------------------------------


def soak(table: Table, sizes: Sizes, folder: Path, duration: float) -> None:
    dim = min(sizes.dim, 64)
    images = photographs(folder / "images", sizes.images)
    with Catalog.open(folder / "soak", embedder_of(dim)) as catalog:
        catalog.add(folder / "images")
        X = unit_vectors(sizes.rows // 12, dim, 2)
        names, fields = [f"product {i // 5}" for i in range(len(X))], [{"price": i % 100} for i in range(len(X))]
        catalog.add_vectors([f"vector {i}" for i in range(len(X))], X, names, fields)
        photos = [item.id for item in catalog.items() if item.path]
    traffic = Traffic([(folder / "images" / name).read_bytes() for name in images.paths], photos, unit_vectors(500, dim, 3))
    with server_of(folder / "soak") as (port, pid):
        memory = asyncio.run(traffic.run(port, pid, duration))
    with Catalog.open(folder / "soak") as catalog:
        there = set(catalog.ids())
    lost = len(traffic.there - there) + len(traffic.gone & there)
    warm = [size for seconds, size in memory if seconds >= min(WARM_SECONDS, duration / 2)]
    growth = max(warm) / warm[0]
    failed = sum(count for status, count in traffic.statuses.items() if status >= 500)
    table.section(f"mixed traffic over {TALKERS} connections, {duration / 60:g} minutes")
    table.say(f"{traffic.statuses.total():10,} requests, {dict(sorted(traffic.statuses.items()))}")
    table.say(f"{len(traffic.there) + len(traffic.gone):10,} acknowledged writes, {lost} lost")
    table.say(f"{warm[0] / 1e6:10.1f} MB after the first minute, at most {max(warm) / 1e6:.1f} MB later")
    table.row("memory after the first minute", warm[0] / 1e6, "MB")
    table.row("most memory later", max(warm) / 1e6, "MB")
    table.row("requests", traffic.statuses.total() / duration, "requests/s")
    table.target("answers with a status of 500 or more", failed, maximum=0)
    table.target("acknowledged writes lost", lost, maximum=0)
    table.target("times the memory after the first minute", growth, maximum=GROWTH)


class Traffic:
    """Connections that send a mix of requests, and remember what was acknowledged."""

    def __init__(self, images: list[bytes], photos: list[str], Q: np.ndarray) -> None:
        self.images, self.photos, self.Q = images, photos, Q
        self.there, self.gone, self.statuses = set[str](), set[str](), Counter[int]()

    async def run(self, port: int, pid: int, duration: float) -> list[tuple[float, int]]:
        """Send requests for so many seconds, and return the memory of the server at several times."""
        begin, memory = time.perf_counter(), list[tuple[float, int]]()
        talkers = [asyncio.create_task(self.talk(port, i, begin + duration)) for i in range(TALKERS)]
        while not all(each.done() for each in talkers):
            await asyncio.sleep(STEP_SECONDS)
            memory.append((time.perf_counter() - begin, kilobytes(Path(f"/proc/{pid}/status"), "VmRSS")))
        await asyncio.gather(*talkers)
        return memory

    async def talk(self, port: int, number: int, end: float) -> None:
        dice, own, count = random.Random(number), list[str](), 0
        async with talking(port) as ask:
            while time.perf_counter() < end:
                kind, vector = dice.random(), self.Q[dice.randrange(len(self.Q))].tolist()
                name, status = f"talker {number}/item {count}", 0
                if kind < 0.4:
                    query = {"vector": vector, "k": K, "where": dice.choice(["", "price < 50"])}
                    status, _ = await ask("POST", "/search", json.dumps(query).encode(), "application/json")
                elif kind < 0.5:
                    status, _ = await ask("POST", "/search", *form_of(dice.choice(self.images)))
                elif kind < 0.6:
                    status, _ = await ask("GET", f"/neighbors/{quote(dice.choice(self.photos), safe='')}?group_by=product")
                elif kind < 0.7:
                    address = dice.choice(["/items?limit=50&after=2000", "/classes?q=product%207", "/status", "/items/none"])
                    status, _ = await ask("GET", address)
                elif kind < 0.8:
                    status, _ = await ask("GET", f"/thumbnails/{quote(dice.choice(self.photos), safe='')}")
                elif kind < 0.9 or not own:
                    body = json.dumps({"vector": vector, "product": "new", "metadata": {"price": 7}}).encode()
                    status, _ = await ask("PUT", f"/items/{quote(name, safe='')}", body, "application/json")
                    if status == 200:
                        own.append(name)
                        self.there.add(name)
                        count += 1
                else:
                    gone = own.pop(0)
                    status, _ = await ask("DELETE", f"/items/{quote(gone, safe='')}")
                    self.there.discard(gone)
                    self.gone |= {gone} if status == 200 else set()
                self.statuses[status] += 1


# --- server and clients --------------------------------------------------------------------------------------------------


@contextmanager
def server_of(store: Path) -> Iterator[tuple[int, int]]:
    """Start a server, and yield its port and process ID."""
    command = [sys.executable, "-m", "liftedstruct", "serve", str(store), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r":(\d+) ", server.stdout.readline())
            assert found, "the server does not start"
            port = int(found[1])
            asyncio.run(ready(port))
            yield port, server.pid
        finally:
            server.terminate()


async def ready(port: int) -> None:
    async with talking(port) as ask:
        while (await ask("GET", "/ready"))[0] != 200:
            await asyncio.sleep(0.1)


class talking:  # noqa: N801 - a context manager
    """Connection to the server, as a function that sends a request and returns status and content."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Callable[..., Awaitable[tuple[int, bytes]]]:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self.ask

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def ask(self, method: str, path: str, body: bytes = b"", kind: str = "") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        answer = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = re.search(r"content-length: (\d+)", answer)
        assert length, answer
        return int(answer.split()[1]), await self.reader.readexactly(int(length[1]))


def form_of(image: bytes) -> tuple[bytes, str]:
    head = b'--edge\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
    return head + image + b"\r\n--edge--\r\n", "multipart/form-data; boundary=edge"


def unit_vectors(n: int, dim: int, seed: int) -> np.ndarray:
    X = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    unit: np.ndarray = X / np.linalg.norm(X, axis=1, keepdims=True)
    return unit


def embedder_of(dim: int) -> Embedder:
    torch.manual_seed(0)
    return Embedder(make_trunk("small"), dim=dim).eval()


if __name__ == "__main__":
    main()

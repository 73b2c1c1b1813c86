"""The map of a whole catalog in a browser: first picture, frame intervals, memory, and the time of the layout.

    python benchmarks/explorer.py [--items N ...] [--keep FOLDER] [--out FILE] [--json FILE]

Default: 60,502 and 1,000,000 items of 64 dimensions, twelve per product, in local catalogs. The vectors are a mixture of
mixtures of Gaussians; the items share 480 files with rendered products. A server in its own process answers on loopback, and
headless Chromium without a GPU shows the map at 1280 x 800.

layout: from the request until the map is ready, in a new process; then the start of a process that finds the layout in the
catalog. First picture: from the navigation until everything in view is drawn sharp, in a new browser profile; the median of
five. Frames: as in the benchmark of the report, the map is dragged along a spiral for five seconds, once zoomed out to the
whole map and once zoomed in to photos of 48 px; intervals are between calls of requestAnimationFrame. Memory: the resident
size of the server with the map in memory, and of the largest process of the browser after the frames.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from liftedstruct.catalog import Catalog, Item
from liftedstruct.data.products import write_products
from machine import kilobytes, processor
from report import ATLAS, PAN
from table import Table, flags

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DIM, PER_PRODUCT, FILES, SIDE = 64, 12, 480, 160
FIRST = {60_502: 2, 1_000_000: 4}  # seconds until the first picture, at most
FIRST_PLACE = f"{ATLAS}.view.tiles.get('0/0/0').places.subarray(0, 2)"  # of an item
LAYOUT_MINUTES, FRAME = 20, 33
ROUNDS = 5
SERVE = """
import sys
from liftedstruct.catalog import Catalog
from liftedstruct.service import create_app, run_server
with Catalog.open(sys.argv[1]) as catalog:
    app = create_app(catalog, explorer=True, log=lambda line: None)
    run_server(app, "127.0.0.1", 0, lambda address: print(address, flush=True))
"""
PAINTED = f"""async () => {{
    const frame = () => new Promise(requestAnimationFrame);
    while (!({ATLAS}?.painted && !{ATLAS}.camera.flight)) await frame();
    return performance.now();
}}""".replace(".atlas?", "?.atlas?")


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=tuple(FIRST), help="numbers of items")
    parser.add_argument("--keep", type=Path, help="folder for the catalogs, which are reused")
    options = parser.parse_args()
    table = Table()
    table.say(processor())
    with tempfile.TemporaryDirectory() as folder:
        for n in options.items:
            measure(table, n, (options.keep or Path(folder)) / str(n))
    table.skip("Embedding Atlas", "its map needs WebGPU, which headless Chromium without a GPU does not have")
    table.finish(options)


def measure(table: Table, n: int, folder: Path) -> None:
    """Measure a catalog of n items."""
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from browser import find_browser, launched

    table.section(f"{n:,} items of {DIM} dimensions")
    if not (folder / "catalog.sqlite").exists():
        write_catalog(folder, n)
    layout = folder / "map-1.safetensors"
    if not layout.exists():
        with served(folder) as (address, _):
            taken = until_ready(address)
        (folder / "seconds.txt").write_text(f"{taken}")
    minutes = float((folder / "seconds.txt").read_text()) / 60
    table.say(f"{minutes:8.2f} minutes for the layout")
    table.row("layout", minutes, "min")
    table.target(f"minutes for the layout of {n:,} items", minutes, maximum=LAYOUT_MINUTES)
    with served(folder) as (address, server):
        opening = until_ready(address)
        table.say(f"{opening:8.2f} s from the first request to the map, with the layout in the catalog")
        table.row("map from a layout in the catalog", opening, "s")
        if find_browser() is None:
            table.skip("the map in a browser", "no browser found: install chromium, or set LIFTEDSTRUCT_BROWSER")
            return
        with launched() as browser:
            first = statistics.median(first_picture(browser, address) for _ in range(ROUNDS))
            table.say(f"{first:8.2f} s until the first picture")
            table.row("first picture", first, "s")
            table.target(f"s until the first picture of {n:,} items", first, maximum=FIRST.get(n, max(FIRST.values())))
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            open_map(page, address)
            for place, go in {
                "zoomed out": "",
                "zoomed in": f"{ATLAS}.camera.set(...{FIRST_PLACE}, 12000)",
            }.items():
                frames(table, page, place, go, n)
            page.evaluate(f"{ATLAS}.choose(0)")
            page.wait_for_function("() => document.querySelector('.lifted-map .near')")
            rows = {"server": resident(server.pid), "page": max(map(resident, renderers()))}
            for name, size in rows.items():
                table.say(f"{size / 1e6:8.0f} MB, {name}")
                table.row(f"memory, {name}", size / 1e6, "MB")


def write_catalog(folder: Path, n: int) -> None:
    """Write a catalog of n items: categories of products of items."""
    rng = np.random.default_rng(0)
    products = -(-n // PER_PRODUCT)
    categories = rng.standard_normal((60, DIM), dtype=np.float32)
    category = rng.integers(0, len(categories), products)
    centers = categories[category] + 0.5 * rng.standard_normal((products, DIM), dtype=np.float32)
    product = rng.permutation(n) % products
    X = centers[product] + 0.25 * rng.standard_normal((n, DIM), dtype=np.float32)
    files = write_images(folder.parent / "images")
    price = rng.lognormal(3, 1, products).round(2).tolist()
    items = (
        Item(
            f"{p:06}/{i:07}.jpg",
            f"product {p:06}",
            str((group := files[category[p] % len(files)])[p % len(group)]),
            metadata={"category": f"category {category[p]:02}", "price": price[p]},
        )
        for i, p in enumerate(product.tolist())
    )
    with Catalog.open(folder, small_embedder()) as catalog, catalog.store.writing():
        catalog.store.put(catalog.begin(small_embedder(), DIM)["table"], items, X)


def small_embedder() -> Any:
    from catalog import small_embedder

    return small_embedder()


def write_images(folder: Path) -> list[list[Path]]:
    """Write image files of rendered products, and return them by category."""
    if not folder.exists():
        write_products(folder, FILES, images_per_class=1, size=SIDE)
    return [sorted(each.rglob("*.png")) for each in sorted(folder.iterdir()) if each.is_dir()]


# --- server and browser --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Serve a catalog in a process."""
    with subprocess.Popen([sys.executable, "-c", SERVE, str(folder)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            yield server.stdout.readline().strip(), server
        finally:
            server.terminate()


def until_ready(address: str) -> float:
    """Request the map, and return the seconds until it is there."""
    begin = time.perf_counter()
    state = asked(f"{address}/map", b"")
    while state["state"] != "ready":
        if state["state"] == "failed":
            raise RuntimeError(state["note"])
        time.sleep(0.2)
        state = asked(f"{address}/map")
    return time.perf_counter() - begin


def asked(address: str, body: bytes | None = None) -> Any:
    with urllib.request.urlopen(urllib.request.Request(address, body)) as answer:
        return json.load(answer)


def first_picture(browser: "Browser", address: str) -> float:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        return open_map(context.new_page(), address)
    finally:
        context.close()


def open_map(page: "Page", address: str) -> float:
    """Open the map and return the seconds until it is drawn."""
    page.set_default_timeout(120_000)
    page.goto(f"{address}/#map")
    return float(page.evaluate(PAINTED)) / 1000


def frames(table: Table, page: "Page", place: str, go: str, n: int) -> None:
    """Measure the intervals between frames while the map is dragged."""
    if go:
        page.evaluate(go)
    page.evaluate(PAINTED)
    intervals = page.evaluate(PAN)
    median, slow = statistics.median(intervals), statistics.quantiles(intervals, n=20)[-1]
    table.say(f"{median:8.1f} ms between frames, {place}, 95 % within {slow:.1f}, the longest {max(intervals):.1f}")
    table.row(f"frame interval, {place}, median", median, "ms", note=f"95 % within {slow:.1f} ms")
    table.target(f"ms frame interval, {place}, {n:,} items", median, maximum=FRAME)


def resident(process: int) -> int:
    return kilobytes(Path(f"/proc/{process}/status"), "VmRSS")


def renderers() -> list[int]:
    """Return the processes that draw pages, of browsers that this process has started."""
    found, parents = [], {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if b"--type=renderer" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return [process for process in found if os.getpid() in ancestors(process, parents)]


def ancestors(process: int, parents: dict[int, int]) -> Iterator[int]:
    while process in parents:
        process = parents[process]
        yield process


if __name__ == "__main__":
    main()

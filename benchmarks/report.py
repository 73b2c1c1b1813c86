"""How large the map of a report is, how long it takes to make, and how fluid it is in a browser.

    python benchmarks/report.py [--images N] [--views N] [--max-mb MB] [--out FILE] [--keep FILE]

The size is that of the test half of Stanford Online Products: 60,502 images of 11,316 classes, in three views. The pictures are
rendered products, each used many times over: mirrored, with colours exchanged, darker and lighter. Places are classes around
their centres, neighbours are real ones.

Frames: the page is opened in headless chromium without a GPU, at 1280 x 800, and the map is dragged along a spiral for five
seconds, by pointer events, one for each frame; the intervals are those between calls of requestAnimationFrame. Once with the
whole map in view, once with thumbnails of 48 pixels. Memory is the highest resident size of the process that makes the map.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from liftedstruct.figures.thumbnails import Pixels, Thumbnails, thumbnails_of
from liftedstruct.images.image_set import Indices
from liftedstruct.neighbours import first_ranks, nearest_neighbours
from liftedstruct.products import product_images
from liftedstruct.report.atlas import View, map_html
from table import Table, processor, seconds, status_bytes

if TYPE_CHECKING:
    from playwright.sync_api import Page

ATLAS = "document.querySelector('.lifted-map').atlas"
RENDERED = 2000  # different pictures; the others are made of these
CHANNELS = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (1, 0, 2), (2, 1, 0))
# Five seconds along a spiral, one pointer event for each frame; the intervals between frames in milliseconds.
PAN = """async () => {
    const canvas = document.querySelector('.lifted-map .plane');
    const box = canvas.getBoundingClientRect();
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    const send = (type, dx, dy) => canvas.dispatchEvent(new PointerEvent(type, {
        pointerId: 9, pointerType: 'mouse', isPrimary: true, bubbles: true, clientX: x + dx, clientY: y + dy,
    }));
    const frame = () => new Promise(requestAnimationFrame);
    const intervals = [];
    send('pointerdown', 0, 0);
    const start = await frame();
    for (let before = start; before - start < 5000; ) {
        const t = (before - start) / 5000;
        const angle = 6 * Math.PI * t;
        send('pointermove', 900 * t * Math.cos(angle), 900 * t * Math.sin(angle));
        const now = await frame();
        intervals.push(now - before);
        before = now;
    }
    send('pointerup', 0, 0);
    return intervals;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=60_502)
    parser.add_argument("--views", type=int, default=3)
    parser.add_argument("--max-mb", type=float, default=80)
    parser.add_argument("--out", type=Path, help="also write the table here")
    parser.add_argument("--keep", type=Path, help="write the page here, to look at")
    options = parser.parse_args()
    table = Table()
    table.say(f"{processor()}, {options.images:,} images, {options.views} views")
    with tempfile.TemporaryDirectory() as folder:
        page = options.keep or Path(folder) / "report.html"
        make(table, page, options.images, options.views, options.max_mb)
        look(table, page)
    table.finish(options.out)


def make(table: Table, path: Path, n: int, count: int, max_mb: float) -> None:
    """Write the page; how long it took and how large it is."""
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(0, max(2, round(n / 5.35)), n))
    views = [view(f"run {number}", labels, rng) for number in range(count)]
    names = [f"product_{number:05}" for number in range(int(labels.max()) + 1)]
    captions = [f"category_{label % 12:02}/product_{label:05}/{number}.jpg" for number, label in enumerate(labels)]
    thumbnails = pictures(n)
    before = status_bytes("VmRSS")

    def write() -> None:
        fragment = map_html(views, labels, names, captions, thumbnails, max_bytes=round(1e6 * max_mb), progress=True)
        head = "<!doctype html><html lang=en><head><meta charset=utf-8><title>report</title></head>"
        path.write_text(f"{head}<body>{fragment}</body></html>", encoding="utf-8")

    taken, size, peak = seconds(write), path.stat().st_size, status_bytes("VmHWM")
    table.say(f"{taken:8.1f} s to make the map, beyond t-SNE and neighbours")
    table.say(f"{size / 1e6:8.1f} MB")
    table.say(f"{peak / 1e9:8.2f} GB of memory at most, {before / 1e9:.2f} before the map was begun")
    table.bar("minutes to make", taken / 60, most=5)
    table.bar("MB", size / 1e6, most=max_mb)
    table.bar("GB of memory", peak / 1e9, most=4)


def look(table: Table, path: Path) -> None:
    """Open the page and drag the map about."""
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from browser import launched, open_file, watched

    with launched() as browser, watched(browser) as page:
        page.set_default_timeout(300_000)
        begin = time.perf_counter()
        open_file(page, path)
        settle(page)
        table.say(f"{time.perf_counter() - begin:8.1f} s until the whole map is seen")
        places: dict[str, Callable[[], Any]] = {
            "zoomed out": lambda: None,
            "zoomed in": lambda: page.evaluate(f"{ATLAS}.camera.set(0.5, 0.5, 60 * Math.sqrt({ATLAS}.n))"),
        }
        for place, go in places.items():
            go()
            settle(page)
            intervals = page.evaluate(PAN)
            median, slow = statistics.median(intervals), statistics.quantiles(intervals, n=20)[-1]
            table.say(f"{median:8.1f} ms between frames {place}, 95 % within {slow:.1f}, the longest {max(intervals):.1f}")
            table.bar(f"ms between frames {place}, median", median, most=33)


def settle(page: "Page") -> None:
    page.wait_for_function(f"() => {ATLAS}.painted && !{ATLAS}.camera.flight")


def view(name: str, labels: Indices, rng: np.random.Generator) -> View:
    """Classes around their centres in 16 dimensions; the first two, stretched to be as even as those of t-SNE, are the map."""
    X = rng.standard_normal((int(labels.max()) + 1, 16))[labels] + 0.35 * rng.standard_normal((len(labels), 16))
    X = X.astype(np.float32)
    distances, neighbours = nearest_neighbours(X, 5)
    radius = np.linalg.norm(X[:, :2], axis=1, keepdims=True)
    disc = X[:, :2] / radius * np.sqrt(1 - np.exp(-(radius**2) / 2.2))
    return View(name, disc, neighbours, distances, np.asarray(first_ranks(X, labels)))


def pictures(n: int) -> Thumbnails:
    """Thumbnails of rendered products; picture i is a change of picture i mod RENDERED."""
    images = product_images(RENDERED // 4, size=96)
    count = min(RENDERED, len(images), n)
    stack: Pixels = np.stack([np.asarray(images.source.open(images.paths[row])) for row in range(count)])
    rendered = thumbnails_of(stack)

    def thumbnails(rows: Indices, side: int) -> Pixels:
        small: NDArray[np.uint8] = rendered(rows % count, side)
        for at, turn in enumerate(rows // count):
            mirrored = small[at, :, :: -1 if turn % 2 else 1][:, :, list(CHANNELS[turn // 2 % 6])]
            small[at] = mirrored * (1 - 0.12 * (turn // 12 % 4))
        return small

    return thumbnails


if __name__ == "__main__":
    main()

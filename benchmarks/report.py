"""How large a report is, how long it takes to make, and how fluid its map is in a browser.

    python benchmarks/report.py [--images N] [--runs N] [--max-mb MB] [--data FOLDER] [--keep FILE]

The size is that of the test half of Stanford Online Products: 60,502 images of about 11,400 classes. The pictures are rendered
products, prepared at 64 pixels (in FOLDER, where they are found again); the embeddings have 512 dimensions, classes around
their centres, so near each other that a part of the nearest neighbours is wrong. They are evaluated, and the report is
made by ``write_report``, all of it: Recall@K, affinity propagation to as many clusters as classes, neighbours, t-SNE,
galleries, figures and map. The time of t-SNE is taken apart.

Frames: the page is opened in headless chromium without a GPU, at 1280 x 800, and the map is dragged along a spiral for five
seconds, by pointer events, one for each frame; the intervals are those between calls of requestAnimationFrame. Once with the
whole map in view, once with thumbnails of 48 pixels. Memory is the highest resident size of the process that makes the report.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from liftedstruct import projection
from liftedstruct.data import PackedImages, prepare
from liftedstruct.data.products import product_images
from liftedstruct.embeddings import Embeddings
from liftedstruct.evaluation import evaluate_file, scores_file
from liftedstruct.figures import evaluated_run
from liftedstruct.report import write_report
from machine import processor, status_bytes
from table import Table, flags, seconds

if TYPE_CHECKING:
    from playwright.sync_api import Page

ATLAS = "document.querySelector('.lifted-map').atlas"
SIZE, DIM, NOISE = 64, 512, 1.35
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
    parser = flags(__doc__)
    parser.add_argument("--images", type=int, default=60_502)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--max-mb", type=float, default=80)
    parser.add_argument("--data", type=Path, help="folder of the prepared products, made if absent")
    parser.add_argument("--keep", type=Path, help="write the page here, to look at")
    options = parser.parse_args()
    table = Table()
    table.say(processor())
    table.section(f"{options.images:,} images, {options.runs} run{'s' * (options.runs > 1)}")
    with tempfile.TemporaryDirectory() as folder:
        packed = prepare(
            product_images(round(options.images / 5.3) + 20, size=SIZE), options.data or Path(folder) / "data", size=SIZE
        )
        runs = [write_run(packed, options.images, Path(folder) / f"run{number}.npz", number) for number in range(options.runs)]
        page = options.keep or Path(folder) / "report.html"
        make(table, runs, page, options.max_mb)
        look(table, page)
    table.finish(options)


def write_run(packed: PackedImages, n: int, file: Path, seed: int) -> Path:
    """A file of embeddings of the first n images."""
    rng, labels = np.random.default_rng(seed), packed.labels[:n]
    centres = rng.standard_normal((int(labels.max()) + 1, DIM), dtype=np.float32)
    X = centres[labels] + NOISE * rng.standard_normal((n, DIM), dtype=np.float32) * rng.uniform(0.5, 1.5, (n, 1)).astype(
        np.float32
    )
    protocol = {"trunk": "none", "data": packed.name, "checksum": packed.checksum}
    names, rows = packed.class_names[: int(labels.max()) + 1], np.arange(n)
    return Embeddings(
        *(X, labels, names, packed.paths[:n], rows, packed.contents[:n]),
        seen=None,
        part="all",
        data=str(packed.folder),
        protocol=protocol,
    ).save(file)


def make(table: Table, runs: list[Path], path: Path, max_mb: float) -> None:
    """Write the page; how long it took and how large it is."""
    before, mapping = status_bytes("VmRSS"), 0.0
    real = projection.tsne

    def timed(*arguments: Any, **settings: Any) -> Any:
        nonlocal mapping
        begin = time.perf_counter()
        positions = real(*arguments, **settings)
        mapping += time.perf_counter() - begin
        return positions

    vars(evaluated_run)["tsne"] = timed

    def evaluate_and_report() -> None:
        for run in runs:
            evaluate_file(run, progress=True).save(scores_file(run))
        write_report(runs, path, max_mb=max_mb)

    taken, size, peak = seconds(evaluate_and_report), path.stat().st_size, status_bytes("VmHWM")
    table.say(f"{taken - mapping:8.1f} s to make the report, beyond t-SNE, which took {mapping:.1f} s")
    table.say(f"{size / 1e6:8.1f} MB")
    table.say(f"{peak / 1e9:8.2f} GB of memory at most, {before / 1e9:.2f} before it was begun")
    table.row("to make the report, beyond t-SNE", taken - mapping, "s")
    table.row("t-SNE", mapping, "s")
    table.row("size of the page", size / 1e6, "MB")
    table.row("memory at most", peak / 1e6, "MB", note=f"{before / 1e6:,.0f} MB before it was begun")
    table.bar("minutes to make, beyond t-SNE", (taken - mapping) / 60, most=5)
    table.bar("MB", size / 1e6, most=max_mb)
    table.bar("GB of memory", peak / 1e9, most=4)


def look(table: Table, path: Path) -> None:
    """Open the page and drag the map about."""
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from browser import find_browser, launched, open_file, watched

    if find_browser() is None:
        table.skip("the map in a browser", "there is no browser: install chromium, or name one in LIFTEDSTRUCT_BROWSER")
        return
    with launched() as browser, watched(browser) as page:
        page.set_default_timeout(300_000)
        begin = time.perf_counter()
        open_file(page, path)
        settle(page)
        opening = time.perf_counter() - begin
        table.say(f"{opening:8.1f} s until the whole map is seen")
        table.row("until the whole map is seen", opening, "s")
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
            table.row(f"between frames {place}, median", median, "ms", note=f"95 % within {slow:.1f} ms")
            table.bar(f"ms between frames {place}, median", median, most=33)


def settle(page: "Page") -> None:
    page.wait_for_function(f"() => {ATLAS}.painted && !{ATLAS}.camera.flight")


if __name__ == "__main__":
    main()

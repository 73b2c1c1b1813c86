"""Size of the HTML report, time to write it, and frame rate of its map in a browser.

    python benchmarks/report.py [--images N] [--runs N] [--max-mb MB] [--data FOLDER] [--keep FILE]

Default: 60,502 images, as in the test classes of Stanford Online Products, of about 11,400 classes. The images are rendered
products prepared at 64 px (cached in FOLDER); the 512-d embeddings are Gaussian classes close enough for some wrong nearest
neighbors. The script evaluates them and writes the report: Recall@K, affinity propagation to as many clusters as classes,
neighbors, t-SNE, galleries, figures and map. t-SNE is timed separately.

Frames: headless Chromium without a GPU opens the report at 1280 x 800 and drags the map along a spiral for five seconds, one
pointer event per frame; intervals are between calls of requestAnimationFrame, once zoomed out to the whole map and once
zoomed in to thumbnails of 48 px. Memory is the peak resident size of the process that writes the report.
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
# Drag along a spiral for five seconds, one pointer event per frame; returns the frame intervals in milliseconds.
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
    parser.add_argument("--data", type=Path, help="folder of the prepared products, created if missing")
    parser.add_argument("--keep", type=Path, help="keep the report in this file")
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
        measure_map(table, page)
    table.finish(options)


def write_run(packed: PackedImages, n: int, file: Path, seed: int) -> Path:
    """Save embeddings of the first n images."""
    rng, labels = np.random.default_rng(seed), packed.labels[:n]
    centers = rng.standard_normal((int(labels.max()) + 1, DIM), dtype=np.float32)
    X = centers[labels] + NOISE * rng.standard_normal((n, DIM), dtype=np.float32) * rng.uniform(0.5, 1.5, (n, 1)).astype(
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
    """Evaluate, write the report, and record time, size and memory."""
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
    table.say(f"{taken - mapping:8.1f} s to evaluate and write the report without t-SNE, {mapping:.1f} s for t-SNE")
    table.say(f"{size / 1e6:8.1f} MB")
    table.say(f"{peak / 1e9:8.2f} GB peak memory, {before / 1e9:.2f} before")
    table.row("evaluate and write the report, without t-SNE", taken - mapping, "s")
    table.row("t-SNE", mapping, "s")
    table.row("file size", size / 1e6, "MB")
    table.row("peak memory", peak / 1e6, "MB", note=f"{before / 1e6:,.0f} MB before")
    table.target("minutes without t-SNE", (taken - mapping) / 60, maximum=5)
    table.target("MB, file size", size / 1e6, maximum=max_mb)
    table.target("GB, peak memory", peak / 1e9, maximum=4)


def measure_map(table: Table, path: Path) -> None:
    """Open the report and measure frame intervals while dragging the map."""
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from browser import find_browser, launched, open_file, watched

    if find_browser() is None:
        table.skip("the map in a browser", "no browser found: install chromium, or set LIFTEDSTRUCT_BROWSER")
        return
    with launched() as browser, watched(browser) as page:
        page.set_default_timeout(300_000)
        begin = time.perf_counter()
        open_file(page, path)
        settle(page)
        opening = time.perf_counter() - begin
        table.say(f"{opening:8.1f} s until the map is drawn")
        table.row("until the map is drawn", opening, "s")
        places: dict[str, Callable[[], Any]] = {
            "zoomed out": lambda: None,
            "zoomed in": lambda: page.evaluate(f"{ATLAS}.camera.set(0.5, 0.5, 60 * Math.sqrt({ATLAS}.n))"),
        }
        for place, go in places.items():
            go()
            settle(page)
            intervals = page.evaluate(PAN)
            median, slow = statistics.median(intervals), statistics.quantiles(intervals, n=20)[-1]
            table.say(f"{median:8.1f} ms between frames, {place}, 95 % within {slow:.1f}, the longest {max(intervals):.1f}")
            table.row(f"frame interval, {place}, median", median, "ms", note=f"95 % within {slow:.1f} ms")
            table.target(f"ms frame interval, {place}, median", median, maximum=33)


def settle(page: "Page") -> None:
    page.wait_for_function(f"() => {ATLAS}.painted && !{ATLAS}.camera.flight")


if __name__ == "__main__":
    main()

"""Generate the illustrations and the product figures of the documentation with the package's own commands.

Usage: python docs/figures.py [FOLDER]
"""

import csv
import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from liftedstruct.cli import main as liftedstruct

__all__ = ["ILLUSTRATIONS", "draw_explorer", "draw_illustrations", "draw_products"]

FOLDER = Path(__file__).parent / "figures"
ILLUSTRATIONS = ("batch-graph", "failure-modes", "mining", "networks")


def draw_illustrations(folder: Path) -> None:
    """Draw the paper's explanatory figures as SVG."""
    for kind in ILLUSTRATIONS:
        run(f"figure {kind} --out {folder / kind}.svg")


def draw_products(folder: Path, classes: int = 80, trunk: str = "efficientnet_lite0") -> None:
    """Draw instructive failures and the map of rendered products, using the pooled features of a pretrained trunk."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        run(f"prepare products:{classes} --out {work / 'data'} --size 256")
        run(f"embed {trunk} {work / 'data'} --out {work / 'pool5.npz'}")
        run(f"evaluate {work / 'pool5.npz'}")
        for kind, option in (("instructive", "--count 4"), ("map", "--side 1200")):
            run(f"figure {kind} {work / 'pool5.npz'} --out {work / kind}.png --dpi 120 {option}")
            with Image.open(work / f"{kind}.png") as picture:
                picture.convert("RGB").save(folder / f"{kind}.jpg", quality=85)


def draw_explorer(folder: Path, classes: int = 300) -> None:
    """Take screenshots of the explorer of a catalog of rendered products, with chromium and playwright."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        run(f"products --out {work / 'photos'} --n-classes {classes} --images-per-class 6")
        run(f"prepare {work / 'photos'} --out {work / 'data'} --size 256")
        run(f"train {work / 'data'} --out {work / 'run'} --preset quick --steps 60")
        images = sorted((work / "photos").glob("*/*/*.png"))
        query = next((image for image in images if image.match("chair/00136/4.png")), images[0])
        with (work / "shop.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["path", "id", "product", "category", "price"])
            for image in images:
                product = image.parent.relative_to(work / "photos").as_posix()
                price = 20 + 37 * int(image.parts[-2]) % 380
                if image != query:
                    table.writerow([image, f"{product}/{image.name}", product, image.parts[-3], price])
        run(f"catalog add {work / 'shop'} {work / 'shop.csv'} --run {work / 'run'}")
        run(f"catalog calibrate {work / 'shop'} --false-match-rate 0.05")
        take_screenshots(folder, work / "shop", query)


def take_screenshots(folder: Path, catalog: Path, query: Path) -> None:
    """Open each view of the explorer and save it as it looks in a window of 1,280 x 800 pixels."""
    from playwright.sync_api import sync_playwright

    call = [sys.executable, "-m", "liftedstruct", "explore", str(catalog), "--port", "0", "--no-browser"]
    call += ["--decisions", f"{catalog}.csv"]
    with (
        subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server,
        sync_playwright() as playwright,
    ):
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split(" at ")[1].split()[0]
            browser = playwright.chromium.launch(executable_path=os.environ.get("LIFTEDSTRUCT_BROWSER", "/usr/bin/chromium"))
            page = browser.new_page(viewport={"width": 1280, "height": 800}, device_scale_factor=1.5)
            page.goto(address)
            page.get_by_label("Choose a photo").set_input_files(query)
            page.locator(".box").focus()
            for key in [*6 * ["Shift+ArrowLeft", "Shift+ArrowUp"], *3 * ["ArrowRight", "ArrowDown"]]:
                page.keyboard.press(key)
            page.locator(".answer header").wait_for(timeout=60_000)
            page.locator("h1").click()
            save(page, folder / "explore-find.webp")
            for tab, ready in (("Map", ".stage canvas"), ("Review", ".review figure img")):
                page.get_by_role("link", name=tab).click()
                page.locator(ready).first.wait_for(timeout=300_000)
                save(page, folder / f"explore-{tab.lower()}.webp")
            browser.close()
        finally:
            server.send_signal(signal.SIGINT)


def save(page: Any, file: Path) -> None:
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(2000)  # images appear
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        picture.save(file, quality=80, method=6)


def run(command: str) -> None:
    """Run one command of the package and exit if it fails."""
    if liftedstruct(command.split()):
        raise SystemExit(f"liftedstruct {command} failed")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    target.mkdir(parents=True, exist_ok=True)
    draw_illustrations(target)
    draw_products(target)
    draw_explorer(target)

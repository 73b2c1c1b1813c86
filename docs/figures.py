"""Generate the illustrations and the product figures of the documentation with the package's own commands.

Usage: python docs/figures.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

from liftedstruct.cli import main as liftedstruct

__all__ = ["ILLUSTRATIONS", "draw_illustrations", "draw_products"]

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


def run(command: str) -> None:
    """Run one command of the package and exit if it fails."""
    if liftedstruct(command.split()):
        raise SystemExit(f"liftedstruct {command} failed")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    target.mkdir(parents=True, exist_ok=True)
    draw_illustrations(target)
    draw_products(target)

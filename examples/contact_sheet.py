"""Contact sheet of rendered products: one row per category, every image a different product.

Usage: python examples/contact_sheet.py docs/products.jpg
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from liftedstruct.data.products import CATEGORIES, category_of, render


def main(file: Path, columns: int = 12, size: int = 96, seed: int = 0) -> None:
    numbers = range(len(CATEGORIES) * columns)  # each block of twelve products has every category once
    rows = [[k for k in numbers if category_of(k, seed) == category] for category in CATEGORIES]
    sheet = np.concatenate([np.concatenate([render(k, 0, size, seed) for k in row], axis=1) for row in rows])
    Image.fromarray(sheet).save(file, quality=85)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

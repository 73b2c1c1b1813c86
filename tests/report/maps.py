"""Small maps of colored squares, and an HTML page to hold them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from liftedstruct.data.image_set import Indices
from liftedstruct.figures.thumbnails import Pixels
from liftedstruct.report.interactive_map import View, map_html
from liftedstruct.retrieval import first_ranks, nearest_neighbors

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"  # nothing may be loaded


@dataclass(frozen=True)
class Squares:
    """n images of one distinct color each, with embeddings around the centers of their classes."""

    n: int = 120
    classes: int = 6
    noise: float = 0.6
    views: int = 1
    names: tuple[str, ...] = ()

    @property
    def labels(self) -> Indices:
        return np.arange(self.n) % self.classes

    @property
    def class_names(self) -> list[str]:
        return [*self.names, *(f"class_{number:02}" for number in range(len(self.names), self.classes))]

    @property
    def captions(self) -> list[str]:
        return [f"images/{number:04}.png" for number in range(self.n)]

    def embeddings(self, view: int = 0) -> NDArray[np.float64]:
        rng = np.random.default_rng(view)
        centers = 4 * rng.standard_normal((self.classes, 4))
        far = 1 + 3 * (np.arange(self.n) % 5 == 0)  # some lie outside their class
        X: NDArray[np.float64] = centers[self.labels] + self.noise * far[:, None] * rng.standard_normal((self.n, 4))
        return X

    def view(self, number: int = 0) -> View:
        X = self.embeddings(number)
        distances, neighbors = (
            nearest_neighbors(X, min(5, self.n - 1)) if self.n > 1 else (np.empty((1, 0)), np.empty((1, 0), int))
        )
        ranks = np.asarray(first_ranks(X, self.labels)) if self.n > 1 else np.zeros(1, int)
        return View(f"run {number}", X[:, :2], distances, neighbors, ranks)

    def colors(self, rows: Indices) -> NDArray[np.uint8]:
        """Return colors, (q, 3), out of 7 x 7 x 7 with steps of 36."""
        return (18 + 36 * np.column_stack((rows % 7, rows // 7 % 7, rows // 49 % 7))).astype(np.uint8)

    def thumbnails(self, rows: Indices, side: int) -> Pixels:
        return np.broadcast_to(self.colors(rows)[:, None, None], (len(rows), side, side, 3)).copy()

    def html(self, max_bytes: int = 10_000_000) -> str:
        views = [self.view(number) for number in range(self.views)]
        return map_html(views, self.labels, self.class_names, self.captions, self.thumbnails, max_bytes=max_bytes)


def write_page(folder: Path, fragment: str) -> Path:
    """Write an HTML page with only the map, under a policy that forbids loading anything."""
    path = folder / "map.html"
    head = f'<meta charset=utf-8><meta http-equiv=Content-Security-Policy content="{POLICY}"><title>map</title>'
    size = "<meta name=viewport content='width=device-width, initial-scale=1'>"
    path.write_text(f"<!doctype html><html lang=en><head>{head}{size}</head><body>{fragment}</body></html>", encoding="utf-8")
    return path

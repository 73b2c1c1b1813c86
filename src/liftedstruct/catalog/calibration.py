"""Calibration of a catalog: the distance up to which a photo is taken for the product that is nearest to it.

A photo of a product that is not in the catalog also has a nearest product. It is a false match if that is within the threshold.
The threshold for a requested false-match rate is learned on half of the products, and its rate is measured on the other half. A
product is made absent by leaving out its own images: the nearest image of any other product is what a search would return.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from liftedstruct.catalog.store import Vectors
from liftedstruct.data import list_items
from liftedstruct.evaluation.scores import Estimate, rate_of
from liftedstruct.retrieval import nearest_by_class, threshold_at
from liftedstruct.runtime.checks import as_classes, as_number, check_count

if TYPE_CHECKING:
    from liftedstruct.catalog.catalog import Catalog

__all__ = ["Calibration", "calibrate"]

Distances = NDArray[np.float64]
MOST = 20_000  # queries; of a larger catalog, whole products are drawn
LEAST = 4  # products


@dataclass(frozen=True)
class Calibration:
    """Result of `calibrate`.

    Attributes:
        threshold: distance up to which the verdict is "match".
        requested: false-match rate that the threshold was learned for.
        false_match_rate: rate on the products that it was not learned on, each made absent in turn.
        identification_rate: how many images of these products find their product, within the threshold, when it is there.
        queries: number of query images, and where they are from.
        products: number of products for learning and for measuring.
        items: number of items of the catalog at that time. With many more items, calibrate again.

    """

    threshold: float
    requested: float
    false_match_rate: Estimate
    identification_rate: Estimate
    queries: str
    products: tuple[int, int]
    items: int

    def __str__(self) -> str:
        return "\n".join(
            (
                f"threshold            {self.threshold:.4g} for a requested false-match rate of {100 * self.requested:g} %",
                f"false-match rate     {str(self.false_match_rate).strip()} (95 % interval), for products that are absent",
                f"identification rate  {str(self.identification_rate).strip()} (95 % interval), for products that are present",
                f"queries              {self.queries}; learned on {self.products[0]:,} products, measured on "
                f"{self.products[1]:,} others; {self.items:,} items",
            )
        )


def calibrate(
    catalog: "Catalog", rate: float = 0.01, queries: Sequence[str | Path] | None = None, seed: int = 0, progress: bool = False
) -> Calibration:
    """Learn the threshold for a false-match rate on half of the products, and measure it on the others.

    The catalog remembers the threshold, and its answers then have a verdict.

    Args:
        catalog: catalog whose items have products.
        rate: requested false-match rate.
        queries: folders, CSV files and images with their products, such as photos of customers. Default: the images of the
            catalog, each a query for the others; they may be easier than real photos.
        seed: seed of the choice of products.
        progress: show progress.

    """
    if not 0 < as_number(rate) < 1:
        raise ValueError(f"the false-match rate must be between 0 and 1, got {rate!r}. Try 0.01.")
    rng = np.random.default_rng(check_count("seed", seed, 0))
    with catalog.store.writing():  # nothing changes in between
        return _calibrate(catalog, rate, queries, seed, rng, progress)


def _calibrate(
    catalog: "Catalog", rate: float, queries: Sequence[str | Path] | None, seed: int, rng: np.random.Generator, progress: bool
) -> Calibration:
    items = [item for item in catalog.items() if item.product]
    products, X = np.array([item.product for item in items], object), catalog.vectors(items)
    if queries is None:
        same, other, of = _own_queries(X, products, rng)
        text = f"{len(of):,} images of the catalog"
    else:
        files = [file for file in list_items(queries) if file.label]
        Q = catalog.embedder.encode([file.file for file in files], progress=progress)
        of = np.array([file.label for file in files], object)
        if len(of) and len(items):
            same, other = nearest_by_class(X, products.astype(str), Q, of.astype(str))
        text = f"{len(of):,} photos"
    names = np.unique(of.astype(str)) if len(of) else of
    if len(names) < LEAST:
        raise ValueError(
            f"queries must be of at least {LEAST} products to calibrate, got {len(names)}. Add products, or pass photos that "
            "are in one folder per product."
        )
    learned = np.isin(of.astype(str), rng.permutation(names)[: len(names) // 2])
    if learned.sum() * rate < 1:
        raise ValueError(
            f"a false-match rate of {rate:g} must be learned on at least {int(np.ceil(1 / rate)):,} images of half of the "
            f"products, got {int(learned.sum()):,}. Pass more photos with --queries, or a higher rate."
        )
    threshold, rest = threshold_at(other[learned], rate), ~learned
    hits = (same < other) & (same <= threshold)
    present = rest & np.isfinite(same)
    if not present.any():
        raise ValueError("queries must show products of the catalog to calibrate, got none. Name them as the catalog does.")
    found = Calibration(
        threshold=threshold,
        requested=float(rate),
        false_match_rate=rate_of(other[rest] <= threshold, of[rest].astype(str), seed),
        identification_rate=rate_of(hits[present], of[present].astype(str), seed),
        queries=text,
        products=(len(names) // 2, len(names) - len(names) // 2),
        items=catalog.count(),
    )
    catalog.store.write(catalog.record | {"calibration": asdict(found)})
    return found


def _own_queries(
    X: Vectors, products: NDArray[np.object_], rng: np.random.Generator
) -> tuple[Distances, Distances, NDArray[np.object_]]:
    """Return the distances to the same and to other products, and the product, of each query, an image of the catalog."""
    labels, names = as_classes(products.astype(str)) if len(products) else (np.empty(0, np.int64), products)
    if len(names) < LEAST:
        return np.empty(0), np.empty(0), products[:0]
    if len(X) <= MOST:
        same, other = nearest_by_class(X, labels)
        return same, other, products
    order = rng.permutation(len(names))
    drawn = order[np.cumsum(np.bincount(labels)[order]) <= MOST]
    rows = np.isin(labels, drawn)
    if not rows.any():  # large products: some of their images
        rows[rng.permutation(len(X))[:MOST]] = True
    _, other = nearest_by_class(X, labels, X[rows], labels[rows])
    same, _ = nearest_by_class(X[rows], labels[rows])  # without the query itself
    return same, other, products[rows]

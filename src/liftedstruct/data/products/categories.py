"""The categories, and which product is of which: a product's number and the seed decide everything about it."""

from functools import lru_cache

from liftedstruct.data.products.meshes import Mesh
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes import BUILDERS

__all__ = ["CATEGORIES", "build", "category_of"]

CATEGORIES = tuple(BUILDERS)  # those of Stanford Online Products


def category_of(product: int, seed: int = 0) -> str:
    """The category of a product; every run of twelve products, 0 to 11, 12 to 23 and so on, has each of them once.

    >>> sorted(category_of(product) for product in range(12)) == sorted(CATEGORIES)
    True
    """
    run, place = divmod(product, len(CATEGORIES))
    return _order(run, seed)[place]


@lru_cache(maxsize=4096)
def _order(run: int, seed: int) -> tuple[str, ...]:
    """The categories of a run of twelve products."""
    rng = RandomStream("categories", seed, run)
    return tuple(sorted(CATEGORIES, key=lambda _: rng()))


def build(product: int, seed: int = 0) -> Mesh:
    """The product's parts, each placed and painted."""
    m = Mesh()
    BUILDERS[category_of(product, seed)](m, RandomStream("product", seed, product))
    return m

"""The shapes, one file per category: a function that builds a random product. To add one: a file, and its name here.

A product's number and the seed decide everything about it. A new category changes which product is which, and with it every
image: raise ``RENDERER_VERSION``.
"""

from functools import lru_cache

from liftedstruct.data.products.meshes import Mesh
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes.bicycle import bicycle
from liftedstruct.data.products.shapes.cabinet import cabinet
from liftedstruct.data.products.shapes.chair import chair
from liftedstruct.data.products.shapes.coffee_maker import coffee_maker
from liftedstruct.data.products.shapes.fan import fan
from liftedstruct.data.products.shapes.kettle import kettle
from liftedstruct.data.products.shapes.lamp import lamp
from liftedstruct.data.products.shapes.mug import mug
from liftedstruct.data.products.shapes.sofa import sofa
from liftedstruct.data.products.shapes.stapler import stapler
from liftedstruct.data.products.shapes.table import table
from liftedstruct.data.products.shapes.toaster import toaster

__all__ = ["CATEGORIES", "build", "category_of"]

BUILDERS = (bicycle, cabinet, chair, coffee_maker, fan, kettle, lamp, mug, sofa, stapler, table, toaster)
CATEGORIES = tuple(builder.__name__.replace("_", " ") for builder in BUILDERS)  # those of Stanford Online Products


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
    BUILDERS[CATEGORIES.index(category_of(product, seed))](m, RandomStream("product", seed, product))
    return m

"""Product shapes: one file per category, with a function that builds a random product.

To add a category, write a file and add its function to `BUILDERS`. The product number and the seed determine a product. A new
category changes the category of most products, and so their images: increment `RENDERER_VERSION`.
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
CATEGORIES = tuple(builder.__name__.replace("_", " ") for builder in BUILDERS)  # the categories of Stanford Online Products


def category_of(product: int, seed: int = 0) -> str:
    """Return the category of a product; each block of twelve products (0 to 11, 12 to 23, ...) has every category once.

    Examples:
        >>> sorted(category_of(product) for product in range(12)) == sorted(CATEGORIES)
        True
    """
    run, place = divmod(product, len(CATEGORIES))
    return _order(run, seed)[place]


@lru_cache(maxsize=4096)
def _order(run: int, seed: int) -> tuple[str, ...]:
    """Return the categories of a block of twelve products, in order."""
    rng = RandomStream("categories", seed, run)
    return tuple(sorted(CATEGORIES, key=lambda _: rng()))


def build(product: int, seed: int = 0) -> Mesh:
    """Build the mesh of a product."""
    m = Mesh()
    BUILDERS[CATEGORIES.index(category_of(product, seed))](m, RandomStream("product", seed, product))
    return m

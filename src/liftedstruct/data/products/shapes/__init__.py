"""The shapes, one file per category: a function that builds a random product. To add one: a file, and a line here.

A new category changes which product is which, and with it every image: raise ``RENDERER_VERSION``.
"""

from collections.abc import Callable

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

__all__ = ["BUILDERS"]

BUILDERS: dict[str, Callable[[Mesh, RandomStream], None]] = {
    "bicycle": bicycle,
    "cabinet": cabinet,
    "chair": chair,
    "coffee maker": coffee_maker,
    "fan": fan,
    "kettle": kettle,
    "lamp": lamp,
    "mug": mug,
    "sofa": sofa,
    "stapler": stapler,
    "table": table,
    "toaster": toaster,
}

"""The shapes, one file per category: a function that builds a product from its dice. To add one: a file, and a line here.

A new category changes which product is which, and with it every image: raise ``RENDERER_VERSION``.
"""

from collections.abc import Callable

from liftedstruct.products.dice import Dice
from liftedstruct.products.meshes import Model
from liftedstruct.products.shapes.bicycle import bicycle
from liftedstruct.products.shapes.cabinet import cabinet
from liftedstruct.products.shapes.chair import chair
from liftedstruct.products.shapes.coffee_maker import coffee_maker
from liftedstruct.products.shapes.fan import fan
from liftedstruct.products.shapes.kettle import kettle
from liftedstruct.products.shapes.lamp import lamp
from liftedstruct.products.shapes.mug import mug
from liftedstruct.products.shapes.sofa import sofa
from liftedstruct.products.shapes.stapler import stapler
from liftedstruct.products.shapes.table import table
from liftedstruct.products.shapes.toaster import toaster

__all__ = ["BUILDERS"]

BUILDERS: dict[str, Callable[[Model, Dice], None]] = {
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

"""The embedded default dataset: product images that are rendered here, any number of classes, no assets.

Read in this order: ``shapes`` (which product is what, and one file per category), ``materials`` and ``textures`` (the
surfaces), ``scene`` (a photograph of them), ``meshes``, ``primitives`` and ``rasterizer`` (how it is drawn).
"""

from liftedstruct.data.products.product_dataset import ProductSource, product_images
from liftedstruct.data.products.scene import RENDERER_VERSION, render
from liftedstruct.data.products.shapes import CATEGORIES, category_of
from liftedstruct.data.products.writing import write_products

__all__ = ["CATEGORIES", "RENDERER_VERSION", "ProductSource", "category_of", "product_images", "render", "write_products"]

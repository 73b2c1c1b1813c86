"""Default dataset: rendered images of products, with any number of classes and no external assets.

Suggested reading order: `shapes` (one file per category), `materials` and `textures` (surfaces), `scene` (one image of a
product), then `meshes`, `primitives` and `rasterizer` (geometry and rendering).
"""

from liftedstruct.data.products.product_dataset import ProductSource, product_images
from liftedstruct.data.products.scene import RENDERER_VERSION, render
from liftedstruct.data.products.shapes import CATEGORIES, category_of
from liftedstruct.data.products.writing import write_products

__all__ = ["CATEGORIES", "RENDERER_VERSION", "ProductSource", "category_of", "product_images", "render", "write_products"]

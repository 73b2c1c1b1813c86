"""Datasets: readers for several layouts, class-disjoint splits, decoding, and prepared datasets that serve crops.

A prepared dataset is a folder with `images.npy` (n, size, size, 3), `labels.npy` (n,), `contents.npy` (n,; hashes of the image
files), `paths.json` and `meta.json`. `meta.json` is written last, so a folder that contains it is complete.
"""

from pathlib import Path

from liftedstruct.data.checkup import CheckUp, check_dataset, check_list_file, write_fixed_list
from liftedstruct.data.datasets import CARS, CUB, ONLINE_PRODUCTS, KnownDataset
from liftedstruct.data.decisions import Decision, add_decisions, read_decisions, undo_decision
from liftedstruct.data.decoding import RESIZE_MODES, ImageError, content_hash, decode
from liftedstruct.data.image_files import brief
from liftedstruct.data.image_set import ImageSet, Indices
from liftedstruct.data.listing import QUERY, ListedFile, list_files, list_items
from liftedstruct.data.packed import DEFAULT_SIZE, META, SIZE_PER_CROP, PackedImages, read_record
from liftedstruct.data.preparing import OtherDatasetError, prepare
from liftedstruct.data.readers import FINDERS, READERS, read_images
from liftedstruct.data.sources import FolderSource, MemorySource, Source, TarSource
from liftedstruct.data.splits import hold_out, name_key

__all__ = [
    "CARS",
    "CUB",
    "DEFAULT_SIZE",
    "META",
    "ONLINE_PRODUCTS",
    "QUERY",
    "READERS",
    "RESIZE_MODES",
    "SIZE_PER_CROP",
    "CheckUp",
    "Decision",
    "FolderSource",
    "ImageError",
    "ImageSet",
    "Indices",
    "KnownDataset",
    "ListedFile",
    "MemorySource",
    "OtherDatasetError",
    "PackedImages",
    "Source",
    "TarSource",
    "add_decisions",
    "brief",
    "check_dataset",
    "check_list_file",
    "content_hash",
    "decode",
    "hold_out",
    "list_files",
    "list_items",
    "name_key",
    "prepare",
    "read_decisions",
    "read_images",
    "read_record",
    "undo_decision",
    "write_fixed_list",
]


# Import the products package only when needed: it loads the renderer.
def _find_products(path: Path) -> list[Path]:
    """Return the folder itself if it contains rendered products."""
    if not (path / "products.json").is_file():
        return []
    from liftedstruct.data.products.reading import find_products

    return find_products(path)


def _read_products(path: Path) -> ImageSet:
    """Read a folder of rendered products, with the classes and the split recorded in it."""
    from liftedstruct.data.products.reading import read_products

    return read_products(path)


FINDERS["products"], READERS["products"] = _find_products, _read_products

"""Any data set in: a folder of class folders, a CSV file, rendered products, CUB-200-2011, CARS196 or Online Products."""

from liftedstruct.images.image_set import ImageSet
from liftedstruct.images.readers import READERS, read_images
from liftedstruct.images.sources import ArraySource, FolderSource, Source, TarSource

__all__ = ["READERS", "ArraySource", "FolderSource", "ImageSet", "Source", "TarSource", "read_images"]

"""Images in: readers of every layout, class-disjoint splits, decoding, and prepared datasets that are read by crop.

A prepared dataset is a folder: ``images.npy`` (n, size, size, 3), ``labels.npy`` (n,), ``contents.npy`` (n,), hashes of the
image files, ``paths.json`` and ``meta.json``. The last is written last, so a folder that has one is whole.
"""

from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.packed import PackedImages
from liftedstruct.data.preparing import OtherSetError, prepare
from liftedstruct.data.readers import READERS, read_images
from liftedstruct.data.sources import ArraySource, FolderSource, Source, TarSource

__all__ = [
    "READERS",
    "ArraySource",
    "FolderSource",
    "ImageSet",
    "OtherSetError",
    "PackedImages",
    "Source",
    "TarSource",
    "prepare",
    "read_images",
]

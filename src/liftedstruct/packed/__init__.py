"""Images decoded once into one memory-mapped file of bytes, and read by crop.

A packed set is a folder: ``images.npy`` (n, size, size, 3), ``labels.npy`` (n,), ``paths.json`` and ``meta.json``. The last is
written last, so a folder that has one is whole. While :func:`prepare` works there are ``images.npy.part``, to which rows are
only ever appended, and ``progress.json``, which never says more than what the disk has.
"""

from liftedstruct.packed.packed_images import PackedImages
from liftedstruct.packed.preparing import prepare

__all__ = ["PackedImages", "prepare"]

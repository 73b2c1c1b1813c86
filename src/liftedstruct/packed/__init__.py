"""Images decoded once into one memory-mapped file of bytes, and read by crop.

A packed set is a folder: ``images.npy`` (n, size, size, 3), ``labels.npy`` (n,), ``contents.npy`` (n,), hashes of the
image files, ``paths.json`` and ``meta.json``. The last is written last, so a folder that has one is whole. While
:func:`prepare` works there are ``images.npy.part`` and ``contents.part``, to which rows are only ever appended, and
``progress.json``, which never says more than what the disk has. A set that is made anew stays as it is
until the new one is decoded. ``left-out.json`` lists the images of a prepare that gave up because most were unreadable.
"""

from liftedstruct.packed.packed_images import PackedImages
from liftedstruct.packed.preparing import OtherSetError, prepare

__all__ = ["OtherSetError", "PackedImages", "prepare"]

"""Prepared datasets: random crops for training and center crops for evaluation, read from one memory-mapped file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from liftedstruct.data.image_set import ClassSplit, Indices
from liftedstruct.runtime.arrays import UNNAMED, load_arrays
from liftedstruct.runtime.checks import check_count

__all__ = ["DEFAULT_SIZE", "META", "SIZE_PER_CROP", "PackedImages", "read_record"]

FORMAT, VERSION = "liftedstruct packed", 3
DEFAULT_SIZE = 256  # side length of the images, as in the paper
SIZE_PER_CROP = 8 / 7  # ratio of image size to crop size, as in 256 to 224
IMAGES, LABELS, CONTENTS, PATHS, META = "images.npy", "labels.npy", "contents.npy", "paths.json", "meta.json"
PROGRESS = "progress.json"  # exists while prepare is unfinished
Crops = NDArray[np.uint8]  # (m, crop, crop, 3)


class PackedImages(ClassSplit):
    """Dataset written by `liftedstruct.prepare`.

    Opening it reads no pixels, and pickling it stores only the folder path, the checksum and the number of images.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        meta = read_record(self.folder / META)
        if meta is None:
            if read_record(self.folder / PROGRESS) is not None:
                raise ValueError(f"{folder} must be completely prepared, got an interrupted prepare. Run prepare again.")
            raise ValueError(f"{folder} must be a prepared dataset, got no valid {META}. Run liftedstruct prepare.")
        if meta["version"] != VERSION:
            raise ValueError(
                f"{folder} must be a prepared dataset of version {VERSION}, got version {meta['version']}. "
                "Run prepare again with --force."
            )
        self.size: int = meta["plan"]["size"]
        self.resize_mode: str = meta["plan"]["resize_mode"]
        self.name: str = meta["plan"]["name"]
        self.checksum: str = meta["checksum"]  # of the names, sizes and mtimes of the image files, the labels and the settings
        self.class_names: tuple[str, ...] = tuple(meta["class_names"])
        self.super_classes: tuple[str, ...] = tuple(meta["super_classes"])  # one per class, or empty
        self.left_out: tuple[tuple[str, str], ...] = tuple((each["path"], each["reason"]) for each in meta["left_out"])
        self.test_classes = np.array(meta["test_classes"], dtype=np.int64)
        self.validation_classes = np.array(meta["validation_classes"], dtype=np.int64)
        n = meta["n"]
        self.queries = np.isin(np.arange(n), np.array(meta.get("queries", []), np.int64))  # (n,), see `ImageSet.queries`
        self.labels = self._load(LABELS, np.dtype(np.int64), (n,))
        self.contents: NDArray[np.uint64] = self._load(CONTENTS, np.dtype(np.uint64), (n,))  # hashes of the image files
        self.images: NDArray[np.uint8] = self._load(IMAGES, np.dtype(np.uint8), (n, self.size, self.size, 3))
        self.paths: tuple[str, ...] = tuple(self._load(PATHS, np.dtype(object), (n,)))  # in the source of the images
        if read_record(self.folder / META) != meta:
            raise ValueError(f"{folder} must not change while it is opened, but prepare has just replaced it. Open it again.")

    def _load(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        file = self.folder / name
        try:
            if name == PATHS:
                array = np.array(json.loads(file.read_text(encoding="ascii")), dtype=object)
            else:
                array = np.load(file, mmap_mode="r") if name == IMAGES else load_arrays(file)[UNNAMED]
            if (array.shape, array.dtype) != (shape, dtype):
                raise ValueError(f"{array.dtype} {array.shape} instead of {dtype} {shape}")
        except (OSError, ValueError, TypeError, EOFError, KeyError) as error:
            raise ValueError(f"{file} must be as written by prepare, got: {error}. Run prepare again with --force.") from error
        return np.asarray(array)  # same pages as the memory map, without the subclass's overhead at every slice

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"PackedImages({str(self.folder)!r}): {len(self)} images of {self.name} at {self.size} x {self.size}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.folder), self.checksum, len(self))

    def random_crops(
        self,
        indices: Sequence[int] | Indices,
        crop: int = 227,
        *,
        rng: np.random.Generator,
        hflip: bool = True,
        min_scale: float = 0.0,
        out: Crops | None = None,
    ) -> Crops:
        """Return random crops for training, (m, crop, crop, 3) uint8.

        Args:
            indices: Images to crop.
            crop: Side length of the crops in pixels.
            rng: Random generator. It draws for the whole batch at once: first positions (and sizes), then flips.
            hflip: Flip each crop horizontally with probability ½.
            min_scale: If above 0, crop a rectangle whose area is between this fraction of the image and all of it, with an
                aspect ratio between 3/4 and 4/3, and resize it to the crop size.
            out: Array to fill and return.

        """
        if not 0 <= min_scale <= 1:
            raise ValueError(f"min_scale must be between 0 and 1, got {min_scale!r}. Pass 0 for crops without scaling.")
        order, out = self._check(indices, crop, out)
        if not min_scale:
            sides, corners = np.full((len(order), 2), crop), rng.integers(0, self.size - crop + 1, (len(order), 2))
        else:
            stretch = np.log(min(4 / 3, 1 / min_scale))  # so that the smallest area still fits into the image
            area, ratio = rng.uniform(min_scale, 1, len(order)), np.exp(rng.uniform(-1, 1, len(order)) * stretch)
            sides = np.rint(self.size * np.sqrt(np.stack((area / ratio, area * ratio), axis=1))).astype(np.int64)
            sides = sides.clip(1, self.size)  # height, width
            corners = rng.integers(0, self.size - sides + 1)
        flips = rng.integers(0, 2, len(order)).astype(bool) if hflip else np.zeros(len(order), bool)
        return self._fill(out, order, corners, sides, flips)

    def center_crops(self, indices: Sequence[int] | Indices, crop: int = 227, *, out: Crops | None = None) -> Crops:
        """Return center crops for evaluation, (m, crop, crop, 3) uint8; `out` is filled and returned if given."""
        order, out = self._check(indices, crop, out)
        corners, sides = np.full((len(order), 2), (self.size - crop) // 2), np.full((len(order), 2), crop)
        return self._fill(out, order, corners, sides, np.zeros(len(order), bool))

    def _check(self, indices: Sequence[int] | Indices, crop: int, out: Crops | None) -> tuple[Indices, Crops]:
        """Return the indices as an array, and the output array for their crops."""
        if check_count("crop", crop) > self.size:
            raise ValueError(
                f"crop must be at most the size of the images, {self.size}, got {crop}. Prepare them with a larger --size."
            )
        numbers = np.asarray(indices)
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise ValueError(f"indices must be a list of integers, got {numbers.dtype} of shape {numbers.shape}.")
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise ValueError(f"indices must be from 0 to {len(self) - 1}, got {numbers.min()} to {numbers.max()}.")
        shape = (len(numbers), crop, crop, 3)
        if out is None:
            out = np.empty(shape, np.uint8)
        elif out.shape != shape or out.dtype != np.uint8 or not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError(f"out must be a contiguous uint8 array of shape {shape}, got {out.dtype} {out.shape}. Or omit it.")
        return numbers.astype(np.int64), out

    def _fill(self, out: Crops, order: Indices, corners: Indices, sides: Indices, flips: NDArray[np.bool_]) -> Crops:
        rows, crop = torch.from_numpy(out), out.shape[1]
        for row in np.argsort(order, kind="stable"):  # in file order, for sequential reads
            (y, x), (height, width) = corners[row], sides[row]
            cut: Any = self.images[order[row], y : y + height, x : x + width]
            if (height, width) != (crop, crop):
                cut = Image.fromarray(cut).resize((crop, crop), Image.Resampling.BILINEAR)  # antialiased
            out[row] = cut  #                                                                    (crop, crop, 3)
            if flips[row]:  # by torch, while the row is in the cache: numpy is 3 times slower
                rows[row] = rows[row].flip(1)
        return out


def read_record(file: Path) -> dict[str, Any] | None:
    """Return the content of `meta.json` or `progress.json`, or None if it does not exist or was not written by prepare."""
    try:
        record = json.loads(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("format") == FORMAT else None


def _reopen(folder: str, checksum: str, n: int) -> PackedImages:
    """Open a pickled dataset, in a worker process for instance; it must not have been replaced since."""
    packed = PackedImages(folder)
    if (packed.checksum, len(packed)) != (checksum, n):
        raise ValueError(f"{folder} must be unchanged since it was opened, but prepare has replaced it. Open it again.")
    return packed

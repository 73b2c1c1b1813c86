"""Reading a packed set: random crops to train on, centre crops to test on, straight from the map into the batch."""

import json
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from PIL import Image

from liftedstruct.data.image_set import Indices
from liftedstruct.data.packed_files import CONTENTS, HEADER, IMAGES, LABELS, META, PATHS, PROGRESS, VERSION, read_record
from liftedstruct.runtime.arrays import UNNAMED, load_arrays
from liftedstruct.runtime.checks import check_count, pick

__all__ = ["PackedImages"]


class PackedImages:
    """A finished packed set. Opening reads no pixels; it is pickled by its folder's name, so worker processes map it anew."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        meta = read_record(self.folder / META)
        if meta is None:
            if read_record(self.folder / PROGRESS) is not None:
                raise ValueError(
                    f"{folder} must be finished to be read, its prepare was interrupted. Run that again, it goes on from there."
                )
            raise ValueError(f"{folder} must be a folder made by prepare, it has no {META} of one. Run liftedstruct prepare.")
        if meta["version"] != VERSION:
            raise ValueError(f"{folder} must be of version {VERSION}, got {meta['version']}. Make it anew, prepare --force.")
        self._meta = meta
        self.size: int = meta["plan"]["size"]
        self.fit: str = meta["plan"]["fit"]
        self.name: str = meta["plan"]["name"]
        self.checksum: str = meta["checksum"]  # of names, sizes and times of the image files, labels and settings
        self.class_names: tuple[str, ...] = tuple(meta["class_names"])
        self.super_classes: tuple[str, ...] = tuple(meta["super_classes"])  # one per class, or none
        self.left_out: tuple[tuple[str, str], ...] = tuple((each["path"], each["reason"]) for each in meta["left_out"])
        self.truncated: tuple[str, ...] = tuple(meta["truncated"])  # kept, though they were cut off
        n, row = meta["n"], 3 * self.size**2
        self.labels: Indices = self._load(LABELS, np.dtype(np.int64), (n,))  # (n,)
        self.contents: NDArray[np.uint64] = self._load(CONTENTS, np.dtype(np.uint64), (n,))  # hashes of the files  (n,)
        self.images: NDArray[np.uint8] = self._load(IMAGES, np.dtype(np.uint8), (n, self.size, self.size, 3), HEADER + n * row)
        if read_record(self.folder / META) != meta:
            raise ValueError(f"{folder} must stay as it is while it is opened, prepare has just replaced it. Open it again.")

    def _load(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], length: int | None = None) -> NDArray[Any]:
        try:
            found = (self.folder / name).stat().st_size
            if length is not None and found != length:
                raise ValueError(f"{found:,} bytes instead of {length:,}")
            file = self.folder / name
            array = np.load(file, mmap_mode="r") if length is not None else load_arrays(file)[UNNAMED]
            if (array.shape, array.dtype) != (shape, dtype):
                raise ValueError(f"{array.dtype} {array.shape} instead of {dtype} {shape}")
        except (OSError, ValueError, EOFError, KeyError) as error:
            raise ValueError(
                f"{self.folder / name} must be as prepare left it, got: {error}. Make it anew, --force."
            ) from error
        return np.asarray(array)  # of a map: the same pages, without the subclass's cost at every slice

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"PackedImages({str(self.folder)!r}): {len(self)} of {self.name} at {self.size} x {self.size}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.folder), self.identity)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Where each image came from, as its source knew it."""
        try:
            paths = tuple(json.loads((self.folder / PATHS).read_text(encoding="ascii")))
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f"{self.folder / PATHS} must be as prepare left it, got: {error}. Prepare it again, --force."
            ) from error
        _reopen(str(self.folder), self.identity)  # the file was read of the set that was opened
        if len(paths) != len(self):
            raise ValueError(
                f"{self.folder / PATHS} must name {len(self)} images, got {len(paths)}. Prepare it again, --force."
            )
        return paths

    @property
    def identity(self) -> str:
        """Of these images in this order: the checksum does not see which of them could not be read."""
        return f"{self.checksum[:12]}-{zlib.crc32(self.contents.tobytes()):08x}"

    @cached_property
    def test(self) -> Indices:
        """Numbers of the test images."""
        return np.flatnonzero(np.isin(self.labels, self._meta["test_classes"]))

    @cached_property
    def validation(self) -> Indices:
        """Numbers of the images whose classes are held out of the training half to choose settings."""
        return np.flatnonzero(np.isin(self.labels, self._meta["validation_classes"]))

    @cached_property
    def train(self) -> Indices:
        """Numbers of the training images."""
        return np.flatnonzero(~np.isin(self.labels, self._meta["test_classes"] + self._meta["validation_classes"]))

    def random_crops(
        self,
        indices: Sequence[int] | Indices,
        crop: int = 227,
        *,
        rng: np.random.Generator,
        mirror: bool = True,
        least_area: float = 0.0,
        out: NDArray[Any] | None = None,
        dtype: DTypeLike = np.uint8,
        layout: Literal["nhwc", "nchw"] = "nhwc",
    ) -> NDArray[Any]:
        """A batch for training: each image cut at a random place and, with ``mirror``, every other one flipped left to right.

        With ``least_area`` each cut is a rectangle of another size, from that share of the image to all of it and up to a
        third wider or higher than a square, and is scaled to the crop. The generator is asked once for all places (and once
        for all sizes) and once for all flips, so what it gives does not depend on how the crops are read. ``out`` is filled
        and returned if given; float32 holds 0 to 255, scaling is the trunk's.
        """
        if not 0 <= least_area <= 1:
            raise ValueError(f"least_area must be 0 to 1, got {least_area!r}. 0 cuts crops without scaling them.")
        order = self._check(indices, crop)
        if not least_area:
            sides, corners = np.full((len(order), 2), crop), rng.integers(0, self.size - crop + 1, (len(order), 2))
        else:
            stretch = np.log(min(4 / 3, 1 / least_area))  # no further than leaves the smallest area within the image
            area, ratio = rng.uniform(least_area, 1, len(order)), np.exp(rng.uniform(-1, 1, len(order)) * stretch)
            sides = np.rint(self.size * np.sqrt(np.stack((area / ratio, area * ratio), axis=1))).astype(np.int64)
            sides = sides.clip(1, self.size)  # height, width
            corners = rng.integers(0, self.size - sides + 1)
        flips = rng.integers(0, 2, len(order)).astype(bool) if mirror else np.zeros(len(order), bool)
        return self._crops(order, crop, corners, sides, flips, out, dtype, layout)

    def centre_crops(
        self,
        indices: Sequence[int] | Indices,
        crop: int = 227,
        *,
        out: NDArray[Any] | None = None,
        dtype: DTypeLike = np.uint8,
        layout: Literal["nhwc", "nchw"] = "nhwc",
    ) -> NDArray[Any]:
        """A batch for the test: the middle of each image."""
        order = self._check(indices, crop)
        corners, sides = np.full((len(order), 2), (self.size - crop) // 2), np.full((len(order), 2), crop)
        return self._crops(order, crop, corners, sides, np.zeros(len(order), bool), out, dtype, layout)

    def _check(self, indices: Sequence[int] | Indices, crop: int) -> Indices:
        if check_count("crop", crop) > self.size:
            raise ValueError(
                f"crop must be at most the size of the images, {self.size}, got {crop}. Prepare them larger, --size."
            )
        numbers = np.asarray(indices)
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise ValueError(f"indices must be a list of integers, got {numbers.dtype} of shape {numbers.shape}.")
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise ValueError(f"indices must be 0 to {len(self) - 1}, got {numbers.min()} to {numbers.max()}.")
        return numbers.astype(np.int64)

    def _crops(
        self,
        order: Indices,
        crop: int,
        corners: Indices,
        sides: Indices,
        flips: NDArray[np.bool_],
        out: NDArray[Any] | None,
        dtype: DTypeLike,
        layout: str,
    ) -> NDArray[Any]:
        if np.dtype(dtype) not in (np.uint8, np.float32):
            raise ValueError(f"dtype must be uint8 or float32, got {np.dtype(dtype)}. Convert the batch afterwards.")
        axes = pick({"nhwc": (0, 1, 2), "nchw": (1, 2, 0)}, layout, "layout")
        shape = (len(order), crop, crop, 3) if layout == "nhwc" else (len(order), 3, crop, crop)
        if out is None:
            out = np.empty(shape, dtype)
        elif out.shape != shape or out.dtype != dtype or not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError(f"out must be contiguous, {np.dtype(dtype)} {shape}, got {out.dtype} {out.shape}. Or pass none.")
        rows, across = torch.from_numpy(out), 1 if layout == "nhwc" else 2
        for row in np.argsort(order, kind="stable"):  # in the order of the file, which may be on a disk
            (y, x), (height, width) = corners[row], sides[row]
            cut: Any = self.images[order[row], y : y + height, x : x + width]
            if (height, width) != (crop, crop):
                cut = Image.fromarray(cut).resize((crop, crop), Image.Resampling.BILINEAR)  # antialiased
            out[row].transpose(axes)[...] = cut  #                                              (crop, crop, 3)
            if flips[row]:  # by torch, while the row is in the cache: numpy copies backwards byte by byte, 3 times as slow
                rows[row] = rows[row].flip(across)
        return out


def _reopen(folder: str, identity: str) -> PackedImages:
    """The set that was opened before, in another process or later; raises if ``prepare --force`` has replaced it since."""
    packed = PackedImages(folder)
    if packed.identity != identity:
        raise ValueError(
            f"{folder} must be as it was when it was opened, it was {identity} and is {packed.identity}. Open it again."
        )
    return packed

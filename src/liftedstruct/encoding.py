"""Encode images that are not in a prepared dataset: paths, bytes, pillow images, arrays and tensors, of any size and mode.

An image is prepared exactly as `prepare` and `embed` do it, so the embeddings are those of the same image in a dataset. All
cores decode a batch, and then run the network; a network on a GPU runs while the next batches are decoded.
"""

import contextlib
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from liftedstruct.data import ImageError, MemorySource, decode
from liftedstruct.runtime.checks import check_count
from liftedstruct.runtime.limits import available_cores
from liftedstruct.runtime.memory import kept_memory
from liftedstruct.runtime.progress import Bar
from liftedstruct.runtime.threads import map_ahead

__all__ = ["ONNX_SHA", "ImageLike", "Network", "Preprocessing", "encode", "onnx_network"]

ImageLike = str | os.PathLike[str] | bytes | Image.Image | NDArray[np.uint8] | torch.Tensor
Pixels = NDArray[np.uint8]
Network = Callable[[Pixels], NDArray[np.float32]]  # from crops, (b, crop, crop, 3), to embeddings, (b, dim)
FEW = 8  # images whose activations are small enough that the allocator keeps their memory by itself
AHEAD = 2  # batches that are decoded while a GPU runs the network
ONNX_SHA = "liftedstruct_sha"  # in the metadata of an ONNX file: the embedder that it was exported from


class Preprocessing(NamedTuple):
    """How an image becomes a crop: resized to a square of `size` pixels by `resize_mode`, of which the center is taken."""

    size: int
    resize_mode: str
    crop: int

    def crop_of(self, source: MemorySource, path: str) -> Pixels:
        """Decode an image and return its crop, (crop, crop, 3)."""
        start = (self.size - self.crop) // 2
        stop = start + self.crop
        return decode(source, path, self.size, self.resize_mode)[start:stop, start:stop]


def onnx_network(file: Path, sha: str) -> Network | None:
    """Return the network in an ONNX file, if onnxruntime is installed and the file was exported from this embedder."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the threads that decode need the cores
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception:  # of many types: a damaged file, or of a newer version
        return None
    if session.get_modelmeta().custom_metadata_map.get(ONNX_SHA) != sha:
        return None

    def network(pixels: Pixels) -> NDArray[np.float32]:
        found: NDArray[np.float32] = session.run(None, {"pixels": pixels})[0]
        return found

    return network


def encode(
    network: Network,
    images: ImageLike | Iterable[ImageLike],
    preprocessing: Preprocessing,
    dim: int,
    batch_size: int = 64,
    progress: bool = False,
    unreadable: dict[int, str] | None = None,
    ahead: bool = False,
) -> NDArray[np.float32]:
    """Return the embeddings of images, (n, dim); see `Embedder.encode`.

    Args:
        network: function from crops, (b, crop, crop, 3) uint8, to embeddings, (b, dim).
        images: images, or a single one.
        preprocessing: how an image becomes a crop.
        dim: embedding dimension.
        batch_size: images per batch.
        progress: show progress.
        unreadable: dict that collects the reason for each image that cannot be read, by its position; these images have no row.
            Default: raise an error.
        ahead: decode the next batches while the network runs, on a device of its own.

    """
    single = isinstance(images, str | os.PathLike | bytes | Image.Image) or getattr(images, "ndim", 4) < 4
    sequence = [_checked(i, image) for i, image in enumerate([images] if single else images)]  # type: ignore[arg-type]
    batch_size, X = check_count("batch_size", batch_size), np.empty((len(sequence), dim), np.float32)
    with (
        kept_memory() if len(sequence) > FEW else contextlib.nullcontext(),
        warnings.catch_warnings(action="ignore"),
        ThreadPoolExecutor(available_cores(), "decode") as pool,
        Bar("encode", len(sequence), wanted=progress) as bar,
    ):
        crops, n = _crops(sequence, preprocessing, pool, batch_size, ahead), 0
        for at in range(0, len(sequence), batch_size):
            pixels = []
            for i, crop in enumerate(itertools.islice(crops, batch_size), start=at):
                if not isinstance(crop, ImageError):
                    pixels.append(crop)
                elif unreadable is None:
                    raise ValueError(f"images must be readable, got {_name(i, sequence[i])}: {crop}. Leave it out.") from crop
                else:
                    unreadable[i] = str(crop)
                bar.advance()
            if pixels:
                X[n : n + len(pixels)] = network(np.stack(pixels))
                n += len(pixels)
    return X[:n]


def _crops(
    images: Sequence[Any], preprocessing: Preprocessing, pool: Executor, batch_size: int, ahead: bool
) -> Iterator[Pixels | ImageError]:
    source = MemorySource(images)

    def crop_of(i: int) -> Pixels | ImageError:
        try:
            return preprocessing.crop_of(source, str(i))
        except ImageError as error:
            return error

    n = len(images)
    if n == 1:  # a thread would take longer to start
        return map(crop_of, range(1))
    if ahead:
        return map_ahead(pool, crop_of, range(n), AHEAD * batch_size)
    batches = (range(at, min(at + batch_size, n)) for at in range(0, n, batch_size))
    return itertools.chain.from_iterable(pool.map(crop_of, batch) for batch in batches)


def _checked(i: int, image: Any) -> Any:
    """Return an image as its path, its bytes, a pillow image or an array."""
    if isinstance(image, Image.Image) and not getattr(image, "filename", ""):  # files are opened again
        with contextlib.suppress(Exception):  # a broken one is reported when it is prepared
            image.load()  # here, because one image may be in a batch several times
    if isinstance(image, str | os.PathLike | bytes | Image.Image):
        return image
    array = image.detach().cpu().numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    shape = array.shape
    if array.dtype != np.uint8 or not array.size or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))):
        raise ValueError(
            f"images must be paths, bytes, pillow images, or uint8 arrays and tensors of shape (h, w), (h, w, 3) or (h, w, 4), "
            f"got {array.dtype} of shape {shape} at position {i}. Convert it."
        )
    return np.ascontiguousarray(array)


def _name(i: int, image: Any) -> str:
    return repr(os.fspath(image)) if isinstance(image, str | os.PathLike) else f"the {type(image).__name__} at position {i}"

"""The embedder, trunk + dropout + linear layer, its file, and what it makes of images: embeddings, with their protocol."""

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import normalize

from liftedstruct.atomic import replacing
from liftedstruct.checks import check_count
from liftedstruct.images.image_set import Indices
from liftedstruct.memory import keep_memory
from liftedstruct.packed import PackedImages
from liftedstruct.progress import Bar
from liftedstruct.trunks import TRUNKS, Trunk, make_trunk
from liftedstruct.trunks.layers import folded

__all__ = ["EMBEDDER", "Embedder", "Embeddings", "embed", "open_embedder"]

EMBEDDER = "embedder.safetensors"  # its name in the folder of a run
VERSION = 1


class Embedder(nn.Module):
    """Images to embeddings: a trunk, dropout, a linear layer, and the unit sphere if wanted.

    Args:
        trunk: makes the features.
        dim: d, of the embedding; 0 leaves the linear layer out, and the embedding is the trunk's pooled features.
        dropout: share of the features that training drops; the paper's code has 0.4.
        normalize: divide each embedding by its length. The paper does not; its loss wants a temperature then.
        crop: side of the crops that it is for; the trunk's if not given.

    """

    def __init__(
        self, trunk: Trunk, dim: int = 64, dropout: float = 0.0, normalize: bool = False, crop: int | None = None
    ) -> None:
        super().__init__()
        if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise ValueError(f"dropout must be a number from 0 to below 1, got {dropout!r}. The paper's code has 0.4.")
        self.trunk, self.dim, self.normalize = trunk, check_count("dim", dim, 0), normalize
        self.crop = trunk.input_size if crop is None else check_count("crop", crop)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(trunk.width, dim) if dim else nn.Identity()
        if isinstance(self.linear, nn.Linear):  # as in the paper's code
            bound = math.sqrt(3 / trunk.width)
            nn.init.uniform_(self.linear.weight, -bound, bound)
            nn.init.zeros_(self.linear.bias)

    @property
    def width(self) -> int:
        """Numbers in an embedding: d, or the trunk's features where there is no linear layer."""
        return self.dim or self.trunk.width

    def forward(self, pixels: Tensor) -> Tensor:
        """Embeddings, (b, d), of bytes (b, h, w, 3)."""
        return self.head(self.features(pixels))

    def features(self, pixels: Tensor) -> Tensor:
        """Pooled features of the trunk, (b, width), of bytes (b, h, w, 3), which may be on another device."""
        y: Tensor = self.trunk(self.trunk.scale(pixels.to(self.trunk.mean.device)))
        return y

    def head(self, features: Tensor) -> Tensor:
        """What comes after the trunk."""
        y: Tensor = self.linear(self.dropout(features))
        return normalize(y.float()) if self.normalize else y

    def save(self, path: str | Path) -> Path:
        """Write the whole of it to a file, or to ``embedder.safetensors`` in a folder; equal embedders give equal bytes."""
        file = Path(path) / EMBEDDER if Path(path).is_dir() else Path(path)
        meta = {
            "format": "liftedstruct embedder",
            "version": VERSION,
            "trunk": self.trunk.name,
            "form": self.trunk.form,
            "weights": self.trunk.weights,
            "dim": self.dim,
            "dropout": self.dropout.p,
            "normalize": self.normalize,
            "crop": self.crop,
            "pool": self.trunk.pool,
        }
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        content = save(tensors, {"liftedstruct": json.dumps(meta)})  # one entry, since the order of several is random
        with replacing(file) as stream:
            stream.write(content)
        return file

    @classmethod
    def load(cls, path: str | Path) -> "Embedder":
        """The embedder of a file, or of the folder of a run, in evaluation mode; no weights of the trunk are needed."""
        file = Path(path) / EMBEDDER if Path(path).is_dir() else Path(path)
        if not file.is_file():
            raise ValueError(f"an embedder must be a file, there is none at {file}. Train one, or check the path.")
        try:
            with safe_open(file, "pt") as content:
                meta = json.loads((content.metadata() or {}).get("liftedstruct", "{}"))
                tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118, it is no mapping
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(f"{file} must be an embedder, it cannot be read: {error}. Save it anew.") from error
        if not isinstance(meta, dict) or meta.get("format") != "liftedstruct embedder":
            raise ValueError(f"{file} must be an embedder, it holds tensors of something else. Save one with Embedder.save.")
        if meta.get("version") != VERSION:
            raise ValueError(f"{file} must be of version {VERSION}, got {meta.get('version')}. Use the release that wrote it.")
        absent = {"trunk", "form", "weights", "dim", "dropout", "normalize", "crop"} - meta.keys()
        if absent:
            raise ValueError(f"{file} must be as Embedder.save wrote it, it lacks {min(absent)!r}. Save it anew.")
        trunk = make_trunk(meta["trunk"], pretrained=False, form=meta["form"])
        trunk.weights = meta["weights"]
        trunk.set_pool(meta.get("pool", "average"))  # files of before there was a choice say nothing
        embedder = cls(trunk, meta["dim"], meta["dropout"], meta["normalize"], meta["crop"])
        for name, expected in embedder.state_dict().items():
            shape, got = tuple(expected.shape), tuple(tensors[name].shape) if name in tensors else "nothing"
            if shape != got:
                raise ValueError(f"{file} must fit its trunk, {trunk.name}: {name} must be {shape}, got {got}. Save it anew.")
        embedder.load_state_dict({name: tensors[name] for name in embedder.state_dict()})
        return embedder.eval()


def open_embedder(source: str | Path, weights: str | Path | None = None, pooled: bool = False) -> Embedder:
    """An embedder from whatever there is: the folder of a run, an embedder's file, or the name of a trunk.

    Args:
        source: a trunk's name makes an embedder of its pooled features.
        weights: file of weights for a trunk.
        pooled: leave out the head of a trained embedder, for the pooled features of its trunk.

    """
    name = str(source)
    there = Path(name).exists()
    if name in TRUNKS or (not there and (":" in name or not (Path(name).suffix or "/" in name or os.sep in name))):
        return Embedder(make_trunk(name, weights), dim=0)  # and if it is no trunk either, its error lists them
    if weights is not None:
        raise ValueError(f"weights must be for a trunk, {name!r} is an embedder that has its own. Leave them out.")
    embedder = Embedder.load(source)
    return Embedder(embedder.trunk, dim=0, crop=embedder.crop).eval() if pooled else embedder


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of images and what is known about them: enough to evaluate them anywhere, and to say what was evaluated."""

    embeddings: NDArray[np.float32]  # (n, d)
    labels: Indices  # (n,), numbers into class_names
    class_names: tuple[str, ...]
    paths: tuple[str, ...]  # n
    rows: Indices  # (n,), of the packed set
    part: str  # train, validation or test if all rows are of that part, otherwise all
    data: str  # folder of the packed set
    protocol: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.embeddings)

    def save(self, path: str | Path) -> Path:
        """Write an .npz file, arrays only; names and protocol are text."""
        arrays: dict[str, Any] = {
            "embeddings": self.embeddings,
            "labels": self.labels,
            "class_names": np.array(self.class_names, dtype=np.str_),
            "paths": np.array(self.paths, dtype=np.str_),
            "rows": self.rows,
            "part": np.array(self.part),
            "data": np.array(self.data),
            "protocol": np.array(json.dumps(dict(self.protocol))),
        }
        with replacing(path) as stream:
            np.savez(stream, **arrays)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "Embeddings":
        """Read what :meth:`save` wrote."""
        try:
            with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                one = {name: arrays[name] for name in cls.__dataclass_fields__}
        except (OSError, ValueError, KeyError, EOFError, AttributeError, BadZipFile, zlib.error) as error:
            raise ValueError(
                f"{path} must be an .npz file of embed, got: {error}. Write it with liftedstruct embed."
            ) from error
        texts = {name: tuple(one[name].tolist()) for name in ("class_names", "paths")}
        protocol = json.loads(str(one["protocol"]))
        return cls(**{**one, **texts, "part": str(one["part"]), "data": str(one["data"]), "protocol": protocol})


def embed(
    embedder: Embedder,
    packed: PackedImages,
    rows: Sequence[int] | Indices | None = None,
    batch_size: int = 64,
    crop: int | None = None,
    progress: bool = False,
    out: str | Path | None = None,
) -> Embeddings:
    """Embeddings of the centre crops of packed images, at the speed of the trunk.

    The embedder is left as it is; a copy works, in evaluation mode, with batch normalisation folded into the convolutions
    (equal up to rounding).

    Args:
        embedder: trunk and head, on any device.
        packed: the images.
        rows: numbers of the images, such as ``packed.test``; all of them if not given.
        batch_size: images at a time. It changes the speed, the memory and the rounding, nothing else.
        crop: side of the crops; the embedder's if not given.
        progress: show how far it is, on the terminal or as lines of text.
        out: an .npz file to write as well.

    """
    crop, batch_size = embedder.crop if crop is None else crop, check_count("batch_size", batch_size)
    numbers = np.arange(len(packed)) if rows is None else np.asarray(rows)
    if not numbers.size:
        raise ValueError(f"rows must be at least one image, got none of {packed.folder}. Prepare it with such a part.")
    if out is not None and not Path(out).absolute().parent.is_dir():
        raise ValueError(f"out must be a file in a folder that is there, got {str(out)!r}. Make the folder first.")
    extremes = numbers[[numbers.argmin(), numbers.argmax()]] if numbers.ndim == 1 else numbers
    packed.centre_crops(extremes, crop)  # rows and crop are checked before any work
    keep_memory()
    net, X = folded(embedder), np.empty((len(numbers), embedder.width), np.float32)
    with torch.inference_mode(), Bar("embed", len(numbers), wanted=progress) as bar:
        for at, pixels in _crops_ahead(packed, numbers, crop, batch_size):
            X[at : at + len(pixels)] = net(pixels).float().cpu().numpy()
            bar.advance(len(pixels))
    protocol = {
        "trunk": embedder.trunk.name,
        "form": embedder.trunk.form,
        "weights": embedder.trunk.weights,
        "pool": embedder.trunk.pool,
        "dim": embedder.dim,
        "normalised": embedder.normalize,
        "data": packed.name,
        "checksum": packed.checksum,
        "size": packed.size,
        "fit": packed.fit,
        "crop": crop,
    }
    labels, paths = packed.labels[numbers], tuple(packed.paths[row] for row in numbers)
    part, rows, folder = _part(packed, numbers), numbers.astype(np.int64), str(packed.folder)
    result = Embeddings(X, labels, packed.class_names, paths, rows, part, folder, protocol)
    if out is not None:
        result.save(out)
    return result


def _crops_ahead(packed: PackedImages, rows: Indices, crop: int, batch_size: int) -> Iterator[tuple[int, Tensor]]:
    """Where each batch begins and its bytes, (b, crop, crop, 3); a thread reads the next while this one is in use."""
    size = min(batch_size, len(rows))
    buffers = [np.empty((size, crop, crop, 3), np.uint8) for _ in range(2)]

    def read(at: int) -> Tensor:
        batch = rows[at : at + size]
        return torch.from_numpy(packed.centre_crops(batch, crop, out=buffers[at // size % 2][: len(batch)]))

    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(read, 0)
        for at in range(0, len(rows), size):
            pixels = coming.result()
            if at + size < len(rows):
                coming = thread.submit(read, at + size)
            yield at, pixels


def _part(packed: PackedImages, rows: Indices) -> str:
    """The part of the split that has all of these rows."""
    parts = {"train": packed.train, "validation": packed.validation, "test": packed.test}
    return next((name for name, part in parts.items() if np.isin(rows, part).all()), "all")

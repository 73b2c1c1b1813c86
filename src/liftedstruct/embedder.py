"""The embedder: trunk, dropout and linear layer, its file, and the record of what it was trained on."""

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import normalize

from liftedstruct.data import Indices, PackedImages, name_key
from liftedstruct.runtime.atomic import replacing
from liftedstruct.runtime.checks import as_number, check_count
from liftedstruct.trunks import RANDOM, TRUNKS, Trunk, make_trunk

__all__ = ["EMBEDDER", "Embedder", "Seen", "TrainedOn", "open_embedder"]

EMBEDDER = "embedder.safetensors"  # its name in the folder of a run
VERSION = 4
HASHES = {"images": "trained_on.images", "validation": "trained_on.validation"}  # names of the tensors of hashes
# What the file says of an embedder, and of its training if it was trained.
META: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("trunk", "weights", "pool"), str),
    "dim": int,
    "dropout": (int, float),
    "normalize": bool,
    "crop": int,
    "options": dict,  # of the trunk
}
TRAINING: dict[str, type] = {"step": int, "checksum": str, "class_names": list}


class Seen(NamedTuple):
    """How many of some images and classes an embedder was trained on."""

    images: int  # whose files were training images, byte for byte
    n_images: int
    classes: int  # that were trained on: of a training class's name and with an image of it, or mostly training images
    n_classes: int
    names: int  # further classes that only have the name of a training class
    validation: int  # images whose files the embedder was chosen by

    @property
    def any(self) -> bool:
        """Whether anything was seen."""
        return bool(self.images or self.names or self.validation)

    def __str__(self) -> str:
        counts = (self.images, self.n_images, "images"), (self.classes, self.n_classes, "classes")
        text = ", ".join(f"{f'{count:,}' if count else 'none'} of {total:,} {what}" for count, total, what in counts)
        if self.names:
            text += f"; {self.names:,} classes only share a name with a training class"
        return f"{text}; {self.validation:,} images were validation images" if self.validation else text


@dataclass(frozen=True, eq=False)
class TrainedOn:
    """What an embedder has learned from, kept in its file: enough to tell whether other images were among it."""

    step: int  # after which the embedder was kept
    checksum: str  # of the prepared dataset
    class_names: tuple[str, ...]  # of the training classes
    images: NDArray[np.uint64]  # sorted hashes of the training images                              (n,)
    validation: NDArray[np.uint64]  # and of the validation images that the embedder was chosen by  (v,)

    @staticmethod
    def of(packed: PackedImages, rows: Indices, validation: Indices, step: int) -> "TrainedOn":
        """The record of a training on these images, and of a choice by the others."""
        names = tuple(packed.class_names[label] for label in np.unique(packed.labels[rows]))
        images, others = (np.unique(packed.contents[each]) for each in (rows, validation))
        return TrainedOn(step, packed.checksum, names, images, others)

    def seen(self, packed: PackedImages, rows: Indices) -> Seen:
        """How much of these images was among it."""
        seen = np.isin(packed.contents[rows], self.images)
        labels, of = np.unique(packed.labels[rows], return_inverse=True)
        counts, sizes = np.bincount(of, weights=seen), np.bincount(of)
        names = set(map(name_key, self.class_names))
        named = np.array([name_key(packed.class_names[label]) in names for label in labels])
        trained = (named & (counts > 0)) | (2 * counts >= sizes)
        chosen_by = int(np.isin(packed.contents[rows], self.validation).sum())
        return Seen(int(seen.sum()), len(rows), int(trained.sum()), len(labels), int((named & ~trained).sum()), chosen_by)


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
        if not 0 <= as_number(dropout) < 1:
            raise ValueError(f"dropout must be a number from 0 to below 1, got {dropout!r}. The paper's code has 0.4.")
        self.trunk, self.dim, self.normalize = trunk, check_count("dim", dim, 0), normalize
        self.crop = trunk.input_size if crop is None else check_count("crop", crop)
        self.dropout = nn.Dropout(as_number(dropout))
        self.linear = nn.Linear(trunk.num_features, dim) if dim else nn.Identity()
        self.trained_on: TrainedOn | None = None  # set by train
        self.origin = trunk.name  # what to call it: the run or file that it was read from
        if isinstance(self.linear, nn.Linear):  # as in the paper's code
            bound = math.sqrt(3 / trunk.num_features)
            nn.init.uniform_(self.linear.weight, -bound, bound)
            nn.init.zeros_(self.linear.bias)

    @property
    def width(self) -> int:
        """Dimensions of an embedding: d, or those of the trunk's features where there is no linear layer."""
        return self.dim or self.trunk.num_features

    def forward(self, pixels: Tensor) -> Tensor:
        """Embeddings, (b, d), of bytes (b, h, w, 3)."""
        return self.head(self.features(pixels))

    def features(self, pixels: Tensor) -> Tensor:
        """Pooled features of the trunk, (b, num_features), of bytes (b, h, w, 3), which may be on another device."""
        y: Tensor = self.trunk(self.trunk.scale(pixels.to(self.trunk.mean.device)))
        return y

    def head(self, features: Tensor) -> Tensor:
        """What comes after the trunk."""
        y: Tensor = self.linear(self.dropout(features))
        return normalize(y.float()) if self.normalize else y

    def save(self, path: str | Path) -> Path:
        """Write the whole of it to a file, or to ``embedder.safetensors`` in a folder; equal embedders give equal bytes."""
        file = _embedder_file(path)
        with replacing(file) as stream:
            stream.write(self._content())
        return file

    def short_sha(self) -> str:
        """The start of the hash of the file that :meth:`save` writes, by which embeddings know their embedder."""
        return hashlib.sha256(self._content()).hexdigest()[:16]

    def _content(self) -> bytes:
        meta: dict[str, Any] = {
            "format": "liftedstruct embedder",
            "version": VERSION,
            "trunk": self.trunk.name,
            "options": self.trunk.options,
            "weights": self.trunk.weights,
            "dim": self.dim,
            "dropout": self.dropout.p,
            "normalize": self.normalize,
            "crop": self.crop,
            "pool": self.trunk.pool,
        }
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        if self.trained_on is not None:
            meta |= {name: getattr(self.trained_on, name) for name in ("step", "checksum", "class_names")}
            for name in HASHES:
                tensors[HASHES[name]] = torch.from_numpy(getattr(self.trained_on, name).view(np.int64))
        return save(tensors, {"liftedstruct": json.dumps(meta)})  # one entry, since the order of several is random

    @classmethod
    def load(cls, path: str | Path) -> "Embedder":
        """The embedder of a file, or of the folder of a run, in evaluation mode; no weights of the trunk are needed."""
        file = _embedder_file(path)
        meta, tensors = _read_embedder(file)
        trunk = make_trunk(meta["trunk"], pretrained=False, **meta["options"])
        trunk.weights = meta["weights"]
        trunk.set_pool(meta["pool"])
        dim = check_count("dim", meta["dim"], 0)
        shapes = {f"trunk.{name}": tuple(tensor.shape) for name, tensor in trunk.state_dict().items()}
        shapes |= {"linear.weight": (dim, trunk.num_features), "linear.bias": (dim,)} if dim else {}
        for name, shape in shapes.items():  # before a head of any size is made
            got = tuple(tensors[name].shape) if name in tensors else "nothing"
            if shape != got:
                raise ValueError(f"{file} must fit its trunk, {trunk.name}: {name} must be {shape}, got {got}. Save it again.")
        embedder = cls(trunk, dim, meta["dropout"], meta["normalize"], meta["crop"])
        embedder.load_state_dict({name: tensors[name] for name in shapes})
        if "step" in meta:
            hashes = {name: tensors[key].numpy().view(np.uint64).copy() for name, key in HASHES.items()}  # not of the map
            embedder.trained_on = TrainedOn(meta["step"], meta["checksum"], tuple(map(str, meta["class_names"])), **hashes)
        whole = Path(path).resolve()
        embedder.origin = os.path.relpath(whole) if whole.parent.is_relative_to(Path.cwd()) else str(whole)
        return embedder.eval()


def _embedder_file(path: str | Path) -> Path:
    return Path(path) / EMBEDDER if Path(path).is_dir() else Path(path)


def _read_embedder(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the file of an embedder says of it, checked, and its tensors."""
    if not file.is_file():
        raise ValueError(f"an embedder must be a file, there is none at {file}. Train one, or check the path.")
    try:
        with safe_open(file, "pt") as content:
            meta = json.loads((content.metadata() or {}).get("liftedstruct", "{}"))
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118, it is no mapping
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        raise ValueError(f"{file} must be an embedder, it cannot be read: {error}. Save it again.") from error
    if not isinstance(meta, dict) or meta.get("format") != "liftedstruct embedder":
        raise ValueError(f"{file} must be an embedder, it holds tensors of something else. Save one with Embedder.save.")
    if meta.get("version") != VERSION:
        raise ValueError(
            f"{file} must be of version {VERSION}, got {meta.get('version')!r}. Train again, or use the release that wrote it."
        )
    for name, kind in (META | (TRAINING if "step" in meta else {})).items():
        if not isinstance(meta.get(name), kind):
            raise ValueError(f"{file} must be as Embedder.save wrote it, its {name!r} is {meta.get(name)!r}. Save it again.")
    for name in HASHES.values() if "step" in meta else ():
        if name not in tensors or tensors[name].ndim != 1 or tensors[name].dtype != torch.int64:
            raise ValueError(f"{file} must be as Embedder.save wrote it, it lacks hashes in {name!r}. Save it again.")
    return meta, tensors


def open_embedder(source: str | Path, weights: str | Path | None = None, pooled: bool = False, seed: int = 0) -> Embedder:
    """An embedder from whatever there is: the folder of a run, an embedder's file, or the name of a trunk.

    Args:
        source: a trunk's name makes an embedder of its pooled features.
        weights: file of weights for a trunk.
        pooled: leave out the head of a trained embedder, for the pooled features of its trunk.
        seed: of the random weights of a trunk that has no others.

    """
    name = str(source)
    there = Path(name).exists()
    if name in TRUNKS or (not there and (":" in name or not (Path(name).suffix or "/" in name or os.sep in name))):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(check_count("seed", seed, 0))
            trunk = make_trunk(name, weights)  # and if it is no trunk either, its error lists them
        if trunk.weights == RANDOM:
            trunk.weights = f"{RANDOM}, seed {seed}"
        return Embedder(trunk, dim=0)
    if weights is not None:
        raise ValueError(f"weights must be for a trunk, {name!r} is an embedder that has its own. Leave them out.")
    embedder = Embedder.load(source)
    if not pooled:
        return embedder
    features = Embedder(embedder.trunk, dim=0, crop=embedder.crop).eval()
    features.trained_on, features.origin = embedder.trained_on, f"{embedder.origin}, pooled features"
    return features

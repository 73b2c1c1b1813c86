"""The embedder, trunk + dropout + linear layer, its file, and what it makes of images: embeddings, with their protocol."""

import hashlib
import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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

from liftedstruct.data import PackedImages
from liftedstruct.data.image_set import Indices
from liftedstruct.data.splits import name_key
from liftedstruct.runtime.arrays import load_arrays
from liftedstruct.runtime.atomic import replacing
from liftedstruct.runtime.checks import as_number, check_count, check_out
from liftedstruct.runtime.memory import keep_memory
from liftedstruct.runtime.progress import Bar
from liftedstruct.trunks import TRUNKS, Trunk, make_trunk
from liftedstruct.trunks.base import RANDOM
from liftedstruct.trunks.layers import folded

__all__ = [
    "EMBEDDER",
    "EMBEDDINGS",
    "SCORES",
    "Embedder",
    "Embeddings",
    "Seen",
    "TrainedOn",
    "check_current",
    "embed",
    "embed_rows",
    "open_embedder",
]

EMBEDDER, EMBEDDINGS, SCORES = "embedder.safetensors", "embeddings.npz", "scores.json"  # their names in the folder of a run
VERSION = 2
HASHES = {"images": "trained_on.images", "validation": "trained_on.validation"}  # names of the tensors of hashes
# What the file says of an embedder, and of its training if it was trained.
META: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("trunk", "form", "weights", "pool"), str),
    "dim": int,
    "dropout": (int, float),
    "normalize": bool,
    "crop": int,
}
TRAINING: dict[str, type] = {"step": int, "checksum": str, "class_names": list}
# Lines of the protocol of embeddings.
OF, SEEN, SHA, STEP = "embeddings of", "seen in training", "embedder SHA-256", "step"


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
        self.linear = nn.Linear(trunk.width, dim) if dim else nn.Identity()
        self.trained_on: TrainedOn | None = None  # set by train
        self.origin = trunk.name  # what to call it: the run or file that it was read from
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
        file = _embedder_file(path)
        with replacing(file) as stream:
            stream.write(self._content())
        return file

    def short_sha(self) -> str:
        """The start of the hash of the file that :meth:`save` writes, by which embeddings know their embedder."""
        return _short_sha(self._content())

    def _content(self) -> bytes:
        meta: dict[str, Any] = {
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
        if self.trained_on is not None:
            meta |= {name: getattr(self.trained_on, name) for name in ("step", "checksum", "class_names")}
            for name in HASHES:
                tensors[HASHES[name]] = torch.from_numpy(getattr(self.trained_on, name).view(np.int64))
        content: bytes = save(tensors, {"liftedstruct": json.dumps(meta)})  # one entry, since the order of several is random
        return content

    @classmethod
    def load(cls, path: str | Path) -> "Embedder":
        """The embedder of a file, or of the folder of a run, in evaluation mode; no weights of the trunk are needed."""
        file = _embedder_file(path)
        meta, tensors = _read_embedder(file)
        trunk = make_trunk(meta["trunk"], pretrained=False, form=meta["form"])
        trunk.weights = meta["weights"]
        trunk.set_pool(meta["pool"])
        dim = check_count("dim", meta["dim"], 0)
        shapes = {f"trunk.{name}": tuple(tensor.shape) for name, tensor in trunk.state_dict().items()}
        shapes |= {"linear.weight": (dim, trunk.width), "linear.bias": (dim,)} if dim else {}
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
            f"{file} must be of version {VERSION}, got {meta.get('version')!r}. Remove it and resume its run with "
            "'liftedstruct train --resume', which writes it again, or use the release that wrote it."
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


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of images and what is known about them: enough to evaluate them anywhere, and to say what was evaluated."""

    embeddings: NDArray[np.float32]  # (n, d)
    labels: Indices  # (n,), numbers into class_names
    class_names: tuple[str, ...]
    paths: tuple[str, ...]  # n
    rows: Indices  # (n,), of the packed set
    contents: NDArray[np.uint64]  # (n,), hashes of the image files
    seen: Seen | None  # how much of it was trained on; None if there was no training, or no record of it was kept
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
            "contents": self.contents,
            "seen": np.array(self.seen or (), np.int64),
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
            arrays = load_arrays(path, cls.__dataclass_fields__)
            one: dict[str, Any] = {name: arrays[name] for name in cls.__dataclass_fields__}
            one |= {name: tuple(one[name].tolist()) for name in ("class_names", "paths")}
            one |= {name: str(one[name]) for name in ("part", "data")}
            one["seen"] = Seen(*map(int, one["seen"])) if one["seen"].size else None
            one["protocol"] = json.loads(str(one["protocol"]))
            if not isinstance(one["protocol"], dict):
                raise ValueError("a protocol that is no JSON object")
            if (one["contents"].dtype, one["contents"].ndim) != (np.uint64, 1):
                raise ValueError("contents that are no hashes")
            if not all(isinstance(each, str) for name in ("class_names", "paths") for each in one[name]):
                raise ValueError("names that are no text")
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            reason = f"no array {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(
                f"{path} must be an .npz file of embed, got: {reason}. Write it again with liftedstruct embed."
            ) from error
        return cls(**one)


def check_current(file: Path, protocol: Mapping[str, Any], data: str = "DATA", part: str = "test") -> None:
    """Raise if embeddings or scores in the folder of a run are not of the embedder that is there now.

    Args:
        file: of the embeddings or scores, wherever it is.
        protocol: of the embeddings.
        data: the prepared dataset to embed again.
        part: of it.

    """
    if file.name not in (EMBEDDINGS, SCORES) or not file.with_name(EMBEDDER).is_file():
        return
    embedder = Embedder.load(file.parent)
    if protocol.get(SHA) == embedder.short_sha():
        return
    was, now = protocol.get(STEP, "unknown"), embedder.trained_on.step if embedder.trained_on else "unknown"
    what = f"of step {was}, the run's is of step {now}" if str(was) != str(now) else "other weights or another head"
    command = ["liftedstruct", "embed", str(file.parent), data, *(["--part", part] if part != "test" else [])]
    raise ValueError(f"{file} must be of the run's embedder, it is of another one ({what}). Run: {shlex.join(command)}")


def _short_sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def embed(
    embedder: Embedder,
    packed: PackedImages,
    rows: Sequence[int] | Indices | None = None,
    batch_size: int = 64,
    crop: int | None = None,
    progress: bool = False,
    out: str | Path | None = None,
) -> Embeddings:
    """Embeddings of the centre crops of packed images, at the speed of the trunk, with all that a score of them has to say.

    Test or validation classes of another dataset that the embedder was trained on are refused: a score of them would say that
    they are unseen. Embed all of that dataset instead, whose scores say how much was seen.

    Args:
        embedder: trunk and head, on any device.
        packed: the images.
        rows: numbers of the images, such as ``packed.test``; all of them if not given.
        batch_size: images at a time. It changes the speed, the memory and the rounding, nothing else.
        crop: side of the crops; the embedder's if not given.
        progress: show how far it is, on the terminal or as lines of text.
        out: an .npz file to write as well.

    """
    numbers = np.arange(len(packed)) if rows is None else np.asarray(rows)
    if not numbers.size:
        raise ValueError(f"rows must be at least one image, got none of {packed.folder}. Prepare it with such a part.")
    if out is not None:
        check_out("out", out)
    crop = embedder.crop if crop is None else crop
    extremes = numbers[[numbers.argmin(), numbers.argmax()]] if numbers.ndim == 1 else numbers
    packed.center_crops(extremes, crop)  # rows and crop are checked before any work
    paths = tuple(packed.paths[row] for row in numbers)
    part, trained_on = _part(packed, numbers), embedder.trained_on
    seen = trained_on.seen(packed, numbers) if trained_on else None
    if trained_on and seen and seen.classes and part in ("test", "validation") and trained_on.checksum != packed.checksum:
        raise ValueError(
            f"the {part} classes of {packed.folder} must be unseen, {embedder.origin} was trained on {seen}. "
            "Prepare the dataset with the split of the run, or pass --part all for scores that say so."
        )
    result = Embeddings(
        embeddings=embed_rows(embedder, packed, numbers, batch_size, crop, progress),
        labels=packed.labels[numbers],
        class_names=packed.class_names,
        paths=paths,
        rows=numbers.astype(np.int64),
        contents=packed.contents[numbers],
        seen=seen,
        part=part,
        data=str(packed.folder),
        protocol=_protocol(embedder, packed, part, crop, seen),
    )
    if out is not None:
        result.save(out)
    return result


def _protocol(embedder: Embedder, packed: PackedImages, part: str, crop: int, seen: Seen | None) -> dict[str, Any]:
    """How embeddings were made, line by line; the first two lines say whose they are."""
    trained_on = embedder.trained_on
    whose = f"{embedder.origin}, step {trained_on.step:,}" if trained_on else f"{embedder.origin}, no training recorded"
    images = "all images" if part == "all" else f"{part} part"
    protocol: dict[str, Any] = {OF: f"{whose}; {images} of {packed.folder.name} (checksum {packed.checksum[:12]})"}
    if trained_on and seen:
        protocol |= {SEEN: str(seen), STEP: trained_on.step}
    return protocol | {
        SHA: embedder.short_sha(),
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


def embed_rows(
    embedder: Embedder, packed: PackedImages, rows: Indices, batch_size: int, crop: int, progress: bool = False
) -> NDArray[np.float32]:
    """The embeddings alone, (n, d).

    The embedder is left as it is; a copy works, in evaluation mode, with batch normalisation folded into the convolutions
    (equal up to rounding).
    """
    keep_memory()
    net, X = folded(embedder), np.empty((len(rows), embedder.width), np.float32)
    with torch.inference_mode(), Bar("embed", len(rows), wanted=progress) as bar:
        for at, pixels in _crops_ahead(packed, rows, crop, check_count("batch_size", batch_size)):
            X[at : at + len(pixels)] = net(pixels).float().cpu().numpy()
            bar.advance(len(pixels))
    return X


def _crops_ahead(packed: PackedImages, rows: Indices, crop: int, batch_size: int) -> Iterator[tuple[int, Tensor]]:
    """Where each batch begins and its bytes, (b, crop, crop, 3); a thread reads the next while this one is in use."""
    size = min(batch_size, len(rows))
    buffers = [np.empty((size, crop, crop, 3), np.uint8) for _ in range(2)]

    def read(at: int) -> Tensor:
        batch = rows[at : at + size]
        return torch.from_numpy(packed.center_crops(batch, crop, out=buffers[at // size % 2][: len(batch)]))

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

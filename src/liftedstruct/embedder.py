"""Embedder (trunk, dropout and linear layer), its file format, and the record of its training images."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import normalize

from liftedstruct.data import RESIZE_MODES, SIZE_PER_CROP, Indices, PackedImages, name_key
from liftedstruct.encoding import ImageLike, Network, Preprocessing, encode, onnx_network
from liftedstruct.runtime.atomic import replacing
from liftedstruct.runtime.checks import as_number, check_count, pick
from liftedstruct.trunks import RANDOM, TRUNKS, Trunk, folded, make_trunk

__all__ = ["EMBEDDER", "Embedder", "Seen", "TrainedOn", "load", "open_embedder"]

EMBEDDER, EXPORTED = "embedder.safetensors", "model.safetensors"  # file names in a run folder and in an exported folder
VERSION = 5
HASHES = {"images": "trained_on.images", "validation": "trained_on.validation"}  # field of TrainedOn -> tensor in the file
# Types of the metadata in the file; TRAINING only if the embedder was trained.
META: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("trunk", "weights", "pool", "resize_mode"), str),
    **dict.fromkeys(("dim", "crop", "size"), int),
    "dropout": (int, float),
    "normalize": bool,
    "options": dict,  # of make_trunk
}
TRAINING: dict[str, type] = {"step": int, "checksum": str, "class_names": list}


class Seen(NamedTuple):
    """Overlap of a set of images and its classes with the training data of an embedder.

    Attributes:
        images: number of images whose files are training images, byte for byte.
        n_images: number of all images.
        classes: number of classes that count as trained on: at least half of their images are training images, or at least one
            is and the class has the name of a training class.
        n_classes: number of all classes.
        names: number of other classes that share their name with a training class.
        validation: number of images whose files are validation images, used to select the embedder.

    """

    images: int
    n_images: int
    classes: int
    n_classes: int
    names: int
    validation: int

    @property
    def any(self) -> bool:
        """Whether there is any overlap."""
        return bool(self.images or self.names or self.validation)

    def __str__(self) -> str:
        counts = (self.images, self.n_images, "images"), (self.classes, self.n_classes, "classes")
        text = ", ".join(f"{f'{count:,}' if count else 'none'} of {total:,} {what}" for count, total, what in counts)
        if self.names:
            text += f"; {self.names:,} classes only share a name with a training class"
        return f"{text}; {self.validation:,} images were validation images" if self.validation else text


@dataclass(frozen=True, eq=False)
class TrainedOn:
    """Record of the images that an embedder was trained on, saved in its file.

    Attributes:
        step: training step that the weights are from.
        checksum: checksum of the prepared dataset.
        class_names: names of the training classes.
        images: (n,), sorted hashes of the training images.
        validation: (v,), sorted hashes of the validation images that the embedder was selected on.

    """

    step: int
    checksum: str
    class_names: tuple[str, ...]
    images: NDArray[np.uint64]
    validation: NDArray[np.uint64]

    @staticmethod
    def of(packed: PackedImages, rows: Indices, validation: Indices, step: int) -> "TrainedOn":
        """Create the record of training on `rows` of a dataset, with the checkpoint selected on the rows `validation`."""
        names = tuple(packed.class_names[label] for label in np.unique(packed.labels[rows]))
        images, others = (np.unique(packed.contents[each]) for each in (rows, validation))
        return TrainedOn(step, packed.checksum, names, images, others)

    def seen(self, contents: NDArray[np.uint64], labels: Indices, class_names: Sequence[str]) -> Seen:
        """Return how many of the images with these hashes, and of their classes, were seen in training."""
        seen = np.isin(contents, self.images)
        labels, of = np.unique(labels, return_inverse=True)
        counts, sizes = np.bincount(of, weights=seen), np.bincount(of)
        names = set(map(name_key, self.class_names))
        named = np.array([name_key(class_names[label]) in names for label in labels])
        trained = (named & (counts > 0)) | (2 * counts >= sizes)
        chosen_by = int(np.isin(contents, self.validation).sum())
        return Seen(int(seen.sum()), len(contents), int(trained.sum()), len(labels), int((named & ~trained).sum()), chosen_by)


class Embedder(nn.Module):
    """Network that maps images to embeddings: a trunk, dropout, a linear layer and optional L2 normalization.

    It takes uint8 pixels of shape (b, h, w, 3) and returns embeddings of shape (b, dim). The trunk scales the pixels.

    Args:
        trunk: network that computes the pooled features.
        dim: embedding dimension. 0 omits the linear layer: the embeddings are the trunk's pooled features.
        dropout: fraction of the features to drop in training. The paper's code uses 0.4.
        normalize: scale each embedding to unit length. The paper does not; if normalized, its loss needs a temperature.
        crop: side of the crops to embed, in pixels. Default: the trunk's `input_size`.
        size: side of the square that `encode` resizes an image to before it is cropped. Default: 8/7 of the crop.
        resize_mode: how `encode` makes a rectangular image square: squash, letterbox or trim-letterbox.

    Attributes:
        trained_on: record of the training images, or None if the embedder was not trained.
        origin: name to display: the run folder or file that it was loaded from, or the name of the trunk.
        onnx: the ONNX file that `encode` uses, or None.

    Examples:
        >>> embedder = Embedder(make_trunk("small"), dim=16)
        >>> embedder(torch.zeros(2, 64, 64, 3, dtype=torch.uint8)).shape
        torch.Size([2, 16])

    """

    def __init__(
        self,
        trunk: Trunk,
        dim: int = 64,
        dropout: float = 0.0,
        normalize: bool = False,
        crop: int | None = None,
        size: int | None = None,
        resize_mode: str = "squash",
    ) -> None:
        super().__init__()
        if not 0 <= as_number(dropout) < 1:
            raise ValueError(f"dropout must be a number >= 0 and < 1, got {dropout!r}. The paper's code uses 0.4.")
        self.trunk, self.dim, self.normalize = trunk, check_count("dim", dim, 0), normalize
        self.crop = trunk.input_size if crop is None else check_count("crop", crop)
        self.size = round(self.crop * SIZE_PER_CROP) if size is None else check_count("size", size, self.crop)
        pick(RESIZE_MODES, resize_mode, "resize_mode")
        self.resize_mode = resize_mode
        self.dropout = nn.Dropout(as_number(dropout))
        self.linear = nn.Linear(trunk.num_features, dim) if dim else nn.Identity()
        self.trained_on: TrainedOn | None = None
        self.origin = trunk.name
        self.onnx: Path | None = None
        if isinstance(self.linear, nn.Linear):  # as in the paper's code
            bound = math.sqrt(3 / trunk.num_features)
            nn.init.uniform_(self.linear.weight, -bound, bound)
            nn.init.zeros_(self.linear.bias)

    @property
    def width(self) -> int:
        """Embedding dimension: `dim`, or the trunk's `num_features` if `dim` is 0."""
        return self.dim or self.trunk.num_features

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the embeddings, (b, dim), of uint8 pixels (b, h, w, 3)."""
        return self.head(self.features(pixels))

    def features(self, pixels: Tensor) -> Tensor:
        """Return the trunk's pooled features, (b, num_features), of uint8 pixels (b, h, w, 3) on any device."""
        y: Tensor = self.trunk(self.trunk.scale(pixels.to(self.trunk.mean.device)))
        return y

    def head(self, features: Tensor) -> Tensor:
        """Return the embeddings of pooled features: dropout, linear layer, normalization."""
        y: Tensor = self.linear(self.dropout(features))
        return normalize(y.float()) if self.normalize else y

    def encode(
        self,
        images: ImageLike | Iterable[ImageLike],
        batch_size: int = 64,
        progress: bool = False,
        unreadable: dict[int, str] | None = None,
    ) -> NDArray[np.float32]:
        """Return the embeddings of images, (n, dim).

        Each image is prepared exactly as the training images were, so the embeddings equal those of `embed` on a prepared
        dataset up to rounding. (A large JPEG file is decoded at a reduced scale. One that is decoded already is not, so its
        embedding differs slightly: pass the path or the bytes.)

        Args:
            images: paths, bytes of image files, pillow images, or uint8 arrays or tensors of shape (h, w), (h, w, 3) or
                (h, w, 4), mixed and of any size; or a single one.
            batch_size: images per batch. It affects speed, memory and rounding only.
            progress: show a progress bar, or lines of text if stderr is not a terminal.
            unreadable: dict that collects the reason for each image that cannot be read, by its position; these images have no
                row. Default: raise an error.

        Raises:
            ValueError: if an image cannot be read, with its path or position.

        """
        preprocessing = Preprocessing(self.size, self.resize_mode, self.crop)
        gpu = self.trunk.mean.device.type != "cpu"
        return encode(self._network(), images, preprocessing, self.width, batch_size, progress, unreadable, ahead=gpu)

    def _network(self) -> Network:
        """Return the function from pixels to embeddings for inference. It is made again when a weight has changed."""
        if _NETWORKS.get(self, (None,))[0] != self._state():
            net = folded(self)

            def network(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
                with torch.inference_mode():
                    found: NDArray[np.float32] = net(torch.from_numpy(pixels)).float().cpu().numpy()
                return found

            _NETWORKS[self] = self._state(), network
        return _NETWORKS[self][1]

    def _state(self) -> tuple[Any, ...]:
        modules, found = list[nn.Module]([self]), list[Any]([self.trunk.pool, self.normalize])
        while modules:  # several times as fast as parameters() and buffers()
            module = modules.pop()
            modules += (each for each in module._modules.values() if each is not None)
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                found += () if tensor is None else (tensor.data_ptr(), tensor._version)
        return tuple(found)

    def truncated(self, dim: int) -> "Embedder":
        """Return an embedder with the first `dim` dimensions of this one; the trunk is shared.

        An embedder trained with `min_dim`, as by default, has prefixes that are good embeddings themselves.
        """
        if not 0 < check_count("dim", dim) <= self.dim:
            raise ValueError(
                f"dim must be at most {self.dim}, the dimension of the embedder's linear layer, got {dim}. Lower it."
            )
        settings = self.dropout.p, self.normalize, self.crop, self.size, self.resize_mode
        narrow = Embedder(self.trunk, dim, *settings).to(next(self.parameters()).device)
        narrow.linear.load_state_dict({name: value[:dim] for name, value in self.linear.state_dict().items()})
        narrow.trained_on, narrow.origin = self.trained_on, f"{self.origin}, first {dim} dimensions"
        narrow.training, narrow.dropout.training = self.training, self.dropout.training  # not the trunk, which is shared
        return narrow

    def save(self, path: str | Path) -> Path:
        """Write the embedder to a file, or to `embedder.safetensors` in a folder, and return the path of the file.

        The file holds weights, settings and the record of the training. Equal embedders produce identical files.
        """
        file = _embedder_file(path)
        with replacing(file) as stream:
            stream.write(self._content())
        return file

    def short_sha(self) -> str:
        """Return the first 16 hex digits of the SHA-256 of the file that `save` writes. Embeddings record it."""
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
            "size": self.size,
            "resize_mode": self.resize_mode,
            "pool": self.trunk.pool,
        }
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        if self.trained_on is not None:
            meta |= {name: getattr(self.trained_on, name) for name in ("step", "checksum", "class_names")}
            for name in HASHES:
                tensors[HASHES[name]] = torch.from_numpy(getattr(self.trained_on, name).view(np.int64))
        return save(tensors, {"liftedstruct": json.dumps(meta)})  # one entry: the order of several is random

    @classmethod
    def load(cls, path: str | Path) -> "Embedder":
        """Load an embedder from its file, a run folder or an exported folder, in evaluation mode.

        The trunk's pretrained weights are not needed.

        Raises:
            ValueError: if there is no embedder file, or if it is damaged or of another format version.

        """
        file = _embedder_file(path)
        meta, tensors = _read_embedder(file)
        trunk = make_trunk(meta["trunk"], pretrained=False, **meta["options"])
        trunk.weights = meta["weights"]
        trunk.set_pool(meta["pool"])
        dim = check_count("dim", meta["dim"], 0)
        shapes = {f"trunk.{name}": tuple(tensor.shape) for name, tensor in trunk.state_dict().items()}
        shapes |= {"linear.weight": (dim, trunk.num_features), "linear.bias": (dim,)} if dim else {}
        for name, shape in shapes.items():  # before allocating a head whose size comes from the file
            got = tuple(tensors[name].shape) if name in tensors else "nothing"
            if shape != got:
                raise ValueError(f"{file} must match its trunk {trunk.name}: {name} must be {shape}, got {got}. Save it again.")
        embedder = cls(trunk, dim, *(meta[name] for name in ("dropout", "normalize", "crop", "size", "resize_mode")))
        embedder.load_state_dict({name: tensors[name] for name in shapes})
        if "step" in meta:
            hashes = {
                name: tensors[key].numpy().view(np.uint64).copy() for name, key in HASHES.items()
            }  # no view of the memory-mapped file
            embedder.trained_on = TrainedOn(meta["step"], meta["checksum"], tuple(map(str, meta["class_names"])), **hashes)
        whole = Path(path).resolve()
        embedder.origin = os.path.relpath(whole) if whole.parent.is_relative_to(Path.cwd()) else str(whole)
        onnx = file.with_suffix(".onnx")
        if onnx.is_file() and (network := onnx_network(onnx, embedder.short_sha())) and _agree(embedder.eval(), network):
            _NETWORKS[embedder], embedder.onnx = (embedder._state(), network), onnx
        return embedder.eval()


def _agree(embedder: Embedder, network: Network) -> bool:
    """Return whether a network embeds noise as the embedder does; the file of the network may be damaged."""
    pixels = np.random.default_rng(0).integers(0, 256, (1, embedder.crop, embedder.crop, 3), dtype=np.uint8)
    try:
        found, expected = network(pixels), embedder._network()(pixels)
    except Exception:  # of many types
        return False
    return found.shape == expected.shape and bool(np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max())


_NETWORKS: WeakKeyDictionary[Embedder, tuple[tuple[Any, ...], Network]] = WeakKeyDictionary()


def _embedder_file(path: str | Path) -> Path:
    if not Path(path).is_dir():
        return Path(path)
    exported = Path(path) / EXPORTED
    return exported if exported.is_file() else Path(path) / EMBEDDER


def _read_embedder(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the metadata and the tensors of an embedder file, and check the metadata."""
    if not file.is_file():
        raise ValueError(f"an embedder must be an existing file, got {file}. Train one, or check the path.")
    try:
        with safe_open(file, "pt") as content:
            meta = json.loads((content.metadata() or {}).get("liftedstruct", "{}"))
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118, not a mapping
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        raise ValueError(f"{file} must be a readable embedder file, got: {error}. Save it again.") from error
    if not isinstance(meta, dict) or meta.get("format") != "liftedstruct embedder":
        raise ValueError(f"{file} must be an embedder file, got other tensors. Save one with Embedder.save.")
    if meta.get("version") != VERSION:
        raise ValueError(
            f"{file} must be of format version {VERSION}, got {meta.get('version')!r}. "
            "Train again, or use the release that wrote it."
        )
    for name, kind in (META | (TRAINING if "step" in meta else {})).items():
        if not isinstance(meta.get(name), kind):
            raise ValueError(f"{file} must be written by Embedder.save, got {meta.get(name)!r} for {name!r}. Save it again.")
    for name in HASHES.values() if "step" in meta else ():
        if name not in tensors or tensors[name].ndim != 1 or tensors[name].dtype != torch.int64:
            raise ValueError(f"{file} must be written by Embedder.save, got no hashes in {name!r}. Save it again.")
    return meta, tensors


def load(path: str | Path) -> Embedder:
    """Load a trained embedder from its run folder, its file or an exported folder, to `encode` images.

    From an exported folder, `encode` uses onnxruntime where it is installed, which is faster than torch on a CPU.

    Examples:
        >>> embedder = load("run/")  # doctest: +SKIP
        >>> embedder.encode(["photo.jpg", "other.png"]).shape  # doctest: +SKIP
        (2, 512)
    """
    return Embedder.load(path)


def open_embedder(source: str | Path, weights: str | Path | None = None, pooled: bool = False, seed: int = 0) -> Embedder:
    """Load a trained embedder, or create one from the name of a trunk.

    Args:
        source: run folder, embedder file, or name of a trunk. The embeddings of a trunk are its pooled features.
        weights: weights file of the trunk. Default: its pretrained weights.
        pooled: drop the head of a trained embedder: the embeddings are the pooled features of its trunk.
        seed: seed of the random weights of a trunk without pretrained weights.

    """
    name = str(source)
    there = Path(name).exists()
    if name in TRUNKS or (not there and (":" in name or not (Path(name).suffix or "/" in name or os.sep in name))):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(check_count("seed", seed, 0))
            trunk = make_trunk(name, weights)  # raises an error that lists the trunks if there is no trunk of this name
        if trunk.weights == RANDOM:
            trunk.weights = f"{RANDOM}, seed {seed}"
        return Embedder(trunk, dim=0)
    if weights is not None:
        raise ValueError(f"weights must be passed with a trunk, got the embedder {name!r}, which has its own. Leave them out.")
    embedder = Embedder.load(source)
    if not pooled:
        return embedder
    preparation = {name: getattr(embedder, name) for name in ("crop", "size", "resize_mode")}
    features = Embedder(embedder.trunk, dim=0, **preparation).eval()
    features.trained_on, features.origin = embedder.trained_on, f"{embedder.origin}, pooled features"
    return features

"""Compute embeddings of a prepared dataset, and save and load them as .npz files together with their protocol."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from liftedstruct.data import QUERY, FolderSource, Indices, PackedImages, brief, content_hash, list_items
from liftedstruct.embedder import EMBEDDER, Embedder, Seen
from liftedstruct.runtime.arrays import UNNAMED, load_arrays
from liftedstruct.runtime.atomic import replacing
from liftedstruct.runtime.checks import as_classes, check_count
from liftedstruct.runtime.memory import kept_memory
from liftedstruct.runtime.progress import Bar
from liftedstruct.trunks import folded

__all__ = [
    "EMBEDDINGS",
    "OF",
    "SCORES",
    "SEEN",
    "SHA",
    "Embeddings",
    "check_current",
    "embed",
    "embed_files",
    "embed_rows",
    "embeddings_file",
]

EMBEDDINGS, SCORES = "embeddings.npz", "scores.json"  # file names in a run folder
PARTS = ("test", "validation", "train", "all")
# Keys of the protocol.
OF, SEEN, SHA, STEP = "embeddings of", "seen in training", "embedder SHA-256", "step"


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Embeddings of images with their labels and protocol, as returned by `embed` and `Embeddings.load`.

    `paths`, `rows` and `contents` are empty if they are unknown, for example in an `.npz` file of your own.

    Attributes:
        embeddings: (n, d).
        labels: (n,), indices into `class_names`.
        class_names: names of the classes.
        paths: n paths of the images in the dataset.
        rows: (n,), row indices in the prepared dataset.
        contents: (n,), hashes of the image files.
        seen: how many of the images and classes were seen in training. None without a record of the training.
        part: `train`, `validation` or `test` if all images are of that part of the split, otherwise `all`.
        data: folder of the prepared dataset, or an empty string.
        protocol: how the embeddings were computed: embedder, trunk, weights, dataset, crop, ...
        queries: (n,), which images are queries in the gallery of the others. Empty: each is a query among all others.

    """

    embeddings: NDArray[np.floating]
    labels: Indices
    class_names: tuple[str, ...]
    paths: tuple[str, ...]
    rows: Indices
    contents: NDArray[np.uint64]
    seen: Seen | None
    part: str
    data: str
    protocol: Mapping[str, Any]
    queries: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    def __len__(self) -> int:
        return len(self.embeddings)

    def save(self, path: str | Path) -> Path:
        """Write an `.npz` file without pickled objects, and return its path."""
        arrays: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(Embeddings)}
        arrays |= {name: np.array(arrays[name], dtype=np.str_) for name in ("class_names", "paths", "part", "data")}
        arrays |= {"seen": np.array(self.seen or (), np.int64), "protocol": np.array(json.dumps(dict(self.protocol)))}
        with replacing(path) as stream:
            np.savez(stream, **arrays)
        return Path(path)

    def at(self, rows: Indices | NDArray[np.bool_]) -> "Embeddings":
        """Return the embeddings of some of the images."""
        names = [name for name in ("rows", "contents") if len(getattr(self, name))]
        paths = tuple(np.array(self.paths, dtype=object)[rows].tolist()) if self.paths else ()
        some = {name: getattr(self, name)[rows] for name in ("embeddings", "labels", *names)}
        return replace(self, **some, paths=paths, queries=np.empty(0, np.bool_))

    @staticmethod
    def load(path: str | Path, labels: str | Path | None = None) -> "Embeddings":
        """Load embeddings written by `save`, `liftedstruct embed` or `np.savez(file, embeddings=X, labels=y)`.

        The file may hold any of the other attributes as arrays. Without `class_names`, the labels are the class names.

        Args:
            path: run folder, `.npz` file, or `.npy` file with the embeddings alone.
            labels: `.npy` file, or text file with one label per line. It replaces labels in the `.npz` file.

        Raises:
            ValueError: if the file is missing, damaged or has no labels, or if it is in a run folder and was computed with
                an embedder other than the run's current one.

        """
        file = embeddings_file(path)
        arrays = _read_arrays(file)
        names = " and ".join(f"'{name}'" for name in arrays) or "no known array"
        if "embeddings" not in arrays:
            raise ValueError(f"{file} must hold an array 'embeddings', got {names}. Save it under that name with np.savez.")
        if labels is None and "labels" not in arrays:
            raise ValueError(
                f"{file} must come with labels, got {names}. "
                "Add the labels as an array 'labels', or pass a file of labels with --labels."
            )
        if labels is not None or "class_names" not in arrays:
            arrays["labels"], classes = as_classes(arrays["labels"] if labels is None else _read_labels(Path(labels)))
            arrays["class_names"] = classes.astype(np.str_)
        try:
            found = _from_arrays(arrays)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            remedy = "Write it again with liftedstruct embed or np.savez."
            raise ValueError(f"{file} must hold embeddings and matching arrays, got: {error}. {remedy}") from error
        check_current(file, found.protocol, found.data, found.part)
        return found


def _from_arrays(arrays: dict[str, NDArray[Any]]) -> Embeddings:
    """Check the arrays of a file and return them as `Embeddings`. Missing arrays get defaults."""
    absent = {"paths": np.empty(0, np.str_), "rows": np.empty(0, np.int64), "contents": np.empty(0, np.uint64)}
    absent |= {"queries": np.empty(0, np.bool_)}
    absent |= {"seen": np.empty(0), "part": np.array("all"), "data": np.array(""), "protocol": np.array("{}")}
    arrays = absent | arrays
    X, y, names, part = arrays["embeddings"], arrays["labels"], arrays["class_names"], str(arrays["part"])
    n = len(X) if X.ndim else 0
    for name, kinds in {"labels": "iu", "paths": "U", "rows": "iu", "contents": "u", "queries": "b"}.items():
        if arrays[name].dtype.kind not in kinds or arrays[name].shape not in ((n,), (0,)):
            raise ValueError(f"{name} of shape {arrays[name].shape} and type {arrays[name].dtype} for {n} embeddings")
    if len(y) != n or names.dtype.kind != "U" or (n and not 0 <= y.min() <= y.max() < len(names)):
        raise ValueError(f"{len(y)} labels and {names.size} class names for {n} embeddings")
    if part not in PARTS:
        raise ValueError(f"part {part!r}, expected one of {', '.join(PARTS)}")
    protocol = json.loads(str(arrays["protocol"]))
    if not isinstance(protocol, dict):
        raise ValueError("a protocol that is not a JSON object")
    seen = Seen(*map(int, arrays["seen"])) if arrays["seen"].size else None
    class_names, paths = (tuple(arrays[name].tolist()) for name in ("class_names", "paths"))
    rows, contents, data = arrays["rows"], arrays["contents"], str(arrays["data"])
    return Embeddings(X, y, class_names, paths, rows, contents, seen, part, data, protocol, arrays["queries"])


def embeddings_file(path: str | Path) -> Path:
    """Return the embeddings file of a path: the file itself, or `embeddings.npz` in a run folder."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"embeddings must be an existing file or run folder, got {path}. Check the path.")
    if not path.is_dir():
        return path
    if not (path / EMBEDDINGS).is_file():
        raise ValueError(
            f"{path} must hold {EMBEDDINGS}, got a folder without it. Write it with: liftedstruct embed {path} DATA"
        )
    return path / EMBEDDINGS


def _read_arrays(file: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of a file that are attributes of `Embeddings`. A `.npy` file holds the embeddings alone."""
    if file.suffix not in (".npy", ".npz"):
        raise ValueError(f"embeddings must be in a .npz or .npy file, got {file}. Save them with np.savez.")
    try:
        arrays = load_arrays(file, [field.name for field in fields(Embeddings)])
    except ValueError as error:
        remedy = "Save it again with np.savez or np.save."
        if "Python objects" in str(error):
            remedy = "Save text with np.array(labels, dtype=str), and numbers as numbers."
        raise ValueError(f"{file} must hold arrays of numbers or text, got: {error}. {remedy}") from error
    return {"embeddings" if name == UNNAMED else name: array for name, array in arrays.items()}


def _read_labels(file: Path) -> NDArray[Any]:
    if file.suffix == ".npy":
        return _read_arrays(file)["embeddings"]
    try:
        lines = file.read_text(encoding="utf-8-sig").rstrip().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"labels must be in a .npy file or a UTF-8 text file, got {file}. Save it as one of them.") from error
    return np.array([line.strip() for line in lines], dtype=np.str_)


def check_current(file: Path, protocol: Mapping[str, Any], data: str = "", part: str = "test") -> None:
    """Raise an error if embeddings or scores in a run folder are not from the run's current embedder.

    Args:
        file: embeddings or scores file. Files outside run folders are not checked.
        protocol: protocol of the embeddings.
        data: prepared dataset, for the command in the error message.
        part: part of the split, for the command in the error message.

    """
    if file.name not in (EMBEDDINGS, SCORES) or not file.with_name(EMBEDDER).is_file():
        return
    embedder = Embedder.load(file.parent)
    if protocol.get(SHA) == embedder.short_sha():
        return
    was, now = protocol.get(STEP, "unknown"), embedder.trained_on.step if embedder.trained_on else "unknown"
    what = f"step {was}, the run's is from step {now}" if str(was) != str(now) else "other weights or another head"
    command = ["liftedstruct", "embed", str(file.parent), data or "DATA", *(["--part", part] if part != "test" else [])]
    raise ValueError(f"{file} must be from the run's current embedder, got another one ({what}). Run: {shlex.join(command)}")


def embed(
    embedder: Embedder,
    packed: PackedImages,
    rows: Sequence[int] | Indices | None = None,
    batch_size: int = 64,
    crop: int | None = None,
    progress: bool = False,
    hflip: bool = False,
) -> Embeddings:
    """Embed center crops of a prepared dataset.

    The embedder is not modified: a copy runs in evaluation mode, with batch normalization folded into the convolutions. A
    thread reads the next batch while the current one is embedded.

    Args:
        embedder: trained embedder, or a pretrained trunk from `open_embedder`, on any device.
        packed: prepared dataset.
        rows: indices of the images, such as `packed.test`. Default: all images.
        batch_size: images per batch. It affects speed, memory and rounding only.
        crop: side of the crops, in pixels. Default: the embedder's `crop`.
        progress: show a progress bar, or lines of text if stderr is not a terminal.
        hflip: average the embeddings of each crop and of its mirror image (test-time augmentation). Takes twice as long.

    Returns:
        The embeddings with labels, paths and protocol.

    Raises:
        ValueError: if the rows are test or validation classes that the embedder was trained on with another dataset or split.
            Their scores would pass as scores of unseen classes. Embed all images instead: the scores then state how many
            were seen.

    """
    indices = np.arange(len(packed)) if rows is None else np.asarray(rows)
    if not indices.size:
        raise ValueError(
            f"rows must select at least one image, got none of {packed.folder}. Prepare the dataset with this part."
        )
    crop = embedder.crop if crop is None else crop
    extremes = indices[[indices.argmin(), indices.argmax()]] if indices.ndim == 1 else indices
    packed.center_crops(extremes, crop)  # check rows and crop before any work
    paths = tuple(packed.paths[row] for row in indices)
    part, trained_on = _part(packed, indices), embedder.trained_on
    contents, labels = packed.contents[indices], packed.labels[indices]
    seen = trained_on.seen(contents, labels, packed.class_names) if trained_on else None
    if trained_on and seen and seen.classes and part in ("test", "validation") and trained_on.checksum != packed.checksum:
        raise ValueError(
            f"the {part} classes of {packed.folder} must be unseen, but {embedder.origin} was trained on {seen}. "
            "Prepare the dataset with the split of the run, or pass --part all for scores that state the overlap."
        )
    return Embeddings(
        embeddings=embed_rows(embedder, packed, indices, batch_size, crop, progress, hflip),
        labels=labels,
        class_names=packed.class_names,
        paths=paths,
        rows=indices.astype(np.int64),
        contents=contents,
        seen=seen,
        part=part,
        data=str(packed.folder),
        protocol=_protocol(embedder, f"{part} images of {packed.folder.name} (checksum {packed.checksum[:12]})", seen)
        | {"data": packed.name, "checksum": packed.checksum}
        | {"size": packed.size, "resize_mode": packed.resize_mode, "crop": crop}
        | ({"hflip": "averaged"} if hflip else {}),
        queries=packed.queries[indices],
    )


def embed_files(
    embedder: Embedder, paths: Sequence[str | Path], batch_size: int = 64, progress: bool = False
) -> tuple[Embeddings, dict[str, str]]:
    """Embed image files: folders, CSV lists with a column `path`, and images. The class of an image is its folder or `label`.

    Images whose column `split` is `query` are queries in the gallery of the others.

    Args:
        embedder: trained embedder.
        paths: folders, CSV files or images.
        batch_size: images per batch.
        progress: show progress.

    Returns:
        The embeddings, and the reason for each image that could not be read, by its path.
    """
    items = list_items(paths)
    files = [item.file for item in items]
    unreadable: dict[int, str] = {}
    X = embedder.encode(files, batch_size, progress, unreadable)
    kept = [i for i in range(len(files)) if i not in unreadable]
    left_out = {files[i]: reason for i, reason in unreadable.items()}
    if not kept:
        raise ValueError(
            f"at least one image must be readable, got {brief(f'{file}: {reason}' for file, reason in left_out.items())}."
        )
    labels, class_names = as_classes(np.array([items[i].label for i in kept], dtype=np.str_))
    source = FolderSource(Path())
    contents = np.array([content_hash(source, files[i]) for i in kept], np.uint64)
    distinct = tuple(map(str, class_names))
    queries = np.array([items[i].metadata.get("split", "").strip().lower() == QUERY for i in kept], np.bool_)
    seen = embedder.trained_on.seen(contents, labels, distinct) if embedder.trained_on else None
    found = Embeddings(
        embeddings=X,
        labels=labels,
        class_names=distinct,
        paths=tuple(files[i] for i in kept),
        rows=np.empty(0, np.int64),
        contents=contents,
        seen=seen,
        part="all",
        data="",
        protocol=_protocol(embedder, f"{len(kept):,} files", seen)
        | {"size": embedder.size, "resize_mode": embedder.resize_mode, "crop": embedder.crop},
        queries=queries,
    )
    return found, left_out


def _protocol(embedder: Embedder, images: str, seen: Seen | None) -> dict[str, Any]:
    """Return how the embeddings were computed. The first entries identify the embedder, the images and the training overlap."""
    trained_on = embedder.trained_on
    whose = f"{embedder.origin}, step {trained_on.step:,}" if trained_on else f"{embedder.origin}, no training recorded"
    protocol: dict[str, Any] = {OF: f"{whose}; {images}"}
    if trained_on and seen:
        protocol |= {SEEN: str(seen), STEP: trained_on.step}
    return protocol | {
        SHA: embedder.short_sha(),
        "trunk": embedder.trunk.name,
        "variant": embedder.trunk.variant,
        "weights": embedder.trunk.weights,
        "pool": embedder.trunk.pool,
        "dim": embedder.width,
        "normalized": embedder.normalize,
    }


def embed_rows(
    embedder: Embedder,
    packed: PackedImages,
    rows: Indices,
    batch_size: int,
    crop: int,
    progress: bool = False,
    hflip: bool = False,
) -> NDArray[np.float32]:
    """Return the embeddings of rows as an array, (n, d). With `hflip`, each is averaged with that of the mirror image.

    The embedder is not modified: a copy runs in evaluation mode, with batch normalization folded into the convolutions
    (equal up to rounding).
    """
    net, X = folded(embedder), np.empty((len(rows), embedder.width), np.float32)
    with kept_memory(), torch.inference_mode(), Bar("embed", len(rows), wanted=progress) as bar:
        for at, pixels in _prefetched_crops(packed, rows, crop, check_count("batch_size", batch_size)):
            y = net(pixels).float()
            if hflip:
                y = (y + net(pixels.flip(2)).float()) / 2
                y = normalize(y) if embedder.normalize else y
            X[at : at + len(pixels)] = y.cpu().numpy()
            bar.advance(len(pixels))
    return X


def _prefetched_crops(packed: PackedImages, rows: Indices, crop: int, batch_size: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the start and the pixels, (b, crop, crop, 3), of each batch. A thread reads the next batch in the meantime."""
    size = min(batch_size, len(rows))
    buffers = [np.empty((size, crop, crop, 3), np.uint8) for _ in range(2)]

    def read(at: int) -> Tensor:
        batch = rows[at : at + size]
        return torch.from_numpy(packed.center_crops(batch, crop, out=buffers[at // size % 2][: len(batch)]))

    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(read, 0)
        for at in range(0, len(rows), size):
            pixels = upcoming.result()
            if at + size < len(rows):
                upcoming = thread.submit(read, at + size)
            yield at, pixels


def _part(packed: PackedImages, rows: Indices) -> str:
    """Return the part of the split that all rows belong to, or `all` if they are of several parts."""
    parts = {"train": packed.train, "validation": packed.validation, "test": packed.test}
    return next((name for name, part in parts.items() if np.isin(rows, part).all()), "all")

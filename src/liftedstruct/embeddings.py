"""Embeddings of a dataset: made by an embedder, kept in an .npz file with their protocol, and read from anybody's .npz file."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from liftedstruct.data import Indices, PackedImages
from liftedstruct.embedder import EMBEDDER, Embedder, Seen
from liftedstruct.runtime.arrays import UNNAMED, load_arrays
from liftedstruct.runtime.atomic import replacing
from liftedstruct.runtime.checks import as_classes, check_count
from liftedstruct.runtime.memory import kept_memory
from liftedstruct.runtime.progress import Bar
from liftedstruct.trunks import folded

__all__ = ["EMBEDDINGS", "OF", "SCORES", "SEEN", "SHA", "Embeddings", "check_current", "embed", "embed_rows", "embeddings_file"]

EMBEDDINGS, SCORES = "embeddings.npz", "scores.json"  # their names in the folder of a run
PARTS = ("test", "validation", "train", "all")
# Lines of the protocol.
OF, SEEN, SHA, STEP = "embeddings of", "seen in training", "embedder SHA-256", "step"


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Embeddings of images and what is known about them: enough to evaluate them anywhere, and to say what was evaluated."""

    embeddings: NDArray[np.floating]  # (n, d)
    labels: Indices  # (n,), indices into class_names
    class_names: tuple[str, ...]
    paths: tuple[str, ...]  # n, or none if they are not known, as rows and contents
    rows: Indices  # (n,), of the packed dataset
    contents: NDArray[np.uint64]  # (n,), hashes of the image files
    seen: Seen | None  # how much of it was trained on; None if there was no training, or no record of it was kept
    part: str  # train, validation or test if all rows are of that part, otherwise all
    data: str  # folder of the packed dataset, if there is one
    protocol: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.embeddings)

    def save(self, path: str | Path) -> Path:
        """Write an .npz file, arrays only; names and protocol are text."""
        arrays: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(Embeddings)}
        arrays |= {name: np.array(arrays[name], dtype=np.str_) for name in ("class_names", "paths", "part", "data")}
        arrays |= {"seen": np.array(self.seen or (), np.int64), "protocol": np.array(json.dumps(dict(self.protocol)))}
        with replacing(path) as stream:
            np.savez(stream, **arrays)
        return Path(path)

    @staticmethod
    def load(path: str | Path, labels: str | Path | None = None) -> "Embeddings":
        """Read embeddings that :meth:`save` wrote, or ``np.savez(file, embeddings=X, labels=y)``.

        A file may have any of the other arrays; without ``class_names`` the classes are named by their labels. In the folder of
        a run, it must be of the embedder that is there now.

        Args:
            path: folder of a run, ``.npz`` file, or ``.npy`` file of the embeddings alone.
            labels: ``.npy`` file, or text file with one label per line, to use instead of labels in the ``.npz`` file.

        """
        file = embeddings_file(path)
        arrays = _read_arrays(file)
        names = " and ".join(f"'{name}'" for name in arrays) or "none of ours"
        if "embeddings" not in arrays:
            raise ValueError(f"{file} must hold an array 'embeddings', got {names}. Save it under that name with np.savez.")
        if labels is None and "labels" not in arrays:
            raise ValueError(
                f"{file} must come with labels, got {names}. Add the labels as an array 'labels', or name a file of them with "
                "--labels."
            )
        if labels is not None or "class_names" not in arrays:
            arrays["labels"], classes = as_classes(arrays["labels"] if labels is None else _read_labels(Path(labels)))
            arrays["class_names"] = classes.astype(np.str_)
        try:
            found = _from_arrays(arrays)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            remedy = "Write it again with liftedstruct embed or np.savez."
            raise ValueError(f"{file} must hold embeddings with what belongs to them, got: {error}. {remedy}") from error
        check_current(file, found.protocol, found.data, found.part)
        return found


def _from_arrays(arrays: dict[str, NDArray[Any]]) -> Embeddings:
    """Embeddings of the arrays of a file, checked; what is absent is left empty."""
    absent = {"paths": np.empty(0, np.str_), "rows": np.empty(0, np.int64), "contents": np.empty(0, np.uint64)}
    absent |= {"seen": np.empty(0), "part": np.array("all"), "data": np.array(""), "protocol": np.array("{}")}
    arrays = absent | arrays
    X, y, names, part = arrays["embeddings"], arrays["labels"], arrays["class_names"], str(arrays["part"])
    n = len(X) if X.ndim else 0
    for name, kinds in {"labels": "iu", "paths": "U", "rows": "iu", "contents": "u"}.items():
        if arrays[name].dtype.kind not in kinds or arrays[name].shape not in ((n,), (0,)):
            raise ValueError(f"{name} of shape {arrays[name].shape} and type {arrays[name].dtype} for {n} embeddings")
    if len(y) != n or names.dtype.kind != "U" or (n and not 0 <= y.min() <= y.max() < len(names)):
        raise ValueError(f"{len(y)} labels of {names.size} class names for {n} embeddings")
    if part not in PARTS:
        raise ValueError(f"part {part!r}, which is none of {', '.join(PARTS)}")
    protocol = json.loads(str(arrays["protocol"]))
    if not isinstance(protocol, dict):
        raise ValueError("a protocol that is no JSON object")
    seen = Seen(*map(int, arrays["seen"])) if arrays["seen"].size else None
    class_names, paths = (tuple(arrays[name].tolist()) for name in ("class_names", "paths"))
    rows, contents, data = arrays["rows"], arrays["contents"], str(arrays["data"])
    return Embeddings(X, y, class_names, paths, rows, contents, seen, part, data, protocol)


def embeddings_file(path: str | Path) -> Path:
    """The file that a path names: itself, or ``embeddings.npz`` in the folder of a run."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"embeddings must be a file or in the folder of a run, there is nothing at {path}. Check the path.")
    if not path.is_dir():
        return path
    if not (path / EMBEDDINGS).is_file():
        raise ValueError(f"{path} must hold {EMBEDDINGS}, there is none. Write it with: liftedstruct embed {path} DATA")
    return path / EMBEDDINGS


def _read_arrays(file: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file that are known here; a ``.npy`` file has one, the embeddings."""
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
    command = ["liftedstruct", "embed", str(file.parent), data or "DATA", *(["--part", part] if part != "test" else [])]
    raise ValueError(f"{file} must be of the run's embedder, it is of another one ({what}). Run: {shlex.join(command)}")


def embed(
    embedder: Embedder,
    packed: PackedImages,
    rows: Sequence[int] | Indices | None = None,
    batch_size: int = 64,
    crop: int | None = None,
    progress: bool = False,
) -> Embeddings:
    """Embeddings of the center crops of packed images, at the speed of the trunk, with all that a score of them has to say.

    Test or validation classes of another dataset that the embedder was trained on are refused: a score of them would say that
    they are unseen. Embed all of that dataset instead, whose scores say how much was seen.

    Args:
        embedder: trunk and head, on any device.
        packed: the images.
        rows: indices of the images, such as ``packed.test``; default: all.
        batch_size: images at a time. It changes the speed, the memory and the rounding, nothing else.
        crop: side of the crops; default: the embedder's.
        progress: show progress, as a bar or as lines of text.

    """
    indices = np.arange(len(packed)) if rows is None else np.asarray(rows)
    if not indices.size:
        raise ValueError(f"rows must be at least one image, got none of {packed.folder}. Prepare it with such a part.")
    crop = embedder.crop if crop is None else crop
    extremes = indices[[indices.argmin(), indices.argmax()]] if indices.ndim == 1 else indices
    packed.center_crops(extremes, crop)  # rows and crop are checked before any work
    paths = tuple(packed.paths[row] for row in indices)
    part, trained_on = _part(packed, indices), embedder.trained_on
    seen = trained_on.seen(packed, indices) if trained_on else None
    if trained_on and seen and seen.classes and part in ("test", "validation") and trained_on.checksum != packed.checksum:
        raise ValueError(
            f"the {part} classes of {packed.folder} must be unseen, {embedder.origin} was trained on {seen}. "
            "Prepare the dataset with the split of the run, or pass --part all for scores that say so."
        )
    return Embeddings(
        embeddings=embed_rows(embedder, packed, indices, batch_size, crop, progress),
        labels=packed.labels[indices],
        class_names=packed.class_names,
        paths=paths,
        rows=indices.astype(np.int64),
        contents=packed.contents[indices],
        seen=seen,
        part=part,
        data=str(packed.folder),
        protocol=_protocol(embedder, packed, part, crop, seen),
    )


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
        "variant": embedder.trunk.variant,
        "weights": embedder.trunk.weights,
        "pool": embedder.trunk.pool,
        "dim": embedder.width,
        "normalized": embedder.normalize,
        "data": packed.name,
        "checksum": packed.checksum,
        "size": packed.size,
        "resize_mode": packed.resize_mode,
        "crop": crop,
    }


def embed_rows(
    embedder: Embedder, packed: PackedImages, rows: Indices, batch_size: int, crop: int, progress: bool = False
) -> NDArray[np.float32]:
    """The embeddings alone, (n, d).

    The embedder is left as it is; a copy works, in evaluation mode, with batch normalization folded into the convolutions
    (equal up to rounding).
    """
    net, X = folded(embedder), np.empty((len(rows), embedder.width), np.float32)
    with kept_memory(), torch.inference_mode(), Bar("embed", len(rows), wanted=progress) as bar:
        for at, pixels in _prefetched_crops(packed, rows, crop, check_count("batch_size", batch_size)):
            X[at : at + len(pixels)] = net(pixels).float().cpu().numpy()
            bar.advance(len(pixels))
    return X


def _prefetched_crops(packed: PackedImages, rows: Indices, crop: int, batch_size: int) -> Iterator[tuple[int, Tensor]]:
    """Where each batch begins and its bytes, (b, crop, crop, 3); a thread reads the next while this one is in use."""
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
    """The part of the split that has all of these rows."""
    parts = {"train": packed.train, "validation": packed.validation, "test": packed.test}
    return next((name for name, part in parts.items() if np.isin(rows, part).all()), "all")

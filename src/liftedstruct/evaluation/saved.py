"""Embeddings and labels from files, without running anything that the files contain."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from liftedstruct.data import META, read_record
from liftedstruct.embedder import EMBEDDINGS, check_current
from liftedstruct.evaluation.evaluating import by_first_image, digest_of, evaluate
from liftedstruct.evaluation.scores import Scores, same_ids
from liftedstruct.runtime.arrays import UNNAMED, load_arrays
from liftedstruct.runtime.checks import as_classes

__all__ = [
    "READINGS",
    "READINGS_FILE",
    "belong",
    "check_comparable",
    "count_readings",
    "evaluate_file",
    "find_embeddings",
    "note_reading",
    "read_embeddings",
]

READINGS_FILE = "test-readings.jsonl"  # its name in the folder of a prepared data set
IDS = ("contents", "paths")  # what tells images apart: hashes of their files, or their names
KNOWN = ("embeddings", "labels", "protocol", "part", "data", *IDS)
READINGS, CHECKSUM = "readings of the test classes", "embeddings SHA-256"  # lines of the protocol
LABELS_TOO = "Add the labels as an array 'labels', or name a file of them with --labels."


def evaluate_file(path: str | Path, labels: str | Path | None = None, **settings: Any) -> Scores:
    """Scores of saved embeddings.

    Embeddings in the folder of a run must be those of its embedder as it is now. If they are of the test classes of a prepared
    dataset that is still there, the reading is noted beside the data.

    Args:
        path: what :func:`read_embeddings` reads, or the folder of a run that holds such a file.
        labels: a file of labels, if they are not in the same one.
        settings: of :func:`liftedstruct.evaluation.evaluate`.

    """
    path = find_embeddings(path)
    arrays = _arrays(path)
    embeddings, y, protocol = _known(path, arrays, labels)
    check_current(path, protocol, str(arrays.get("data", "DATA")), str(arrays.get("part", "test")))
    scores = evaluate(embeddings, y, protocol={**protocol, CHECKSUM: _checksum(embeddings)}, **settings)
    scores = replace(scores, images=_images(arrays, len(embeddings)))
    if str(arrays.get("part")) not in ("test", "all") or "data" not in arrays:  # all of it has the test classes too
        return scores
    number = note_reading(Path(str(arrays["data"])), path, scores)
    return replace(scores, protocol={**scores.protocol, READINGS: number})


def check_comparable(first: Path, second: Path) -> None:
    """Raise unless two files of embeddings or scores are of the same images and, in a run's folder, of its embedder.

    It is found out before any work, and before any reading is noted.
    """
    images = []
    for path in (first, second):
        if path.suffix == ".json":
            scores = Scores.load(path)
            check_current(path, scores.protocol)
            images.append(scores.images)
        else:
            file = find_embeddings(path)
            arrays = _arrays(file, ("embeddings", "protocol", "part", "data", *IDS))
            check_current(file, _protocol(file, arrays), *(str(arrays[name]) for name in ("data", "part") if name in arrays))
            images.append(_images(arrays, len(arrays.get("embeddings", ()))))
        if not images[-1]:
            raise ValueError(
                f"files to compare must say which images they are of, {path} does not. Save their paths as an array 'paths' "
                "beside the embeddings, or pass ids to evaluate."
            )
    if not same_ids(*images):
        raise ValueError(
            f"files to compare must be of the same images in the same order, {first} and {second} are not. "
            "Embed the same part of the same dataset with each."
        )


def _images(arrays: Mapping[str, NDArray[np.generic]], n: int) -> dict[str, str]:
    """Digests of what tells the images apart, as far as a file has it for each of them."""
    return {kind: digest_of(arrays[kind]) for kind in IDS if kind in arrays and arrays[kind].shape == (n,)}


def belong(scores: Scores, embeddings: NDArray[np.floating], labels: NDArray[np.generic]) -> bool:
    """Whether scores that were saved are those of these embeddings and labels, to the last bit."""
    same = np.array_equal(scores.classes, by_first_image(as_classes(labels)[0]))
    return same and scores.protocol.get(CHECKSUM) == _checksum(embeddings)


def find_embeddings(path: str | Path) -> Path:
    """The file that a path names: itself, or ``embeddings.npz`` in the folder of a run."""
    file = Path(path) / EMBEDDINGS if Path(path).is_dir() else Path(path)
    if file.parent == Path(path) and not file.is_file():
        raise ValueError(f"{path} must hold {EMBEDDINGS}, there is none. Write it with: liftedstruct embed {path} DATA")
    return file


def note_reading(data: Path, path: Path, scores: Scores) -> str:
    """Append a line to the readings of a data set's test classes, and say how many there are now.

    Whoever reads the test classes often enough ends up choosing by them; the file beside the data keeps count. It is written
    beside a prepared dataset only, and only if its checksum is the one that the embeddings were made with.
    """
    if not is_prepared(data, scores.protocol.get("checksum")):
        return f"not noted, {data} does not hold the dataset that was embedded"
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "file": str(path.absolute()),
        "protocol": scores.protocol,
        "scores": {name: estimate.value for name, estimate in scores.measures.items()},
    }
    try:
        with (data / READINGS_FILE).open("a+b") as stream:
            cut = stream.tell() > 0 and (stream.seek(-1, 2), stream.read(1))[1] != b"\n"  # by a kill or a full disk
            stream.write(b"\n" * cut + json.dumps(line).encode("ascii") + b"\n")  # one write: two processes do not mix
            stream.flush()
            stream.seek(0)
            count = sum(1 for _ in stream)
    except OSError as error:  # the scores are not lost for that
        return f"not noted, {data / READINGS_FILE} cannot be written: {error.strerror}"
    return f"{count:,} so far, this one included"


def count_readings(data: Path, checksum: str | None) -> int | None:
    """How often the test classes of a prepared dataset were read, as far as was noted beside it; None if it is gone."""
    if not is_prepared(data, checksum):
        return None
    try:
        with (data / READINGS_FILE).open("rb") as stream:
            return sum(1 for _ in stream)
    except OSError:
        return 0


def is_prepared(data: Path, checksum: str | None) -> bool:
    """Whether a folder holds the prepared dataset of this checksum."""
    record = read_record(data / META)
    return record is not None and checksum is not None and record.get("checksum") == checksum


def read_embeddings(
    path: str | Path, labels: str | Path | None = None
) -> tuple[NDArray[np.floating], NDArray[np.generic], dict[str, str]]:
    """Embeddings (n, d), labels (n,) and the protocol behind them, as saved.

    Args:
        path: a ``.npz`` file with arrays ``embeddings``, ``labels`` (integers or text) and perhaps ``protocol``, a JSON object
            as text; or a ``.npy`` file with the embeddings alone.
        labels: a ``.npy`` file, or a text file with a label on each line. It goes before labels in the ``.npz`` file.

    """
    return _known(Path(path), _arrays(Path(path)), labels)


def _known(
    path: Path, arrays: dict[str, NDArray[np.generic]], labels: str | Path | None
) -> tuple[NDArray[np.floating], NDArray[np.generic], dict[str, str]]:
    """What :func:`read_embeddings` returns, of the arrays of a file."""
    if "embeddings" not in arrays:
        raise ValueError(
            f"{path} must hold an array 'embeddings', got {_names(arrays)}. Save it under that name with np.savez."
        )
    if labels is None and "labels" not in arrays:
        raise ValueError(f"{path} must come with labels, got {_names(arrays)}. {LABELS_TOO}")
    y = arrays["labels"] if labels is None else _read_labels(Path(labels))
    return cast("NDArray[np.floating]", arrays["embeddings"]), y, _protocol(path, arrays)  # evaluate checks the type


def _arrays(path: Path, names: Sequence[str] = KNOWN) -> dict[str, NDArray[np.generic]]:
    """The arrays that we know of; a ``.npy`` file has one, the embeddings."""
    if path.suffix not in (".npy", ".npz"):
        raise ValueError(f"embeddings must be in a .npz or .npy file, got {path}. Save them with np.savez.")
    try:
        arrays = load_arrays(path, names)
    except ValueError as error:
        remedy = "Save it again with np.savez or np.save."
        if "Python objects" in str(error):
            remedy = "Save text with np.array(labels, dtype=str), and numbers as numbers."
        raise ValueError(f"{path} must hold arrays of numbers or text, got: {error}. {remedy}") from error
    return {"embeddings" if name == UNNAMED else name: array for name, array in arrays.items()}


def _read_labels(path: Path) -> NDArray[np.generic]:
    if path.suffix == ".npy":
        return _arrays(path)["embeddings"]
    try:
        lines = path.read_text(encoding="utf-8-sig").rstrip().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"labels must be in a .npy file or in a text file of UTF-8, got {path}. Save it as one of them."
        ) from error
    return np.array([line.strip() for line in lines], dtype=str)


def _protocol(path: Path, arrays: dict[str, NDArray[np.generic]]) -> dict[str, str]:
    text = str(arrays["protocol"]) if "protocol" in arrays else "{}"
    try:
        protocol = json.loads(text)
    except ValueError:
        protocol = None
    if not isinstance(protocol, dict):
        raise ValueError(f"protocol in {path} must be a JSON object as text, got {text[:60]!r}. Save json.dumps of a dict.")
    return {name: str(value) for name, value in protocol.items()}


def _checksum(embeddings: NDArray[np.floating]) -> str:
    content = hashlib.sha256(f"{embeddings.dtype.str} {embeddings.shape} ".encode("ascii"))
    content.update(np.ascontiguousarray(embeddings).reshape(-1).view(np.uint8).data)
    return content.hexdigest()[:16]


def _names(arrays: dict[str, NDArray[np.generic]]) -> str:
    return " and ".join(f"'{name}'" for name in arrays) or "none of ours"

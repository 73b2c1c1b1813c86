"""Embeddings and labels from files, without running anything that the files contain."""

import hashlib
import json
import zipfile
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from liftedstruct.checks import as_classes
from liftedstruct.evaluation.evaluating import by_first_image, evaluate
from liftedstruct.evaluation.scores import Scores

__all__ = [
    "EMBEDDINGS",
    "READINGS",
    "READINGS_FILE",
    "SCORES",
    "belong",
    "count_readings",
    "evaluate_file",
    "find_embeddings",
    "note_reading",
    "read_embeddings",
]

EMBEDDINGS, SCORES = "embeddings.npz", "scores.json"  # their names in the folder of a run
READINGS_FILE = "test-readings.jsonl"  # its name in the folder of a prepared data set
KNOWN = ("embeddings", "labels", "protocol", "part", "data")
READINGS, CHECKSUM = "readings of the test classes", "embeddings SHA-256"  # lines of the protocol
LABELS_TOO = "Add the labels as an array 'labels', or name a file of them with --labels."


def evaluate_file(path: str | Path, labels: str | Path | None = None, **settings: Any) -> Scores:
    """Scores of saved embeddings.

    If the embeddings are those of the test half of a prepared data set, the reading is noted beside the data.

    Args:
        path: what :func:`read_embeddings` reads, or the folder of a run that holds such a file.
        labels: a file of labels, if they are not in the same one.
        settings: of :func:`liftedstruct.evaluation.evaluate`.

    """
    path = find_embeddings(path)
    arrays = _arrays(path)
    embeddings, y, protocol = _known(path, arrays, labels)
    scores = evaluate(embeddings, y, protocol={**protocol, CHECKSUM: _checksum(embeddings)}, **settings)
    if str(arrays.get("part")) not in ("test", "all") or "data" not in arrays:  # all of it has the test classes too
        return scores
    number = note_reading(Path(str(arrays["data"])), path, scores)
    return replace(scores, protocol={**scores.protocol, READINGS: number})


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

    Whoever reads the test classes often enough ends up choosing by them; the file beside the data keeps count.
    """
    if not data.is_dir():
        return f"not noted, {data} is not here"
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "file": str(path.absolute()),
        "protocol": scores.protocol,
        "scores": {name: estimate.value for name, estimate in scores.measures.items()},
    }
    try:
        with (data / READINGS_FILE).open("a+", encoding="ascii") as stream:  # one write at its end: two processes do not mix
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            stream.seek(0)
            count = sum(1 for _ in stream)
    except OSError as error:  # the scores are not lost for that
        return f"not noted, {data / READINGS_FILE} cannot be written: {error.strerror}"
    return f"{count:,} so far, this one included"


def count_readings(data: Path) -> int | None:
    """How often the test classes of a prepared data set were read, as far as was noted beside it; None if it is gone."""
    try:
        with (data / READINGS_FILE).open("rb") as stream:
            return sum(1 for _ in stream)
    except OSError:
        return 0 if data.is_dir() else None


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


def _arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """The arrays that we know of; a ``.npy`` file has one, the embeddings."""
    if path.suffix not in (".npy", ".npz"):
        raise ValueError(f"embeddings must be in a .npz or .npy file, got {path}. Save them with np.savez.")
    try:
        with path.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"embeddings": loaded}
            return {name: loaded[name] for name in KNOWN if name in loaded.files}
    except (ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        if "allow_pickle" in str(error):
            what, remedy = "Python objects", "Save text with np.array(labels, dtype=str), and numbers as numbers."
        else:
            what, remedy = "something else", "Save it again with np.savez or np.save."
        raise ValueError(f"{path} must hold arrays of numbers or text, got {what}. {remedy}") from error


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

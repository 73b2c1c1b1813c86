"""Embeddings and labels from files, without running anything that the files contain."""

import json
import zipfile
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from liftedstruct.evaluation.evaluating import evaluate
from liftedstruct.evaluation.scores import Scores

__all__ = ["evaluate_file", "note_reading", "read_embeddings"]

KNOWN = ("embeddings", "labels", "protocol", "part", "data")
READINGS = "readings of the test classes"
LABELS_TOO = "Add the labels as an array 'labels', or name a file of them with --labels."


def evaluate_file(path: str | Path, labels: str | Path | None = None, **settings: Any) -> Scores:
    """Scores of saved embeddings.

    If the embeddings are those of the test half of a prepared data set, the reading is noted beside the data.

    Args:
        path: what :func:`read_embeddings` reads.
        labels: a file of labels, if they are not in the same one.
        settings: of :func:`liftedstruct.evaluation.evaluate`.

    """
    arrays = _arrays(Path(path))
    embeddings, y, protocol = _known(Path(path), arrays, labels)
    scores = evaluate(embeddings, y, protocol=protocol, **settings)
    if str(arrays.get("part")) != "test" or "data" not in arrays:
        return scores
    number = note_reading(Path(str(arrays["data"])), Path(path), scores)
    return replace(scores, protocol={**scores.protocol, READINGS: number})


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
    file = data / "test-readings.jsonl"
    with file.open("a+", encoding="ascii") as stream:  # one write at the end of the file: two processes do not mix
        stream.write(json.dumps(line) + "\n")
        stream.flush()
        stream.seek(0)
        count = sum(1 for _ in stream)
    return f"{count:,} so far, this one included"


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


def _names(arrays: dict[str, NDArray[np.generic]]) -> str:
    return " and ".join(f"'{name}'" for name in arrays) or "none of ours"

"""Evaluation of saved embeddings, where their scores are kept, and how often the test classes of a dataset were read."""

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftedstruct.data import META, read_record
from liftedstruct.embeddings import EMBEDDINGS, SCORES, Embeddings, check_current, embeddings_file
from liftedstruct.evaluation.evaluating import by_first_image, digest_of, evaluate
from liftedstruct.evaluation.scores import Scores, same_ids

__all__ = [
    "TEST_EVALUATIONS",
    "TEST_EVALUATIONS_FILE",
    "are_scores_of",
    "check_comparable",
    "count_test_evaluations",
    "evaluate_file",
    "scores_file",
]

TEST_EVALUATIONS_FILE = "test-evaluations.jsonl"  # its name in the folder of a prepared dataset
TEST_EVALUATIONS, CHECKSUM = "evaluations on the test classes", "embeddings SHA-256"  # lines of the protocol


def evaluate_file(path: str | Path, labels: str | Path | None = None, **settings: Any) -> Scores:
    """Scores of saved embeddings; to keep them, save them to :func:`scores_file`.

    If the embeddings are of the test classes of a prepared dataset that is still there, the reading is noted beside the data.

    Args:
        path: folder of a run or file of embeddings, as :meth:`liftedstruct.embeddings.Embeddings.load` reads it.
        labels: a file of labels, if they are not in the same one.
        settings: of :func:`liftedstruct.evaluation.evaluate`.

    """
    found = Embeddings.load(path, labels)
    protocol = {**found.protocol, CHECKSUM: _checksum(found.embeddings)}
    scores = replace(evaluate(found.embeddings, found.labels, protocol=protocol, **settings), images=_image_ids(found))
    if found.part not in ("test", "all") or not found.data:  # all of it has the test classes too
        return scores
    return replace(
        scores,
        protocol={**scores.protocol, TEST_EVALUATIONS: _log_test_evaluation(Path(found.data), embeddings_file(path), scores)},
    )


def scores_file(path: str | Path) -> Path:
    """Where the scores of embeddings are kept: ``scores.json`` in the folder of a run, otherwise FILE.json beside FILE.npz."""
    path = Path(path)
    if path.is_dir() or path.name == EMBEDDINGS:
        return (path if path.is_dir() else path.parent) / SCORES
    return path.with_suffix(".json")


def are_scores_of(scores: Scores, found: Embeddings) -> bool:
    """Whether scores that were saved are those of these embeddings and labels, to the last bit."""
    same = np.array_equal(scores.classes, by_first_image(found.labels))
    return same and scores.protocol.get(CHECKSUM) == _checksum(found.embeddings)


def check_comparable(first: Path, second: Path, labels: Path | None = None) -> None:
    """Raise unless two files of embeddings or scores are of the same images and, in a run's folder, of its embedder.

    It is found out before any work, and before any reading is noted.
    """
    images = [_saved_ids(path, labels) for path in (first, second)]
    if not same_ids(*images):
        raise ValueError(
            f"files to compare must be of the same images in the same order, {first} and {second} are not. "
            "Embed the same part of the same dataset with each."
        )


def _saved_ids(path: Path, labels: Path | None) -> dict[str, str]:
    """What tells the images of a file of embeddings or scores apart."""
    if path.suffix == ".json":
        scores = Scores.load(path)
        check_current(path, scores.protocol)
        images = scores.images
    else:
        images = _image_ids(Embeddings.load(path, labels))
    if not images:
        raise ValueError(
            f"files to compare must say which images they are of, {path} does not. Save their paths as an array 'paths' "
            "beside the embeddings, or pass ids to evaluate."
        )
    return images


def _image_ids(found: Embeddings) -> dict[str, str]:
    """Digests of what tells the images apart, as far as it is known: the hashes of their files, and their paths."""
    ids = {"contents": found.contents, "paths": np.array(found.paths)}
    return {kind: digest_of(each) for kind, each in ids.items() if len(each)}


def _log_test_evaluation(data: Path, path: Path, scores: Scores) -> str:
    """Append a line to the readings of a dataset's test classes, and say how many there are now.

    Whoever reads the test classes often enough ends up choosing by them; the file beside the data keeps count. It is written
    beside a prepared dataset only, and only if its checksum is the one that the embeddings were made with.
    """
    checksum = scores.protocol.get("checksum")
    if not _is_prepared(data, checksum):
        return f"not logged: {data} does not hold the dataset that was embedded"
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "file": str(path.absolute()),
        "protocol": scores.protocol,
        "scores": {name: estimate.value for name, estimate in scores.measures.items()},
    }
    try:
        with (data / TEST_EVALUATIONS_FILE).open("a+b") as stream:
            cut = stream.tell() > 0 and (stream.seek(-1, 2), stream.read(1))[1] != b"\n"  # by a kill or a full disk
            stream.write(b"\n" * cut + json.dumps(line).encode("ascii") + b"\n")  # one write: two processes do not mix
    except OSError as error:  # the scores are not lost for that
        return f"not logged: {data / TEST_EVALUATIONS_FILE} cannot be written: {error.strerror}"
    return f"{count_test_evaluations(data, checksum):,} so far, including this one"


def count_test_evaluations(data: Path, checksum: str | None) -> int | None:
    """How often the test classes of a prepared dataset were read, as far as was noted beside it; None if it is gone."""
    if not _is_prepared(data, checksum):
        return None
    try:
        with (data / TEST_EVALUATIONS_FILE).open("rb") as stream:
            return sum(1 for _ in stream)
    except OSError:
        return 0


def _is_prepared(data: Path, checksum: str | None) -> bool:
    """Whether a folder holds the prepared dataset of this checksum."""
    record = read_record(data / META)
    return record is not None and checksum is not None and record.get("checksum") == checksum


def _checksum(embeddings: NDArray[np.floating]) -> str:
    content = hashlib.sha256(f"{embeddings.dtype.str} {embeddings.shape} ".encode("ascii"))
    content.update(np.ascontiguousarray(embeddings).reshape(-1).view(np.uint8).data)
    return content.hexdigest()[:16]

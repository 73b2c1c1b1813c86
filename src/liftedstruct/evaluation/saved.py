"""Evaluate saved embeddings, save their scores, and log evaluations on the test classes of a dataset."""

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftedstruct.data import META, read_record
from liftedstruct.embeddings import EMBEDDINGS, OF, SCORES, SHA, Embeddings, check_current, embeddings_file
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

TEST_EVALUATIONS_FILE = "test-evaluations.jsonl"  # file name in the folder of a prepared dataset
TEST_EVALUATIONS, CHECKSUM = "evaluations on the test classes", "embeddings SHA-256"  # keys of the protocol


def evaluate_file(
    path: str | Path, labels: str | Path | None = None, queries: str | Path | None = None, **settings: Any
) -> Scores:
    """Evaluate saved embeddings. The scores are returned, not saved.

    Every evaluation that includes test classes of a prepared dataset is logged in `test-evaluations.jsonl` in the folder of
    the dataset, if that still exists. The protocol of the scores states the number of evaluations so far.

    Args:
        path: run folder, or an embeddings file that `Embeddings.load` can read.
        labels: labels file, if the labels are not in the embeddings file.
        queries: embeddings file of queries by the same embedder; the images of the first file are their gallery. Default: the
            images that the dataset declares as queries, in the gallery of its others; without any, each image among all others.
        settings: keyword arguments of `evaluate`, such as `ks` and `clustering`.

    """
    gallery = asked = Embeddings.load(path, labels)
    apart = queries is not None or gallery.queries.any()
    if queries is not None:
        asked = Embeddings.load(queries)
    elif apart:
        asked, gallery = gallery.at(gallery.queries), gallery.at(~gallery.queries)
    protocol = {**gallery.protocol, CHECKSUM: _checksum(gallery.embeddings)}
    if apart:
        whose = [each.protocol.get(OF, str(file)) for each, file in ((asked, queries or path), (gallery, path))]
        if asked.protocol.get(SHA) != gallery.protocol.get(SHA):
            raise ValueError(
                f"queries must be embedded like their gallery, {whose[1]}, got {whose[0]}. Use one embedder for both."
            )
        protocol |= {"queries of": whose[0], f"query {CHECKSUM}": _checksum(asked.embeddings)}
        settings |= {"queries": asked.embeddings, "query_labels": _class_names(asked)}
    of_gallery = _class_names(gallery) if apart else gallery.labels
    scores = evaluate(gallery.embeddings, of_gallery, protocol=protocol, **settings)
    scores = replace(scores, images=_image_ids(asked))
    for each, file in ((asked, queries or path), (gallery, path)):
        if each.part in ("test", "all") and each.data:  # "all" includes the test classes
            logged = _log_test_evaluation(Path(each.data), embeddings_file(file), scores)
            return replace(scores, protocol={**scores.protocol, TEST_EVALUATIONS: logged})
    return scores


def _class_names(found: Embeddings) -> list[str]:
    """Return the class name of each image."""
    return [found.class_names[label] for label in found.labels]


def scores_file(path: str | Path) -> Path:
    """Return the default path of the scores file: `scores.json` in a run folder, otherwise FILE.json next to FILE.npz."""
    path = Path(path)
    if path.is_dir() or path.name == EMBEDDINGS:
        return (path if path.is_dir() else path.parent) / SCORES
    return path.with_suffix(".json")


def are_scores_of(scores: Scores, found: Embeddings) -> bool:
    """Return whether saved scores were computed from exactly these embeddings and labels."""
    same = np.array_equal(scores.classes, by_first_image(found.labels))
    return same and scores.protocol.get(CHECKSUM) == _checksum(found.embeddings)


def check_comparable(first: Path, second: Path, labels: Path | None = None) -> None:
    """Raise an error unless two embeddings or scores files are of the same images and, in run folders, current.

    Call it before any evaluation, since evaluations are logged.
    """
    images = [_saved_ids(path, labels) for path in (first, second)]
    if not same_ids(*images):
        raise ValueError(
            f"files to compare must be of the same images in the same order, got {first} and {second}. "
            "Embed the same part of the same dataset with both embedders."
        )


def _saved_ids(path: Path, labels: Path | None) -> dict[str, str]:
    """Return the digests of the image ids in an embeddings or scores file."""
    if path.suffix == ".json":
        scores = Scores.load(path)
        check_current(path, scores.protocol)
        images = scores.images
    else:
        images = _image_ids(Embeddings.load(path, labels))
    if not images:
        raise ValueError(
            f"files to compare must identify their images, got {path} without paths or hashes. "
            "Save the paths as an array 'paths' with the embeddings, or pass ids to evaluate."
        )
    return images


def _image_ids(found: Embeddings) -> dict[str, str]:
    """Return digests of the hashes of the image files and of the image paths, if known."""
    ids = {"contents": found.contents, "paths": np.array(found.paths)}
    return {kind: digest_of(each) for kind, each in ids.items() if len(each)}


def _log_test_evaluation(data: Path, path: Path, scores: Scores) -> str:
    """Append a line to the log of evaluations on a dataset's test classes, and return their number for the protocol.

    Frequent evaluation on the test classes leads to selecting models on them, so the log keeps count. It is written only to
    the folder of a prepared dataset whose checksum matches the protocol of the embeddings.
    """
    checksum = scores.protocol.get("checksum")
    if not _is_prepared(data, checksum):
        return f"not logged: {data} is not the dataset that was embedded"
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "file": str(path.absolute()),
        "protocol": scores.protocol,
        "scores": {name: estimate.value for name, estimate in scores.metrics.items()},
    }
    try:
        with (data / TEST_EVALUATIONS_FILE).open("a+b") as stream:
            cut = stream.tell() > 0 and (stream.seek(-1, 2), stream.read(1))[1] != b"\n"  # truncated by a kill or a full disk
            stream.write(
                b"\n" * cut + json.dumps(line).encode("ascii") + b"\n"
            )  # one write, so that lines of two processes do not mix
    except OSError as error:  # return the scores anyway
        return f"not logged: {data / TEST_EVALUATIONS_FILE} cannot be written: {error.strerror}"
    return f"{count_test_evaluations(data, checksum):,} so far, including this one"


def count_test_evaluations(data: Path, checksum: str | None) -> int | None:
    """Return the number of logged evaluations on the test classes of a prepared dataset, or None if it no longer exists."""
    if not _is_prepared(data, checksum):
        return None
    try:
        with (data / TEST_EVALUATIONS_FILE).open("rb") as stream:
            return sum(1 for _ in stream)
    except OSError:
        return 0


def _is_prepared(data: Path, checksum: str | None) -> bool:
    """Return whether a folder holds the prepared dataset with this checksum."""
    record = read_record(data / META)
    return record is not None and checksum is not None and record.get("checksum") == checksum


def _checksum(embeddings: NDArray[np.floating]) -> str:
    content = hashlib.sha256(f"{embeddings.dtype.str} {embeddings.shape} ".encode("ascii"))
    content.update(np.ascontiguousarray(embeddings).reshape(-1).view(np.uint8).data)
    return content.hexdigest()[:16]

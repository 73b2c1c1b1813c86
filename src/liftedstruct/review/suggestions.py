"""What the lists of a review work on, and what they hold."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from liftedstruct.retrieval import nearest_neighbors

__all__ = ["NEIGHBORS", "Collection", "Indices", "Suggestion", "collect", "ranked"]

Indices = NDArray[np.int64]
NEIGHBORS = 16  # nearest images that the lists look at
MOST = 1000  # suggestions of a list


@dataclass(frozen=True)
class Suggestion:
    """Something that is likely wrong with an image, a pair of images, or one or two classes.

    Attributes:
        kind: the list it is in, a key of `KINDS`.
        score: the larger, the more likely wrong; scores of different lists are not comparable.
        reason: one sentence.
        rows: the image in question, or examples of the class in question.
        evidence: images that show why.
        action: what to do about it: relabel, drop or merge.
        value: the class for relabel and merge.
        targets: rows that the action is for.

    """

    kind: str
    score: float
    reason: str
    rows: tuple[int, ...]
    evidence: tuple[int, ...]
    action: str
    value: str
    targets: tuple[int, ...]


class Collection(NamedTuple):
    """Embeddings with their classes, neighbors and parts of the split."""

    X: NDArray[np.floating]  # (n, d)
    labels: NDArray[np.integer]  # (n,), index into names
    names: Sequence[str]  # "" if unknown
    distances: NDArray[np.floating]  # (n, k), to the nearest images, nearest first
    neighbors: NDArray[np.integer]  # (n, k), their rows
    parts: Sequence[str] | None = None  # n words such as train and test; "" if unknown

    @property
    def sizes(self) -> Indices:
        """Number of images of each class."""
        return np.bincount(self.labels, minlength=len(self.names))


def collect(
    X: NDArray[np.floating], labels: Sequence[str], parts: Sequence[str] | None = None, k: int = NEIGHBORS
) -> Collection:
    """Return a collection with the exact nearest neighbors of each image.

    Args:
        X: (n, d), embeddings.
        labels: n names of classes; "" if unknown.
        parts: n words, such as train and test; "" if unknown.
        k: neighbors of each image, if there are as many.

    """
    names, numbers = np.unique(np.asarray(labels, dtype=object), return_inverse=True)
    k = min(k, len(X) - 1)
    distances, neighbors = nearest_neighbors(X, k) if k > 0 else (np.empty((len(X), 0)), np.empty((len(X), 0), np.int64))
    return Collection(X, numbers, names.tolist(), distances, neighbors, parts)


def ranked(found: Iterable[Suggestion]) -> list[Suggestion]:
    """Return the suggestions with the largest scores, largest first."""
    return sorted(found, key=lambda each: -each.score)[:MOST]

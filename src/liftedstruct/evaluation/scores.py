"""Scores with confidence intervals and protocol, printed as a table and saved as JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftedstruct.embeddings import OF, SEEN
from liftedstruct.evaluation.resampling import LEVEL, bootstrap, interval
from liftedstruct.retrieval import SINGLES
from liftedstruct.runtime.atomic import write_json
from liftedstruct.runtime.checks import pick

__all__ = ["Estimate", "Integers", "Scores", "rate_of", "same_ids"]

FORMAT, VERSION = "liftedstruct scores", 2

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """Score from 0 to 1 with its 95 % confidence interval.

    Attributes:
        value: the score.
        low: lower end of the interval.
        high: upper end of the interval.

    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:5.1f} %   {100 * self.low:.1f} to {100 * self.high:.1f}"


def rate_of(hits: NDArray[Any], classes: NDArray[Any], seed: int, samples: int = 2000) -> Estimate:
    """Return the mean of hits, (n,), with an interval by class bootstrap that is not too narrow for few or rare hits.

    It is at least as wide as the interval of Clopper and Pearson for as many independent trials as there are classes.
    """
    from scipy.special import betaincinv

    numbers = np.unique(classes, return_inverse=True)[1]
    h, n = np.bincount(numbers, weights=hits), np.bincount(numbers).astype(np.float64)
    value, C, tail = float(h.sum() / n.sum()), len(n), (1 - LEVEL) / 2
    low, high = interval(value, bootstrap(lambda W: (W @ h) / (W @ n), C, samples, seed), C)
    k = value * C
    least = float(betaincinv(k, C - k + 1, tail)) if k > 0 else 0.0
    most = float(betaincinv(k + 1, C - k, 1 - tail)) if k < C else 1.0
    return Estimate(value, min(low, least), max(high, most))


@dataclass(frozen=True, eq=False)
class Scores:
    """Result of `evaluate`: scores, protocol, and the results per image that `compare` needs. Print it for a table.

    Attributes:
        recall: Recall@K by K.
        nmi: NMI by clustering, "affinity" or "kmeans".
        f1: F1 by clustering.
        protocol: how the embeddings were computed and evaluated, line by line.
        singles: treatment of images that are alone in their class, "leave-out" or "miss".
        images: digests of the image ids, such as `{"contents": ..., "paths": ...}`. Empty if there are none.
        classes: (n,), class numbers in the order of their first images.
        ranks: (n,), rank of the first image of the same class, from 1. 0 if there is none.
        clusters: cluster labels, (n,), by clustering.
        open_set: true accept rates and identification rates by name, if they were requested.

    """

    recall: dict[int, Estimate]
    nmi: dict[str, Estimate]
    f1: dict[str, Estimate]
    protocol: dict[str, str]
    singles: str
    images: dict[str, str]
    classes: Integers
    ranks: Integers
    clusters: dict[str, Integers]
    open_set: dict[str, Estimate] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, Estimate]:
        """All scores by name: "Recall@1", "NMI, affinity", "F1, affinity", ..."""
        rows = {f"Recall@{k}": estimate for k, estimate in self.recall.items()}
        for name in self.clusters:
            rows |= {f"NMI, {name}": self.nmi[name], f"F1, {name}": self.f1[name]}
        return rows | self.open_set

    def __str__(self) -> str:
        rows = [*((name, str(estimate)) for name, estimate in self.metrics.items()), ("", ""), *self.protocol.items()]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in rows)

    def describe(self) -> str:
        """Return in one line what was evaluated: embedder, images, and the training overlap. Empty if unknown."""
        of, seen = self.protocol.get(OF, ""), self.protocol.get(SEEN)
        return f"{of}; {SEEN}: {seen}" if seen else of

    def same_images(self, other: "Scores") -> bool:
        """Return whether both are of the same images in the same order, by their classes and image ids."""
        return same_ids(self.images, other.images) and np.array_equal(self.classes, other.classes)

    def save(self, path: str | Path) -> None:
        """Write the scores to a JSON file, atomically."""
        record: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        record |= {"protocol": self.protocol, "singles": self.singles, "images": self.images}
        for name in ("recall", "nmi", "f1", "open_set"):
            estimates: dict[Any, Estimate] = getattr(self, name)
            record[name] = {str(key): [e.value, e.low, e.high] for key, e in estimates.items()}
        record |= {"classes": self.classes.tolist(), "ranks": self.ranks.tolist()}
        record["clusters"] = {name: clusters.tolist() for name, clusters in self.clusters.items()}
        write_json(path, record)

    @staticmethod
    def load(path: str | Path) -> "Scores":
        """Load scores written by `save`."""
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
            if not isinstance(record, dict) or record["format"] != FORMAT:
                raise ValueError("not a scores file")
            if record["version"] == VERSION:
                return Scores._of(record)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} must be a scores file, got a different or damaged file. Write it with Scores.save "
                "or 'liftedstruct evaluate ... --out'."
            ) from error
        raise ValueError(f"{path} must be of format version {VERSION}, got {record['version']!r}. Evaluate again.")

    @staticmethod
    def _of(record: dict[str, Any]) -> "Scores":
        classes, ranks = (_integers(record[name]) for name in ("classes", "ranks"))
        clusters = {name: _integers(numbers) for name, numbers in record["clusters"].items()}
        if any(len(numbers) != len(classes) for numbers in (ranks, *clusters.values())):
            raise ValueError("arrays of different lengths")
        pick(SINGLES, record["singles"], "singles")
        return Scores(
            recall={int(k): Estimate(*map(float, numbers)) for k, numbers in record["recall"].items()},
            nmi={name: Estimate(*map(float, record["nmi"][name])) for name in clusters},
            f1={name: Estimate(*map(float, record["f1"][name])) for name in clusters},
            protocol={name: str(text) for name, text in record["protocol"].items()},
            singles=record["singles"],
            images={str(kind): str(digest) for kind, digest in record["images"].items()},
            classes=classes,
            ranks=ranks,
            clusters=clusters,
            open_set={name: Estimate(*map(float, numbers)) for name, numbers in record.get("open_set", {}).items()},
        )


def same_ids(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether digests of image ids are equal: of the file contents if both have them, otherwise of all common kinds."""
    common = one.keys() & other.keys()
    return all(one[kind] == other[kind] for kind in common & {"contents"} or common) if common else one == other


def _integers(numbers: list[int]) -> Integers:
    array = np.array(numbers)
    if array.ndim != 1 or array.dtype != np.int64:
        raise ValueError("not a list of integers")
    return array

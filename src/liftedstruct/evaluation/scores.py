"""Scores with their intervals and their protocol: printed as a table, saved as JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftedstruct.embeddings import OF, SEEN
from liftedstruct.retrieval import SINGLES
from liftedstruct.runtime.atomic import write_json
from liftedstruct.runtime.checks import pick

__all__ = ["Estimate", "Integers", "Scores", "same_ids"]

FORMAT, VERSION = "liftedstruct scores", 2

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """A score, 0 to 1, and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:5.1f} %   {100 * self.low:.1f} to {100 * self.high:.1f}"


@dataclass(frozen=True, eq=False)
class Scores:
    """What :func:`evaluate` measured, how, and what it found for each image, so that it can be compared later."""

    recall: dict[int, Estimate]  # by K
    nmi: dict[str, Estimate]  # by clustering, "affinity" or "kmeans"
    f1: dict[str, Estimate]
    protocol: dict[str, str]  # in the order of the table
    singles: str  # what was done with images that are alone in their class, "leave-out" or "miss"
    images: dict[str, str]  # digests of what tells the images apart, in their order: {"contents": ..., "paths": ...}
    classes: Integers  # (n,), numbered in the order of their first images
    ranks: Integers  # (n,), of the first image of the same class, 0 where there is none
    clusters: dict[str, Integers]  # {clustering: (n,)}

    @property
    def measures(self) -> dict[str, Estimate]:
        """All estimates by name: "Recall@1", "NMI, affinity", "F1, affinity", ..."""
        rows = {f"Recall@{k}": estimate for k, estimate in self.recall.items()}
        for name in self.clusters:
            rows |= {f"NMI, {name}": self.nmi[name], f"F1, {name}": self.f1[name]}
        return rows

    def __str__(self) -> str:
        rows = [*((name, str(estimate)) for name, estimate in self.measures.items()), ("", ""), *self.protocol.items()]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in rows)

    def describe(self) -> str:
        """What it is a score of, in one line; empty where the embeddings do not say."""
        of, seen = self.protocol.get(OF, ""), self.protocol.get(SEEN)
        return f"{of}; {SEEN}: {seen}" if seen else of

    def same_images(self, other: "Scores") -> bool:
        """Whether both are of the same images in the same order, as far as they say."""
        return same_ids(self.images, other.images) and np.array_equal(self.classes, other.classes)

    def save(self, path: str | Path) -> None:
        """Write all of it to a JSON file, which is never half there."""
        record: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        record |= {"protocol": self.protocol, "singles": self.singles, "images": self.images}
        for name in ("recall", "nmi", "f1"):
            estimates: dict[Any, Estimate] = getattr(self, name)
            record[name] = {str(key): [e.value, e.low, e.high] for key, e in estimates.items()}
        record |= {"classes": self.classes.tolist(), "ranks": self.ranks.tolist()}
        record["clusters"] = {name: clusters.tolist() for name, clusters in self.clusters.items()}
        write_json(path, record)

    @staticmethod
    def load(path: str | Path) -> "Scores":
        """Read what :meth:`save` wrote."""
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
            if not isinstance(record, dict) or record["format"] != FORMAT:
                raise ValueError("another format")
            if record["version"] == VERSION:
                return Scores._of(record)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} must be a file of scores, got something else or a damaged one. Make it with Scores.save, "
                "or 'liftedstruct evaluate ... --out'."
            ) from error
        raise ValueError(f"{path} must be of version {VERSION}, got {record['version']!r}. Evaluate again.")

    @staticmethod
    def _of(record: dict[str, Any]) -> "Scores":
        classes, ranks = (_integers(record[name]) for name in ("classes", "ranks"))
        clusters = {name: _integers(numbers) for name, numbers in record["clusters"].items()}
        if any(len(numbers) != len(classes) for numbers in (ranks, *clusters.values())):
            raise ValueError("not one number for each image")
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
        )


def same_ids(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether digests of ids are equal: those of the files' bytes if both have them, or else of all kinds."""
    common = one.keys() & other.keys()
    return all(one[kind] == other[kind] for kind in common & {"contents"} or common) if common else one == other


def _integers(numbers: list[int]) -> Integers:
    array = np.array(numbers)
    if array.ndim != 1 or array.dtype != np.int64:
        raise ValueError("not a list of whole numbers")
    return array

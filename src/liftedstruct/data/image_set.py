"""Datasets as lists: the path and class of each image, and the split into training, validation and test classes."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from liftedstruct.data.sources import Source
from liftedstruct.data.splits import hold_out

__all__ = ["ClassSplit", "ImageSet", "Indices"]

Indices = NDArray[np.int64]


class ClassSplit:
    """Base class of `ImageSet` and `PackedImages`: labels, and a split of their classes."""

    labels: Indices
    test_classes: Indices
    validation_classes: Indices

    @cached_property
    def test(self) -> Indices:
        """Indices of the test images."""
        return np.flatnonzero(np.isin(self.labels, self.test_classes))

    @cached_property
    def validation(self) -> Indices:
        """Indices of the validation images, whose classes are held out of the training classes to choose settings."""
        return np.flatnonzero(np.isin(self.labels, self.validation_classes))

    @cached_property
    def train(self) -> Indices:
        """Indices of the training images."""
        return np.flatnonzero(~np.isin(self.labels, np.concatenate((self.test_classes, self.validation_classes))))


@dataclass(frozen=True, eq=False)
class ImageSet(ClassSplit):
    """Images, their classes, and a split by **class**: no class is in two parts.

    The validation classes are held out of the training classes; the test classes are never used to choose a setting.
    """

    name: str  # of the layout: "CUB-200-2011", "folder", ...
    root: Path  # folder, file or archive it was read from
    source: Source
    paths: tuple[str, ...]  # n, relative to the source
    labels: Indices  # (n,), class numbers 0..C-1
    class_names: tuple[str, ...]  # C
    test_classes: Indices  # sorted class numbers
    validation_classes: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    super_classes: tuple[str, ...] = ()  # C, or empty
    queries: tuple[str, ...] = ()  # paths of the test images to find among the other test images; empty: each among all others
    warnings: tuple[str, ...] = ()  # about missing and extra files, for instance
    missing: tuple[str, ...] = ()  # every listed file that does not exist
    extra: tuple[str, ...] = ()  # every file or folder that was left out
    kept: tuple[str, ...] = ()  # paths of images that are right as they are, according to a decision

    def __post_init__(self) -> None:
        C = len(self.class_names)
        if len(self.paths) != len(self.labels):
            raise ValueError(f"an image set must have one label per path, got {len(self.labels)} for {len(self.paths)} paths.")
        numbers = {"labels": self.labels, "test classes": self.test_classes, "validation classes": self.validation_classes}
        for what, classes in numbers.items():
            if len(classes) and not (classes.min() >= 0 and classes.max() < C):
                raise ValueError(f"{what} must be class numbers from 0 to {C - 1}, got {classes.min()} to {classes.max()}.")
        both = np.intersect1d(self.test_classes, self.validation_classes)
        if len(both):
            raise ValueError(
                f"each class must be in one part of the split, got {self.class_names[both[0]]!r} in test and validation."
            )

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def train_classes(self) -> Indices:
        """Class numbers that are in neither the validation nor the test classes."""
        return np.setdiff1d(np.arange(len(self.class_names)), np.concatenate((self.test_classes, self.validation_classes)))

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Part of the split of each class: "train", "validation" or "test"."""
        words = np.full(len(self.class_names), "train", dtype=object)
        words[self.validation_classes], words[self.test_classes] = "validation", "test"
        return tuple(words)

    def with_validation(self, fraction: float, seed: int = 0) -> "ImageSet":
        """Return a copy with a random fraction of the **training** classes held out, see `liftedstruct.data.hold_out`."""
        pool = np.setdiff1d(np.arange(len(self.class_names)), self.test_classes)
        return replace(self, validation_classes=hold_out(pool, self.class_names, fraction, seed=[seed, 2]))

    def subset(self, keep: Indices) -> "ImageSet":
        """Return a copy with only these images, with the same classes and split."""
        return replace(self, paths=tuple(self.paths[i] for i in keep), labels=self.labels[keep])

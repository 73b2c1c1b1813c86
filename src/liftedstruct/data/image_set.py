"""A dataset as a list: where each image is, its class, and which classes are for training, validation and test."""

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
    """Labels and a split of their classes, as a list of images or a prepared dataset has them."""

    labels: Indices
    test_classes: Indices
    validation_classes: Indices

    @cached_property
    def test(self) -> Indices:
        """Indices of the test images."""
        return np.flatnonzero(np.isin(self.labels, self.test_classes))

    @cached_property
    def validation(self) -> Indices:
        """Indices of the validation images: of training classes that are held out to choose settings."""
        return np.flatnonzero(np.isin(self.labels, self.validation_classes))

    @cached_property
    def train(self) -> Indices:
        """Indices of the training images."""
        return np.flatnonzero(~np.isin(self.labels, np.concatenate((self.test_classes, self.validation_classes))))


@dataclass(frozen=True, eq=False)
class ImageSet(ClassSplit):
    """Images, their classes, and a split of the **classes**: no class is in two parts.

    The validation classes are taken from the training classes; the test classes are never used to choose a setting.
    """

    name: str  # of the layout: "CUB-200-2011", "folder", ...
    root: Path  # folder, file or archive that it was read from
    source: Source
    paths: tuple[str, ...]  # n, as the source knows them
    labels: Indices  # (n,), class numbers 0..C-1
    class_names: tuple[str, ...]  # C
    test_classes: Indices  # sorted class numbers
    validation_classes: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    super_classes: tuple[str, ...] = ()  # C, or none
    warnings: tuple[str, ...] = ()  # what is missing or extra
    missing: tuple[str, ...] = ()  # every file that should be there and is not
    extra: tuple[str, ...] = ()  # every file or folder that is there and was left out

    def __post_init__(self) -> None:
        C = len(self.class_names)
        if len(self.paths) != len(self.labels):
            raise ValueError(f"an image set must have one label per path, got {len(self.labels)} for {len(self.paths)} paths.")
        numbers = {"labels": self.labels, "test classes": self.test_classes, "validation classes": self.validation_classes}
        for what, classes in numbers.items():
            if len(classes) and not (classes.min() >= 0 and classes.max() < C):
                raise ValueError(f"{what} must be class numbers 0 to {C - 1}, got {classes.min()} to {classes.max()}.")
        both = np.intersect1d(self.test_classes, self.validation_classes)
        if len(both):
            raise ValueError(
                f"no class may be in two parts of a split, {self.class_names[both[0]]!r} is in test and validation."
            )

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def train_classes(self) -> Indices:
        """Classes that are neither for validation nor for test."""
        return np.setdiff1d(np.arange(len(self.class_names)), np.concatenate((self.test_classes, self.validation_classes)))

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Of each class "train", "validation" or "test"; C of them."""
        words = np.full(len(self.class_names), "train", dtype=object)
        words[self.validation_classes], words[self.test_classes] = "validation", "test"
        return tuple(words)

    def with_validation(self, fraction: float, seed: int = 0) -> "ImageSet":
        """Hold out a random fraction of the **training** classes, see :func:`liftedstruct.data.hold_out`."""
        pool = np.setdiff1d(np.arange(len(self.class_names)), self.test_classes)
        return replace(self, validation_classes=hold_out(pool, self.class_names, fraction, seed=[seed, 2]))

    def subset(self, keep: Indices) -> "ImageSet":
        """The same classes and split with these images only."""
        return replace(self, paths=tuple(self.paths[i] for i in keep), labels=self.labels[keep])

"""Training inputs: batches of crops, prefetched in a background thread, and the split into training and validation images."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from torch import Tensor

from liftedstruct.data import Indices, PackedImages, hold_out
from liftedstruct.runtime import seeds

__all__ = ["Batch", "Prefetcher", "can_validate", "count_pairable", "split_rows"]


class Batch(NamedTuple):
    """Row indices, labels and crops of one training step."""

    rows: Indices  # rows of the prepared dataset                                                     (m,)
    labels: Tensor  # (m,)
    inputs: Tensor  # uint8 crops, (m, h, w, 3)


class Prefetcher:
    """Prefetcher that prepares the next batch in a background thread while the network processes the current one."""

    def __init__(self, make: Callable[[int], Batch]) -> None:
        self.make, self.pool = make, ThreadPoolExecutor(1, "batches")
        self.waiting: tuple[int, Future[Batch]] | None = None

    def take(self, step: int, prefetch: bool) -> Batch:
        """Return the batch of this step; with `prefetch`, start making the next one."""
        if self.waiting is None or self.waiting[0] != step:
            self.waiting = step, self.pool.submit(self.make, step)
        batch = self.waiting[1].result()
        self.waiting = (step + 1, self.pool.submit(self.make, step + 1)) if prefetch else None
        return batch

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


def split_rows(packed: PackedImages, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Return the training rows and the validation rows. Neither includes test classes.

    The validation classes are those of the prepared dataset, or, if it has none, a fraction of its training classes.
    """
    if len(packed.validation) or not fraction:
        return packed.train, packed.validation
    labels = packed.labels[packed.train]
    held_out = hold_out(np.unique(labels), packed.class_names, fraction, seed=(seed, 0, seeds.VALIDATION), keep=2)
    held = np.isin(labels, held_out)
    return packed.train[~held], packed.train[held]


def can_validate(labels: Indices) -> bool:
    """Return whether Recall@1 and MAP@R are defined and can be below 1: at least two classes, one of them with two images."""
    return len(np.unique(labels)) >= 2 and count_pairable(labels) >= 1


def count_pairable(labels: Indices) -> int:
    """Return the number of classes with at least two images."""
    return int((np.unique(labels, return_counts=True)[1] > 1).sum())

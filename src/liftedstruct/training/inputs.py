"""What goes into the network at a step: batches of crops, the next one made while the network works on this one."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from torch import Tensor

from liftedstruct.data import Indices, PackedImages, hold_out

__all__ = ["Batch", "Prefetcher", "count_pairable", "split_rows"]

HELD_OUT, CROPS = 2, 3  # last words of seeds, so that no two random choices share a stream; samplers have 0 and 1


class Batch(NamedTuple):
    """What a step works on."""

    rows: Indices  # of the prepared dataset                                                          (m,)
    labels: Tensor  # (m,)
    inputs: Tensor  # crops, (m, h, w, 3) bytes


class Prefetcher:
    """Makes the next batch on a thread while the network works on the one before."""

    def __init__(self, make: Callable[[int], Batch]) -> None:
        self.make, self.pool = make, ThreadPoolExecutor(1, "batches")
        self.waiting: tuple[int, Future[Batch]] | None = None

    def take(self, step: int, prefetch: bool) -> Batch:
        """The batch of this step; with ``prefetch`` the next is begun."""
        if self.waiting is None or self.waiting[0] != step:
            self.waiting = step, self.pool.submit(self.make, step)
        batch = self.waiting[1].result()
        self.waiting = (step + 1, self.pool.submit(self.make, step + 1)) if prefetch else None
        return batch

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


def split_rows(packed: PackedImages, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Rows to train on and to validate on. The test classes are in neither.

    The validation classes are those of the prepared dataset; where it has none, a fraction of its training classes.
    """
    if len(packed.validation) or not fraction:
        return packed.train, packed.validation
    labels = packed.labels[packed.train]
    held_out = hold_out(np.unique(labels), packed.class_names, fraction, seed=(seed, 0, HELD_OUT), keep=2)
    held = np.isin(labels, held_out)
    return packed.train[~held], packed.train[held]


def count_pairable(labels: Indices) -> int:
    """Number of classes with two images or more."""
    return int((np.unique(labels, return_counts=True)[1] > 1).sum())

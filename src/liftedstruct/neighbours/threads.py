"""Work shared out among threads, one per core, each with a matrix product of its own.

Two threads that multiply a block each, and count it while it is in their cache, are faster than two that work on one product
and meet after it; and no pool of threads spins while another one works.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

__all__ = ["few_threads", "share_out"]

T = TypeVar("T")
LITTLE = 1 << 26  # multiplications: a few milliseconds


def share_out(work: Callable[[T], object], items: Iterable[T]) -> None:
    """Do the work on every item, in as many threads as torch uses; inside, torch itself uses one."""
    items = list(items)
    n_threads = torch.get_num_threads()
    if min(n_threads, len(items)) == 1:
        for item in items:
            work(item)
        return
    pool = ThreadPoolExecutor(min(n_threads, len(items)), initializer=torch.set_num_threads, initargs=(1,))
    try:
        for _ in pool.map(work, items):
            pass
    finally:
        pool.shutdown(cancel_futures=True)  # after an error or Ctrl-C, do not begin the rest
        torch.set_num_threads(n_threads)  # for threads yet to come; this one was never changed


@contextmanager
def few_threads(multiplications: int) -> Iterator[None]:
    """Inside, one thread does all if it is little: on a busy machine, waiting for a second one takes longer than the work."""
    n_threads = torch.get_num_threads()
    if multiplications > LITTLE or n_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)

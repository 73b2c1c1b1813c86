"""Work shared out among threads, one per core, each with a matrix product of its own.

Two threads that multiply a block each, and count it while it is in their cache, are faster than two that work on one product
and meet after it; and no pool of threads spins while another one works.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

__all__ = ["few_threads", "share_out", "torch_threads"]

T = TypeVar("T")
LITTLE = 1 << 26  # multiplications: a few milliseconds

_setting = threading.Lock()  # held while the default of new threads may be wrong


def share_out(work: Callable[[T], object], items: Iterable[T]) -> None:
    """Do the work on every item, in as many threads as torch uses; inside, torch itself uses one."""
    items = list(items)
    n_threads = min(_threads_here(), len(items))
    if n_threads == 1:
        for item in items:
            work(item)
        return
    pool = ThreadPoolExecutor(n_threads, initializer=_set_threads_here, initargs=(1,))
    try:
        for _ in pool.map(work, items):
            pass
    finally:
        pool.shutdown(cancel_futures=True)  # after an error or Ctrl-C, do not begin the rest


@contextmanager
def few_threads(multiplications: int) -> Iterator[None]:
    """Inside, one thread does all if it is little: on a busy machine, waiting for a second one takes longer than the work."""
    with torch_threads(1 if multiplications <= LITTLE else _threads_here()):
        yield


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Inside, torch uses so many threads for what the calling thread computes; nothing changes for other threads."""
    before = _threads_here()
    if count == before:
        yield
        return
    _set_threads_here(count)
    try:
        yield
    finally:
        _set_threads_here(before)


def _threads_here() -> int:
    with _setting:  # the first call of a thread takes the default
        return torch.get_num_threads()


def _set_threads_here(count: int) -> None:
    """Like ``torch.set_num_threads``, for the calling thread alone.

    torch has a number for each thread and a default that a thread takes when it first asks, and sets both. So this thread asks
    first, and a new thread sets the default back.
    """
    with _setting, ThreadPoolExecutor(1) as new:
        torch.get_num_threads()
        default = new.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        new.submit(torch.set_num_threads, default).result()

"""How many threads work is worth, and work shared among threads, one per core, each with a matrix product of its own.

Two threads that multiply a block each, and count it while it is in their cache, are faster than two that work on one product
and meet after it; and no pool of threads spins while another one works.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

__all__ = ["limit_threads", "parallel_for"]

T = TypeVar("T")
SMALL = 1 << 26  # multiplications: a few milliseconds

_setting = threading.Lock()  # held while the default of new threads may be wrong


def parallel_for(work: Callable[[T], object], items: Iterable[T]) -> None:
    """Do the work on every item, in as many threads as torch uses; inside, torch itself uses one."""
    items = list(items)
    n_threads = min(_torch_threads(), len(items))
    if n_threads == 1:
        for item in items:
            work(item)
        return
    pool = ThreadPoolExecutor(n_threads, initializer=_set_torch_threads, initargs=(1,))
    try:
        for _ in pool.map(work, items):
            pass
    finally:
        pool.shutdown(cancel_futures=True)  # after an error or Ctrl-C, do not begin the rest


@contextmanager
def limit_threads(
    multiplications: float, get: Callable[[], int] | None = None, set_to: Callable[[int], object] | None = None
) -> Iterator[int]:
    """Inside, one thread does all if it is little: on a busy machine, waiting for a second one takes longer than the work.

    Args:
        multiplications: how much work there is, between two points where threads wait for each other or in all.
        get: the number of threads of a library; by default of torch, for what the calling thread computes.
        set_to: the function that sets it.

    Yields the number of threads.
    """
    get, set_to = get or _torch_threads, set_to or _set_torch_threads
    before = get()
    if before == 1 or multiplications > SMALL:
        yield before
        return
    set_to(1)
    try:
        yield 1
    finally:
        set_to(before)


def _torch_threads() -> int:
    with _setting:  # the first call of a thread takes the default
        return torch.get_num_threads()


def _set_torch_threads(count: int) -> None:
    """Like ``torch.set_num_threads``, for the calling thread alone.

    torch has a number for each thread and a default that a thread takes when it first asks, and sets both. So this thread asks
    first, and a new thread sets the default back.
    """
    with _setting, ThreadPoolExecutor(1) as new:
        torch.get_num_threads()
        default = new.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        new.submit(torch.set_num_threads, default).result()

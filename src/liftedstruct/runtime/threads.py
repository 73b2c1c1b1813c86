"""Thread counts for small workloads, and parallel loops with one single-threaded matrix product per core.

Threads that each multiply a block and process it while it is in cache are faster than threads that share one product and
synchronize after it. This also keeps the idle threads of one pool from spinning while another pool works.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

__all__ = ["limit_threads", "map_ahead", "parallel_for"]

S = TypeVar("S")
T = TypeVar("T")
SMALL = 1 << 26  # multiplications, a few milliseconds of work

_setting = threading.Lock()  # held while the default for new threads may be wrong


def parallel_for(work: Callable[[T], object], items: Iterable[T]) -> None:
    """Call `work` on every item, in as many threads as torch uses. Inside, torch uses one thread."""
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
        pool.shutdown(cancel_futures=True)  # after an error or Ctrl-C, do not start the rest


def map_ahead(pool: Executor, function: Callable[[S], T], items: Iterable[S], count: int) -> Iterator[T]:
    """Map in order, with up to `count` calls running or waiting to be consumed."""
    waiting: deque[Future[T]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # after an error, do not wait for the rest
        for each in waiting:
            each.cancel()


@contextmanager
def limit_threads(
    multiplications: float, get: Callable[[], int] | None = None, set_to: Callable[[int], object] | None = None
) -> Iterator[int]:
    """Use one thread for small workloads: on a busy machine, waiting for a second thread takes longer than the work.

    Args:
        multiplications: amount of work in total, or between two synchronization points.
        get: function that returns a library's number of threads. Default: torch's, for the calling thread.
        set_to: function that sets it.

    Yields:
        The number of threads.
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
    with _setting:  # a thread's first call adopts the default
        return torch.get_num_threads()


def _set_torch_threads(count: int) -> None:
    """Set torch's number of threads for the calling thread only.

    torch keeps one number per thread and a default, which a thread adopts on its first query, and `torch.set_num_threads`
    sets both. So this thread queries first, and a new thread restores the default.
    """
    with _setting, ThreadPoolExecutor(1) as new:
        torch.get_num_threads()
        default = new.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        new.submit(torch.set_num_threads, default).result()

"""Reuse of freed memory while a network runs on a CPU, which allocates and frees large activations in every layer.

By default, glibc requests each of these blocks from the kernel and returns it afterwards, and the kernel zeroes every page
each time. This takes most of the time of a convolutional network. With two thresholds raised, glibc keeps and reuses blocks.

The thresholds apply to the whole process, so they are raised only while a call needs it. Afterwards, they are set to the
values that glibc's dynamic adjustment grows to, 32 and 64 MiB (it cannot be turned on again), and free memory is returned to
the kernel. Nothing changes if `LIFTEDSTRUCT_KEEP_MEMORY` is 0, or if the environment sets thresholds (`MALLOC_...`,
`GLIBC_TUNABLES`).
"""

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["kept_memory", "limit_heaps"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -3, -4, -8  # constants of malloc.h
NEVER = -1  # the largest size, as an unsigned number
USUAL = {M_MMAP_MAX: 65_536, M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 64 << 20}
OWN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")

_lock, _users = threading.Lock(), 0


@contextlib.contextmanager
def kept_memory() -> Iterator[bool]:
    """Make glibc keep freed memory until the last nested block ends. Yields False if that is not possible."""
    global _users
    libc = _glibc()
    if libc is None or os.environ.get("LIFTEDSTRUCT_KEEP_MEMORY") == "0" or any(name in os.environ for name in OWN):
        yield False
        return
    with _lock:
        _users += 1
        if _users == 1:
            libc.mallopt(M_TRIM_THRESHOLD, NEVER)  # free memory at the end of the heap stays
            if not libc.mallopt(M_MMAP_THRESHOLD, NEVER):  # large blocks come from the heap too; older glibc versions refuse
                libc.mallopt(M_MMAP_MAX, 0)
    try:
        yield True
    finally:
        with _lock:
            _users -= 1
            if not _users:
                for threshold, value in USUAL.items():
                    libc.mallopt(threshold, value)
                libc.malloc_trim(0)


def limit_heaps(count: int = 2) -> None:
    """Make the threads of this process share a few heaps; otherwise, each of many threads keeps the most it ever needed."""
    if (libc := _glibc()) is not None:
        libc.mallopt(M_ARENA_MAX, count)


@functools.cache
def _glibc() -> Any:
    """Return the C library if it is glibc, otherwise None."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None  # musl has neither

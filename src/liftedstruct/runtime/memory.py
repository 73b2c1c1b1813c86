"""Memory that stays with the process while a network runs on a CPU, which makes and drops large activations layer by layer.

By default glibc asks the kernel for each of them and gives each one back, and the kernel fills every page with zeros, every
time. That is most of the time of a convolutional network. With two thresholds raised, the blocks are kept and used again.

The thresholds belong to the whole process, so they are raised only while a call needs it. Afterwards they are what glibc's
own adjustment grows to, 32 and 64 MiB (it cannot be switched on again), and free memory goes back to the kernel. Nothing is
changed if ``LIFTEDSTRUCT_KEEP_MEMORY`` is 0, or if the environment sets thresholds itself (``MALLOC_...``, ``GLIBC_TUNABLES``).
"""

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["kept_memory"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # numbers of malloc.h
NEVER = -1  # the largest size there is, once it is unsigned
USUAL = {M_MMAP_MAX: 65_536, M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 64 << 20}
OWN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")

_lock, _users = threading.Lock(), 0


@contextlib.contextmanager
def kept_memory() -> Iterator[bool]:
    """Have glibc keep what is freed, until the last of several such blocks ends; False where that is not possible."""
    global _users
    libc = _glibc()
    if libc is None or os.environ.get("LIFTEDSTRUCT_KEEP_MEMORY") == "0" or any(name in os.environ for name in OWN):
        yield False
        return
    with _lock:
        _users += 1
        if _users == 1:
            libc.mallopt(M_TRIM_THRESHOLD, NEVER)  # free memory at the end of the heap stays
            if not libc.mallopt(M_MMAP_THRESHOLD, NEVER):  # large blocks come from the heap too; an older glibc refuses
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


@functools.cache
def _glibc() -> Any:
    """The C library, if it is glibc."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None  # musl has neither

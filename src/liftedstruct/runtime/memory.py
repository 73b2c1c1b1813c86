"""Memory that stays with the process. A network on a CPU makes and drops activations of many megabytes, layer by layer.

By default glibc asks the kernel for each of them and gives each one back, and the kernel fills every page with zeros, every
time. That is most of the time of a convolutional network. With two thresholds raised, the blocks are kept and used again.
"""

import ctypes
import sys

__all__ = ["keep_memory"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # numbers of malloc.h
NEVER = -1  # the largest size there is, once it is unsigned


def keep_memory() -> bool:
    """Have glibc keep what is freed, for the whole process, until it ends; True if it does, False where there is no glibc.

    Blocks that were made before are not touched. It may be called any number of times.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has none
        return False
    kept = mallopt(M_TRIM_THRESHOLD, NEVER)  # free memory at the end of the heap stays
    heap = mallopt(M_MMAP_THRESHOLD, NEVER) or mallopt(M_MMAP_MAX, 0)  # large blocks too; an older glibc refuses the first
    return bool(kept and heap)

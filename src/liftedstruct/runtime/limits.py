"""Memory and CPU cores available to this process, including the limits of control groups (cgroups) in containers.

A limit applies to a group and to all groups below it, so the limits of this process's group and of all its parents apply.
"""

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["available_bytes", "available_cores", "cpu_quota"]

ROOT = Path("/")  # parent of /proc and /sys; tests replace it
MEMORY = (  # limit file, usage file, and the entry of memory.stat for reclaimable usage
    ("memory.max", "memory.current", "inactive_file"),  # cgroup v2
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # v1
)


def available_bytes() -> int:
    """Return the memory, in bytes, that can be allocated without swapping."""
    free, meminfo = [2**62], ROOT / "proc/meminfo"
    if meminfo.exists():
        free += [1024 * int(line.split()[1]) for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:")]
    elif hasattr(os, "sysconf"):
        free.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    for group in _own_groups("memory"):
        for limit, use, cache in MEMORY:
            with contextlib.suppress(OSError, ValueError):  # no such file, or "max", meaning no limit
                left = int((group / limit).read_text()) - int((group / use).read_text())
                stat = (group / "memory.stat").read_text() if (group / "memory.stat").exists() else ""
                free.append(max(0, left + int(dict(line.split() for line in stat.splitlines()).get(cache, 0))))
    return min(free)


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def cpu_quota() -> float:
    """Return the CPU quota of this process in cores, or infinity if there is none."""
    quotas = [math.inf]
    for group in _own_groups("cpu"):
        with contextlib.suppress(OSError, ValueError):  # cgroup v2
            quota, period = (group / "cpu.max").read_text().split()
            quotas.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError):  # v1; -1 means no quota
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            quotas.append(int(quota) / int(period) if int(quota) > 0 else math.inf)
    return min(quotas)


def _own_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and its parents. Inside a container, some may not exist."""
    with contextlib.suppress(OSError, ValueError):
        for line in (ROOT / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = ROOT / "sys/fs/cgroup" / (controller if controllers else "")  # v1 has one tree per controller
            names = PurePosixPath(path).parts[1:]
            yield from (top.joinpath(*names[:depth]) for depth in range(len(names) + 1))

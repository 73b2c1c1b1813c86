import math
from pathlib import Path

import pytest

from liftedstruct.runtime import limits
from liftedstruct.training.machine import find_threads

GIGABYTE = 2**30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a machine with 64 GiB of free memory."""
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    write(tmp_path / "proc/meminfo", f"MemTotal: 1 kB\nMemAvailable: {64 * 2**20} kB\n")
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def v2(folder: Path, limit: str, use: int, cache: int) -> None:
    write(folder / "memory.max", limit)
    write(folder / "memory.current", str(use))
    write(folder / "memory.stat", f"anon 1\ninactive_file {cache}\nactive_file 5")


def v1(folder: Path, limit: int, use: int, cache: int) -> None:
    write(folder / "memory.limit_in_bytes", str(limit))
    write(folder / "memory.usage_in_bytes", str(use))
    write(folder / "memory.stat", f"inactive_file 7\ntotal_inactive_file {cache}")


def test_without_groups(root: Path) -> None:
    assert limits.available_bytes() == 64 * GIGABYTE
    assert limits.cpu_quota() == math.inf


def test_memory_of_a_container(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/")
    v2(root / "sys/fs/cgroup", str(8 * GIGABYTE), 5 * GIGABYTE, 2 * GIGABYTE)
    assert limits.available_bytes() == 5 * GIGABYTE  # the page cache can be reclaimed
    v2(root / "sys/fs/cgroup", str(8 * GIGABYTE), 9 * GIGABYTE, 0)
    assert limits.available_bytes() == 0
    v2(root / "sys/fs/cgroup", "max", 5 * GIGABYTE, 0)
    assert limits.available_bytes() == 64 * GIGABYTE
    v2(root / "sys/fs/cgroup", str(8 * GIGABYTE), 5 * GIGABYTE, 2 * GIGABYTE)
    (root / "sys/fs/cgroup/memory.stat").unlink()
    assert limits.available_bytes() == 3 * GIGABYTE


def test_memory_of_the_own_group_and_its_parents(root: Path) -> None:
    top = root / "sys/fs/cgroup"
    write(root / "proc/self/cgroup", "0::/user.slice/job.scope")
    v2(top / "user.slice/job.scope", str(6 * GIGABYTE), 2 * GIGABYTE, 0)
    v2(top / "user.slice", "max", 50 * GIGABYTE, 0)
    v2(top / "other", str(GIGABYTE), 0, 0)
    assert limits.available_bytes() == 4 * GIGABYTE
    v2(top / "user.slice", str(20 * GIGABYTE), 19 * GIGABYTE, 0)
    assert limits.available_bytes() == GIGABYTE


def test_memory_of_groups_of_version_1(root: Path) -> None:
    top = root / "sys/fs/cgroup/memory"
    write(root / "proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/")
    v1(top, 2**63 - 4096, 90 * GIGABYTE, 0)
    v1(top / "docker/abc", 4 * GIGABYTE, 2 * GIGABYTE, GIGABYTE)
    assert limits.available_bytes() == 3 * GIGABYTE
    write(root / "proc/self/cgroup", "4:memory:/seen/from/outside")  # the container's group is mounted at the top
    v1(top, 4 * GIGABYTE, 2 * GIGABYTE, 0)
    assert limits.available_bytes() == 2 * GIGABYTE


def test_cores_of_the_own_group_and_its_parents(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    write(root / "proc/self/cgroup", "1:cpu,cpuacct:/docker/abc\n0::/user.slice/job.scope")
    top = root / "sys/fs/cgroup"
    assert find_threads() == 64
    write(top / "user.slice/job.scope/cpu.max", "max 100000")
    write(top / "user.slice/cpu.max", "250000 100000")
    assert limits.cpu_quota() == 2.5
    assert find_threads() == 3
    write(top / "cpu/docker/abc/cpu.cfs_quota_us", "-1")
    write(top / "cpu/docker/abc/cpu.cfs_period_us", "100000")
    assert limits.cpu_quota() == 2.5
    write(top / "cpu/docker/abc/cpu.cfs_quota_us", "50000")
    assert limits.cpu_quota() == 0.5
    assert find_threads() == 1

"""Description of the machine that a benchmark runs on, without host names or paths."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["Machine", "available_bytes", "describe_machine", "processor", "status_bytes"]

PACKAGES = (
    "liftedstruct", "torch", "numpy", "numba", "scipy", "faiss-cpu", "pillow", "openTSNE",
    "pytorch-metric-learning", "scikit-learn", "playwright",
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """Processor, memory, system and package versions."""

    processor: str
    cores: int
    gigabytes: int
    system: str
    python: str
    versions: Mapping[str, str]

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        hardware = f"{self.processor}, {self.cores} cores, {self.gigabytes} GB of memory"
        return f"{hardware}, {self.system}, Python {self.python}, {versions}"

    def difference(self, other: "Machine") -> str:
        """Describe the first difference from another machine; empty if there is none."""
        ours, theirs = ({**vars(each), **each.versions} for each in (self, other))
        for name in dict.fromkeys([*ours, *theirs]):
            if name != "versions" and ours.get(name) != theirs.get(name):
                return f"its {name} is {theirs.get(name, 'missing')}, here {ours.get(name, 'missing')}"
        return ""


def describe_machine() -> Machine:
    """Describe this machine."""
    names = processors()
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        system = platform.system()
    gigabytes = round(memory_bytes("MemTotal") / 1e9)
    return Machine(names[0], len(names), gigabytes, f"{system}, {platform.machine()}", platform.python_version(), versions)


def processors() -> list[str]:
    """Return the processor name of each core."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return [line.split(": ")[1] for line in lines if line.startswith("model name")] or [platform.processor() or "unknown"]


def processor() -> str:
    """Return the processor name and the number of cores."""
    names = processors()
    return f"{names[0]}, {len(names)} cores"


def available_bytes() -> int:
    """Return the memory available without swapping."""
    return memory_bytes("MemAvailable")


def memory_bytes(field: str) -> int:
    return kilobytes(Path("/proc/meminfo"), field)


def status_bytes(field: str) -> int:
    """Return a memory field of this process in bytes, such as VmRSS, VmHWM or RssAnon (Linux only)."""
    return kilobytes(Path("/proc/self/status"), field)


def kilobytes(file: Path, field: str) -> int:
    lines = file.read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))

"""What all benchmarks share: lines that are printed and kept, bars that are met or missed, and the machine's name."""

import math
import platform
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Table", "processor", "seconds", "status_bytes"]


class Table:
    """The lines of a benchmark and the bars that it is held to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.bars: list[tuple[str, float, float, float]] = []  # what, value, least, most

    def say(self, line: str) -> None:
        """Print a line at once, and keep it."""
        print(line, flush=True)
        self.lines.append(line)

    def bar(self, what: str, value: float, *, least: float = -math.inf, most: float = math.inf) -> None:
        """Hold a value to a bar; the verdict is printed at the end."""
        self.bars.append((what, value, least, most))

    def finish(self, out: Path | None) -> None:
        """Print which bars are met, and write all lines to a file if one is given."""
        self.say("\nbars")
        for what, value, least, most in self.bars:
            limit = f"{least:g} to {most:g}"
            if most == math.inf:
                limit = f"at least {least:g}"
            elif least == -math.inf:
                limit = f"at most {most:g}"
            self.say(f"  {'met   ' if least <= value <= most else 'MISSED'} {value:8.2f} {what} (bar: {limit})")
        if out:
            out.write_text("\n".join(self.lines) + "\n")


def processor() -> str:
    """The processor by its name, and how many cores of it there are."""
    names = [line.split(": ")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {len(names)} cores"


def status_bytes(field: str) -> int:
    """A size that Linux keeps of this process, such as VmRSS, VmHWM or RssAnon."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def seconds(method: Callable[[], object]) -> float:
    """How long one call takes."""
    begin = time.perf_counter()
    method()
    return time.perf_counter() - begin

"""Shared by all benchmarks: command-line flags, printed lines, recorded rows and targets."""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from records import Baseline, Record, Row, Section, Target, improvement

__all__ = ["Table", "flags", "seconds"]


def flags(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the printed lines to this file")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    return parser


class Table:
    """Printed lines, rows and targets of one benchmark."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.sections: list[Section] = []
        self.targets: list[Target] = []
        self.skipped: list[str] = []

    def say(self, line: str) -> None:
        """Print a line immediately and keep it."""
        print(line, flush=True)
        self.lines.append(line)

    def section(self, title: str) -> None:
        """Start a section; later rows belong to it."""
        self.say(f"\n{title}")
        self.sections.append(Section(title))

    def row(self, what: str, ours: float, unit: str, *baselines: Baseline, note: str = "") -> None:
        """Record a measurement and its baselines; missing ratios are computed from the two values."""
        compared = (each if each.ratio else replace(each, ratio=improvement(unit, ours, each.value)) for each in baselines)
        last = self.sections[-1]
        self.sections[-1] = replace(last, rows=(*last.rows, Row(what, ours, unit, tuple(compared), note)))

    def target(self, what: str, value: float, *, minimum: float | None = None, maximum: float | None = None) -> None:
        """Record a value with its target range; `finish` prints whether it is met."""
        self.targets.append(Target(what, value, minimum, maximum))

    def skip(self, what: str, why: str) -> None:
        """Record that a part was skipped."""
        self.say(f"\n{what}: skipped, {why}")
        self.skipped.append(f"{what}: {why}")

    def finish(self, options: argparse.Namespace) -> None:
        """Print the targets and write the requested files."""
        self.say("\ntargets")
        for target in self.targets:
            self.say(f"  {'met   ' if target.met else 'MISSED'} {target.value:8.2f} {target.what} (target: {target.limit})")
        if options.out:
            options.out.write_text("\n".join(self.lines) + "\n")
        if options.json:
            settings = {
                name: value
                for name, value in vars(options).items()
                if isinstance(value, bool | int | float | str | tuple | list)
            }
            sections = tuple(section for section in self.sections if section.rows)
            Record(settings, sections, tuple(self.targets), tuple(self.skipped)).write(options.json)


def seconds(method: Callable[[], object]) -> float:
    """Return the duration of one call."""
    begin = time.perf_counter()
    method()
    return time.perf_counter() - begin

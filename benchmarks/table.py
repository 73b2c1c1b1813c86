"""What all benchmarks share: lines that are printed, rows that are kept, bars that are met or missed, and their flags."""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from records import Bar, Beside, Record, Row, Section, better

__all__ = ["Table", "flags", "seconds"]


def flags(description: str | None) -> argparse.ArgumentParser:
    """The flags of a benchmark, to which it adds its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write what is printed here")
    parser.add_argument("--json", type=Path, help="also write the rows here, as data")
    return parser


class Table:
    """The lines of a benchmark, the rows behind them, and the bars that it is held to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.sections: list[Section] = []
        self.bars: list[Bar] = []
        self.skipped: list[str] = []

    def say(self, line: str) -> None:
        """Print a line at once, and keep it."""
        print(line, flush=True)
        self.lines.append(line)

    def section(self, title: str) -> None:
        """Begin a section: the rows from now on are its own."""
        self.say(f"\n{title}")
        self.sections.append(Section(title))

    def row(self, what: str, ours: float, unit: str, *beside: Beside, note: str = "") -> None:
        """Keep a measured value and what stands beside it; a ratio that is not given is that of the two values."""
        compared = (each if each.ratio else replace(each, ratio=better(unit, ours, each.value)) for each in beside)
        last = self.sections[-1]
        self.sections[-1] = replace(last, rows=(*last.rows, Row(what, ours, unit, tuple(compared), note)))

    def bar(self, what: str, value: float, *, least: float | None = None, most: float | None = None) -> None:
        """Hold a value to a bar; the verdict is printed at the end."""
        self.bars.append(Bar(what, value, least, most))

    def skip(self, what: str, why: str) -> None:
        """Say that a part is not measured."""
        self.say(f"\n{what}: skipped, {why}")
        self.skipped.append(f"{what}: {why}")

    def finish(self, options: argparse.Namespace) -> None:
        """Print which bars are met, and write all lines, and all rows, to the files that are asked for."""
        self.say("\nbars")
        for bar in self.bars:
            self.say(f"  {'met   ' if bar.met else 'MISSED'} {bar.value:8.2f} {bar.what} (bar: {bar.limit})")
        if options.out:
            options.out.write_text("\n".join(self.lines) + "\n")
        if options.json:
            settings = {
                name: value
                for name, value in vars(options).items()
                if isinstance(value, bool | int | float | str | tuple | list)
            }
            sections = tuple(section for section in self.sections if section.rows)
            Record(settings, sections, tuple(self.bars), tuple(self.skipped)).write(options.json)


def seconds(method: Callable[[], object]) -> float:
    """How long one call takes."""
    begin = time.perf_counter()
    method()
    return time.perf_counter() - begin

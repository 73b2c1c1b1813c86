"""Benchmark results as data: rows with their baselines, targets, and the JSON file that stores them.

A results file holds the machine's description and one record per benchmark. `benchmarks/suite.py` prints them and
`docs/tables.py` writes them into the documentation.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from liftedstruct.runtime.atomic import replacing
from machine import Machine

__all__ = [
    "Baseline",
    "Record",
    "Results",
    "Row",
    "Section",
    "Target",
    "cells",
    "format_number",
    "improvement",
    "read_record",
    "read_results",
]

LOWER_IS_BETTER, HIGHER_IS_BETTER = ("s", "ms", "min", "kB", "MB", "GB"), ("images/s",)  # units


@dataclass(frozen=True)
class Baseline:
    """An alternative measured in the same run; `value` is None if it could not run, `ratio` is how much better ours is."""

    name: str
    value: float | None
    ratio: float | None = None


@dataclass(frozen=True)
class Row:
    """One measurement with its unit and its baselines."""

    what: str
    ours: float
    unit: str
    baselines: tuple[Baseline, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Section:
    """Rows of one table."""

    title: str
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Target:
    """A value and the range it must lie in."""

    what: str
    value: float
    minimum: float | None = None
    maximum: float | None = None

    @property
    def met(self) -> bool:
        return (self.minimum is None or self.minimum <= self.value) and (self.maximum is None or self.value <= self.maximum)

    @property
    def limit(self) -> str:
        """The range as text."""
        if self.minimum is None:
            return f"at most {self.maximum:g}"
        return f"at least {self.minimum:g}" if self.maximum is None else f"{self.minimum:g} to {self.maximum:g}"


@dataclass(frozen=True)
class Record:
    """Results of one benchmark with its settings, date and duration."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()
    targets: tuple[Target, ...] = ()
    skipped: tuple[str, ...] = ()
    failed: str = ""
    date: str = ""
    seconds: float = 0.0

    def write(self, file: Path) -> None:
        write(file, asdict(self))


@dataclass(frozen=True)
class Results:
    """The records of one machine by benchmark name."""

    machine: Machine
    records: Mapping[str, Record]

    def write(self, file: Path) -> None:
        write(
            file, {"machine": asdict(self.machine), "benchmarks": {name: asdict(each) for name, each in self.records.items()}}
        )


def improvement(unit: str, ours: float, value: float | None) -> float | None:
    """Return how many times better ours is: lower time and memory, higher throughput; None for other units."""
    if not value or not ours or unit not in LOWER_IS_BETTER + HIGHER_IS_BETTER:
        return None
    return value / ours if unit in LOWER_IS_BETTER else ours / value


def write(file: Path, content: Mapping[str, Any], digits: int = 5) -> None:
    """Write JSON atomically, numbers with this many significant digits."""
    with replacing(file) as stream:
        stream.write((json.dumps(rounded(content, digits), indent=1) + "\n").encode("ascii"))


def rounded(content: Any, digits: int) -> Any:
    if isinstance(content, float):
        return float(f"{content:.{digits}g}")
    if isinstance(content, Mapping):
        return {key: rounded(value, digits) for key, value in content.items()}
    return [rounded(value, digits) for value in content] if isinstance(content, list | tuple) else content


def read_record(file: Path) -> Record:
    """Read the record that a benchmark wrote."""
    return as_record(json.loads(file.read_text()))


def read_results(file: Path) -> Results:
    """Read a results file."""
    try:
        content = json.loads(file.read_text())
        records = {name: as_record(each) for name, each in content["benchmarks"].items()}
        return Results(Machine(**content["machine"]), records)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file.name} must be a results file, but cannot be parsed ({error}). Remove it.") from error


def as_record(content: Mapping[str, Any]) -> Record:
    sections = tuple(Section(each["title"], tuple(map(as_row, each["rows"]))) for each in content["sections"])
    targets = tuple(Target(**each) for each in content["targets"])
    return Record(**{**content, "sections": sections, "targets": targets, "skipped": tuple(content["skipped"])})


def as_row(content: Mapping[str, Any]) -> Row:
    return Row(**{**content, "baselines": tuple(Baseline(**each) for each in content["baselines"])})


def cells(section: Section) -> list[list[str]]:
    """Return a section as table cells, header first: row name, ours, each baseline with its ratio, notes.

    >>> row = Row("one iteration", 25.0, "ms", (Baseline("scikit-learn", 500.0, 20.0),))
    >>> cells(Section("affinity propagation", (row,)))
    [['', 'ours, ms', 'scikit-learn', 'ratio'], ['one iteration', '25.0', '500', '20.0']]
    """
    units = {row.unit for row in section.rows}
    shared_unit = units.pop() if len(units) == 1 else ""
    names = list(dict.fromkeys(each.name for row in section.rows for each in row.baselines))
    compared = {each.name for row in section.rows for each in row.baselines if each.ratio is not None}
    noted = any(row.note for row in section.rows)
    header = ["", f"ours, {shared_unit}" if shared_unit else "ours"]
    for name in names:
        header += [name, "ratio"] if name in compared else [name]
    lines = [[*header, ""] if noted else header]
    for row in section.rows:
        unit, baselines = "" if shared_unit else f" {row.unit}".rstrip(), {each.name: each for each in row.baselines}
        line = [row.what, format_number(row.ours) + unit]
        for name in names:
            other = baselines.get(name, Baseline(name, None))
            line.append("" if other.value is None else format_number(other.value) + unit)
            line += ["" if other.ratio is None else format_number(other.ratio)] if name in compared else []
        lines.append([*line, row.note] if noted else line)
    return lines


def format_number(value: float) -> str:
    """Format a number with three significant digits, or all digits before the decimal point.

    >>> [format_number(value) for value in (0.76912, 12.04, 274.53, 16467.3, 4)]
    ['0.769', '12.0', '275', '16,467', '4']
    """
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 99.95 else f"{value:#.3g}"

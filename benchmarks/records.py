"""What a benchmark measured, as data: rows of numbers with what stands beside them, bars, and the file that keeps them.

A file of results is the machine's description and a record for each benchmark. The same cells are printed by
``benchmarks/suite.py`` and shown on the pages of the documentation by ``docs/tables.py``.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from liftedstruct.runtime.atomic import replacing
from machine import Machine

__all__ = ["Bar", "Beside", "Record", "Results", "Row", "Section", "better", "cells", "read_record", "read_results", "shown"]

LESS, MORE = ("s", "ms", "min", "kB", "MB", "GB"), ("images/s",)  # units of which less, or more, is better


@dataclass(frozen=True)
class Beside:
    """Another way to the same end: its value, None where it cannot be had, and how many times better ours is."""

    name: str
    value: float | None
    ratio: float | None = None


@dataclass(frozen=True)
class Row:
    """One thing measured, in a unit, and what was measured beside it in the same run."""

    what: str
    ours: float
    unit: str
    beside: tuple[Beside, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Section:
    """Rows that make one table."""

    title: str
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Bar:
    """A value and the limits that it is held to."""

    what: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool:
        return (self.least is None or self.least <= self.value) and (self.most is None or self.value <= self.most)

    @property
    def limit(self) -> str:
        """The limits in words."""
        if self.least is None:
            return f"at most {self.most:g}"
        return f"at least {self.least:g}" if self.most is None else f"{self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class Record:
    """One benchmark: what it measured and left out, with which settings, when and for how long."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()
    bars: tuple[Bar, ...] = ()
    skipped: tuple[str, ...] = ()
    failed: str = ""
    date: str = ""
    seconds: float = 0.0

    def write(self, file: Path) -> None:
        write(file, asdict(self))


@dataclass(frozen=True)
class Results:
    """The records of one machine, by the names of the benchmarks."""

    machine: Machine
    records: Mapping[str, Record]

    def write(self, file: Path) -> None:
        write(
            file, {"machine": asdict(self.machine), "benchmarks": {name: asdict(each) for name, each in self.records.items()}}
        )


def better(unit: str, ours: float, value: float | None) -> float | None:
    """How many times better ours is: less of time and memory, more of images a second; None of other units."""
    if not value or not ours or unit not in LESS + MORE:
        return None
    return value / ours if unit in LESS else ours / value


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Readable JSON, with five digits of each number; the old file or the new one, never half of one."""
    with replacing(file) as stream:
        stream.write((json.dumps(rounded(content), indent=1) + "\n").encode("ascii"))


def rounded(content: Any) -> Any:
    if isinstance(content, float):
        return float(f"{content:.5g}")
    if isinstance(content, Mapping):
        return {key: rounded(value) for key, value in content.items()}
    return [rounded(value) for value in content] if isinstance(content, list | tuple) else content


def read_record(file: Path) -> Record:
    """The record that a benchmark wrote."""
    return as_record(json.loads(file.read_text()))


def read_results(file: Path) -> Results:
    """A file of results."""
    try:
        content = json.loads(file.read_text())
        records = {name: as_record(each) for name, each in content["benchmarks"].items()}
        return Results(Machine(**content["machine"]), records)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file.name} must be a file of results, and cannot be read as one ({error}). Remove it.") from error


def as_record(content: Mapping[str, Any]) -> Record:
    sections = tuple(Section(each["title"], tuple(map(as_row, each["rows"]))) for each in content["sections"])
    bars = tuple(Bar(**each) for each in content["bars"])
    return Record(**{**content, "sections": sections, "bars": bars, "skipped": tuple(content["skipped"])})


def as_row(content: Mapping[str, Any]) -> Row:
    return Row(**{**content, "beside": tuple(Beside(**each) for each in content["beside"])})


def cells(section: Section) -> list[list[str]]:
    """A section as a table of words, its first line the heads: what, ours, each thing beside it with its ratio, notes.

    >>> row = Row("an iteration", 25.0, "ms", (Beside("scikit-learn", 500.0, 20.0),))
    >>> cells(Section("affinity propagation", (row,)))
    [['', 'ours, ms', 'scikit-learn', 'ratio'], ['an iteration', '25.0', '500', '20.0']]
    """
    units = {row.unit for row in section.rows}
    one = units.pop() if len(units) == 1 else ""
    names = list(dict.fromkeys(each.name for row in section.rows for each in row.beside))
    compared = {each.name for row in section.rows for each in row.beside if each.ratio is not None}
    noted = any(row.note for row in section.rows)
    head = ["", f"ours, {one}" if one else "ours"]
    for name in names:
        head += [name, "ratio"] if name in compared else [name]
    lines = [[*head, ""] if noted else head]
    for row in section.rows:
        unit, beside = "" if one else f" {row.unit}".rstrip(), {each.name: each for each in row.beside}
        line = [row.what, shown(row.ours) + unit]
        for name in names:
            other = beside.get(name, Beside(name, None))
            line.append("" if other.value is None else shown(other.value) + unit)
            line += ["" if other.ratio is None else shown(other.ratio)] if name in compared else []
        lines.append([*line, row.note] if noted else line)
    return lines


def shown(value: float) -> str:
    """A number to read: three digits, or all before the point.

    >>> [shown(value) for value in (0.76912, 12.04, 274.53, 16467.3, 4)]
    ['0.769', '12.0', '275', '16,467', '4']
    """
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:#.3g}"

"""Tables of the documentation that are made from the results of the benchmarks, in ``benchmarks/results/``.

    python docs/tables.py

A page has a pair of comments, and what stands between them is made here: all results, or one section of one benchmark. A
section that has not been measured yet stays as it is. A test fails if a page has other tables than the results.

    <!-- benchmarks: losses / k = 4 images per class -->
    <!-- end -->
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.append(str(DOCS.parent / "benchmarks"))

from records import Record, Results, Section, cells, read_results  # noqa: E402

__all__ = ["FILES", "PLACE", "filled", "one_table", "read_all"]

FILES = {"make bench": "bench.json", "make bench-full": "bench-full.json"}  # where both have a section, the first counts
PLACE = re.compile(r"(<!-- benchmarks: (.+?) -->\n)(.*?)(<!-- end -->)", flags=re.DOTALL)


def read_all(folder: Path = DOCS.parent / "benchmarks" / "results") -> dict[str, Results]:
    """The results that there are, by the commands that made them."""
    return {command: read_results(folder / name) for command, name in FILES.items() if (folder / name).exists()}


def filled(page: str, results: Mapping[str, Results]) -> str:
    """A page with its tables made anew."""

    def replaced(found: re.Match[str]) -> str:
        begin, key, old, end = found.groups()
        new = "\n".join(everything(results)) if key == "all" else one_table(key, results)
        return f"{begin}\n{new}\n\n{end}" if new else begin + old + end

    return PLACE.sub(replaced, page)


def one_table(key: str, results: Mapping[str, Results]) -> str:
    """One section, given as ``benchmark / title``; nothing if it has not been measured."""
    name, _, title = key.partition(" / ")
    for each in results.values():
        for section in each.records.get(name, Record()).sections:
            if section.title == title:
                return "\n".join(markdown(section))
    if len(results) == len(FILES):
        raise ValueError(
            f"a table must be of a benchmark and one of its sections, got {key!r}. See the titles in benchmarks.md."
        )
    return ""


def everything(results: Mapping[str, Results]) -> Iterator[str]:
    """All results, the machine above them; of a second file what the first does not have."""
    if not results:
        yield "Not measured yet: run `make bench`."
    seen: set[object] = set()
    for number, (command, each) in enumerate(results.items()):
        dates = sorted({record.date for record in each.records.values()})
        yield f"{'' if number == 0 else chr(10)}## `{command}`{' beyond that' * bool(number)}\n"
        yield f"{each.machine}. Measured on {' to '.join(dict.fromkeys((dates[0], dates[-1])))}."
        for name, record in each.records.items():
            new = [section for section in record.sections if (name, shape(section)) not in seen]
            seen |= {(name, shape(section)) for section in new}
            if new or record.failed:
                yield f"\n### {name}\n"
                yield about(name, record)
            for section in new:
                yield f"\n**{section.title}**\n"
                yield from markdown(section)


def shape(section: Section) -> object:
    """What a section compares, without the numbers."""
    return section.title, tuple((row.what, tuple(each.name for each in row.beside)) for row in section.rows)


def about(name: str, record: Record) -> str:
    """What was run, for how long, and whether the bars are met."""
    if record.failed:
        return f"`benchmarks/{name}.py` failed: {record.failed}."
    settings = ", ".join(
        f"{key} {' '.join(value) if isinstance(value, list) else value}" for key, value in record.settings.items()
    )
    missed = [bar for bar in record.bars if not bar.met]
    sentences = [
        f"`benchmarks/{name}.py`{f' ({settings})' if settings else ''}, {record.seconds:.0f} s",
        f"{len(record.bars) - len(missed)} of its {len(record.bars)} bars are met",
        *(f"Missed: {bar.value:.2f} {bar.what} ({bar.limit})" for bar in missed),
        *(f"Skipped: {skipped}" for skipped in record.skipped),
    ]
    return ". ".join(sentences) + "."


def markdown(section: Section) -> Iterator[str]:
    """A section as a table."""
    head, *rows = cells(section)
    yield line(head)
    yield f"|{'|'.join('---:' if word else '---' for word in head)}|"  # words to the left, numbers to the right
    yield from map(line, rows)


def line(words: list[str]) -> str:
    return re.sub(" +", " ", f"| {' | '.join(words)} |")


if __name__ == "__main__":
    results = read_all()
    for page in sorted(DOCS.glob("*.md")):
        before = page.read_text()
        if (after := filled(before, results)) != before:
            page.write_text(after)
            print(f"{page.name} has new tables")

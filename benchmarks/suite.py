"""Run all benchmarks, each in its own process, and write their results to one file.

    python benchmarks/suite.py [--full] [--only losses,images] [--out FILE]

Without flags, it takes about 20 minutes on two cores and writes `benchmarks/results/bench.json`. --full adds the long parts
(CUB-200-2011 from the folder in LIFTEDSTRUCT_DATA, Recall@K of a million rows, scikit-learn's bisection, the report of 60,502
images), takes about an hour and writes `bench-full.json`. --only replaces the named benchmarks in the file and keeps the
others, provided that the file is from the same machine and versions. A failing benchmark is recorded as failed, the others
still run, and the exit code is 1. The printed output goes to `build/benchmarks/`. Run `python docs/tables.py` afterward to
update the docs.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from liftedstruct.runtime.checks import pick
from machine import describe_machine
from records import Record, Results, cells, read_record, read_results

__all__ = ["FILES", "SUITE", "Benchmark", "main", "run_suite"]

HERE = Path(__file__).parent
FILES = {False: HERE / "results" / "bench.json", True: HERE / "results" / "bench-full.json"}  # by full


@dataclass(frozen=True)
class Benchmark:
    """A script and its flags in the short and in the full run."""

    script: Path
    short: tuple[str, ...] = ()
    full: tuple[str, ...] = ()


SUITE = {
    "losses": Benchmark(HERE / "losses.py"),
    "images": Benchmark(HERE / "images.py"),
    "products": Benchmark(HERE / "products.py"),
    "evaluation": Benchmark(HERE / "evaluation.py", ("--rounds", "2"), ("--million", "--birds", "--bisection")),
    "embedding": Benchmark(HERE / "embedding.py", ("--parts", "speed")),
    "training": Benchmark(HERE / "training.py", *2 * (("--parts", "step", "caching"),)),  # embedding has its own script
    "catalog": Benchmark(HERE / "catalog.py"),
    "report": Benchmark(HERE / "report.py", ("--images", "5000")),
    "explorer": Benchmark(HERE / "explorer.py", ("--items", "60502")),
    "service": Benchmark(HERE / "service.py", ("--parts", "load"), ("--minutes", "2")),
    "review": Benchmark(HERE / "review.py", ("--sets", "products")),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="also run the long parts")
    parser.add_argument("--only", help=f"comma-separated subset of {','.join(SUITE)}")
    parser.add_argument("--out", type=Path, help="results file (default: in benchmarks/results/)")
    options = parser.parse_args(arguments)
    only = None if options.only is None else options.only.split(",")
    try:
        for name in only or ():
            pick(SUITE, name, "a benchmark of --only")
    except ValueError as error:
        parser.error(str(error))
    try:
        measured = run_suite(SUITE, options.out or FILES[options.full], full=options.full, only=only)
    except ValueError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbenchmarks: interrupted, nothing was written", file=sys.stderr)
        return 1
    return int(any(record.failed for record in measured.values()))


def run_suite(
    suite: Mapping[str, Benchmark],
    file: Path,
    *,
    full: bool = False,
    only: Iterable[str] | None = None,
    logs: Path = HERE.parent / "build" / "benchmarks",
) -> dict[str, Record]:
    """Run benchmarks, print their tables, and write and return their records.

    Args:
        suite: benchmarks by name.
        file: results file to write; with `only`, its other records are kept.
        full: also run the long parts.
        only: names of the benchmarks to run. Default: all.
        logs: folder for the printed output, created if missing.

    """
    chosen = suite if only is None else {name: suite[name] for name in only}
    machine, kept = describe_machine(), {}
    if only is not None and file.exists():
        before = read_results(file)
        if difference := machine.difference(before.machine):
            raise ValueError(
                f"{file.name} must be from this machine and these versions to keep parts of it, but {difference}. "
                "Run all benchmarks, or write to another file."
            )
        kept = dict(before.records)
    logs.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    measured = {name: run_one(name, benchmark, full, logs / f"{name}.txt") for name, benchmark in chosen.items()}
    records = {**kept, **measured}
    order = [*(name for name in suite if name in records), *(name for name in records if name not in suite)]
    Results(machine, {name: records[name] for name in order}).write(file)
    print(f"\n{machine}")
    for name, record in measured.items():
        print("\n".join(lines(name, record)))
    print(f"\n{len(measured)} benchmarks in {(time.perf_counter() - begin) / 60:.1f} minutes, written to {file.name}")
    return measured


def run_one(name: str, benchmark: Benchmark, full: bool, log: Path) -> Record:
    """Run one benchmark in its own process and print a summary line."""
    print(f"{name:<12}", end=" ", flush=True)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, log.open("w") as printed:
        file = Path(folder) / "record.json"
        command = [sys.executable, str(benchmark.script), *(benchmark.full if full else benchmark.short), "--json", str(file)]
        code = subprocess.run(command, stdout=printed, stderr=subprocess.STDOUT, check=False).returncode
        if code == 0 and file.exists():
            record = read_record(file)
        else:
            record = Record(failed=f"ended by signal {-code}" if code < 0 else f"exit code {code}")
    record = replace(record, date=date.today().isoformat(), seconds=time.perf_counter() - begin)
    if record.failed:
        last = (log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
        print(f"{record.seconds:6.0f} s  FAILED ({record.failed}): {last}; full output in {log}")
    else:
        print(f"{record.seconds:6.0f} s  {verdict(record)}")
    for skipped in record.skipped:
        print(f"{'':<12} skipped {skipped}")
    return record


def verdict(record: Record) -> str:
    """Return the number of rows and targets, and the missed targets."""
    rows, missed = (
        sum(len(section.rows) for section in record.sections),
        [target for target in record.targets if not target.met],
    )
    text = f"{rows} rows, {len(record.targets) - len(missed)} of {len(record.targets)} targets met"
    return "; MISSED: ".join([text, *(f"{each.value:.2f} {each.what} ({each.limit})" for each in missed)])


def lines(name: str, record: Record) -> Iterator[str]:
    """Yield the printed lines of one benchmark."""
    if record.failed:
        yield f"\n{name}: failed, {record.failed}"
    for section in record.sections:
        yield f"\n{name}: {section.title}"
        table = cells(section)
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for line in table:  # text left-aligned, numbers right-aligned
            padded = (f"{cell:{'>' if head else '<'}{width}}" for cell, head, width in zip(line, table[0], widths, strict=True))
            yield f"  {'  '.join(padded)}".rstrip()


if __name__ == "__main__":
    sys.exit(main())

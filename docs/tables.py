"""Write the measured numbers into README and the docs, from the files in `benchmarks/results/`.

    python docs/tables.py

A document marks each place with a pair of comments. The text between them is generated:

    <!-- results: KEY --> ... <!-- end -->

| key | generated |
|---|---|
| `benchmark / section` | table of one section of `bench.json` or `bench-full.json` |
| `benchmark / section / row` | one value, inline; with ` / baseline` the baseline's, with ` / baseline / ratio` the ratio |
| `summary` | table of the rows in `SUMMARY`, with one baseline each |
| `all` | every section of both files |
| `machine` | command, dates and machine of `bench.json` |
| `scores NAME: column | column | ...` | test scores in `scores-NAME.json`, by `benchmarks/scores.py`; also NAME+NAME |
| `rows NAME` | the rows of `NAME.json` |
| `trials` | all trials of the first recipe search, `recipe.jsonl` |
| `choices`, `first choices` | trials of the recipe on several datasets, `choices.jsonl` |

Sections that have not been measured keep their text. A test fails if a document differs from the results.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.append(str(DOCS.parent / "benchmarks"))

from liftedstruct.figures.style import method_name  # noqa: E402
from records import Record, Results, Row, Section, cells, format_number, read_results  # noqa: E402

__all__ = ["DOCUMENTS", "PLACE", "RESULTS", "fill", "read_all"]

DOCUMENTS = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
RESULTS = DOCS.parent / "benchmarks" / "results"
COMMANDS = {"make bench": "bench.json", "make bench-full": "bench-full.json"}  # the first file with a section wins
PLACE = re.compile(r"(<!-- results: (.+?)\s-->)(.*?)(<!-- end -->)", flags=re.DOTALL)
TRUNKS = {"efficientnet_lite0": "EfficientNet-Lite0", "googlenet": "GoogLeNet", "vit_small": "ViT-S"}
DATASETS = {"cub-default": "CUB-200-2011", "cars": "CARS196"}  # by the name of the scores
SUMMARY = {  # label: benchmark / section / row / baseline
    "lifted loss, forward and backward, m = 128": "losses / k = 4 images per class / m = 128 / pytorch-metric-learning",
    "lifted loss, forward and backward, m = 512": "losses / k = 4 images per class / m = 512 / pytorch-metric-learning",
    "Recall@{1, 10, 100, 1000}, 60,502 x 512": (
        "evaluation / Recall@K of 60,502 x 512 / K = 1, 10, 100, 1,000 / faiss, k = 1001"
    ),
    "affinity propagation, 5,924 points, one iteration": (
        "evaluation / affinity propagation, 5,924 points, synthetic / one iteration / scikit-learn"
    ),
    "Recall@1 of 10,000 queries in 1,000,000 x 64": (
        "catalog / local store, 1,000,000 x 64 / Recall@1 of 10,000 queries / faiss, k = 1"
    ),
    "embedding, EfficientNet-Lite0, 224 px": (
        "embedding / efficientnet_lite0, 224 x 224, batches of 64, images/s, medians of 5 rounds of 256 images / embed / "
        "plain PyTorch loop"
    ),
}


def fill(document: str, folder: Path = RESULTS) -> str:
    """Return a document with its numbers regenerated."""
    results = read_all(folder)

    def generate(found: re.Match[str]) -> str:
        begin, key, old, end = found.groups()
        text = resolve(key.strip(), results, folder)
        inline = "\n" not in old and old != ""
        return begin + (old if not text else text if inline else f"\n\n{text}\n\n") + end

    return PLACE.sub(generate, document)


def read_all(folder: Path = RESULTS) -> dict[str, Results]:
    """Read the benchmark results, keyed by the command that wrote them."""
    return {command: read_results(folder / name) for command, name in COMMANDS.items() if (folder / name).exists()}


def resolve(key: str, results: Mapping[str, Results], folder: Path) -> str:
    """Return the text for a key; empty if it has not been measured."""
    kind, _, rest = key.partition(" ")
    if key == "all":
        return "\n".join(everything(results))
    if key == "machine":
        return caption(*next(iter(results.items()))) if results else ""
    if key == "summary":
        return summary(results)
    if kind == "scores":
        name, _, columns = rest.partition(": ")
        names = name.split("+")
        return scores_table(
            {each: json.loads((folder / f"scores-{each}.json").read_text()) for each in names}, columns.split(" | ")
        )
    if kind == "rows":
        content = json.loads((folder / f"{rest}.json").read_text())
        rows = [list(content["rows"][0]), *([str(value) for value in row.values()] for row in content["rows"])]
        return "\n".join([*markdown(rows), "", content.get("note", "")]).strip()
    if key == "trials":
        from recipe import read_trials, table

        return table(read_trials(folder / "recipe.jsonl"))
    if key in ("choices", "first choices"):
        import choices

        return choices.table(choices.read_trials(folder / "choices.jsonl"), recent=key == "choices")
    return lookup(key, results)


def lookup(key: str, results: Mapping[str, Results]) -> str:
    """Return a section as a table with its machine, or one value of it."""
    name, title, *path = key.split(" / ")
    for command, each in results.items():
        for section in each.records.get(name, Record()).sections:
            if section.title == title:
                if not path:
                    return "\n".join([*markdown(cells(section)), "", caption(command, each, name)])
                return value_of(find_row(section, path[0]), *path[1:])
    if len(results) == len(COMMANDS):
        raise ValueError(f"a key must name a benchmark and one of its sections, got {key!r}. See the titles in benchmarks.md.")
    return ""


def find_row(section: Section, what: str) -> Row:
    rows = {row.what: row for row in section.rows}
    if what not in rows:
        raise ValueError(f"a key must name a row of {section.title!r}, one of {', '.join(rows)}, got {what!r}.")
    return rows[what]


def value_of(row: Row, baseline: str = "", ratio: str = "") -> str:
    """Return a row's own value, a baseline's value, or the ratio to it."""
    if not baseline:
        return f"{format_number(row.ours)} {row.unit}"
    baselines = {each.name: each for each in row.baselines}
    if baseline not in baselines:
        raise ValueError(f"a key must name a baseline of {row.what!r}, one of {', '.join(baselines)}, got {baseline!r}.")
    other = baselines[baseline]
    value = other.ratio if ratio else other.value
    return "" if value is None else format_number(value) + ("" if ratio else f" {row.unit}")


def summary(results: Mapping[str, Results]) -> str:
    """Return a table of the rows in `SUMMARY`; empty if one of them has not been measured."""
    rows = [["", "liftedstruct", "baseline", "", "ratio"]]
    for label, key in SUMMARY.items():
        *row, baseline = key.split(" / ")
        keys = " / ".join(row), key, f"{key} / ratio"
        ours, theirs, ratio = (lookup(each, results) for each in keys)
        if not ours:
            return ""
        rows.append([label, ours, baseline, theirs, ratio])
    return "\n".join([*markdown(rows, left=(0, 2)), "", caption(*next(iter(results.items())))])


def caption(command: str, results: Results, name: str = "") -> str:
    """Return the command, date and machine of a table."""
    records = [results.records[name]] if name else results.records.values()
    dates = sorted({record.date for record in records})
    machine = results.machine
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return f"`{command}`, {when}: {machine.processor}, {machine.cores} cores, torch {machine.versions.get('torch', '')}."


def scores_table(contents: Mapping[str, Any], columns: list[str]) -> str:
    """Return test scores in percent, the first with its 95 % interval, and the difference in Recall@1 from the best row."""
    header = ["", "dim", *columns, "vs. best (p)"]
    rows = [header]
    for name, row in ((name, row) for name, content in contents.items() for row in content["rows"]):
        what = DATASETS[name] if len(contents) > 1 else TRUNKS.get(row["trunk"], row["trunk"])
        label = f"{what}, {method_name(row['loss'])}"
        values = [f"{100 * row['metrics'][column][0]:.1f}" for column in columns]
        _, low, high = row["metrics"][columns[0]]
        values[0] += f" ({100 * low:.1f} to {100 * high:.1f})"
        below, _, _, p = row["below_best"]
        p_value = "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
        versus = "" if below == 0 else f"{-100 * below:.1f} ({p_value})".replace("-", "−")
        rows.append([label, f"{row['dim']:,}", *values, versus])
    short = [re.sub("^Recall(?=@(?!1$))", "", head.removesuffix(", affinity")) for head in header]
    notes = dict.fromkeys(note for content in contents.values() for note in content["note"].split(" | "))
    return "\n".join([*markdown([short, *rows[1:]]), "", " ".join(notes)])


def everything(results: Mapping[str, Results]) -> Iterator[str]:
    """Yield all results; from the second file only what the first does not have."""
    if not results:
        yield "Not measured yet: run `make bench`."
    seen: set[object] = set()
    for number, (command, each) in enumerate(results.items()):
        yield f"{'' if number == 0 else chr(10)}## `{command}`{', additional results' * bool(number)}\n"
        yield f"{each.machine}."
        for name, record in each.records.items():
            new = [section for section in record.sections if (name, shape(section)) not in seen]
            seen |= {(name, shape(section)) for section in new}
            if new or record.failed:
                yield f"\n### {name}\n"
                yield about(name, record)
            for section in new:
                yield f"\n**{section.title}**\n"
                yield from markdown(cells(section))


def shape(section: Section) -> object:
    """Return what a section compares, without the numbers."""
    return section.title, tuple((row.what, tuple(each.name for each in row.baselines)) for row in section.rows)


def about(name: str, record: Record) -> str:
    """Return settings, date and duration of a benchmark and its missed targets."""
    if record.failed:
        return f"`benchmarks/{name}.py` failed: {record.failed}."
    settings = ", ".join(
        f"{key} {' '.join(map(str, value)) if isinstance(value, list) else value}" for key, value in record.settings.items()
    )
    missed = [target for target in record.targets if not target.met]
    sentences = [
        f"`benchmarks/{name}.py`{f' ({settings})' if settings else ''}, {record.date}",
        *([f"{record.seconds:.0f} s"] if record.seconds else ()),
        f"{len(record.targets) - len(missed)} of {len(record.targets)} targets met",
        *(f"Missed: {each.value:.2f} {each.what} ({each.limit})" for each in missed),
        *(f"Skipped: {skipped}" for skipped in record.skipped),
    ]
    return ". ".join(sentences) + "."


def markdown(rows: list[list[str]], left: tuple[int, ...] = ()) -> Iterator[str]:
    """Yield a Markdown table; the first column and those in `left` (default: those without a header) are left-aligned."""
    header, *body = rows
    yield line(header)
    aligned = ("---" if i in left or (not word and not left) or i == 0 else "---:" for i, word in enumerate(header))
    yield f"|{'|'.join(aligned)}|"
    yield from map(line, body)


def line(words: list[str]) -> str:
    return re.sub(" +", " ", f"| {' | '.join(words)} |")


if __name__ == "__main__":
    for document in DOCUMENTS:
        before = document.read_text()
        if (after := fill(before)) != before:
            document.write_text(after)
            print(f"{document.name}: updated")

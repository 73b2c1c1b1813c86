"""What came out of some trainings, as a table and in plain words."""

from collections.abc import Sequence

import numpy as np

from liftedstruct.evaluation import compare
from liftedstruct.figures import EvaluatedRun, Published, published_like
from liftedstruct.figures.style import METHOD_NAMES
from liftedstruct.report import words

__all__ = ["COLUMNS", "summary"]

COLUMNS = {"Recall@1": "Recall@1", "NMI, affinity": "NMI", "F1, affinity": "F1"}
NONE = "none"
MEANING = (
    "Recall@1: how often the nearest image is of the same class. NMI and F1: how well clusters, as many as there are classes, "
    "match the classes."
)


def summary(runs: Sequence[EvaluatedRun], published: Sequence[Published] | None = None) -> str:
    """A table of runs, and below it who is ahead of whom.

    Args:
        runs: as :func:`liftedstruct.report.run_results.read_runs` gives them; the first trained one is compared with the others
            of its size and seed, and stands last in the table.
        published: what others report for the data; a column has it beside the runs of the same loss and size, or says that
            there is none. Without it there is no such column.

    """
    first, _ = words.main_and_baseline(runs)
    warnings = [f"Beware: {warning}" for warning in dict.fromkeys(warning for run in runs for warning in run.warnings)]
    lines = [*_table(runs[::-1], published), "", *_in_words(first, runs), "", MEANING, _protocol(first), *warnings]
    return "\n".join(lines)


def _table(runs: Sequence[EvaluatedRun], published: Sequence[Published] | None) -> list[str]:
    """A line for each loss and size; where there are several seeds, their mean and from where to where they go."""
    groups: dict[tuple[str, int], list[EvaluatedRun]] = {}
    for run in runs:
        groups.setdefault((run.method, run.size), []).append(run)
    rows = [["", "dim", *COLUMNS.values(), *(["published Recall@1"] if published is not None else [])]]
    for (method, size), group in groups.items():
        cells = [METHOD_NAMES.get(method, method), f"{size:,}"]
        cells += [_mean([run.scores.measures[measure].value for run in group]) for measure in COLUMNS]
        if published is not None:
            cells.append(_published(method, size, published))
        rows.append(cells)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = (0, len(COLUMNS) + 2)  # columns of words
    return ["  ".join(_cell(text, widths[at], at in left) for at, text in enumerate(row)).rstrip() for row in rows]


def _cell(text: str, width: int, left: bool) -> str:
    return text.ljust(width) if left else text.rjust(width)


def _mean(values: Sequence[float]) -> str:
    text = f"{100 * np.mean(values):.1f} %"
    return text if len(values) == 1 else f"{text} ({100 * min(values):.1f} to {100 * max(values):.1f})"


def _published(method: str, size: int, published: Sequence[Published]) -> str:
    rows = published_like(published, method, size)
    texts = [f"{100 * row.recall[1]:.1f} % ({row.trunk}; {row.source})" for row in rows]
    return "; ".join(texts) or NONE


def _in_words(first: EvaluatedRun, runs: Sequence[EvaluatedRun]) -> list[str]:
    """Who finds the right class how often, and whether chance could explain the differences."""
    others = [run for run in runs if run is not first and _comparable(first, run)]
    untrained = next((run for run in others if not run.trained), None)
    against = compare(first.scores, untrained.scores) if untrained else None
    lines = [words.headline(first, untrained, against)]
    for run in others:
        if run is untrained:
            continue
        difference = compare(first.scores, run.scores).differences["Recall@1"]
        p, name = words.p_text(difference.p), words.display_name(run)
        if difference.p >= words.SIGNIFICANCE:
            lines.append(f"Between it and {name} no difference is shown ({100 * difference.value:+.1f} points, {p}).")
        else:
            lines.append(f"It is {words.points(difference)} {name} ({p}).")
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _comparable(first: EvaluatedRun, run: EvaluatedRun) -> bool:
    """Whether two runs differ in the training alone: of one size and seed, or one of them not trained."""
    if run.config is None or first.config is None:
        return True
    return (run.size, run.config.seed) == (first.size, first.config.seed)


def _protocol(run: EvaluatedRun) -> str:
    """How the scores were made, in a sentence."""
    asked, protocol, seen = len(np.unique(run.labels)), run.protocol, run.seen
    unseen = "" if seen and seen.any else " that no training has read"
    return (
        f"{len(run):,} test images of {asked:,} classes{unseen}, {protocol['size']} px ({protocol['resize_mode']}), "
        f"one center crop of {protocol['crop']} px, Euclidean distance, affinity propagation to {asked:,} clusters; "
        f"trunk {protocol['trunk']}; p paired over the classes."
    )

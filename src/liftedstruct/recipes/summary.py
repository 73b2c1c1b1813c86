"""Summary of evaluated runs as text: a table, comparisons, and the evaluation protocol."""

from collections.abc import Sequence

import numpy as np

from liftedstruct.evaluation import compare
from liftedstruct.figures import EvaluatedRun, Published, published_like
from liftedstruct.report import words

__all__ = ["COLUMNS", "summary"]

COLUMNS = {"Recall@1": "Recall@1", "NMI, affinity": "NMI", "F1, affinity": "F1"}
NONE = "none"
MEANING = (
    "Recall@1: share of images whose nearest neighbor is of the same class. NMI and F1: agreement of clusters with classes, "
    "with as many clusters as classes."
)


def summary(runs: Sequence[EvaluatedRun], published: Sequence[Published] | None = None) -> str:
    """Return a table of the runs, comparisons with the best run, and the evaluation protocol, as text.

    Args:
        runs: result of `read_runs`. The trained run with the highest Recall@1 is compared with the others of its dimension and
            seed. The table lists the runs in reverse order.
        published: published results on the dataset, shown in a column next to runs of the same loss and dimension. Default: no
            such column.

    """
    main, _ = words.main_and_baseline(runs)
    warnings = [f"Warning: {warning}" for warning in dict.fromkeys(warning for run in runs for warning in run.warnings)]
    lines = [*_table(runs[::-1], published), "", *_comparisons(main, runs), "", MEANING, _protocol(main), *warnings]
    return "\n".join(lines)


def _table(runs: Sequence[EvaluatedRun], published: Sequence[Published] | None) -> list[str]:
    """Return the lines of the table, one per loss and dimension. Several seeds show their mean and range."""
    groups: dict[tuple[str, int], list[EvaluatedRun]] = {}
    for run in runs:
        groups.setdefault((run.method, run.size), []).append(run)
    rows = [["", "dim", *COLUMNS.values(), *(["published Recall@1"] if published is not None else [])]]
    for (method, size), group in groups.items():
        cells = [group[0].label, f"{size:,}"]
        cells += [_mean([run.scores.metrics[metric].value for run in group]) for metric in COLUMNS]
        if published is not None:
            cells.append(_published(method, size, published))
        rows.append(cells)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = (0, len(COLUMNS) + 2)  # columns of text
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


def _comparisons(main: EvaluatedRun, runs: Sequence[EvaluatedRun]) -> list[str]:
    """Compare Recall@1 of the best run with the other runs, one sentence per run."""
    others = [run for run in runs if run is not main and _comparable(main, run)]
    _, baseline = words.main_and_baseline([main, *others])
    against = compare(main.scores, baseline.scores) if baseline else None
    lines = [words.headline(main, baseline, against)]
    for run in others:
        if run is baseline:
            continue
        difference = compare(main.scores, run.scores).differences["Recall@1"]
        p, name = words.p_text(difference.p), words.display_name(run)
        if difference.p >= words.SIGNIFICANCE:
            lines.append(f"There is no significant difference from {name} ({100 * difference.value:+.1f} points, {p}).")
        else:
            lines.append(f"It is {words.points(difference)} {name} ({p}).")
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _comparable(main: EvaluatedRun, run: EvaluatedRun) -> bool:
    """Return whether two runs have the same dimension and seed, or one of them was not trained."""
    if run.config is None or main.config is None:
        return True
    return (run.size, run.config.seed) == (main.size, main.config.seed)


def _protocol(run: EvaluatedRun) -> str:
    """Describe the evaluation protocol in a sentence."""
    n_classes, protocol, seen = len(np.unique(run.labels)), run.protocol, run.seen
    unseen = "" if seen and seen.any else " not seen in training"
    return (
        f"{len(run):,} test images of {n_classes:,} classes{unseen}, {protocol['size']} px ({protocol['resize_mode']}), "
        f"one center crop of {protocol['crop']} px, Euclidean distance, affinity propagation to {n_classes:,} clusters; "
        f"trunk {protocol['trunk']}; p-values from paired tests over classes."
    )

"""What the report says in words: the finding first, then what each figure shows and how all of it was made."""

import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from liftedstruct import __version__
from liftedstruct.embedder import Seen
from liftedstruct.evaluation import TEST_EVALUATIONS, Comparison, Difference, count_test_evaluations
from liftedstruct.figures import EvaluatedRun
from liftedstruct.figures.style import COLORS, METHOD_NAMES

__all__ = [
    "SIGNIFICANCE",
    "display_name",
    "headline",
    "introduction",
    "main_and_baseline",
    "p_text",
    "percent",
    "points",
    "protocol",
    "recall_finding",
    "single_run_figures",
    "training_finding",
]

LONGEST = 60  # characters of a run's name
SIGNIFICANCE = 0.05  # a difference with a smaller p is called one


def display_name(run: EvaluatedRun) -> str:
    """What to call a run in a sentence; a very long name loses its end."""
    name = run.name.replace(run.method, METHOD_NAMES.get(run.method, run.method), 1)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def percent(share: float) -> str:
    """A share in percent, to a tenth, on one line."""
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def p_text(p: float) -> str:
    """A p that claims no more digits than it has.

    >>> [p_text(p).replace("\N{NO-BREAK SPACE}", " ") for p in (0.0001, 0.0123, 0.3)]
    ['p < 0.001', 'p = 0.012', 'p = 0.30']
    """
    text = "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def main_and_baseline(runs: Sequence[EvaluatedRun]) -> tuple[EvaluatedRun, EvaluatedRun | None]:
    """The run that the report is about, the first trained one, and the one it is compared with: an untrained one if any."""
    first = next((run for run in runs if run.trained), runs[0])
    others = [run for run in runs if run is not first]
    return first, next((run for run in others if not run.trained), others[0] if others else None)


def headline(run: EvaluatedRun, other: EvaluatedRun | None, comparison: Comparison | None) -> str:
    """What was found, in a sentence."""
    scores = run.scores
    asked = scores.ranks > 0  # the others are alone in their class
    of = f"of {len(np.unique(run.labels[asked])):,} classes{_seen(run.seen)}"
    name = display_name(run)
    name = name[:1].upper() + name[1:] if run.method in COLORS else name
    found = f"{name} finds the right class first for {percent(scores.recall[1].value)} of {asked.sum():,} images {of}"
    if other is None or comparison is None:
        return f"{found}."
    difference = comparison.differences["Recall@1"]
    against = display_name(other) + (_seen(other.seen) if other.seen and other.seen.any else "")
    if difference.p >= SIGNIFICANCE:
        return f"{found}; no significant difference to {against} ({percent(difference.b)}, {p_text(difference.p)})."
    return f"{found}, {points(difference)} {against} ({p_text(difference.p)})."


def _seen(seen: Seen | None) -> str:
    """Whether a run was trained on what it is measured on, as far as a record tells."""
    if seen is None:
        return ""
    if seen.classes == seen.n_classes:
        return " that it was trained on"
    if seen.any:
        return f" (seen in training: {seen})"
    return " that it has never seen"


def points(difference: Difference) -> str:
    """How far one run is above or below another, in words."""
    return f"{abs(100 * difference.value):.1f} points {'above' if difference.value > 0 else 'below'}"


def introduction(runs: Sequence[EvaluatedRun]) -> str:
    """What is in the report."""
    first = runs[0]
    many = "One run" if len(runs) == 1 else f"{len(runs):,} runs, each"
    images = f"all {len(first):,} images" if first.part == "all" else f"the {len(first):,} {first.part} images"
    text = f"{many} on {images} of {first.dataset or 'an unnamed dataset'}."
    if first.part != "test":
        return text
    readings = count_test_evaluations(Path(first.data), first.protocol.get("checksum"))
    if readings is None:
        return f"{text} How often these test classes were read cannot be told, the data is no longer there."
    times = {0: "not been read by any evaluation that was noted", 1: "been read once"}
    read = times.get(readings, f"been read {readings:,} times")
    return f"{text} These test classes have {read} so far; whoever reads them often ends up choosing by them."


def recall_finding(runs: Sequence[EvaluatedRun]) -> str:
    """Recall@K at both ends, for each run."""
    ends = []
    for run in runs:
        (k, low), (K, high) = min(run.scores.recall.items()), max(run.scores.recall.items())
        more = f", {percent(high.value)} at K = {K:,}" if k < K else ""
        ends.append(f"{display_name(run)} {percent(low.value)} at K = {k:,}{more}")
    return f"The share of images that have one of their class among the K nearest: {'; '.join(ends)}."


def training_finding(runs: Sequence[EvaluatedRun]) -> str:
    """How the loss and the validation score went."""
    texts = []
    for run in runs:
        losses = [line["loss"] for line in run.log if line.get("loss") is not None]
        recalls = [(line["recall_at_1"], line["step"]) for line in run.log if line.get("recall_at_1") is not None]
        parts = []
        if losses:
            parts.append(f"the loss went from {losses[0]:.3g} to {losses[-1]:.3g}")
        if recalls:
            best, step = max(recalls, key=lambda each: (each[0], -each[1]))
            parts.append(
                f"Recall@1 on the validation classes from {percent(recalls[0][0])} to {percent(best)} at step {step:,}"
            )
        if parts:
            texts.append(f"{display_name(run)}: {', '.join(parts)}")
    return f"{'; '.join(texts)}." if texts else ""


def single_run_figures(run: EvaluatedRun) -> dict[str, tuple[str, str]]:
    """The figures that there is something to draw for, of one run: {kind: (title, finding)}."""
    figures = {"histogram": ("Distances", _distances(run))}
    wrong = _confusions(run)
    if wrong:
        figures["confusions"] = ("Which classes it mixes up", wrong)
    if (np.bincount(run.labels) > 1).sum() > 1:
        figures["microscope"] = ("What the loss sees", _microscope(run))
    return figures


def _distances(run: EvaluatedRun) -> str:
    nearest, right = run.nearest[0][:, 0], run.scores.ranks == 1
    parts = [
        f"{np.median(nearest[where]):.3g} where that is of {what}"
        for what, where in (("the same class", right), ("another class", ~right))
        if where.any()
    ]
    return (
        "Images of one class should lie nearer to each other than to those of other classes. The median distance to the "
        f"nearest image is {' and '.join(parts)}."
    )


def _confusions(run: EvaluatedRun) -> str:
    """The most frequent confusion, in words; empty if there is none."""
    nearest, asked = run.labels[run.nearest[1][:, 0]], run.scores.ranks > 0  # an image alone in its class cannot be right
    wrong = asked & (nearest != run.labels)
    if not wrong.any():
        return ""
    both = np.sort(np.stack((run.labels[wrong], nearest[wrong])), axis=0)  #                          (2, w)
    pairs, counts = np.unique(both, axis=1, return_counts=True)
    one, two = (run.class_names[label] for label in pairs[:, counts.argmax()])
    times = f"{counts.max():,} times" if counts.max() > 1 else "once"
    return (
        f"For {wrong.sum():,} of {asked.sum():,} images the nearest one is of another class; the pair that is mixed up most "
        f"often is {one} and {two}, {times}."
    )


def _microscope(run: EvaluatedRun) -> str:
    seen = run.microscope()
    n, active = len(seen.pairs), f"{100 * seen.active_share:.0f} %"
    divided = f", divided by the temperature {run.temperature:g}" if run.temperature != 1 else ""
    return (
        f"The lifted loss on {2 * n:,} of these images{divided}, two of each of {n:,} classes: {active} of the "
        f"positive pairs are active, positives are {seen.positive_distance:.3g} apart on average and negatives "
        f"{seen.negative_distance:.3g}, and {seen.effective_negatives.mean().item():.3g} negatives share the push of an image. "
        f"Its value is {seen.loss:.3g}; if all embeddings were one point it would be {seen.collapsed_loss:.3g}."
    )


def protocol(runs: Sequence[EvaluatedRun]) -> list[tuple[str, list[str]]]:
    """How everything was made: a label and a text for each run, line by line; the scores' protocol, then the training."""
    names = dict.fromkeys(name for run in runs for name in run.scores.protocol if name != TEST_EVALUATIONS)
    rows = [
        (name[:1].upper() + name[1:].replace("_", " "), [run.scores.protocol.get(name, "") for run in runs]) for name in names
    ]
    rows += [(label, [line(run) for run in runs]) for label, line in TRAINING_LINES.items()]
    now = f"liftedstruct {__version__}, Python {platform.python_version()}, torch {torch.__version__}, NumPy {np.__version__}"
    rows.append(("This report", [f"{now}; {_time(datetime.now(UTC).timestamp())}"] * len(runs)))
    return [(label, texts) for label, texts in rows if any(texts)]


def _loss(run: EvaluatedRun) -> str:
    if run.config is not None:
        return run.method
    return "trained, the file does not say how" if run.trained else "not trained"


def _settings(run: EvaluatedRun) -> str:
    """All settings of the training but its paths."""
    settings = vars(run.config) if run.config else {}
    return ", ".join(f"{name}={value}" for name, value in settings.items() if name not in ("data", "out") and value is not None)


def _training(run: EvaluatedRun) -> str:
    if run.config is None:
        return ""
    images = f" on {run.record['images']:,} images" if "images" in run.record else ""
    minutes = "less than a minute" if run.minutes < 1 else f"about {run.minutes:,.0f} minutes"
    return f"{run.steps:,} of {run.config.steps:,} steps{images}, {minutes}"


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%d %B %Y, %H:%M} UTC"


TRAINING_LINES: dict[str, Callable[[EvaluatedRun], str]] = {
    "Run": lambda run: str(run.file.parent if run.config else run.file),
    "Loss": _loss,
    "Training": _training,
    "Settings": _settings,
    "torch, processor": lambda run: ", ".join(str(run.record[key]) for key in ("torch", "processor") if key in run.record),
    "Embedded": lambda run: _time(run.file.stat().st_mtime),
}

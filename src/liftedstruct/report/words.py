"""What the page says in words: the finding first, then what each picture shows and how all of it was made."""

import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import torch

from liftedstruct import __version__
from liftedstruct.embedder import OF, SEEN, Seen
from liftedstruct.evaluation import Comparison, Difference, Scores
from liftedstruct.evaluation.saved import READINGS
from liftedstruct.figures.style import COLORS, METHOD_NAMES
from liftedstruct.report.run_results import Run

__all__ = [
    "LEAST",
    "Row",
    "chosen",
    "headline",
    "lead",
    "name_of",
    "of_one",
    "p_text",
    "percent",
    "points",
    "protocol",
    "recall_finding",
    "training_finding",
]

LONGEST = 60  # characters of a run's name
LEAST = 0.05  # a difference with a smaller p is called one


class Row(NamedTuple):
    """A line of what was run: one text for each run, or one for all."""

    label: str
    texts: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether all runs have the same text."""
        return len(set(self.texts)) == 1


def name_of(run: Run) -> str:
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


def chosen(runs: Sequence[Run]) -> tuple[Run, Run | None]:
    """The run that the page is about, the first that was trained, and the one it is measured by: an untrained one if any."""
    first = next((run for run in runs if run.trained), runs[0])
    others = [run for run in runs if run is not first]
    return first, next((run for run in others if not run.trained), others[0] if others else None)


def headline(run: Run, other: Run | None, comparison: Comparison | None) -> str:
    """What was found, in a sentence."""
    scores = run.scores
    asked = scores.ranks > 0  # the others are alone in their class
    classes = f"{len(np.unique(run.labels[asked])):,}"
    of = f"of {classes} classes{_seen(run.found.seen)}"
    name = name_of(run)[:1].upper() + name_of(run)[1:] if run.method in COLORS else name_of(run)
    found = f"{name} finds the right class first for {percent(scores.recall[1].value)} of {asked.sum():,} images {of}"
    if other is None or comparison is None:
        return f"{found}."
    difference = comparison.differences["Recall@1"]
    against = name_of(other) + (_seen(other.found.seen) if other.found.seen and other.found.seen.any else "")
    if difference.p >= LEAST:
        return f"{found}; a difference to {against} is not shown ({percent(difference.b)}, {p_text(difference.p)})."
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


def lead(runs: Sequence[Run]) -> str:
    """What is on the page."""
    first = runs[0]
    many = "One run" if len(runs) == 1 else f"{len(runs):,} runs, each"
    part = {"all": "training and test"}.get(first.part, first.part)
    text = f"{many} on the {len(first):,} {part} images of {first.data or 'a data set without a name'}."
    if first.part != "test":
        return text
    if first.readings is None:
        return f"{text} How often these test classes were read cannot be told, the data is no longer there."
    times = {0: "not been read by any evaluation that was noted", 1: "been read once"}
    read = times.get(first.readings, f"been read {first.readings:,} times")
    return f"{text} These test classes have {read} so far; whoever reads them often ends up choosing by them."


def recall_finding(runs: Sequence[Run]) -> str:
    """Recall@K at both ends, for each run."""
    ends = []
    for run in runs:
        (k, low), (K, high) = min(run.scores.recall.items()), max(run.scores.recall.items())
        more = f", {percent(high.value)} at K = {K:,}" if k < K else ""
        ends.append(f"{name_of(run)} {percent(low.value)} at K = {k:,}{more}")
    return f"The share of images that have one of their class among the K nearest: {'; '.join(ends)}."


def training_finding(runs: Sequence[Run]) -> str:
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
                f"Recall@1 on held-out training classes from {percent(recalls[0][0])} to {percent(best)} at step {step:,}"
            )
        if parts:
            texts.append(f"{name_of(run)}: {', '.join(parts)}")
    return f"{'; '.join(texts)}." if texts else ""


def of_one(run: Run) -> dict[str, tuple[str, str]]:
    """The figures that there is something to draw for, of one run: {kind: (title, finding)}."""
    figures = {"histogram": ("Distances", _distances(run))}
    sizes = np.unique(run.labels, return_counts=True)[1]
    wrong = _confusions(run)
    if wrong:
        figures["confusions"] = ("Which classes it mixes up", wrong)
    if (sizes > 1).sum() > 1:
        figures["microscope"] = ("What the loss sees", _microscope(run))
    return figures


def _distances(run: Run) -> str:
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


def _confusions(run: Run) -> str:
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


def _microscope(run: Run) -> str:
    seen = run.microscope()
    n, active = len(seen.pairs), f"{100 * seen.active_share:.0f} %"
    divided = f", divided by the temperature {run.temperature:g}" if run.temperature != 1 else ""
    return (
        f"The lifted loss on {2 * n:,} of these images{divided}, two of each of {n:,} classes: {active} of the "
        f"positive pairs are active, positives are {seen.positive_distance:.3g} apart on average and negatives "
        f"{seen.negative_distance:.3g}, and {seen.effective_negatives.mean().item():.3g} negatives share the push of an image. "
        f"Its value is {seen.loss:.3g}; if all embeddings were one point it would be {seen.collapsed_loss:.3g}."
    )


def protocol(runs: Sequence[Run]) -> list[Row]:
    """How everything was made, line by line."""
    rows = [Row(label, tuple(line(run) for run in runs)) for label, line in LINES.items()]
    lines = _evaluation_lines([run.scores for run in runs])
    rows += [Row(line.capitalize(), tuple(run.scores.protocol.get(line, "") for run in runs)) for line in lines]
    now = f"liftedstruct {__version__}, Python {platform.python_version()}, torch {torch.__version__}, NumPy {np.__version__}"
    rows.append(Row("This page", (f"{now}; {_time(datetime.now(UTC).timestamp())}",) * len(runs)))
    return [row for row in rows if any(row.texts)]


def _evaluation_lines(scores: Sequence[Scores]) -> list[str]:
    """What evaluate says of itself: the lines of the protocol after the number of classes."""
    lines: dict[str, None] = {}
    for each in scores:
        names = list(each.protocol)
        lines |= dict.fromkeys(name for name in names[names.index("classes") + 1 :] if name != READINGS)
    return list(lines)


def _of(run: Run, key: str) -> str:
    value = run.found.protocol.get(key)
    return "" if value is None else str(value)


def _trained_with(run: Run) -> str:
    if run.config is not None:
        temperature = f", temperature {run.config.temperature:g}" if run.config.temperature != 1 else ""
        return f"{run.method}, margin {run.config.margin:g}{temperature}"
    return "trained, the file does not say how" if run.trained else "not trained"


def _trunk(run: Run) -> str:
    form = _of(run, "form")
    return _of(run, "trunk") + (f", {form} form" if form else "")


def _batches(run: Run) -> str:
    config = run.config
    if config is None:
        return ""
    words = [
        f"{config.batches}, {config.batch_size} images",
        f"{config.images} of each class" if config.batches == "balanced" else "",
        f"crops of {config.train_crop} px" if config.train_crop not in (None, config.crop) else "",
        f"{config.least_area:.0%} to all of the image" if config.least_area else "",
        f"colours changed by up to {config.colour:.0%}" if config.colour else "",
        "mirrored" if config.mirror else "",
    ]
    return ", ".join(word for word in words if word)


def _optimizer(run: Run) -> str:
    config = run.config
    if config is None:
        return ""
    words = [
        f"{config.optimizer}, rate {config.lr:g}, {config.schedule}, weight decay {config.weight_decay:g}",
        f"moving average {config.average:g}" if config.average else "",
        f"{config.start_share:.0%} of the weights at the start" if config.start_share else "",
    ]
    return ", ".join(word for word in words if word)


def _training(run: Run) -> str:
    if run.config is None:
        return ""
    images = f" on {run.record['images']:,} images" if "images" in run.record else ""
    minutes = "less than a minute" if run.minutes < 1 else f"about {run.minutes:,.0f} minutes"
    return f"{run.steps:,} of {run.config.steps:,} steps{images}, {minutes}"


def _images(run: Run) -> str:
    return f"{len(run):,} of {len(np.unique(run.labels)):,} classes, {_of(run, 'size')} px, fit {_of(run, 'fit')}"


def _numbers(run: Run) -> str:
    wide = run.config.train_dim if run.config is not None else None
    return f"{run.size:,}" + (f", the principal components of {wide:,}" if wide not in (None, run.size) else "")


def _machine(run: Run) -> str:
    return ", ".join(str(run.record[key]) for key in ("torch", "processor") if key in run.record)


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%d %B %Y, %H:%M} UTC"


POOLED = {"average": "its average", "both": "its average and its maximum, added", "max": "its maximum"}
LINES: dict[str, Callable[[Run], str]] = {
    "Embeddings of": lambda run: _of(run, OF),
    "Seen in training": lambda run: _of(run, SEEN),
    "Run": lambda run: str(run.file.parent if run.config else run.file),
    "Trained with": _trained_with,
    "Trunk": _trunk,
    "Weights": lambda run: _of(run, "weights"),
    "Features of the last map": lambda run: POOLED.get(_of(run, "pool"), ""),
    "Numbers in an embedding": _numbers,
    "Normalised to length 1": lambda run: "yes" if run.found.protocol.get("normalised") else "no",
    "Crop": lambda run: f"centre, {_of(run, 'crop')} px",
    "Batches": _batches,
    "Optimizer": _optimizer,
    "Training": _training,
    "Seed": lambda run: str(run.config.seed) if run.config else "",
    "torch, processor": _machine,
    "Data": lambda run: f"{run.data}, {run.part} part, {run.found.data}",
    "Images": _images,
    "Checksum of the data": lambda run: _of(run, "checksum")[:16],
    "Embedded": lambda run: _time(run.file.stat().st_mtime),
}

"""Sentences of the report: headline, next step, findings of the figures, and protocol."""

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
from liftedstruct.figures.style import COLORS
from liftedstruct.training.run_folder import TRIAL
from liftedstruct.training.runs import REQUESTED

__all__ = [
    "SIGNIFICANCE",
    "display_name",
    "headline",
    "introduction",
    "local_path",
    "main_and_baseline",
    "next_step",
    "p_text",
    "percent",
    "points",
    "protocol",
    "recall_finding",
    "single_run_figures",
    "training_finding",
]

LONGEST = 60  # maximum characters of a run's name
SIGNIFICANCE = 0.05  # differences with a smaller p are significant
HIGH_RECALL = 0.9  # Recall@1 below which the dataset should be checked


def display_name(run: EvaluatedRun) -> str:
    """Return the name of a run for sentences and tables, truncated if it is very long."""
    name = run.name.replace(run.method, run.label, 1)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def local_path(path: str | Path, folder: Path) -> str:
    """Return a path relative to the report's folder, or its last two parts if it lies elsewhere.

    Examples:
        >>> local_path("/work/reports/run", Path("/work/reports")), local_path("/data/birds/cub", Path("/work/reports"))
        ('run', 'birds/cub')
    """
    path = Path(path).absolute()
    inside = path != folder and path.is_relative_to(folder)
    return (path.relative_to(folder) if inside else Path(*path.parts[1:][-2:])).as_posix()


def percent(share: float) -> str:
    """Format a share in percent with one decimal and a no-break space."""
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def p_text(p: float) -> str:
    """Format a p-value with no more digits than it supports.

    Examples:
        >>> [p_text(p).replace("\N{NO-BREAK SPACE}", " ") for p in (0.0001, 0.0123, 0.3)]
        ['p < 0.001', 'p = 0.012', 'p = 0.30']
    """
    text = "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def main_and_baseline(runs: Sequence[EvaluatedRun]) -> tuple[EvaluatedRun, EvaluatedRun | None]:
    """Return the main run of a report and the baseline to compare it with.

    The main run is the trained run with the highest Recall@1, the first of equal ones, or the first run if none is trained. The
    baseline is the first run that was not trained, or else the first other run.
    """
    trained = [run for run in runs if run.trained]
    main = max(trained, key=lambda run: run.scores.recall[1].value, default=runs[0])
    others = [run for run in runs if run is not main]
    return main, next((run for run in others if not run.trained), others[0] if others else None)


def headline(run: EvaluatedRun, other: EvaluatedRun | None, comparison: Comparison | None) -> str:
    """State Recall@1 of a run and its difference from the baseline in a sentence."""
    scores = run.scores
    queries = scores.ranks > 0  # without images that are alone in their class
    of = f"of {len(np.unique(run.labels[queries])):,} classes{_seen(run.seen)}"
    name = display_name(run)
    name = (name[:1].upper() + name[1:] if run.method in COLORS else name) + ("," if ", " in name else "")
    found = f"{name} reaches {percent(scores.recall[1].value)} Recall@1 on {queries.sum():,} images {of}"
    if other is None or comparison is None:
        return f"{found}."
    difference = comparison.differences["Recall@1"]
    against = _baseline(other) + (_seen(other.seen) if other.seen and other.seen.any else "")
    if difference.p >= SIGNIFICANCE:
        return f"{found}; no significant difference from {against} ({percent(difference.b)}, {p_text(difference.p)})."
    return f"{found}, {points(difference)} {against} ({p_text(difference.p)})."


def next_step(run: EvaluatedRun, other: EvaluatedRun | None, comparison: Comparison | None) -> tuple[str, str]:
    """Return what to do next and its command, by the first rule that applies."""
    train = "liftedstruct train FOLDER --out RUN"
    if not run.trained and not run.data:
        return "compare with other embeddings of the same images", "liftedstruct evaluate FILE.npz --compare OTHER.npz"
    if not run.trained:
        return "train an embedding on the training classes", f"{train} --validation 0.1"
    chosen = run.record.get(REQUESTED, {}).get("steps") == 0  # the length, on held-out training classes
    if run.config and not chosen and not any("recall_at_1" in line for line in run.log):
        return "train with validation classes, to choose settings without the test classes", f"{train} --validation 0.1"
    if other is None or other.trained or comparison is None:
        trunk = str(run.protocol.get("trunk", "TRUNK"))
        trunk = "TRUNK" if Path(trunk.removeprefix("transformers:")).is_absolute() else trunk
        return "compare with the trunk before training", f"liftedstruct embed {trunk} FOLDER --out pool5.npz"
    difference = comparison.differences["Recall@1"]
    if difference.p >= SIGNIFICANCE or difference.value < 0:
        text = f"train with another seed or test on more classes; there is no significant gain over {_baseline(other)}"
        return text, f"{train} --seed {run.config.seed + 1 if run.config else 1}"
    if run.scores.recall[1].value < HIGH_RECALL:
        return "check the dataset for bad images and duplicates", "liftedstruct check DATA"
    return "embed other images with this run", "liftedstruct embed RUN FOLDER --part all --out all.npz"


def _baseline(run: EvaluatedRun) -> str:
    return f"the {run.label} trunk" if run.name == run.method == "pool5" else display_name(run)


def _seen(seen: Seen | None) -> str:
    """State whether the classes were seen in training, if that is recorded."""
    if seen is None:
        return ""
    if seen.classes == seen.n_classes:
        return " that it was trained on"
    if seen.any:
        return f" (seen in training: {seen})"
    return " not seen in training"


def points(difference: Difference) -> str:
    """State how many points one run is above or below another."""
    return f"{abs(100 * difference.value):.1f} points {'above' if difference.value > 0 else 'below'}"


def introduction(runs: Sequence[EvaluatedRun]) -> str:
    """Describe the runs and the images, and how often the test classes were evaluated."""
    first = runs[0]
    many = "One run" if len(runs) == 1 else f"{len(runs):,} runs, each"
    images = f"all {len(first):,} images" if first.part == "all" else f"the {len(first):,} {first.part} images"
    text = f"{many} on {images} of {first.dataset or 'an unnamed dataset'}."
    if first.part != "test":
        return text
    evaluations = count_test_evaluations(Path(first.data), first.protocol.get("checksum"))
    if evaluations is None:
        return f"{text} The number of evaluations on these test classes is unknown, since the dataset no longer exists."
    if not evaluations:
        return f"{text} No evaluation on these test classes is logged."
    times = "once" if evaluations == 1 else f"{evaluations:,} times"
    return f"{text} These test classes have been used for evaluation {times}. Scores are optimistic if runs are chosen on them."


def recall_finding(runs: Sequence[EvaluatedRun]) -> str:
    """State Recall@K of each run at the smallest and largest K."""
    ends = []
    for run in runs:
        (k, low), (K, high) = min(run.scores.recall.items()), max(run.scores.recall.items())
        more = f", {percent(high.value)} at K = {K:,}" if k < K else ""
        ends.append(f"{display_name(run)} {percent(low.value)} at K = {k:,}{more}")
    return f"Share of images with an image of their class among the K nearest neighbors: {'; '.join(ends)}."


def training_finding(runs: Sequence[EvaluatedRun]) -> str:
    """State how the loss and the validation Recall@1 of each run changed."""
    texts = []
    for run in runs:
        losses = [line["loss"] for line in run.log if line.get("loss") is not None]
        validated = [line for line in run.log if line.get("recall_at_1") is not None]
        parts = []
        if losses:
            parts.append(f"loss from {losses[0]:.3g} to {losses[-1]:.3g}")
        if validated:
            first, best = validated[0]["recall_at_1"], max(validated, key=lambda line: (line["map_at_r"], -line["step"]))
            after = f"{percent(best['recall_at_1'])} at step {best['step']:,}"
            parts.append(f"Recall@1 on validation classes from {percent(first)} to {after}, the best by MAP@R")
        if parts:
            texts.append(f"{display_name(run)}: {', '.join(parts)}")
    return f"{'; '.join(texts)}." if texts else ""


def single_run_figures(run: EvaluatedRun) -> dict[str, tuple[str, str]]:
    """Return the figures of one run that have data, {kind: (title, finding)}."""
    figures = {"histogram": ("Distances", _distances(run))}
    wrong = _confusions(run)
    if wrong:
        figures["confusions"] = ("Most confused classes", wrong)
    if (np.bincount(run.labels) > 1).sum() > 1:
        figures["batch-inspection"] = ("Inspection of a batch", _inspection(run))
    return figures


def _distances(run: EvaluatedRun) -> str:
    nearest, right = run.nearest[0][:, 0], run.scores.ranks == 1
    parts = [
        f"{np.median(nearest[where]):.3g} if it is of {what}"
        for what, where in (("the same class", right), ("another class", ~right))
        if where.any()
    ]
    return (
        "Images of the same class should be closer together than images of different classes. The median distance to the "
        f"nearest neighbor is {' and '.join(parts)}."
    )


def _confusions(run: EvaluatedRun) -> str:
    """State the most frequent confusion; empty if there is none."""
    nearest, queries = run.labels[run.nearest[1][:, 0]], run.scores.ranks > 0  # without images that are alone in their class
    wrong = queries & (nearest != run.labels)
    if not wrong.any():
        return ""
    both = np.sort(np.stack((run.labels[wrong], nearest[wrong])), axis=0)  #                          (2, w)
    pairs, counts = np.unique(both, axis=1, return_counts=True)
    one, two = (run.class_names[label] for label in pairs[:, counts.argmax()])
    times = f"{counts.max():,} times" if counts.max() > 1 else "once"
    return (
        f"The nearest neighbor of {wrong.sum():,} of {queries.sum():,} images is of another class. The most confused pair of "
        f"classes is {one} and {two} ({times})."
    )


def _inspection(run: EvaluatedRun) -> str:
    seen = run.inspect_batch()
    n, active = len(seen.pairs), f"{100 * seen.active_share:.0f} %"
    temperature = f" with temperature {run.temperature:g}" if run.temperature != 1 else ""
    return (
        f"The lifted structured loss{temperature} on {2 * n:,} of these images, two per class: {active} of the positive pairs "
        f"are active. The mean distance is {seen.positive_distance:.3g} within and {seen.negative_distance:.3g} between "
        f"classes, and the effective number of negatives per image is {seen.effective_negatives.mean().item():.3g}. "
        f"The loss is {seen.loss:.3g}; it would be {seen.collapsed_loss:.3g} if all embeddings were equal."
    )


def protocol(runs: Sequence[EvaluatedRun], folder: Path) -> list[tuple[str, list[str]]]:
    """Return the lines of the protocol, a label and one text per run: first the evaluation, then the training.

    Args:
        runs: the runs of the report.
        folder: folder of the report, to which paths are relative.

    """
    names = dict.fromkeys(name for run in runs for name in run.scores.protocol if name != TEST_EVALUATIONS)
    rows = [
        (name[:1].upper() + name[1:].replace("_", " "), [_short(run.scores.protocol.get(name, ""), folder) for run in runs])
        for name in names
    ]
    rows += [(label, [line(run, folder) for run in runs]) for label, line in TRAINING_LINES.items()]
    now = f"liftedstruct {__version__}, Python {platform.python_version()}, torch {torch.__version__}, NumPy {np.__version__}"
    rows.append(("This report", [f"{now}; {_time(datetime.now(UTC).timestamp())}"] * len(runs)))
    return [(label, texts) for label, texts in rows if any(texts)]


def _loss(run: EvaluatedRun) -> str:
    if run.config is not None:
        return run.method
    return "not recorded" if run.trained else "none, not fine-tuned"


def _short(text: str, folder: Path) -> str:
    """Shorten an absolute path, such as a file of weights or the folder of a transformers model."""
    head, colon, path = text.rpartition("transformers:")
    return f"{head}{colon}{local_path(path, folder)}" if Path(path).is_absolute() else text


def _settings(run: EvaluatedRun, folder: Path) -> str:
    """Return all training settings except the dataset and the run folder."""
    settings = {name: value for name, value in (vars(run.config) if run.config else {}).items() if value is not None}
    return ", ".join(f"{name}={_short(str(each), folder)}" for name, each in settings.items() if name not in ("data", "out"))


def _training(run: EvaluatedRun) -> str:
    if run.config is None:
        return ""
    images = f" on {run.record['images']:,} images" if "images" in run.record else ""
    minutes = "less than a minute" if run.minutes < 1 else f"about {run.minutes:,.0f} minutes"
    alone = ", without the trial run" if (run.file.parent / TRIAL).is_dir() else ""
    return f"{run.steps:,} of {run.config.steps:,} steps{images}, {minutes}{alone}"


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%d %B %Y, %H:%M} UTC"


TRAINING_LINES: dict[str, Callable[[EvaluatedRun, Path], str]] = {
    "Run": lambda run, folder: local_path(run.file.parent if run.config else run.file, folder),
    "Loss": lambda run, _: _loss(run),
    "Training": lambda run, _: _training(run),
    "Settings": _settings,
    "torch, processor": lambda run, _: ", ".join(str(run.record[key]) for key in ("torch", "processor") if key in run.record),
    "Embedded": lambda run, _: _time(run.file.stat().st_mtime),
}

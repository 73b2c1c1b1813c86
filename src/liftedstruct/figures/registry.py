"""Registry of figures by name: functions of no run, one run or several runs, whose keyword arguments are options."""

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure
from PIL import Image

from liftedstruct.figures.curves import recall_curves, score_figure, training_curves
from liftedstruct.figures.distributions import confusion_figure, distance_histogram, inspection_figure
from liftedstruct.figures.evaluated_run import EvaluatedRun
from liftedstruct.figures.galleries import choose_queries, gallery
from liftedstruct.figures.illustrations import batch_graph, failure_modes, mining, network_layouts
from liftedstruct.figures.maps import thumbnail_map
from liftedstruct.figures.style import AnyFigure

__all__ = ["FIGURES"]


def scores(runs: Sequence[EvaluatedRun]) -> Figure:
    """Plot F1 and NMI against the embedding dimension, and Recall@K against K, with confidence intervals, as in the paper."""
    by_method: dict[str, dict[int, EvaluatedRun]] = {}
    for run in runs:
        sizes = by_method.setdefault(run.method, {})
        if run.size in sizes:
            raise ValueError(
                f"runs must differ in method or dimension, got two of {run.method} with {run.size} dimensions. Drop one."
            )
        sizes[run.size] = run
    found = {method: {size: run.scores for size, run in sorted(sizes.items())} for method, sizes in by_method.items()}
    return score_figure(found, runs[0].published)


def recall(runs: Sequence[EvaluatedRun]) -> Figure:
    """Plot Recall@K against K, one line per run, with confidence intervals."""
    return recall_curves({run.name: run.scores for run in runs}, runs[0].published)


def training(runs: Sequence[EvaluatedRun]) -> Figure:
    """Plot loss, validation Recall@1, active images and distances against the training step."""
    logs = {run.name: run.log for run in runs if run.log}
    if not logs:
        raise ValueError("at least one run must have a training log, got none. Pass a run folder.")
    return training_curves(logs)


def successes(run: EvaluatedRun, *, count: int = 8, seed: int = 0) -> Figure:
    """Show queries whose nearest neighbors are all of their class."""
    return _gallery("successes", run, count, seed)


def failures(run: EvaluatedRun, *, count: int = 8, seed: int = 0) -> Figure:
    """Show queries whose nearest neighbor is of another class."""
    return _gallery("failures", run, count, seed)


def instructive(run: EvaluatedRun, *, count: int = 8) -> Figure:
    """Show the most instructive failures, much closer to another class than to their own."""
    return _gallery("instructive", run, count)


def map_of_images(run: EvaluatedRun, *, side: int = 4096) -> Image.Image:
    """Draw thumbnails of the images at their positions on a t-SNE map."""
    return thumbnail_map(run.positions, run.thumbnails, side=side, labels=run.labels, progress=run.progress)


def histogram(run: EvaluatedRun, *, seed: int = 0) -> Figure:
    """Plot histograms of the distances within and between classes."""
    return distance_histogram(run.embeddings, run.labels, seed=seed)


def batch_inspection(run: EvaluatedRun, *, seed: int = 0) -> Figure:
    """Plot the lifted structured loss on one batch: active pairs, pull and push, negatives and their weights."""
    return inspection_figure(run.inspect_batch(seed))


def confusions(run: EvaluatedRun, *, count: int = 20) -> Figure:
    """Plot the pairs of classes that are confused most often."""
    return confusion_figure(run.labels, run.nearest[1], run.class_names, top=count)


def _gallery(kind: str, run: EvaluatedRun, count: int, seed: int = 0) -> Figure:
    distances, neighbors = run.nearest
    queries = choose_queries(kind, run.labels, neighbors, distances, embeddings=run.embeddings, count=count, seed=seed)
    return gallery(queries, run.thumbnails, run.labels, run.class_names)


FIGURES: dict[str, Callable[..., AnyFigure]] = {
    "batch-graph": batch_graph,
    "batch-inspection": batch_inspection,
    "confusions": confusions,
    "failure-modes": failure_modes,
    "failures": failures,
    "histogram": histogram,
    "instructive": instructive,
    "map": map_of_images,
    "mining": mining,
    "networks": network_layouts,
    "recall": recall,
    "scores": scores,
    "successes": successes,
    "training": training,
}

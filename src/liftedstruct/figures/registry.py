"""The figures by name, each a function of nothing, one run, or several; its keyword arguments are its options."""

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure
from PIL import Image

from liftedstruct.figures.curves import recall_curves, score_figure, training_curves
from liftedstruct.figures.distributions import confusion_figure, distance_histogram, microscope_figure
from liftedstruct.figures.galleries import choose_queries, gallery
from liftedstruct.figures.illustrations import batch_graph, failure_modes, mining, network_layouts
from liftedstruct.figures.maps import thumbnail_map
from liftedstruct.figures.style import AnyFigure
from liftedstruct.figures.subject import Subject

__all__ = ["FIGURES"]


def scores(subjects: Sequence[Subject]) -> Figure:
    """F1 and NMI against the size of the embedding, and Recall@K against K, with intervals: the paper's three panels."""
    by_method: dict[str, dict[int, Subject]] = {}
    for subject in subjects:
        sizes = by_method.setdefault(subject.method, {})
        if subject.size in sizes:
            raise ValueError(
                f"runs must differ in method or size, got two of {subject.method} with {subject.size} dimensions. Drop one."
            )
        sizes[subject.size] = subject
    found = {method: {size: subject.scores for size, subject in sorted(sizes.items())} for method, sizes in by_method.items()}
    return score_figure(found, subjects[0].published)


def recall(subjects: Sequence[Subject]) -> Figure:
    """Recall@K against K, a line for each run, with intervals."""
    return recall_curves({subject.name: subject.scores for subject in subjects}, subjects[0].published)


def training(subjects: Sequence[Subject]) -> Figure:
    """Loss, validation, active pairs and distances against the steps of training."""
    logs = {subject.name: subject.log for subject in subjects if subject.log}
    if not logs:
        raise ValueError("runs must have a log of their training, got none with one. Name the folder of a run.")
    return training_curves(logs)


def successes(subject: Subject, *, count: int = 8, seed: int = 0) -> Figure:
    """Queries whose nearest neighbors are all of their class."""
    return _gallery("successes", subject, count, seed)


def failures(subject: Subject, *, count: int = 8, seed: int = 0) -> Figure:
    """Queries whose nearest neighbor is of another class."""
    return _gallery("failures", subject, count, seed)


def instructive(subject: Subject, *, count: int = 8) -> Figure:
    """The most instructive failures: far nearer to a wrong class than to their own."""
    return _gallery("instructive", subject, count)


def map_of_images(subject: Subject, *, side: int = 4096) -> Image.Image:
    """Thumbnails of all images at their places on a t-SNE map."""
    return thumbnail_map(subject.positions, subject.thumbnails, side=side, labels=subject.labels, progress=subject.progress)


def histogram(subject: Subject, *, seed: int = 0) -> Figure:
    """Distances between images of one class and of different classes."""
    return distance_histogram(subject.embeddings, subject.labels, seed=seed)


def microscope(subject: Subject, *, seed: int = 0) -> Figure:
    """What the lifted loss sees in one batch of the images: active pairs, weights, pull and push."""
    return microscope_figure(subject.microscope(seed))


def confusions(subject: Subject, *, count: int = 20) -> Figure:
    """Classes whose images are most often taken for those of another."""
    return confusion_figure(subject.labels, subject.nearest[1], subject.class_names, top=count)


def _gallery(kind: str, subject: Subject, count: int, seed: int = 0) -> Figure:
    distances, neighbors = subject.nearest
    queries = choose_queries(kind, subject.labels, neighbors, distances, embeddings=subject.embeddings, count=count, seed=seed)
    return gallery(queries, subject.thumbnails, subject.labels, subject.class_names)


FIGURES: dict[str, Callable[..., AnyFigure]] = {
    "batch-graph": batch_graph,
    "confusions": confusions,
    "failure-modes": failure_modes,
    "failures": failures,
    "histogram": histogram,
    "instructive": instructive,
    "map": map_of_images,
    "microscope": microscope,
    "mining": mining,
    "networks": network_layouts,
    "recall": recall,
    "scores": scores,
    "successes": successes,
    "training": training,
}

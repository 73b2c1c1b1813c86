"""Distance histograms, the inspection of a batch, and the most confused classes."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from liftedstruct.figures.array_checks import as_class_indices, as_neighbors
from liftedstruct.figures.axes import DASHED, PERCENT, figure_legend, note_empty, round_ticks
from liftedstruct.figures.style import FAINT, INK, NEGATIVE, PAPER, POSITIVE, new_figure, styled
from liftedstruct.figures.text import shorten
from liftedstruct.losses import BatchInspection
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_embeddings, as_labels, check_count, check_finite

__all__ = ["confusion_figure", "distance_histogram", "inspection_figure"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

BINS = 60
BLOCK = 1 << 22  # values per block of pairs
LONGEST = 30  # characters of a class name
LEFT = "\u200e"  # left-to-right mark, for the order of names in right-to-left scripts
ARROW = f"{LEFT} → {LEFT}"
MANY = 400  # pairs or images per batch above which markers are small


@styled()
def distance_histogram(embeddings: EmbeddingsLike, labels: LabelsLike, *, sample: int = 200_000, seed: int = 0) -> Figure:
    """Plot a histogram of the distances between images of the same class and between images of different classes.

    Args:
        embeddings: (n, d), any float type.
        labels: (n,), integers of any size or strings.
        sample: maximum number of pairs of each kind, drawn at random.
        seed: seed of the sample.

    """
    X = as_embeddings(embeddings).detach().cpu()
    y = as_labels(labels, X).numpy()
    check_count("sample", sample), check_count("seed", seed, 0)
    if len(X) < 2:
        raise ValueError("embeddings must have two or more rows to have a distance, got 1. Pass more images.")
    points: Array = X.double().numpy()
    points = points - points.mean(axis=0)
    check_finite(X, float(np.square(points).sum()))
    same, other = (_distances(points, i, j) for i, j in _pairs(y, sample, np.random.default_rng(seed)))
    edges = np.linspace(0, np.concatenate((same, other)).max() or 1.0, BINS + 1)
    figure, (axes,) = new_figure(6.8, 4.2)
    for name, D, color, ls, hatch in (
        ("same class", same, POSITIVE, "-", None),
        ("different classes", other, NEGATIVE, DASHED, "////"),
    ):
        if len(D):
            share, median = 100 * np.histogram(D, edges)[0] / len(D), float(np.median(D))
            axes.stairs(share, edges, fill=True, fc=to_rgba(color, 0.15), ec=to_rgba(color, 0.4), lw=0, hatch=hatch)
            axes.stairs(share, edges, color=color, ls=ls, lw=1.8, label=f"{name}: {len(D):,} pairs, median {median:.3g}")
            axes.axvline(median, color=color, ls=ls, lw=1.1)
    axes.set(title=_separation(same, other), xlabel="Euclidean distance between two images", ylabel="share of pairs")
    axes.yaxis.set_major_formatter(PERCENT)
    axes.set(xlim=(0, edges[-1]), ylim=(0, None))
    figure_legend(figure, axes.get_legend_handles_labels()[0])
    return figure


@styled()
def inspection_figure(inspection: BatchInspection) -> Figure:
    """Plot the lifted structured loss on one batch, in four panels with a summary above.

    The panels show which pairs are active, the pull and push on each image, the effective number of negatives per image, and
    the weights of the negatives.
    """
    m = inspection
    figure, (pairs, forces, negatives, weights) = new_figure(9.8, 8.4, rows=2, columns=2)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.1)  # inches around the panels
    _draw_pairs(pairs, m)
    _draw_forces(forces, m)
    _draw_negatives(negatives, m)
    _draw_weights(figure, weights, m)
    figure.suptitle(
        f"Loss {m.loss:.3g}; it would be {m.collapsed_loss:.3g} if all embeddings were equal.\n"
        f"Mean distance {m.positive_distance:.3g} within classes, {m.negative_distance:.3g} between them; "
        f"effective rank {m.effective_rank:.1f}.",
        fontsize=10,
    )
    return figure


@styled()
def confusion_figure(labels: Integers, neighbors: Integers, class_names: Sequence[str], *, top: int = 20) -> Figure:
    """Plot the pairs of classes that are confused most often: the nearest neighbor of an image is of the other class.

    Images that are alone in their class are left out, since they have no correct neighbor.

    Args:
        labels: (n,), indices into `class_names`.
        neighbors: (n, k), rows of the nearest neighbors, nearest first; only the first is used.
        class_names: names of all classes.
        top: maximum number of pairs.

    """
    y, top = as_class_indices(labels, class_names), check_count("top", top)
    nearest = y[as_neighbors(neighbors, len(y))[:, 0]]
    asked = np.bincount(y)[y] > 1
    wrong = asked & (y != nearest)
    counts = Counter(zip(y[wrong].tolist(), nearest[wrong].tolist(), strict=True))
    pairs = {max((a, b), (b, a), key=lambda pair: (counts[pair], pair[1])): counts[a, b] + counts[b, a] for a, b in counts}
    shown = sorted(pairs, key=lambda pair: (-pairs[pair], pair))[:top]
    figure, (axes,) = new_figure(8.8, 1.7 + 0.27 * max(len(shown), 3))
    title = (
        f"{wrong.sum():,} of {asked.sum():,} images ({100 * wrong.sum() / max(1, asked.sum()):.1f} %) have their nearest "
        "neighbor in another class"
    )
    if shown:
        part = sum(pairs[pair] for pair in shown) / wrong.sum()
        title += f"\n{len(shown):,} of {len(pairs):,} confused pairs of classes are shown, {100 * part:.0f} % of these images"
        _draw_confusions(axes, shown, counts, class_names)
        figure_legend(figure, axes.get_legend_handles_labels()[0])
    else:
        note_empty(axes, "no confusions")
    figure.suptitle(title, fontsize=10)
    return figure


def _pairs(y: Integers, sample: int, rng: np.random.Generator) -> list[tuple[Integers, Integers]]:
    """Return the pairs of the same class and of different classes: all of them, or a sample without replacement.

    With the images sorted by class, the positive pairs of image i are with the later images of its class and its negative pairs
    with the images of later classes. Pair number t can therefore be computed without a list of all pairs.
    """
    order = np.argsort(y, kind="stable")
    n, last = len(y), np.searchsorted(y[order], y[order], side="right")  # first row after i's class
    first = np.arange(1, n + 1)
    found = []
    for start, counts in ((first, last - first), (last, n - last)):
        ends = counts.cumsum()
        total = int(ends[-1])
        t = np.arange(total) if total <= sample else rng.choice(total, sample, replace=False, shuffle=False)
        i = np.searchsorted(ends, t, side="right")
        found.append((order[i], order[start[i] + t - (ends[i] - counts[i])]))
    return found


def _distances(X: Array, i: Integers, j: Integers) -> Array:
    D, step = np.empty(len(i)), max(1, BLOCK // X.shape[1])
    for start in range(0, len(i), step):
        block = slice(start, start + step)
        D[block] = np.linalg.norm(X[i[block]] - X[j[block]], axis=1)
    return D


def _separation(same: Array, other: Array) -> str:
    """State how often a pair of the same class is closer than a pair of different classes; ties count one half."""
    if not len(same):
        return "No class has two images"
    if not len(other):
        return "Only one class"
    other = np.sort(other)
    farther = len(other) - (np.searchsorted(other, same, "left") + np.searchsorted(other, same, "right")) / 2
    return f"A same-class pair is closer than a different-class pair in {100 * farther.mean() / len(other):.1f} % of cases"


def _draw_pairs(axes: Axes, m: BatchInspection) -> None:
    """Plot J of every positive pair, largest first; filled if active."""
    axes.set_title(f"Pairs: {int(m.active.sum()):,} of {len(m.J):,} are active (J > 0)")
    J = np.sort(m.J.double().cpu().numpy())[::-1]
    J = J[np.isfinite(J)]  # not finite for a pair without negatives
    if not len(J):
        note_empty(axes, "no positive pair with negatives")
        return
    place, active = np.arange(1, len(J) + 1), J > 0
    size = 3 if len(J) > MANY else 5
    axes.plot(place[active], J[active], "o", ms=size, color=POSITIVE)
    axes.plot(place[~active], J[~active], "o", ms=size, color=FAINT, mfc=PAPER)
    axes.axhline(0, color=INK, lw=1)
    axes.set(xlabel="positive pairs, largest J first", ylabel="J of the pair, before the hinge")
    axes.xaxis.set_major_locator(round_ticks(6, integer=True))


def _draw_forces(axes: Axes, m: BatchInspection) -> None:
    """Plot pull against push for every image."""
    pull, push = (force.double().cpu().numpy() for force in (m.pull, m.push))
    axes.set_title(f"Forces: {int((push > pull).sum()):,} of {len(pull):,} images are pushed more than pulled")
    axes.plot(pull, push, "o", ms=3 if len(pull) > MANY else 5, color=INK, alpha=0.6, mew=0)
    end = 1.06 * max(pull.max(), push.max()) or 1.0
    axes.plot([0, end], [0, end], color=FAINT, lw=1, ls=DASHED)
    axes.text(0.97 * end, 0.03 * end, "pulled more", ha="right", va="bottom", color=POSITIVE)
    axes.text(0.03 * end, 0.97 * end, "pushed more", ha="left", va="top", color=NEGATIVE)
    axes.set(xlim=(0, end), ylim=(0, end), box_aspect=1)
    axes.set(xlabel="pull toward its class (gradient norm)", ylabel="push away from other classes (gradient norm)")


def _draw_negatives(axes: Axes, m: BatchInspection) -> None:
    """Plot the effective number of negatives of each image."""
    effective = -np.sort(-m.effective_negatives.double().cpu().numpy())
    most = int((m.negative_weights > 0).sum(dim=1).max())
    axes.set_title(f"Negatives: {effective.mean():.1f} effective negatives per image on average")
    place = np.arange(1, len(effective) + 1)
    axes.fill_between(place, effective, step="mid", color=NEGATIVE, alpha=0.3, lw=0)
    axes.step(place, effective, where="mid", color=NEGATIVE)
    axes.axhline(most, color=INK, lw=1, ls=DASHED)
    axes.text(place[-1], most, f"all {most:,} negatives ", ha="right", va="bottom")
    axes.set(xlim=(0.5, len(place) + 0.5), ylim=(0, 1.12 * max(most, 1)))
    axes.set(xlabel="images, largest number first", ylabel="effective number of negatives")
    axes.xaxis.set_major_locator(round_ticks(6, integer=True))


def _draw_weights(figure: Figure, axes: Axes, m: BatchInspection) -> None:
    """Plot the weights of the negatives: row i is the softmax over the negatives of image i."""
    weights = m.negative_weights.double().cpu().numpy()
    axes.grid(False)
    shown = axes.imshow(weights, cmap="magma_r", norm=PowerNorm(0.5, vmin=0, vmax=weights.max() or 1.0))
    axes.set_title("Weights of the negatives (rows of the batch)")
    axes.set(xlabel="negative", ylabel="image")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(round_ticks(6, integer=True))
    bar = figure.colorbar(shown, ax=axes, shrink=0.85, label="weight of the negative")
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))


def _draw_confusions(
    axes: Axes, shown: Sequence[tuple[int, int]], counts: Counter[tuple[int, int]], class_names: Sequence[str]
) -> None:
    """Plot a bar per pair: confusions of the first class with the second, then the reverse, hatched."""
    place = np.arange(len(shown))
    there = np.array([counts[pair] for pair in shown])
    back = np.array([counts[pair[::-1]] for pair in shown])
    axes.barh(place, there, 0.7, color=NEGATIVE, label="A → B: image of class A, nearest neighbor in class B")
    axes.barh(place, back, 0.7, there, color=PAPER, ec=NEGATIVE, hatch="////", label="B → A")
    for at, total in enumerate((there + back).tolist()):
        axes.text(total, at, f" {total:,}", va="center", fontsize=8)
    names = [LEFT + ARROW.join(shorten(class_names[number], LONGEST) for number in pair) for pair in shown]
    axes.set_yticks(place, names, fontsize=8)
    axes.set(xlim=(0, 1.08 * (there + back).max()), ylim=(len(shown) - 0.4, -0.6), xlabel="images")
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(round_ticks(6, integer=True))

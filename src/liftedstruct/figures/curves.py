"""Scores against the embedding dimension and against K, as in the paper, with confidence intervals; and training curves.

A missing score leaves a gap. Published scores have hollow markers and their source in the legend.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from liftedstruct.evaluation import Estimate, Scores
from liftedstruct.figures.axes import DASHED, PERCENT, figure_legend, log_axis, note_empty, percent_axis, round_ticks
from liftedstruct.figures.published import Published
from liftedstruct.figures.style import COLORS, FAINT, INK, OTHER_COLORS, PAPER, method_color, method_name, new_figure, styled
from liftedstruct.figures.text import shorten

__all__ = ["recall_curves", "score_figure", "training_curves"]

Array = NDArray[np.float64]
LogLines = Sequence[Mapping[str, Any]]

MARKERS = {"pool5": "X", "contrastive": "s", "triplet": "^", "lifted_struct": "o"}
OTHER_MARKERS = "DvPp<h>*"
DASHES = ((0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (4, 2)))  # of published scores, one per source
RUN_DASHES = ("-", (0, (6, 2)), (0, (2, 1.2)))  # if there are more runs than colors
CLUSTERINGS = {"affinity": "affinity propagation", "kmeans": "k-means"}  # the paper's method first
APART, FAR_APART = 3.5, 40.0  # spacing of the methods' intervals at the same x, in points; wider if there is only one x
MANY = 100  # logged steps above which a running mean is drawn too
MEAN_OF = 25  # the running mean covers 1/25 of the steps on each side


class Style(NamedTuple):
    """Style of a line, and the horizontal shift that keeps its intervals from overlapping those of other lines."""

    label: str
    color: str
    marker: str
    place: float  # 0 at the center, 1 for the next method


@styled()
def recall_curves(scores: Mapping[str, Scores], published: Sequence[Published] = ()) -> Figure:
    """Plot Recall@K against K on a log axis, one line per method, with 95 % confidence intervals."""
    figure, (axes,) = new_figure(6.8, 4.8)
    styles = _styles(scores, published, _weights(scores.get("pool5")))
    _draw_recall(axes, scores, published, styles)
    figure_legend(figure, [*_method_handles(styles, scores, {}), *_note_handles(published)])
    return figure


@styled()
def score_figure(scores: Mapping[str, Mapping[int, Scores]], published: Sequence[Published] = ()) -> Figure:
    """Plot the paper's three panels: F1 and NMI against the embedding dimension, and Recall@K against K at one dimension.

    F1 and NMI are computed on the clusters of affinity propagation, or of k-means if only those exist. The third panel uses
    the largest of the dimensions that most methods have. A method without it is drawn at its own largest dimension, which the
    legend states.

    Args:
        scores: {method: {dimension: scores}}. "pool5" with a single dimension is a horizontal line, since it has no head.
        published: scores from other papers, for the third panel.

    """
    figure, (f1, nmi, recall) = new_figure(12.0, 4.2, columns=3)
    styles = _styles(scores, published, _weights(*scores.get("pool5", {}).values()))
    trained = {method: sizes for method, sizes in scores.items() if not _is_level(method, scores)}
    _draw_clustering(f1, "F1", scores, trained)
    _draw_clustering(nmi, "NMI", scores, trained)
    every = [size for sizes in trained.values() for size in sizes]
    common = max(every, key=lambda size: (every.count(size), size), default=0)
    chosen = {method: common if common in sizes else max(sizes) for method, sizes in scores.items() if sizes}
    _draw_recall(recall, {method: scores[method][size] for method, size in chosen.items()}, published, styles)
    if common:
        recall.set_title(f"Recall@K, {common:,}-d")
    other = {method: size for method, size in chosen.items() if size != common}
    figure_legend(figure, [*_method_handles(styles, scores, other), *_note_handles(published)])
    return figure


@styled()
def training_curves(logs: Mapping[str, LogLines]) -> Figure:
    """Plot loss, validation Recall@1, fraction of active images and mean distances against the step, one color per run.

    Args:
        logs: {run: lines of its log.jsonl}. Missing values are skipped. A vertical line marks the step at which a run failed.

    """
    figure, axes = new_figure(9.6, 6.4, rows=2, columns=2, sharex=True)
    loss, recall, active, distances = axes
    handles: list[Line2D] = []
    for number, (run, (label, color, marker, _)) in enumerate(_styles(logs).items()):
        lines, dashes = logs[run], RUN_DASHES[number // len(OTHER_COLORS) % len(RUN_DASHES)]
        _draw_log(loss, lines, "loss", color, dashes)
        _draw_log(recall, lines, "recall_at_1", color, dashes, 100, marker=marker, ms=5)
        _draw_log(active, lines, "active_images", color, dashes, 100)
        _draw_log(distances, lines, "positive_distance", color)
        _draw_log(distances, lines, "negative_distance", color, DASHED)
        handles.append(Line2D([], [], color=color, ls=dashes, label=label))
        for step in (line["step"] for line in lines if "failed" in line):
            loss.axvline(step, color=color, lw=1.2, ls=DASHED)
            place: dict[str, Any] = {"transform": loss.get_xaxis_transform(), "ha": "right", "va": "top", "rotation": 90}
            loss.text(step, 0.97, "failed ", color=color, fontsize=8, **place)
    for each, title in zip(axes, ("Loss", "Validation Recall@1", "Active images", "Mean distance"), strict=True):
        each.set_title(title)
        if not each.lines:
            note_empty(each, "not logged")
    for each in axes[2:]:
        each.set_xlabel("step")
        each.xaxis.set_major_locator(round_ticks(6, integer=True))
        each.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    for each in (recall, active):
        each.yaxis.set_major_formatter(PERCENT)
    if loss.lines:
        loss.set_ylim(bottom=min(0.0, loss.get_ylim()[0]))
    if active.lines:
        active.set_ylim(-4, 104)
    if distances.lines:
        distances.set_ylim(bottom=0)
        kinds = (("same class", "-"), ("different classes", DASHED))
        distances.legend(handles=[Line2D([], [], color=INK, ls=ls, label=label) for label, ls in kinds])
    figure_legend(figure, handles)
    return figure


def _draw_clustering(
    axes: Axes, title: str, scores: Mapping[str, Mapping[int, Scores]], trained: Mapping[str, Mapping[int, Scores]]
) -> None:
    """Plot F1 or NMI against the dimensions of the trained methods; the others are horizontal lines."""
    measured = {name for sizes in scores.values() for each in sizes.values() for name in each.clusters}
    clustering = next((name for name in CLUSTERINGS if name in measured), "affinity")
    axes.set_title(f"{title}, {CLUSTERINGS[clustering]}")
    styles, every = _styles(trained), sorted({size for sizes in trained.values() for size in sizes})
    for method, sizes in scores.items():
        found: dict[int, Estimate | None] = {size: getattr(one, title.lower()).get(clustering) for size, one in sizes.items()}
        if method in trained:
            _draw_estimates(axes, every, [found.get(size) for size in every], styles[method], len(every) == 1)
            continue
        for level in (one for one in found.values() if one is not None):
            axes.axhspan(100 * level.low, 100 * level.high, color=COLORS[method], alpha=0.13, lw=0, zorder=1)
            axes.axhline(100 * level.value, color=COLORS[method], ls=(0, (4, 2)), zorder=2)
    log_axis(axes, every, "embedding dimension")
    percent_axis(axes)


def _draw_recall(axes: Axes, scores: Mapping[str, Scores], published: Sequence[Published], styles: Mapping[str, Style]) -> None:
    ks = sorted({k for one in scores.values() for k in one.recall} | {k for row in published for k in row.recall})
    for method, one in scores.items():
        own = sorted(one.recall)
        _draw_estimates(axes, own, [one.recall[k] for k in own], styles[method], len(ks) == 1)
    dashes = _published_dashes(published)
    hollow: dict[str, Any] = {"ms": 6, "mfc": PAPER, "mew": 1.2, "lw": 1.1, "zorder": 2}
    for row in published:
        style, x = styles[row.method], sorted(row.recall)
        ls = dashes[row.source, row.trunk, row.size]
        axes.plot(x, [100 * row.recall[k] for k in x], color=style.color, marker=style.marker, ls=ls, **hollow)
    axes.set_title("Recall@K")
    log_axis(axes, ks, "K")
    percent_axis(axes)


def _draw_estimates(axes: Axes, x: Sequence[int], estimates: Sequence[Estimate | None], style: Style, alone: bool) -> None:
    """Plot a line through the values and a bar per interval, with gaps for missing estimates.

    Methods are shifted sideways so that their intervals do not overlap. `alone` means that the axis has a single x and
    therefore room to print the values.
    """
    known = [(at, e) for at, e in zip(x, estimates, strict=True) if e is not None]
    if not known:
        return
    figure = axes.get_figure(root=True)
    assert figure is not None
    shift = ScaledTranslation((FAR_APART if alone else APART) * style.place / 72, 0, figure.dpi_scale_trans)
    beside = axes.transData + shift
    places, low, high = zip(*((at, 100 * e.low, 100 * e.high) for at, e in known), strict=True)
    axes.vlines(places, low, high, color=style.color, lw=1.4, alpha=0.75, transform=beside, zorder=3)
    y = [np.nan if e is None else 100 * e.value for e in estimates]
    axes.plot(x, y, color=style.color, marker=style.marker, ms=6, mec=PAPER, mew=0.6, transform=beside, zorder=4)
    axes.update_datalim([*zip(places, low, strict=True), *zip(places, high, strict=True)])
    if alone:
        text: dict[str, Any] = {"color": style.color, "fontsize": 8, "va": "center", "textcoords": "offset points"}
        text["bbox"] = {"fc": PAPER, "ec": "none", "pad": 1}
        axes.annotate(f"{y[0]:.1f}", (x[0], y[0]), xycoords=beside, xytext=(6, 0), **text)


def _draw_log(axes: Axes, lines: LogLines, key: str, color: str, dashes: Any = "-", factor: float = 1, **settings: Any) -> None:
    """Plot the values of one key of a log; long logs are drawn thin, with their running mean on top."""
    found = [(line["step"], factor * line[key]) for line in lines if "step" in line and line.get(key) is not None]
    if not found:
        return
    x, y = np.array(found, dtype=np.float64).T
    many = len(x) >= MANY
    few = {"marker": ".", "ms": 5} if len(x) <= MANY // 2 else {}
    axes.plot(x, y, color=color, ls=dashes, lw=0.7 if many else 1.4, alpha=0.35 if many else 1.0, **{**few, **settings})
    if many:
        axes.plot(x, _running_mean(y, len(y) // MEAN_OF), color=color, ls=dashes, lw=1.8)


def _running_mean(y: Array, reach: int) -> Array:
    """Return the mean over up to `reach` neighbors on each side, ignoring values that are not finite."""
    known, window = np.isfinite(y), np.ones(2 * reach + 1)
    count = np.convolve(known, window, "same")
    with np.errstate(invalid="ignore"):
        mean: Array = np.convolve(np.where(known, y, 0.0), window, "same") / count
    return mean


def _weights(*scores: Scores | None) -> str:
    """Return the origin of the weights from the protocol of the first scores that are given."""
    return next((each.protocol.get("weights", "") for each in scores if each), "")


def _styles(methods: Iterable[str], published: Iterable[Published] = (), weights: str = "") -> dict[str, Style]:
    """Return a style per method, the paper's methods first; `weights` is the origin of the weights of "pool5"."""
    own = list(methods)
    every = dict.fromkeys([*own, *(row.method for row in published)])
    others = [method for method in every if method not in COLORS]
    ordered = [method for method in COLORS if method in every] + others
    drawn = [method for method in ordered if method in own]
    styles = {}
    for method in ordered:
        number = others.index(method) if method in others else 0
        label = shorten(method_name(method, weights), 32)
        styles[method] = Style(
            label=f" {label}" if label.startswith("_") or not label else label,  # matplotlib skips labels that start with _
            color=method_color(method, number),
            marker=MARKERS.get(method, OTHER_MARKERS[number % len(OTHER_MARKERS)]),
            place=drawn.index(method) - (len(drawn) - 1) / 2 if method in drawn else 0.0,
        )
    return styles


def _is_level(method: str, scores: Mapping[str, Mapping[int, Scores]]) -> bool:
    return method == "pool5" and len(scores[method]) == 1 and any(sizes for name, sizes in scores.items() if name != method)


def _published_dashes(published: Iterable[Published]) -> dict[tuple[str, str, int], Any]:
    """Return a line style per source, trunk and dimension of the published scores."""
    groups = dict.fromkeys((row.source, row.trunk, row.size) for row in published)
    return {group: DASHES[number % len(DASHES)] for number, group in enumerate(groups)}


def _method_handles(styles: Mapping[str, Style], drawn: Container[str], sizes: Mapping[str, int]) -> list[Line2D]:
    """Return legend entries of the methods, with the dimension if it differs from the others; hollow if only published."""
    handles = []
    for method, style in styles.items():
        label = f"{style.label} ({sizes[method]:,}-d)" if method in sizes else style.label
        kind: dict[str, Any] = {"mec": PAPER, "mew": 0.6} if method in drawn else {"mfc": PAPER, "mew": 1.2, "ls": "none"}
        handles.append(Line2D([], [], color=style.color, marker=style.marker, ms=6, label=label, **kind))
    return handles


def _note_handles(published: Iterable[Published]) -> list[Line2D]:
    """Return legend entries that explain the bars and name the sources of the hollow markers."""
    handles = [Line2D([], [], color=FAINT, marker="|", ms=11, mew=1.6, ls="none", label="95 % confidence interval")]
    for (source, trunk, size), dashes in _published_dashes(published).items():
        label = shorten(f"published: {source}, {trunk}, {size}-d", 80)
        handles.append(Line2D([], [], color=FAINT, ls=dashes, lw=1.1, marker="o", ms=6, mfc=PAPER, mec=INK, label=label))
    return handles

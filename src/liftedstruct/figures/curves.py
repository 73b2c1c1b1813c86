"""Scores against the size of the embedding and against K, as in the paper, with intervals; and runs over their steps.

A score that was not measured leaves a gap. What others have published is drawn hollow, with its source in the legend.
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
from liftedstruct.figures.canvas import COLOURS, FAINT, INK, OTHERS, PAPER, colour_of, drawing, new_figure
from liftedstruct.figures.framing import DASHED, PERCENT, legend, log_axis, percents, say_so, ticks
from liftedstruct.figures.lettering import shortened
from liftedstruct.figures.published import Published
from liftedstruct.runtime.checks import pick

__all__ = ["recall_curves", "score_figure", "size_curves", "training_curves"]

Array = NDArray[np.float64]

NAMES = {"lifted_struct": "lifted structured", "pool5": "untrained"}  # in legends
MARKERS = {"pool5": "X", "contrastive": "s", "triplet": "^", "lifted_struct": "o"}
OTHER_MARKERS = "DvPp<h>*"
DASHES = ((0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (4, 2)))  # of published rows, one for each source
RUN_DASHES = ("-", (0, (6, 2)), (0, (2, 1.2)))  # when there are more runs than colours
CLUSTERINGS = {"affinity": "affinity propagation", "kmeans": "k-means"}  # the paper's first
APART, FAR_APART = 3.5, 40.0  # points between the intervals of two methods at one place; where there is only one place
MANY = 100  # logged steps from which on the running mean is drawn too
MEAN_OF = 25  # the mean runs over one part in so many


class Style(NamedTuple):
    """How a line looks, and the shift that keeps its intervals beside those of the others."""

    label: str
    colour: str
    marker: str
    place: float  # 0 in the middle of the methods, 1 for the next


def size_curves(scores: Mapping[str, Mapping[int, Scores]], *, clustering: str | None = None) -> Figure:
    """F1 and NMI against the size of the embedding, one line per method, with 95 % intervals.

    Args:
        scores: {method: {size: scores}}. A single size of "pool5" is a level that goes all the way across: it has no head.
        clustering: "affinity" or "kmeans"; without it the paper's affinity propagation if any of the scores has it.

    """
    with drawing():
        figure, axes = new_figure(8.4, 3.9, columns=2)
        styles = _styles(scores)
        _draw_clustering(axes, scores, styles, clustering)
        levels = {method: max(sizes) for method, sizes in scores.items() if _is_level(method, scores)}
        legend(figure, [*_handles(styles, scores, levels), *_notes(())])
    return figure


def recall_curves(scores: Mapping[str, Scores], published: Sequence[Published] = ()) -> Figure:
    """Recall@K against K in log space, one line per method, with 95 % intervals."""
    with drawing():
        figure, (axes,) = new_figure(6.8, 4.8)
        styles = _styles(scores, published)
        _draw_recall(axes, scores, published, styles)
        legend(figure, [*_handles(styles, scores), *_notes(published)])
    return figure


def score_figure(
    scores: Mapping[str, Mapping[int, Scores]], published: Sequence[Published] = (), *, clustering: str | None = None
) -> Figure:
    """The paper's three panels: F1 and NMI against the size of the embedding, and Recall@K against K at one size.

    That size is the largest of those that most methods have; a method without it is drawn at its own largest, which the
    legend says.
    """
    with drawing():
        figure, axes = new_figure(12.0, 4.2, columns=3)
        styles = _styles(scores, published)
        _draw_clustering(axes[:2], scores, styles, clustering)
        at = _common_size(scores)
        chosen = {method: at if at in sizes else max(sizes) for method, sizes in scores.items() if sizes}
        _draw_recall(axes[2], {method: scores[method][size] for method, size in chosen.items()}, published, styles)
        if at:
            axes[2].set_title(f"Recall@K, size {at:,}")
        apart = {method: size for method, size in chosen.items() if size != at}
        legend(figure, [*_handles(styles, scores, apart), *_notes(published)])
    return figure


def training_curves(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Loss, validation Recall@1, share of active pairs and distances against the step, one colour per run.

    Args:
        logs: {run: lines of its log.jsonl}. What a line lacks is left out; a run that failed has a cross where it ended.

    """
    with drawing():
        figure, axes = new_figure(9.6, 6.4, rows=2, columns=2, sharex=True)
        handles: list[Line2D] = []
        loss, recall, active, distances = axes
        styles = _styles(logs)
        for number, (run, style) in enumerate(styles.items()):
            lines, dashes = logs[run], RUN_DASHES[number // len(OTHERS) % len(RUN_DASHES)]
            _draw_log(loss, lines, "loss", style.colour, dashes)
            _draw_log(recall, lines, "recall_at_1", style.colour, dashes, 100, marker=style.marker, ms=5)
            _draw_log(active, lines, "active_share", style.colour, dashes, 100)
            _draw_log(distances, lines, "positive_distance", style.colour)
            _draw_log(distances, lines, "negative_distance", style.colour, DASHED)
            handles.append(Line2D([], [], color=style.colour, ls=dashes, label=style.label))
            for line in lines:
                if "failed" in line:
                    _mark_failure(loss, line["step"], style.colour)
        for each, title in zip(axes, ("Loss", "Validation Recall@1", "Active pairs", "Mean distance"), strict=True):
            each.set_title(title)
            if not each.lines:
                say_so(each, "not logged")
        for each in axes[2:]:
            each.set_xlabel("step")
            each.xaxis.set_major_locator(ticks(6, integer=True))
            each.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
        for each in (recall, active):
            each.yaxis.set_major_formatter(PERCENT)
        if loss.lines:
            loss.set_ylim(bottom=min(0.0, loss.get_ylim()[0]))
        if active.lines:
            active.set_ylim(-4, 104)
        if distances.lines:
            distances.set_ylim(bottom=0)
            kinds = (("one class", "-"), ("different classes", DASHED))
            distances.legend(handles=[Line2D([], [], color=INK, ls=ls, label=label) for label, ls in kinds])
        legend(figure, handles)
    return figure


def _draw_clustering(
    axes: Sequence[Axes], scores: Mapping[str, Mapping[int, Scores]], styles: Mapping[str, Style], clustering: str | None
) -> None:
    """F1 in the first axes, NMI in the second."""
    measured = {name for sizes in scores.values() for each in sizes.values() for name in each.clusters}
    if clustering is None:
        clustering = next((name for name in CLUSTERINGS if name in measured), "affinity")
    words = pick(CLUSTERINGS, clustering, "clustering")
    moving = _styles(method for method in scores if not _is_level(method, scores))
    every = sorted({size for method in moving for size in scores[method]})
    for each, measure, title in zip(axes, ("f1", "nmi"), ("F1", "NMI"), strict=True):
        each.set_title(f"{title}, {words}")
        for method, sizes in scores.items():
            found = {size: getattr(one, measure).get(clustering) for size, one in sizes.items()}
            if method in moving:
                _draw_estimates(each, every, [found.get(size) for size in every], moving[method], len(every) == 1)
            else:
                _draw_level(each, next(iter(found.values())), styles[method])
        log_axis(each, every, "size of the embedding")
        percents(each)


def _draw_recall(axes: Axes, scores: Mapping[str, Scores], published: Sequence[Published], styles: Mapping[str, Style]) -> None:
    ks = sorted({k for one in scores.values() for k in one.recall} | {k for row in published for k in row.recall})
    for method, one in scores.items():
        own = sorted(one.recall)
        _draw_estimates(axes, own, [one.recall[k] for k in own], styles[method], len(ks) == 1)
    dashes = _dashes(published)
    hollow: dict[str, Any] = {"ms": 6, "mfc": PAPER, "mew": 1.2, "lw": 1.1, "zorder": 2}
    for row in published:
        style, x = styles[row.method], sorted(row.recall)
        ls = dashes[row.source, row.trunk, row.size]
        axes.plot(x, [100 * row.recall[k] for k in x], color=style.colour, marker=style.marker, ls=ls, **hollow)
    axes.set_title("Recall@K")
    log_axis(axes, ks, "K")
    percents(axes)


def _draw_estimates(axes: Axes, x: Sequence[int], estimates: Sequence[Estimate | None], style: Style, alone: bool) -> None:
    """A line through the values, a bar for each interval, nothing where there is no estimate.

    The methods stand side by side, so that their intervals do not hide each other; ``alone`` says that the axis has one place
    only, where there is room for the numbers too.
    """
    known = [(at, e) for at, e in zip(x, estimates, strict=True) if e is not None]
    if not known:
        return
    figure = axes.get_figure(root=True)
    assert figure is not None
    shift = ScaledTranslation((FAR_APART if alone else APART) * style.place / 72, 0, figure.dpi_scale_trans)
    beside = axes.transData + shift
    places, low, high = zip(*((at, 100 * e.low, 100 * e.high) for at, e in known), strict=True)
    axes.vlines(places, low, high, color=style.colour, lw=1.4, alpha=0.75, transform=beside, zorder=3)
    y = [np.nan if e is None else 100 * e.value for e in estimates]
    axes.plot(x, y, color=style.colour, marker=style.marker, ms=6, mec=PAPER, mew=0.6, transform=beside, zorder=4)
    axes.update_datalim([(at, end) for at, *ends in zip(places, low, high, strict=True) for end in ends])
    if alone:
        look: dict[str, Any] = {"color": style.colour, "fontsize": 8, "va": "center", "textcoords": "offset points"}
        look["bbox"] = {"fc": PAPER, "ec": "none", "pad": 1}
        axes.annotate(f"{y[0]:.1f}", (x[0], y[0]), xycoords=beside, xytext=(6, 0), **look)


def _draw_level(axes: Axes, estimate: Estimate | None, style: Style) -> None:
    """A method that has no sizes: its value and interval all the way across."""
    if estimate is None:
        return
    axes.axhspan(100 * estimate.low, 100 * estimate.high, color=style.colour, alpha=0.13, lw=0, zorder=1)
    axes.axhline(100 * estimate.value, color=style.colour, ls=(0, (4, 2)), zorder=2)


def _draw_log(
    axes: Axes, lines: Iterable[Mapping[str, Any]], key: str, colour: str, dashes: Any = "-", times: float = 1, **look: Any
) -> None:
    """What a log has under one key; where there is much of it, thin, with its running mean over it."""
    found = [(line["step"], times * line[key]) for line in lines if "step" in line and line.get(key) is not None]
    if not found:
        return
    x, y = np.array(found, dtype=np.float64).T
    many = len(x) >= MANY
    few = {"marker": ".", "ms": 5} if len(x) <= MANY // 2 else {}
    axes.plot(x, y, color=colour, ls=dashes, lw=0.7 if many else 1.4, alpha=0.35 if many else 1.0, **{**few, **look})
    if many:
        axes.plot(x, _running_mean(y, len(y) // MEAN_OF), color=colour, ls=dashes, lw=1.8)


def _mark_failure(axes: Axes, step: int, colour: str) -> None:
    """Where a run ended because its loss or gradient was no longer finite."""
    axes.axvline(step, color=colour, lw=1.2, ls=DASHED)
    look: dict[str, Any] = {"ha": "right", "va": "top", "rotation": 90, "color": colour, "fontsize": 8}
    axes.text(step, 0.97, "failed ", transform=axes.get_xaxis_transform(), **look)


def _running_mean(y: Array, reach: int) -> Array:
    """The mean over so many neighbours on each side, fewer at the ends; what is not a number does not count."""
    known = np.isfinite(y)
    total = np.concatenate(([0.0], np.where(known, y, 0.0).cumsum()))
    count = np.concatenate(([0], known.cumsum()))
    first, last = np.maximum(np.arange(len(y)) - reach, 0), np.minimum(np.arange(len(y)) + reach + 1, len(y))
    with np.errstate(invalid="ignore"):
        mean: Array = (total[last] - total[first]) / (count[last] - count[first])
    return mean


def _styles(methods: Iterable[str], published: Iterable[Published] = ()) -> dict[str, Style]:
    """A look for each method, those of the paper in its order first."""
    own = list(methods)
    every = dict.fromkeys([*own, *(row.method for row in published)])
    ordered = [method for method in COLOURS if method in every] + [method for method in every if method not in COLOURS]
    drawn = [method for method in ordered if method in own]
    styles, other = {}, 0
    for method in ordered:
        styles[method] = Style(
            label=_label(NAMES.get(method, method)),
            colour=colour_of(method, other),
            marker=MARKERS.get(method, OTHER_MARKERS[other % len(OTHER_MARKERS)]),
            place=drawn.index(method) - (len(drawn) - 1) / 2 if method in drawn else 0.0,
        )
        other += method not in COLOURS
    return styles


def _label(name: str) -> str:
    """A name for a legend; matplotlib leaves out what begins with an underscore."""
    text = shortened(name, 32)
    return f" {text}" if text.startswith("_") or not text else text


def _is_level(method: str, scores: Mapping[str, Mapping[int, Scores]]) -> bool:
    return method == "pool5" and len(scores[method]) == 1 and any(sizes for name, sizes in scores.items() if name != method)


def _common_size(scores: Mapping[str, Mapping[int, Scores]]) -> int:
    """The size that most methods have, the largest of such; 0 if there is none."""
    every = [size for method, sizes in scores.items() if not _is_level(method, scores) for size in sizes]
    return max(every, key=lambda size: (every.count(size), size), default=0)


def _dashes(published: Iterable[Published]) -> dict[tuple[str, str, int], Any]:
    """A kind of line for each source, trunk and size that rows are published for."""
    groups = dict.fromkeys((row.source, row.trunk, row.size) for row in published)
    return {group: DASHES[number % len(DASHES)] for number, group in enumerate(groups)}


def _handles(styles: Mapping[str, Style], drawn: Container[str], sizes: Mapping[str, int] | None = None) -> list[Line2D]:
    """Entries of a legend: the methods, with their size where it is not that of the others; hollow if only others drew them."""
    handles = []
    for method, style in styles.items():
        label = f"{style.label} (size {sizes[method]:,})" if sizes and method in sizes else style.label
        look: dict[str, Any] = {"mec": PAPER, "mew": 0.6} if method in drawn else {"mfc": PAPER, "mew": 1.2, "ls": "none"}
        handles.append(Line2D([], [], color=style.colour, marker=style.marker, ms=6, label=label, **look))
    return handles


def _notes(published: Iterable[Published]) -> list[Line2D]:
    """Entries of a legend: what the bars are, and where the hollow points are from."""
    look: dict[str, Any] = {"color": FAINT, "lw": 1.1, "marker": "o", "ms": 6, "mfc": PAPER, "mec": INK}
    return [
        Line2D([], [], color=FAINT, marker="|", ms=11, mew=1.6, ls="none", label="95 % interval"),
        *(
            Line2D([], [], ls=dashes, label=shortened(f"published: {source}, {trunk}, size {size}", 80), **look)
            for (source, trunk, size), dashes in _dashes(published).items()
        ),
    ]

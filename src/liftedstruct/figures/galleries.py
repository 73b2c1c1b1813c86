"""Galleries: queries and their nearest neighbors, right and wrong marked, chosen by a rule that is printed beneath them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from liftedstruct.data import Indices
from liftedstruct.figures.array_checks import as_class_indices, as_neighbors, places_in_groups
from liftedstruct.figures.style import FAINT, INK, NEGATIVE, PAPER, POSITIVE, new_figure, styled
from liftedstruct.figures.text import fit_text
from liftedstruct.figures.thumbnails import Thumbnails, checked_thumbnails
from liftedstruct.retrieval import nearest_neighbors
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_classes, as_embeddings, as_labels, check_count, pick

__all__ = ["MARKS", "RULES", "SHOWN", "Queries", "choose_queries", "gallery"]

Distances = NDArray[np.floating]

SHOWN = 5  # neighbors of a query, as in the paper
RULES = {
    "failures": "Failures: queries whose nearest image is of another class, drawn by seed {seed}, one of each class before any "
    "class has a second.",
    "instructive": "Most instructive failures: queries whose nearest image is of another class, and nearer than the nearest "
    "right image by the largest factor; each pair of classes has one before any has a second.",
    "successes": "Successes: queries whose {nearest} of their class (where it has fewer, all of them come first), drawn by "
    "seed {seed}, one of each class before any class has a second.",
}

# The figure is laid out in pixels of 200 to the inch; saved at that resolution, a pixel of a thumbnail is a pixel.
DPI = 200
MARGIN, GAP, SPLIT = 28, 24, 30  # around everything; between columns; beyond that beside the query and the nearest right image
HEAD, CAPTION, LEGEND, LINE = 40, 116, 56, 27  # heights: of the headings, a caption, the legend, a line of the rule
FONT_SIZE, RISE = 6.5, 8  # of all text, in points; by how much a heading is lifted off what is beneath it
HINTING = 1.07  # at other resolutions than 200, hinted text is up to this much wider
MIN_WIDTH = 1000
FRAME, THIN, BADGE = 6, 2, 36
MARKS = {  # what a neighbor is: its color, the lines of its mark in a square of side 1, and the words of the legend
    "right": (POSITIVE, (((0.24, 0.42, 0.78), (0.52, 0.72, 0.28)),), "same class"),
    "wrong": (NEGATIVE, (((0.27, 0.73), (0.27, 0.73)), ((0.27, 0.73), (0.73, 0.27))), "other class"),
    "rest": (FAINT, (((0.26, 0.74), (0.5, 0.5)),), "other class, when none of the query's is left"),
}


@dataclass(frozen=True)
class Queries:
    """Queries that a rule has chosen, and what is nearest to them; there may be none."""

    rule: str  # in a sentence
    rows: Indices  # (q,)
    neighbors: Indices  # rows of the nearest other images, nearest first                             (q, k), k <= 5
    distances: Distances  # to them                                                                   (q, k)
    marks: NDArray[np.str_]  # "right"; "wrong"; or "rest", of another class after all of the query's (q, k)
    nearest_right: Indices  # row of the nearest image of the query's class                           (q,)
    right_distances: Distances  # its distance                                                        (q,)
    right_ranks: Indices  # and its rank among all other images, 1 is the nearest                     (q,)

    def __len__(self) -> int:
        return len(self.rows)


class Cell(NamedTuple):
    """A picture of the gallery."""

    row: int
    mark: str  # "query", or one of MARKS
    caption: str  # above the class name


def choose_queries(
    kind: str,
    labels: LabelsLike,
    neighbors: Indices,
    distances: Distances,
    *,
    embeddings: EmbeddingsLike,
    count: int = 8,
    seed: int = 0,
) -> Queries:
    """Queries to show, chosen by a rule, which the result states in a sentence.

    ===========  ===============================================================================================
    successes    the five nearest images are of the query's class; where it has fewer, all of them come first
    failures     the nearest image is of another class
    instructive  a failure, and the nearest image is nearer than the nearest right one by the largest factor
    ===========  ===============================================================================================

    An image that is alone in its class is none of these. If no query fits the rule, the result is empty.

    Args:
        kind: a name above.
        labels: (n,), integers or strings.
        neighbors: (n, k), rows of each image's nearest others, nearest first, from ``nearest_neighbors``; five are used.
        distances: (n, k), to them.
        embeddings: (n, d), whose neighbors these are.
        count: how many queries at most.
        seed: of the draw; the instructive ones are not drawn.

    """
    sentence = pick(RULES, kind, "kind")
    count, seed = check_count("count", count), check_count("seed", seed, 0)
    points = as_embeddings(embeddings).detach().cpu()
    X, y = points.numpy(), as_classes(as_labels(labels, points))[0]
    neighbors, distances = _check_lists(neighbors, distances, len(y))
    class_mates = np.bincount(y)[y] - 1  # other images of the class                                  (n,)
    right = y[neighbors] == y[:, None]  #                                                             (n, k)
    rest = right.cumsum(axis=1) == class_mates[:, None]
    marks = np.where(right, "right", np.where(rest, "rest", "wrong"))
    fit = (marks != "wrong").all(axis=1) if kind == "successes" else ~right[:, 0]
    rows = np.flatnonzero(fit & (class_mates > 0))
    rows = _by_contrast(rows, y, neighbors, distances, X) if kind == "instructive" else _draw_rows(rows, y, seed)
    rows = rows[:count]
    k = neighbors.shape[1]
    nearest = "nearest image is" if k == 1 else f"{('two', 'three', 'four', 'five')[k - 2]} nearest images are all"
    rule = sentence.format(seed=seed, nearest=nearest)
    return Queries(rule, rows, neighbors[rows], distances[rows], marks[rows], *_nearest_right(rows, y, X))


@styled()
def gallery(
    queries: Queries, thumbnails: Thumbnails, labels: Indices, class_names: Sequence[str], *, side: int = 208
) -> Figure:
    """A row for each query: the query, its nearest neighbors and, unless all are among these, the nearest right images.

    A tick and a green frame mark a neighbor of the query's class, a cross and a red frame one of another class; a dash and a
    gray frame one of another class that is no mistake, since all images of the query's class came before it. Beneath are
    distance and class name, and at the foot the rule.

    Args:
        queries: from :func:`choose_queries`; if there are none, the gallery says so.
        thumbnails: rows (q,) and a side to pictures (q, side, side, 3), such as ``thumbnails_of(packed.images, rows)``.
        labels: (n,), numbers into the class names.
        class_names: of all classes.
        side: of a picture, in pixels at 200 to the inch.

    """
    side, y = check_count("side", side, 64), as_class_indices(labels, class_names)
    last = max((int(rows.max()) for rows in (queries.rows, queries.neighbors) if rows.size), default=0)
    if last >= len(y):
        raise ValueError(f"labels must be of all images, the queries have rows up to {last}, got {len(y)}. Pass as many.")
    k = queries.neighbors.shape[1]
    extra = bool((queries.right_ranks > k).any())
    lines = _cells(queries, extra)
    lefts = [MARGIN, *(MARGIN + SPLIT + (side + GAP) * column for column in range(1, k + 1))]
    if extra:
        lefts.append(lefts[-1] + side + GAP + SPLIT)
    width = max(lefts[-1] + side + MARGIN, MIN_WIDTH)
    rule = fit_text(queries.rule, (width - 2 * MARGIN) * 72 / DPI / HINTING, FONT_SIZE, lines=9)
    end = MARGIN + (HEAD + len(lines) * (side + CAPTION) + LEGEND if lines else LINE)
    height = end + LINE * (1 + rule.count("\n")) + MARGIN
    figure, (axes,) = new_figure(width / DPI, height / DPI)
    figure.set_layout_engine("none")
    figure.suppressComposite = True  # in an SVG or PDF each picture stays one
    axes.set_position((0, 0, 1, 1))
    axes.set_axis_off()
    if lines:
        headings = ["query", "nearest image" if k == 1 else f"{k} nearest images, from the left", *[""] * (k - 1)]
        for heading, left in zip((*headings, *["nearest right image"] * extra), lefts, strict=True):
            _write(axes, left, MARGIN - RISE, heading)
        shown, places = np.unique([[cell.row for cell in line] for line in lines], return_inverse=True)  # each is read once
        pictures = checked_thumbnails(thumbnails, shown, side)[places.reshape(len(lines), -1)]
        for q, line in enumerate(lines):
            for cell, pixels, left in zip(line, pictures[q], lefts, strict=True):
                _draw_cell(axes, cell, pixels, class_names[y[cell.row]], left, MARGIN + HEAD + q * (side + CAPTION))
        _draw_legend(axes, end - LEGEND, {cell.mark for line in lines for cell in line})
    else:
        _write(axes, MARGIN, MARGIN - RISE, "There are none: no query fits the rule.")
    _write(axes, MARGIN, end, rule)
    axes.set(xlim=(0, width), ylim=(height, 0))
    return figure


def _draw_rows(rows: Indices, y: Indices, seed: int) -> Indices:
    """In an order drawn by the seed: of each class one, then of each class a second one, and so on."""
    rng = np.random.default_rng([seed, 3])
    rows, places = rng.permutation(rows), rng.permutation(y.max() + 1)
    return rows[np.lexsort((places[y[rows]], places_in_groups(y[rows])))]


def _by_contrast(rows: Indices, y: Indices, neighbors: Indices, distances: Distances, X: NDArray[np.floating]) -> Indices:
    """By the ratio of the distances to the nearest image and to the nearest right one, each pair of classes in turn."""
    right = np.empty(len(y))
    for one in np.unique(y[rows]):
        members = np.flatnonzero(y == one)
        right[members] = nearest_neighbors(X[members], 1)[0][:, 0]
    ratio = np.divide(distances[rows, 0], right[rows], out=np.ones(len(rows)), where=right[rows] > 0)
    rows = rows[np.argsort(ratio, kind="stable")]
    pair = np.sort(np.stack((y[rows], y[neighbors[rows, 0]])), axis=0)
    return rows[np.argsort(places_in_groups(pair[0] * (y.max() + 1) + pair[1]), kind="stable")]


def _nearest_right(rows: Indices, y: Indices, X: NDArray[np.floating]) -> tuple[Indices, Distances, Indices]:
    """Row, distance and rank of the nearest right image of each query, from the exact list of all images."""
    found, D, ranks = np.empty_like(rows), np.empty(len(rows)), np.empty_like(rows)
    for q, row in enumerate(rows):
        distances, neighbors = (each[0] for each in nearest_neighbors(X, len(X), queries=X[row : row + 1]))
        distances, neighbors = distances[neighbors != row], neighbors[neighbors != row]
        at = int(np.argmax(y[neighbors] == y[row]))
        found[q], D[q], ranks[q] = neighbors[at], distances[at], at + 1
    return found, D, ranks


def _cells(queries: Queries, extra: bool) -> list[list[Cell]]:
    """Of each query the pictures from left to right, with the nearest right image as an extra one."""
    lines = [[Cell(int(row), "query", "")] for row in queries.rows]
    for q, line in enumerate(lines):
        found = zip(queries.neighbors[q], queries.marks[q], queries.distances[q], strict=True)
        line += [Cell(int(row), str(mark), _format(distance)) for row, mark, distance in found]
        if extra:
            caption = f"{_format(queries.right_distances[q])}, rank {queries.right_ranks[q]:,}"
            line.append(Cell(int(queries.nearest_right[q]), "right", caption))
    return lines


def _draw_cell(axes: Axes, cell: Cell, pixels: NDArray[np.uint8], name: str, left: int, top: int) -> None:
    """A picture with its frame, mark and caption."""
    side = len(pixels)
    axes.imshow(pixels, extent=(left, left + side, top + side, top), interpolation="auto", zorder=1)
    width, color = (THIN, INK) if cell.mark == "query" else (FRAME, MARKS[cell.mark][0])
    corner, size = (left - width / 2, top - width / 2), side + width  # the frame touches the picture from outside
    axes.add_patch(Rectangle(corner, size, size, fill=False, ec=color, lw=width * 72 / DPI, joinstyle="miter", zorder=2))
    if cell.mark != "query":
        _draw_mark(axes, left, top, cell.mark)
    name = fit_text(name, side * 72 / DPI, FONT_SIZE, lines=2 if cell.caption else 3)
    _write(axes, left, top + side + FRAME, f"{cell.caption}\n{name}" if cell.caption else name)


def _draw_mark(axes: Axes, left: float, top: float, mark: str) -> None:
    color, lines, _ = MARKS[mark]
    axes.add_patch(Rectangle((left, top), BADGE, BADGE, color=color, lw=0, zorder=3))
    for x, y in lines:
        xs, ys = [left + BADGE * each for each in x], [top + BADGE * each for each in y]
        axes.add_line(Line2D(xs, ys, color=PAPER, lw=1.7, solid_capstyle="round", solid_joinstyle="round", zorder=4))


def _draw_legend(axes: Axes, top: float, marks: set[str]) -> None:
    left = MARGIN
    for mark in (each for each in MARKS if each in marks):
        words = MARKS[mark][2]
        _draw_mark(axes, left, top, mark)
        _write(axes, left + BADGE + 12, top - 2, words)
        left += BADGE + 60 + 12 * len(words)


def _write(axes: Axes, left: float, top: float, text: str) -> None:
    """Lines of text on their own baselines, whatever letters are in them."""
    for number, line in enumerate(text.split("\n"), 1):
        axes.text(left, top + number * LINE, line, size=FONT_SIZE, color=INK, va="baseline", ha="left")


def _format(distance: float) -> str:
    """Three digits, or all before the point.

    >>> _format(0.01234), _format(12), _format(123.4), _format(12345)
    ('0.0123', '12.0', '123', '12,345')
    """
    return f"{distance:#.3g}".rstrip(".") if distance < 999.5 else f"{distance:,.0f}"


def _check_lists(neighbors: Indices, distances: Distances, n: int) -> tuple[Indices, Distances]:
    neighbors, distances = as_neighbors(neighbors, n), np.asarray(distances)
    if distances.shape != neighbors.shape:
        raise ValueError(f"distances must have the shape of neighbors, {neighbors.shape}, got {distances.shape}.")
    neighbors, distances = neighbors[:, :SHOWN], distances[:, :SHOWN]
    own = (neighbors == np.arange(n)[:, None]).any(axis=1)
    if own.any():
        raise ValueError(f"no image may be its own neighbor, row {np.argmax(own)} is. Search without queries, or drop it.")
    if distances.dtype.kind != "f" or not np.isfinite(distances).all():
        raise ValueError("distances must be finite numbers of a float type. Pass those of nearest_neighbors.")
    return neighbors, distances

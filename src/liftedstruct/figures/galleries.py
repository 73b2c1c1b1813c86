"""Galleries of queries and their nearest neighbors, marked as right or wrong, with the selection rule printed below."""

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

SHOWN = 5  # neighbors per query, as in the paper
RULES = {
    "failures": "Failures: queries whose nearest neighbor is of another class, drawn with seed {seed}, one per class before "
    "any class has a second.",
    "instructive": "Most instructive failures: queries whose nearest neighbor is of another class and closer than the nearest "
    "image of their own class by the largest factor, one per pair of classes before any pair has a second.",
    "successes": "Successes: queries whose {nearest} of their class (smaller classes: all of their images come first), drawn "
    "with seed {seed}, one per class before any class has a second.",
}

# The layout is in pixels at 200 dpi. Saved at that resolution, thumbnails are not resampled.
DPI = 200
MARGIN, GAP, SPLIT = 28, 24, 30  # outer margin; gap between columns; extra gap next to the query and the nearest positive
HEAD, CAPTION, LEGEND, LINE = 40, 116, 56, 27  # heights of the headings, a caption, the legend, a line of the rule
FONT_SIZE, RISE = 6.5, 8  # of all text, in points; space below a heading
HINTING = 1.07  # at resolutions other than 200 dpi, hinted text is up to this factor wider
MIN_WIDTH = 1000
FRAME, THIN, BADGE = 6, 2, 36
MARKS = {  # kind of neighbor: color, lines of its mark in a unit square, and legend text
    "right": (POSITIVE, (((0.24, 0.42, 0.78), (0.52, 0.72, 0.28)),), "same class"),
    "wrong": (NEGATIVE, (((0.27, 0.73), (0.27, 0.73)), ((0.27, 0.73), (0.73, 0.27))), "other class"),
    "rest": (FAINT, (((0.26, 0.74), (0.5, 0.5)),), "other class, after all images of the query's class"),
}


@dataclass(frozen=True)
class Queries:
    """Queries selected by a rule, and their nearest neighbors; possibly none."""

    rule: str  # the rule as a sentence
    rows: Indices  # (q,)
    neighbors: Indices  # rows of the nearest neighbors, nearest first                                (q, k), k <= 5
    distances: Distances  # distances of the neighbors                                                (q, k)
    marks: NDArray[np.str_]  # "right", "wrong", or "rest" after all images of the query's class       (q, k)
    nearest_right: Indices  # row of the nearest image of the query's class                           (q,)
    right_distances: Distances  # distance of that image                                              (q,)
    right_ranks: Indices  # its rank among all other images, from 1                                   (q,)

    def __len__(self) -> int:
        return len(self.rows)


class Cell(NamedTuple):
    """Cell of the gallery."""

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
    """Select queries by a rule, which the result states in a sentence.

    | kind | rule |
    |---|---|
    | `successes` | the five nearest neighbors are of the query's class; if it has fewer images, all of them come first |
    | `failures` | the nearest neighbor is of another class |
    | `instructive` | failures whose nearest neighbor is closer than the nearest image of their class by the largest factor |

    Images that are alone in their class are never selected. If no query satisfies the rule, the result is empty.

    Args:
        kind: one of the kinds above.
        labels: (n,), integers or strings.
        neighbors: (n, k), rows of each image's nearest neighbors, nearest first, from `nearest_neighbors`; five are used.
        distances: (n, k), distances of the neighbors.
        embeddings: (n, d), the embeddings that were searched.
        count: maximum number of queries.
        seed: seed of the random draw; `instructive` is not random.

    """
    sentence = pick(RULES, kind, "kind")
    count, seed = check_count("count", count), check_count("seed", seed, 0)
    points = as_embeddings(embeddings).detach().cpu()
    X, y = points.numpy(), as_classes(as_labels(labels, points))[0]
    neighbors, distances = _check_lists(neighbors, distances, len(y))
    class_mates = np.bincount(y)[y] - 1  # other images of the same class                             (n,)
    right = y[neighbors] == y[:, None]  #                                                             (n, k)
    rest = right.cumsum(axis=1) == class_mates[:, None]
    marks = np.where(right, "right", np.where(rest, "rest", "wrong"))
    fit = (marks != "wrong").all(axis=1) if kind == "successes" else ~right[:, 0]
    rows = np.flatnonzero(fit & (class_mates > 0))
    rows = _by_contrast(rows, y, neighbors, distances, X) if kind == "instructive" else _draw_rows(rows, y, seed)
    rows = rows[:count]
    k = neighbors.shape[1]
    nearest = "nearest neighbor is" if k == 1 else f"{('two', 'three', 'four', 'five')[k - 2]} nearest neighbors are all"
    rule = sentence.format(seed=seed, nearest=nearest)
    return Queries(rule, rows, neighbors[rows], distances[rows], marks[rows], *_nearest_right(rows, y, X))


@styled()
def gallery(
    queries: Queries, thumbnails: Thumbnails, labels: Indices, class_names: Sequence[str], *, side: int = 208
) -> Figure:
    """Draw one row per query: the query, its nearest neighbors and, if some query has no positive among them, the nearest one.

    A check and a green frame mark a neighbor of the query's class, a cross and a red frame one of another class. A dash and a
    gray frame mark a neighbor of another class that is not an error, since all images of the query's class are closer. Below
    each image are its distance and class name, and below the gallery is the rule.

    Args:
        queries: result of `choose_queries`; if it is empty, the gallery says so.
        thumbnails: function from rows (q,) and a side to images (q, side, side, 3), such as the result of `thumbnails_of`.
        labels: (n,), indices into `class_names`.
        class_names: names of all classes.
        side: side of an image, in pixels at 200 dpi.

    """
    side, y = check_count("side", side, 64), as_class_indices(labels, class_names)
    last = max((int(rows.max()) for rows in (queries.rows, queries.neighbors) if rows.size), default=0)
    if last >= len(y):
        raise ValueError(
            f"labels must cover all images of the queries, rows up to {last}, got {len(y)} labels. Pass one label per image."
        )
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
    figure.suppressComposite = True  # each image stays separate in SVG and PDF
    axes.set_position((0, 0, 1, 1))
    axes.set_axis_off()
    if lines:
        headings = ["query", "nearest neighbor" if k == 1 else f"{k} nearest neighbors, nearest first", *[""] * (k - 1)]
        for heading, left in zip((*headings, *["nearest positive"] * extra), lefts, strict=True):
            _write(axes, left, MARGIN - RISE, heading)
        shown, places = np.unique([[cell.row for cell in line] for line in lines], return_inverse=True)
        pictures = checked_thumbnails(thumbnails, shown, side)[places.reshape(len(lines), -1)]
        for q, line in enumerate(lines):
            for cell, pixels, left in zip(line, pictures[q], lefts, strict=True):
                _draw_cell(axes, cell, pixels, class_names[y[cell.row]], left, MARGIN + HEAD + q * (side + CAPTION))
        _draw_legend(axes, end - LEGEND, {cell.mark for line in lines for cell in line})
    else:
        _write(axes, MARGIN, MARGIN - RISE, "None: no query satisfies the rule.")
    _write(axes, MARGIN, end, rule)
    axes.set(xlim=(0, width), ylim=(height, 0))
    return figure


def _draw_rows(rows: Indices, y: Indices, seed: int) -> Indices:
    """Shuffle the rows with the seed: one row of each class, then a second of each class, and so on."""
    rng = np.random.default_rng([seed, 3])
    rows, places = rng.permutation(rows), rng.permutation(y.max() + 1)
    return rows[np.lexsort((places[y[rows]], places_in_groups(y[rows])))]


def _by_contrast(rows: Indices, y: Indices, neighbors: Indices, distances: Distances, X: NDArray[np.floating]) -> Indices:
    """Sort by the ratio of the distances to the nearest neighbor and to the nearest positive, pairs of classes in turn."""
    right = np.empty(len(y))
    for one in np.unique(y[rows]):
        members = np.flatnonzero(y == one)
        right[members] = nearest_neighbors(X[members], 1)[0][:, 0]
    ratio = np.divide(distances[rows, 0], right[rows], out=np.ones(len(rows)), where=right[rows] > 0)
    rows = rows[np.argsort(ratio, kind="stable")]
    pair = np.sort(np.stack((y[rows], y[neighbors[rows, 0]])), axis=0)
    return rows[np.argsort(places_in_groups(pair[0] * (y.max() + 1) + pair[1]), kind="stable")]


def _nearest_right(rows: Indices, y: Indices, X: NDArray[np.floating]) -> tuple[Indices, Distances, Indices]:
    """Return row, distance and rank of the nearest positive of each query, by exact search over all images."""
    found, D, ranks = np.empty_like(rows), np.empty(len(rows)), np.empty_like(rows)
    for q, row in enumerate(rows):
        distances, neighbors = (each[0] for each in nearest_neighbors(X, len(X), queries=X[row : row + 1]))
        distances, neighbors = distances[neighbors != row], neighbors[neighbors != row]
        at = int(np.argmax(y[neighbors] == y[row]))
        found[q], D[q], ranks[q] = neighbors[at], distances[at], at + 1
    return found, D, ranks


def _cells(queries: Queries, extra: bool) -> list[list[Cell]]:
    """Return the cells of each query from left to right, the nearest positive last if `extra`."""
    lines = [[Cell(int(row), "query", "")] for row in queries.rows]
    for q, line in enumerate(lines):
        found = zip(queries.neighbors[q], queries.marks[q], queries.distances[q], strict=True)
        line += [Cell(int(row), str(mark), _format(distance)) for row, mark, distance in found]
        if extra:
            caption = f"{_format(queries.right_distances[q])}, rank {queries.right_ranks[q]:,}"
            line.append(Cell(int(queries.nearest_right[q]), "right", caption))
    return lines


def _draw_cell(axes: Axes, cell: Cell, pixels: NDArray[np.uint8], name: str, left: int, top: int) -> None:
    """Draw an image with its frame, mark and caption."""
    side = len(pixels)
    axes.imshow(pixels, extent=(left, left + side, top + side, top), interpolation="auto", zorder=1)
    width, color = (THIN, INK) if cell.mark == "query" else (FRAME, MARKS[cell.mark][0])
    corner, size = (left - width / 2, top - width / 2), side + width  # the frame lies outside the image
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
    """Write lines of text at fixed baselines."""
    for number, line in enumerate(text.split("\n"), 1):
        axes.text(left, top + number * LINE, line, size=FONT_SIZE, color=INK, va="baseline", ha="left")


def _format(distance: float) -> str:
    """Format a distance with three significant digits, or as an integer if it is large.

    Examples:
        >>> _format(0.01234), _format(12), _format(123.4), _format(12345)
        ('0.0123', '12.0', '123', '12,345')
    """
    return f"{distance:#.3g}".rstrip(".") if distance < 999.5 else f"{distance:,.0f}"


def _check_lists(neighbors: Indices, distances: Distances, n: int) -> tuple[Indices, Distances]:
    neighbors, distances = as_neighbors(neighbors, n), np.asarray(distances)
    if distances.shape != neighbors.shape:
        raise ValueError(
            f"distances must have the shape of neighbors, {neighbors.shape}, got {distances.shape}. Pass both from one search."
        )
    neighbors, distances = neighbors[:, :SHOWN], distances[:, :SHOWN]
    own = (neighbors == np.arange(n)[:, None]).any(axis=1)
    if own.any():
        raise ValueError(
            f"no image may be its own neighbor, but row {np.argmax(own)} is. Search without queries, or drop the first column."
        )
    if distances.dtype.kind != "f" or not np.isfinite(distances).all():
        raise ValueError("distances must be finite floating-point numbers. Pass the distances that nearest_neighbors returns.")
    return neighbors, distances

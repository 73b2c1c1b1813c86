"""Galleries: queries and their nearest neighbours, right and wrong marked, chosen by a rule that is printed beneath them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from liftedstruct.data import Indices
from liftedstruct.figures.canvas import FAINT, INK, NEGATIVE, PAPER, POSITIVE, drawing, new_figure
from liftedstruct.figures.lettering import fitted
from liftedstruct.figures.thumbnails import Pixels, Thumbnails, pictures_of
from liftedstruct.retrieval import nearest_neighbors
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_classes, as_embeddings, check_count, check_finite, pick

__all__ = ["MARKS", "RULES", "SHOWN", "Queries", "choose_queries", "gallery"]

Distances = NDArray[np.floating]

SHOWN = 5  # neighbours of a query, as in the paper
RULES = {
    "failures": "Failures: queries whose nearest image is of another class, drawn by seed {seed}, one of each class before any "
    "class has a second.",
    "instructive": "Most instructive failures: queries whose nearest image is of another class, and nearer than the nearest "
    "right image by the largest factor; each pair of classes has one before any has a second.",
    "successes": "Successes: queries whose {nearest} of their class (where it has fewer, all of them come first), drawn by "
    "seed {seed}, one of each class before any class has a second.",
}

# The picture is laid out in pixels of 200 to the inch; saved at that resolution, a pixel of a thumbnail is a pixel.
DPI = 200
MARGIN, GAP, SPLIT = 28, 24, 30  # around everything; between columns; beyond that beside the query and the nearest right image
HEAD, CAPTION, LEGEND, LINE = 40, 116, 56, 27  # heights: of the headings, a caption, the legend, a line of the rule
SIZE, RISE = 6.5, 8  # of all letters, in points; by how much a heading is lifted off what is beneath it
NARROWEST = 1000
FRAME, THIN, BADGE = 6, 2, 36
MARKS = {  # what a neighbour is: its colour, the lines of its mark in a square of side 1, and the words of the legend
    "right": (POSITIVE, (((0.24, 0.42, 0.78), (0.52, 0.72, 0.28)),), "same class"),
    "wrong": (NEGATIVE, (((0.27, 0.73), (0.27, 0.73)), ((0.27, 0.73), (0.73, 0.27))), "other class"),
    "rest": (FAINT, (((0.26, 0.74), (0.5, 0.5)),), "other class, when none of the query's is left"),
}


@dataclass(frozen=True)
class Queries:
    """Queries that a rule has chosen, and what is nearest to them; there may be none."""

    kind: str
    rule: str  # in a sentence
    rows: Indices  # (q,)
    neighbours: Indices  # rows of the nearest other images, nearest first                            (q, k), k <= 5
    distances: Distances  # to them                                                                   (q, k)
    right: NDArray[np.bool_]  # whether they are of the query's class                                 (q, k)
    mates: Indices  # how many other images of its class there are                                    (q,)
    nearest_right: Indices | None = None  # row of the nearest of these, where embeddings were given  (q,)
    right_distances: Distances | None = None  # its distance                                          (q,)
    right_ranks: Indices | None = None  # and its rank among all other images, 1 is the nearest       (q,)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def marks(self) -> NDArray[np.str_]:
        """What each neighbour is: "right"; "wrong"; or "rest", of another class after all of the query's.        (q, k)"""
        rest = self.right.cumsum(axis=1) == self.mates[:, None]
        return np.where(self.right, "right", np.where(rest, "rest", "wrong"))


def choose_queries(
    kind: str,
    labels: LabelsLike,
    neighbours: Indices,
    distances: Distances,
    *,
    count: int = 8,
    seed: int = 0,
    embeddings: EmbeddingsLike | None = None,
) -> Queries:
    """Queries to show, by a rule and not by hand; it is stated in a sentence of the result.

    ===========  ===============================================================================================
    successes    the five nearest images are of the query's class; where it has fewer, all of them come first
    failures     the nearest image is of another class
    instructive  a failure, and the nearest image is nearer than the nearest right one by the largest factor
    ===========  ===============================================================================================

    An image that is alone in its class is none of these. If no query fits the rule, the result is empty.

    Args:
        kind: a name above.
        labels: (n,), integers or strings.
        neighbours: (n, k), rows of each image's nearest others, nearest first, from ``nearest_neighbors``; five are used.
        distances: (n, k), to them.
        count: how many queries at most.
        seed: of the draw; the instructive ones are not drawn.
        embeddings: (n, d), whose neighbours these are. With them the result has each query's nearest right image, wherever
            it ranks. The instructive ones need them.

    """
    sentence = pick(RULES, kind, "kind")
    count, seed = check_count("count", count), check_count("seed", seed, 0)
    y = as_classes(labels)[0]
    neighbours, distances = _checked_lists(y, neighbours, distances)
    X = None if embeddings is None else _checked_embeddings(embeddings, len(y))
    mates = np.bincount(y)[y] - 1  #                                                                  (n,)
    right = y[neighbours] == y[:, None]  #                                                            (n, k)
    k = right.shape[1]
    fit = (right | (np.arange(k) >= mates[:, None])).all(axis=1) if kind == "successes" else ~right[:, 0]
    rows = np.flatnonzero(fit & (mates > 0))
    if kind != "instructive":
        rows = _drawn(rows, y, seed)
    elif X is None:
        raise ValueError("embeddings must be given for the instructive queries, got none. Pass those of the neighbours.")
    else:
        rows = _by_contrast(rows, y, neighbours, distances, X)
    rows = rows[:count]
    nearest = "nearest image is" if k == 1 else f"{('two', 'three', 'four', 'five')[k - 2]} nearest images are all"
    sentence = sentence.format(seed=seed, nearest=nearest)
    queries = Queries(kind, sentence, rows, neighbours[rows], distances[rows], right[rows], mates[rows])
    return queries if X is None else _with_nearest_right(queries, y, X)


def gallery(
    queries: Queries, thumbnails: Thumbnails, labels: Indices, class_names: Sequence[str], *, side: int = 208
) -> Figure:
    """A row for each query: the query, its nearest neighbours and, unless all are among these, the nearest right images.

    A tick and a green frame mark a neighbour of the query's class, a cross and a red frame one of another class; a dash and a
    grey frame one of another class that is no mistake, since all images of the query's class came before it. Beneath are
    distance and class name, and at the foot the rule.

    Args:
        queries: from :func:`choose_queries`; of no queries the gallery says that there are none.
        thumbnails: rows (q,) and a side to pictures (q, side, side, 3), such as ``thumbnails_of(packed.images, rows)``.
        labels: (n,), numbers into the class names.
        class_names: of all classes.
        side: of a picture, in pixels at 200 to the inch.

    """
    side, names = check_count("side", side, 64), _checked_names(queries, labels, class_names)
    k = queries.neighbours.shape[1]
    extra = queries.right_ranks is not None and bool((queries.right_ranks > k).any())
    lines = _lines(queries, extra)
    lefts = [MARGIN, *(MARGIN + SPLIT + (side + GAP) * column for column in range(1, k + 1))]
    if extra:
        lefts.append(lefts[-1] + side + GAP + SPLIT)
    width = max(lefts[-1] + side + MARGIN, NARROWEST)
    rule = fitted(queries.rule, (width - 2 * MARGIN) * 72 / DPI, SIZE, lines=9)
    end = MARGIN + (HEAD + len(lines) * (side + CAPTION) + LEGEND if lines else LINE)
    height = end + LINE * (1 + rule.count("\n")) + MARGIN
    with drawing():
        figure, (axes,) = new_figure(width / DPI, height / DPI)
        figure.set_layout_engine("none")
        figure.suppressComposite = True  # in an SVG or PDF each picture stays one
        axes.set_position((0, 0, 1, 1))
        axes.set_axis_off()
        if lines:
            headings = ["query", "nearest image" if k == 1 else f"{k} nearest images, from the left", *[""] * (k - 1)]
            for heading, left in zip((*headings, *["nearest right image"] * extra), lefts, strict=True):
                _write(axes, left, MARGIN - RISE, heading)
            pictures = _pictures(thumbnails, lines, side)
            for q, line in enumerate(lines):
                _draw_line(axes, line, pictures[q], names, lefts, MARGIN + HEAD + q * (side + CAPTION))
            _draw_legend(axes, end - LEGEND, {mark for line in lines for _, mark, _ in line})
        else:
            _write(axes, MARGIN, MARGIN - RISE, "There are none: no query fits the rule.")
        _write(axes, MARGIN, end, rule)
        axes.set(xlim=(0, width), ylim=(height, 0))
    return figure


def _drawn(rows: Indices, y: Indices, seed: int) -> Indices:
    """In an order drawn by the seed: of each class one, then of each class a second one, and so on."""
    rng = np.random.default_rng([seed, 3])
    rows, places = rng.permutation(rows), rng.permutation(y.max() + 1)
    return rows[np.lexsort((places[y[rows]], _turns(y[rows])))]


def _by_contrast(rows: Indices, y: Indices, neighbours: Indices, distances: Distances, X: NDArray[np.floating]) -> Indices:
    """By the ratio of the distances to the nearest image and to the nearest right one, each pair of classes in turn."""
    nearest, right = distances[rows, 0], _nearest_mates(rows, y, X)
    ratio = np.divide(nearest, right, out=np.ones(len(rows)), where=right > 0)
    order = np.argsort(ratio, kind="stable")
    rows = rows[order]
    pair = np.sort(np.stack((y[rows], y[neighbours[rows, 0]])), axis=0)
    return rows[np.argsort(_turns(pair[0] * (y.max() + 1) + pair[1]), kind="stable")]


def _turns(groups: Indices) -> Indices:
    """For each entry, how many of its group come before it."""
    order = np.argsort(groups, kind="stable")
    _, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    turns = np.empty_like(order)
    turns[order] = np.arange(len(groups)) - np.repeat(starts, sizes)
    return turns


def _nearest_mates(rows: Indices, y: Indices, X: NDArray[np.floating]) -> Distances:
    """Distance from each of these rows to the nearest other image of its class."""
    D = np.empty(len(y))
    order = np.argsort(y, kind="stable")
    ends = np.cumsum(np.bincount(y))
    for one in np.unique(y[rows]):
        members = order[ends[one - 1] if one else 0 : ends[one]]
        D[members] = nearest_neighbors(X[members], 1)[0][:, 0]
    return D[rows]


def _with_nearest_right(queries: Queries, y: Indices, X: NDArray[np.floating]) -> Queries:
    """The nearest right image of each query from the list of all images, whose order is exact."""
    found, D, ranks = np.empty_like(queries.rows), np.empty(len(queries)), np.empty_like(queries.rows)
    for q, row in enumerate(queries.rows):
        all_distances, everyone = (each[0] for each in nearest_neighbors(X, len(X), queries=X[row : row + 1]))
        others = everyone != row
        all_distances, everyone = all_distances[others], everyone[others]
        at = int(np.argmax(y[everyone] == y[row]))
        found[q], D[q], ranks[q] = everyone[at], all_distances[at], at + 1
    return replace(queries, nearest_right=found, right_distances=D, right_ranks=ranks)


def _lines(queries: Queries, extra: bool) -> list[list[tuple[int, str, str]]]:
    """Of each query the pictures from left to right: row, mark, and what stands above the class name."""
    lines = [[(int(row), "query", "")] for row in queries.rows]
    for q, line in enumerate(lines):
        found = zip(queries.neighbours[q], queries.marks[q], queries.distances[q], strict=True)
        line += [(int(row), str(mark), _number(distance)) for row, mark, distance in found]
        if extra:
            assert queries.nearest_right is not None
            assert queries.right_distances is not None
            assert queries.right_ranks is not None
            caption = f"{_number(queries.right_distances[q])}, rank {queries.right_ranks[q]:,}"
            line.append((int(queries.nearest_right[q]), "right", caption))
    return lines


def _pictures(thumbnails: Thumbnails, lines: list[list[tuple[int, str, str]]], side: int) -> Pixels:
    """The thumbnails of all lines, each image read once."""
    rows = np.array([[row for row, _, _ in line] for line in lines])
    distinct, places = np.unique(rows, return_inverse=True)
    return pictures_of(thumbnails, distinct, side)[places.reshape(rows.shape)]


def _draw_line(
    axes: Axes, line: list[tuple[int, str, str]], pictures: Pixels, names: Sequence[str], lefts: list[int], top: int
) -> None:
    """The pictures of one query, with their frames, marks and captions."""
    side = pictures.shape[1]
    for (row, mark, caption), pixels, left in zip(line, pictures, lefts, strict=True):
        axes.imshow(pixels, extent=(left, left + side, top + side, top), interpolation="auto", zorder=1)
        if mark == "query":
            _draw_frame(axes, left, top, side, THIN, INK)
        else:
            _draw_frame(axes, left, top, side, FRAME, MARKS[mark][0])
            _draw_mark(axes, left, top, mark)
        name = fitted(names[row], side * 72 / DPI, SIZE, lines=2 if caption else 3)
        _write(axes, left, top + side + FRAME, f"{caption}\n{name}" if caption else name)


def _draw_frame(axes: Axes, left: float, top: float, side: float, width: float, colour: str) -> None:
    """A frame that touches the picture from outside."""
    corner, size = (left - width / 2, top - width / 2), side + width
    axes.add_patch(Rectangle(corner, size, size, fill=False, ec=colour, lw=width * 72 / DPI, joinstyle="miter", zorder=2))


def _draw_mark(axes: Axes, left: float, top: float, mark: str) -> None:
    colour, lines, _ = MARKS[mark]
    axes.add_patch(Rectangle((left, top), BADGE, BADGE, color=colour, lw=0, zorder=3))
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
        axes.text(left, top + number * LINE, line, size=SIZE, color=INK, va="baseline", ha="left")


def _number(distance: float) -> str:
    """Three digits, or all before the point.

    >>> _number(0.01234), _number(12), _number(123.4), _number(12345)
    ('0.0123', '12.0', '123', '12,345')
    """
    return f"{distance:#.3g}".rstrip(".") if distance < 999.5 else f"{distance:,.0f}"


def _checked_lists(y: Indices, neighbours: Indices, distances: Distances) -> tuple[Indices, Distances]:
    neighbours, distances = np.asarray(neighbours), np.asarray(distances)
    if y.ndim != 1 or neighbours.ndim != 2 or len(neighbours) != len(y) or not neighbours.size:
        raise ValueError(
            f"neighbours must have shape (n, k), a row per label and k >= 1, got {neighbours.shape} for labels {y.shape}. "
            "Pass the indices of nearest_neighbors."
        )
    if distances.shape != neighbours.shape:
        raise ValueError(f"distances must have the shape of neighbours, {neighbours.shape}, got {distances.shape}.")
    neighbours, distances = neighbours[:, :SHOWN], distances[:, :SHOWN]
    if neighbours.dtype.kind not in "iu" or neighbours.min() < 0 or neighbours.max() >= len(y):
        raise ValueError(
            f"neighbours must be integers from 0 to {len(y) - 1}, got {neighbours.dtype} from {neighbours.min()} to "
            f"{neighbours.max()}. Pass the indices of nearest_neighbors."
        )
    own = (neighbours == np.arange(len(y))[:, None]).any(axis=1)
    if own.any():
        raise ValueError(f"no image may be its own neighbour, row {np.argmax(own)} is. Search without queries, or drop it.")
    if distances.dtype.kind != "f" or not np.isfinite(distances).all():
        raise ValueError("distances must be finite numbers of a float type. Pass those of nearest_neighbors.")
    return neighbours.astype(np.int64), distances


def _checked_embeddings(embeddings: EmbeddingsLike, n: int) -> NDArray[np.floating]:
    X = as_embeddings(embeddings).detach().cpu()
    if len(X) != n:
        raise ValueError(f"embeddings must have one row per label, got {len(X)} for {n} labels. Pass those of the labels.")
    if not X.isfinite().all():
        check_finite(X, np.inf)
    array: NDArray[np.floating] = X.numpy()
    return array


def _checked_names(queries: Queries, labels: Indices, class_names: Sequence[str]) -> Sequence[str]:
    """The class name of every image."""
    y = np.asarray(labels)
    if y.ndim != 1 or y.dtype.kind not in "iu" or (y.size and not (y.min() >= 0 and y.max() < len(class_names))):
        got = f"{y.dtype} {y.shape}" + (f" from {y.min()} to {y.max()}" if y.size and y.dtype.kind in "iu" else "")
        raise ValueError(f"labels must be numbers (n,) into the {len(class_names)} class names, got {got}. Pass their numbers.")
    last = max((int(rows.max()) for rows in (queries.rows, queries.neighbours) if rows.size), default=0)
    if last >= len(y):
        raise ValueError(f"labels must be of all images, the queries have rows up to {last}, got {len(y)}. Pass as many.")
    return [class_names[one] for one in y]

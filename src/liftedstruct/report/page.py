"""The HTML report of some runs: scores, map, galleries and figures in one file that loads nothing from anywhere."""

import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from liftedstruct.evaluation import Scores, compare
from liftedstruct.figures import FIGURES, EvaluatedRun
from liftedstruct.figures.canvas import COLOURS, colour_of
from liftedstruct.figures.curves import NAMES
from liftedstruct.figures.galleries import MARKS, Queries, choose_queries
from liftedstruct.figures.published import published_like
from liftedstruct.report import words
from liftedstruct.report.inline import breakable, css_color, image_urls, inline_svg, resource
from liftedstruct.report.interactive_map import NoRoomError, View, map_html
from liftedstruct.report.run_results import read_runs
from liftedstruct.runtime.atomic import replacing
from liftedstruct.runtime.checks import as_number, check_out
from liftedstruct.runtime.extras import require
from liftedstruct.runtime.progress import say

__all__ = ["write_report"]

MEGABYTE = 1_000_000
SIDE = 144  # pixels of an image in a gallery, shown at half of that or a little more
QUERIES = 8  # of each gallery
GALLERIES = {
    "successes": "What it finds",
    "failures": "Where it fails",
    "instructive": "The most instructive failures",
}
CONCEPTS = {
    "batch-graph": (
        "A batch as a graph",
        "Contrastive and triplet losses use some edges of a batch, the lifted loss all of them.",
    ),
    "mining": ("Which negatives count", "Each positive pair is pushed by the hard negatives of both its images."),
    "failure-modes": (
        "Where simpler losses go wrong",
        "The arrows are the negative gradients that the losses of this package have at these points.",
    ),
    "networks": ("The three networks", "What goes through the network for each of the losses."),
}


@dataclass(frozen=True)
class PageFigure:
    """A figure of the report."""

    name: str
    title: str
    finding: str  # in words, also the text alternative
    svg: str


@dataclass(frozen=True)
class GalleryImage:
    """An image in a gallery."""

    url: str
    name: str  # of its class
    mark: str  # query, right, wrong, or rest: of another class when none of the query's is left
    distance: float | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Gallery:
    """Queries, each with its nearest images and, where none of these is right, the nearest right one."""

    name: str
    title: str
    rule: str
    rows: list[tuple[GalleryImage, list[GalleryImage], GalleryImage | None]]


def write_report(
    runs: Sequence[str | Path], out: str | Path, *, title: str | None = None, max_mb: float = 80.0, progress: bool = True
) -> Path:
    """Write the HTML report of some runs: scores, map, galleries, figures, and how all of it was made.

    The first trained run is what the report is about; the others are what it is compared with. All must have been evaluated,
    ``liftedstruct evaluate``: nothing is measured here.

    Args:
        runs: folders of runs that hold ``embeddings.npz``, or files of embeddings, all of the same images.
        out: the file to write.
        title: of the report; default: the name of the dataset.
        max_mb: maximum size, in megabytes of 1,000,000 bytes. What the rest does not need is for the map's thumbnails.
        progress: print progress to stderr.

    """
    out = check_out("out", out)
    if not 0 < as_number(max_mb) < math.inf:
        raise ValueError(f"max_mb must be a finite number above 0, got {max_mb!r}. Most mailboxes take 20.")
    found = read_runs(runs, progress)
    mark = secrets.token_hex(16)  # in the place of the map, and of the size
    page = _page(found, title, mark, progress).encode("utf-8", "backslashreplace")
    room = int(max_mb * MEGABYTE) - len(page) - 100
    if room <= 0:
        least = math.ceil(10 * (int(max_mb * MEGABYTE) - room) / MEGABYTE) / 10
        raise ValueError(
            f"max_mb must be above {least:.1f} for this page and some more for its map, got {max_mb:g}. Allow more."
        )
    if progress:
        say("report: the map")
    fragment = _map(found, room, max_mb, progress).encode("utf-8")
    size = f"{(len(page) + len(fragment)) / MEGABYTE:.1f} MB"
    head, tail = page.replace(f"{mark} size".encode("ascii"), size.encode("ascii")).split(f"{mark} map".encode("ascii"))
    with replacing(out) as stream:
        stream.writelines((head, fragment, tail))
    return out


def _page(runs: Sequence[EvaluatedRun], title: str | None, mark: str, progress: bool) -> str:
    """All of it but the map."""
    jinja2 = require("jinja2", "figures")
    run, other = words.main_and_baseline(runs)
    rest = [each for each in runs if each is not run]
    scores = {each.name: each.scores for each in runs}
    comparisons = [compare(scores[run.name], scores[each.name], names=(run.name, each.name)) for each in rest]
    against = next((one for one, each in zip(comparisons, rest, strict=True) if each is other), None)
    if progress:
        say("report: galleries and figures")
    machine = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    machine.filters |= {"breakable": breakable, "digits": "{:.3g}".format, "p": words.p_text, "percent": words.percent}
    text: str = machine.from_string(resource("page.html.jinja")).render(
        title=title or f"{run.dataset or 'Embeddings'}, {run.part} images",
        headline=words.headline(run, other, against),
        introduction=words.introduction(runs),
        warnings=list(dict.fromkeys(warning for each in runs for warning in each.warnings)),
        runs=runs,
        run=run,
        display_name=words.display_name,
        names=NAMES,
        hue=_hues(runs).__getitem__,
        side=SIDE,
        marks={mark: meaning for mark, (_, _, meaning) in MARKS.items()},
        significance=words.SIGNIFICANCE,
        measures=_measures(scores.values()),
        comparisons=list(zip(rest, comparisons, strict=True)),
        published=runs[0].published,
        beside={each.name: published_like(runs[0].published, each.method, each.size) for each in runs},
        galleries=[_gallery(kind, run) for kind in GALLERIES],
        figures=_figures(runs, run),
        concepts=_concepts(),
        protocol=words.protocol(runs),
        style=resource("page.css"),
        map=f"{mark} map",
        size=f"{mark} size",
    )
    return text


def _measures(scores: Collection[Scores]) -> list[str]:
    """The columns of the tables: Recall@K by K, then what there is of clusterings."""
    measures = dict.fromkeys(measure for each in scores for measure in each.measures)
    recalls = [f"Recall@{k}" for k in sorted({k for each in scores for k in each.recall})]
    return [*recalls, *(measure for measure in measures if measure not in recalls)]


def _hues(runs: Sequence[EvaluatedRun]) -> dict[EvaluatedRun, str]:
    """The color of each run, the same as in the figures that show it by its name."""
    others = [run for run in runs if run.name not in COLOURS]
    return {run: css_color(colour_of(run.name, others.index(run) if run in others else 0)) for run in runs}


def _gallery(kind: str, run: EvaluatedRun) -> Gallery:
    distances, neighbours = run.nearest
    queries = choose_queries(kind, run.labels, neighbours, distances, count=QUERIES, embeddings=run.embeddings)
    return Gallery(kind, GALLERIES[kind], queries.rule, _gallery_rows(queries, run))


def _gallery_rows(queries: Queries, run: EvaluatedRun) -> list[tuple[GalleryImage, list[GalleryImage], GalleryImage | None]]:
    assert queries.nearest_right is not None
    assert queries.right_distances is not None
    assert queries.right_ranks is not None
    shown = np.concatenate((queries.rows, queries.neighbours.reshape(-1), queries.nearest_right))
    urls = image_urls(run.thumbnails, shown, SIDE)
    names = run.class_names

    def found(row: int, mark: str, distance: float | None = None, rank: int | None = None) -> GalleryImage:
        return GalleryImage(urls[row], names[run.labels[row]], mark, distance, rank)

    rows = []
    for q, query in enumerate(queries.rows.tolist()):
        lists = zip(queries.neighbours[q].tolist(), queries.marks[q].tolist(), queries.distances[q].tolist(), strict=True)
        near = [found(row, mark, distance, k) for k, (row, mark, distance) in enumerate(lists, start=1)]
        mate, rank = int(queries.nearest_right[q]), int(queries.right_ranks[q])
        last = found(mate, "right", float(queries.right_distances[q]), rank) if rank > len(near) else None
        rows.append((found(query, "query"), near, last))
    return rows


def _figures(runs: Sequence[EvaluatedRun], run: EvaluatedRun) -> list[PageFigure]:
    """The figures of this data: those that there is something to draw for."""
    places = {(each.method, each.size) for each in runs}
    several = len(places) == len(runs) > len({each.method for each in runs})  # more than one size, and no two runs of one
    kind, title = ("scores", "Scores against size and K") if several else ("recall", "Recall@K")
    figures = [PageFigure(kind, title, words.recall_finding(runs), inline_svg(FIGURES[kind](runs), kind))]
    for kind, (title, finding) in words.single_run_figures(run).items():
        figures.append(PageFigure(kind, title, finding, inline_svg(FIGURES[kind](run), kind)))
    if any(each.log for each in runs):
        svg = inline_svg(FIGURES["training"](runs), "training")
        figures.append(PageFigure("training", "Training", words.training_finding(runs), svg))
    return figures


@cache
def _concepts() -> list[PageFigure]:
    """The figures that are the same in every report."""
    return [PageFigure(name, *texts, inline_svg(FIGURES[name](), name)) for name, texts in CONCEPTS.items()]


def _map(runs: Sequence[EvaluatedRun], room: int, max_mb: float, progress: bool) -> str:
    run = runs[0]
    captions = run.paths or [f"image {row:,}" for row in range(len(run))]
    views = []
    for each in runs:
        distances, neighbors = each.nearest
        views.append(View(words.display_name(each), each.positions, neighbors, distances, each.scores.ranks))
    try:
        return map_html(views, run.labels, run.class_names, captions, run.thumbnails, max_bytes=room, progress=progress)
    except NoRoomError as error:
        raise ValueError(f"max_mb must leave the map more than {room:,} bytes, got {max_mb:g}: {error}") from error

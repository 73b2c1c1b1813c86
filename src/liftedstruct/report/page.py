"""The page: everything that a person wants to see of some runs, in one HTML file that asks nobody for anything."""

import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from liftedstruct.evaluation import Scores, compare
from liftedstruct.figures import FIGURES, MARKS, Queries, choose_queries, published_like
from liftedstruct.figures.style import COLORS, METHOD_NAMES, method_color
from liftedstruct.report import words
from liftedstruct.report.atlas import NoRoomError, View, map_html
from liftedstruct.report.inline import breakable, hue, inline_svg, photographs
from liftedstruct.report.run_results import Run, read_runs
from liftedstruct.runtime.atomic import replacing
from liftedstruct.runtime.checks import as_number, check_out
from liftedstruct.runtime.extras import require
from liftedstruct.runtime.progress import say

__all__ = ["write_report"]

MEGABYTE = 1_000_000
SIDE = 144  # pixels of a picture in a gallery, shown at half of that or a little more
QUERIES = 8  # of each gallery
GALLERIES = {
    "successes": "What it finds",
    "failures": "Where it fails",
    "instructive": "The most instructive failures",
}
IDEAS = {
    "batch-graph": (
        "A batch as a graph",
        "Contrastive and triplet losses use some edges of a batch, the lifted loss all of them.",
    ),
    "mining": ("Which negatives count", "Each positive pair is pushed by the difficult negatives of both its sides."),
    "failure-modes": (
        "Where simpler losses go wrong",
        "The arrows are the negative gradients that the losses of this package have at these points.",
    ),
    "networks": ("The three networks", "What goes through the network for each of the losses."),
}


@dataclass(frozen=True)
class Drawn:
    """A figure of the page."""

    name: str
    title: str
    finding: str  # in words, also for whoever cannot see it
    svg: str


@dataclass(frozen=True)
class Found:
    """A picture in a gallery."""

    picture: str
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
    rows: list[tuple[Found, list[Found], Found | None]]


def write_report(
    runs: Sequence[str | Path], out: str | Path, *, title: str | None = None, max_mb: float = 80.0, progress: bool = True
) -> Path:
    """Write the page of some runs: scores, map, galleries, figures, and how all of it was made.

    The first trained run is what the page is about; the others are what it is compared with. Scores are read if they are
    beside the embeddings and theirs, otherwise evaluated, which is noted as a reading of the test classes.

    Args:
        runs: folders of runs that hold ``embeddings.npz``, or files that ``liftedstruct embed`` wrote, all of the same images.
        out: the file to write.
        title: of the page; by default the name of the data.
        max_mb: its size at most, in megabytes of 1,000,000 bytes. What the page does not need is for the map's pictures.
        progress: say on stderr what is being done.

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


def _page(runs: Sequence[Run], title: str | None, mark: str, progress: bool) -> str:
    """All of it but the map."""
    jinja2 = require("jinja2", "figures")
    run, other = words.chosen(runs)
    rest = [each for each in runs if each is not run]
    scores = {each.name: each.scores for each in runs}
    comparisons = [compare(scores[run.name], scores[each.name], names=(run.name, each.name)) for each in rest]
    against = next((one for one, each in zip(comparisons, rest, strict=True) if each is other), None)
    if progress:
        say("report: galleries and figures")
    machine = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    machine.filters |= {"breakable": breakable, "digits": "{:.3g}".format, "p": words.p_text, "percent": words.percent}
    text: str = machine.from_string(_resource("page.html.jinja")).render(
        title=title or f"{run.data or 'Embeddings'}, {run.part} images",
        headline=words.headline(run, other, against),
        lead=words.lead(runs),
        warnings=list(dict.fromkeys(warning for each in runs for warning in each.warnings)),
        runs=runs,
        run=run,
        name_of=words.name_of,
        names=METHOD_NAMES,
        hue=_hues(runs).__getitem__,
        side=SIDE,
        marks={mark: meaning for mark, (_, _, meaning) in MARKS.items()},
        least=words.LEAST,
        measures=_measures(scores.values()),
        comparisons=list(zip(rest, comparisons, strict=True)),
        published=runs[0].published,
        beside={each.name: published_like(runs[0].published, each.method, each.size) for each in runs},
        galleries=[_gallery(kind, run) for kind in GALLERIES],
        figures=_figures(runs, run),
        ideas=_ideas(),
        protocol=words.protocol(runs),
        style=_resource("page.css"),
        map=f"{mark} map",
        size=f"{mark} size",
    )
    return text


def _resource(name: str) -> str:
    return files("liftedstruct.report").joinpath(name).read_text(encoding="utf-8")


def _measures(scores: Collection[Scores]) -> list[str]:
    """The columns of the tables: Recall@K by K, then what there is of clusterings."""
    every = dict.fromkeys(measure for each in scores for measure in each.measures)
    ks = sorted({k for each in scores for k in each.recall})
    recalls = [f"Recall@{k}" for k in ks]
    return recalls + [measure for measure in every if measure not in recalls]


def _hues(runs: Sequence[Run]) -> dict[Run, str]:
    """The colour of each run, the same as in the figures that show it by its name."""
    others = [run for run in runs if run.name not in COLORS]
    return {run: hue(method_color(run.name, others.index(run) if run in others else 0)) for run in runs}


def _gallery(kind: str, run: Run) -> Gallery:
    distances, neighbours = run.nearest
    queries = choose_queries(kind, run.labels, neighbours, distances, count=QUERIES, embeddings=run.embeddings)
    return Gallery(kind, GALLERIES[kind], queries.rule, _gallery_rows(queries, run))


def _gallery_rows(queries: Queries, run: Run) -> list[tuple[Found, list[Found], Found | None]]:
    shown = np.concatenate((queries.rows, queries.neighbors.reshape(-1), queries.nearest_right))
    pictures = photographs(run.thumbnails, shown, SIDE)
    names = run.class_names

    def found(row: int, mark: str, distance: float | None = None, rank: int | None = None) -> Found:
        return Found(pictures[row], names[run.labels[row]], mark, distance, rank)

    rows = []
    for q, query in enumerate(queries.rows.tolist()):
        lists = zip(queries.neighbors[q].tolist(), queries.marks[q].tolist(), queries.distances[q].tolist(), strict=True)
        near = [found(row, mark, distance, k) for k, (row, mark, distance) in enumerate(lists, start=1)]
        mate, rank = int(queries.nearest_right[q]), int(queries.right_ranks[q])
        last = found(mate, "right", float(queries.right_distances[q]), rank) if rank > len(near) else None
        rows.append((found(query, "query"), near, last))
    return rows


def _figures(runs: Sequence[Run], run: Run) -> list[Drawn]:
    """The figures of this data: those that there is something to draw for."""
    drawn = []
    sizes: dict[str, set[int]] = {}
    for each in runs:
        sizes.setdefault(each.method, set()).add(each.size)
    several = sum(map(len, sizes.values())) == len(runs) > len(sizes)  # no two runs at one place, and more than one size
    kind, title = ("scores", "Scores against size and K") if several else ("recall", "Recall@K")
    drawn.append(Drawn(kind, title, words.recall_finding(runs), inline_svg(FIGURES[kind](runs), kind)))
    for kind, (title, finding) in words.of_one(run).items():
        drawn.append(Drawn(kind, title, finding, inline_svg(FIGURES[kind](run), kind)))
    if any(each.log for each in runs):
        svg = inline_svg(FIGURES["training"](runs), "training")
        drawn.append(Drawn("training", "Training", words.training_finding(runs), svg))
    return drawn


@cache
def _ideas() -> list[Drawn]:
    """The figures that are the same on every page."""
    return [Drawn(name, *texts, inline_svg(FIGURES[name](), name)) for name, texts in IDEAS.items()]


def _map(runs: Sequence[Run], room: int, max_mb: float, progress: bool) -> str:
    run = runs[0]
    views = [View(words.name_of(each), each.positions, each.nearest[1], each.nearest[0], each.scores.ranks) for each in runs]
    try:
        return map_html(views, run.labels, run.class_names, run.found.paths, run.thumbnails, max_bytes=room, progress=progress)
    except NoRoomError as error:
        raise ValueError(f"max_mb must leave the map more than {room:,} bytes, got {max_mb:g}: {error}") from error

"""HTML report of evaluated runs: scores, map, galleries and figures in one self-contained file."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from liftedstruct.evaluation import compare
from liftedstruct.figures import FIGURES, MARKS, EvaluatedRun, choose_queries, published_like
from liftedstruct.figures.style import COLORS, METHOD_NAMES, method_color
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
SIDE = 144  # pixels of an image in a gallery, displayed at about half that size
QUERIES = 8  # per gallery
GALLERIES = {
    "successes": "Successes",
    "failures": "Failures",
    "instructive": "Most instructive failures",
}
CONCEPTS = {
    "batch-graph": (
        "A batch as a graph",
        "Contrastive and triplet losses use some pairs of a batch; the lifted structured loss uses all of them.",
    ),
    "mining": ("Hard negatives", "Both images of a positive pair are pushed away from their hard negatives."),
    "failure-modes": (
        "Failure modes of simpler losses",
        "The arrows are negative gradients, computed with the losses of this package.",
    ),
    "networks": ("The three networks", "The images that pass through the network for each loss."),
}


def write_report(
    runs: Sequence[str | Path], out: str | Path, *, title: str | None = None, max_mb: float = 80.0, progress: bool = True
) -> Path:
    """Write the HTML report of evaluated runs: scores, map, galleries, figures and protocol.

    The report is about the trained run with the highest Recall@1 and compares it with the others. All runs must have been
    evaluated with `liftedstruct evaluate`.

    Args:
        runs: run folders that hold `embeddings.npz`, or files of embeddings, all of the same images.
        out: file to write.
        title: title of the report. Default: the name of the dataset.
        max_mb: maximum size of the file in megabytes (10^6 bytes). The thumbnails of the map use the remaining space.
        progress: print progress to stderr.

    """
    out = check_out("out", out)
    if not 0 < as_number(max_mb) < math.inf:
        raise ValueError(f"max_mb must be a finite number above 0, got {max_mb!r}. Pass 20 for most mail servers.")
    jinja2 = require("jinja2", "figures")
    found = read_runs(runs, progress)
    html = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    html.filters |= {"breakable": breakable, "digits": "{:.3g}".format, "p": words.p_text, "percent": words.percent}
    template, content = html.from_string(resource("page.html.jinja")), _content(found, title, out.absolute().parent, progress)
    most, rest = int(max_mb * MEGABYTE), len(_encoded(template.render(content, map="", size="")))
    room = most - rest - 100
    if room <= 0:
        least = math.ceil(10 * (rest + 100) / MEGABYTE) / 10
        raise ValueError(f"max_mb must be above {least:.1f} to leave room for the map, got {max_mb:g}. Pass a larger max_mb.")
    if progress:
        say("report: the map")
    fragment = _map(found, room, max_mb, out.absolute().parent, progress)
    size = f"{(rest + len(fragment)) / MEGABYTE:.1f} MB"
    with replacing(out) as stream:
        stream.write(_encoded(template.render(content, map=fragment, size=size)))
    return out


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _content(runs: Sequence[EvaluatedRun], title: str | None, folder: Path, progress: bool) -> dict[str, Any]:
    """Return the variables of the template except the map; paths are relative to the report's folder."""
    run, other = words.main_and_baseline(runs)
    rest = [each for each in runs if each is not run]
    comparisons = [compare(run.scores, each.scores, names=(run.name, each.name)) for each in rest]
    against = next((one for one, each in zip(comparisons, rest, strict=True) if each is other), None)
    if progress:
        say("report: galleries and figures")
    return {
        "title": title or f"{run.dataset or 'Embeddings'}, {run.part} images",
        "headline": words.headline(run, other, against),
        "next_step": words.next_step(run, other, against),
        "introduction": words.introduction(runs),
        "warnings": list(dict.fromkeys(warning for each in runs for warning in _warnings(each, folder))),
        "runs": runs,
        "run": run,
        "display_name": words.display_name,
        "names": METHOD_NAMES,
        "hue": _hues(runs).__getitem__,
        "side": SIDE,
        "marks": {mark: meaning for mark, (_, _, meaning) in MARKS.items()},
        "significance": words.SIGNIFICANCE,
        "metrics": _metrics(runs),
        "comparisons": list(zip(rest, comparisons, strict=True)),
        "published": runs[0].published,
        "beside": {each.name: published_like(runs[0].published, each.method, each.size) for each in runs},
        "galleries": [_gallery(kind, run) for kind in GALLERIES],
        "figures": _figures(runs, run),
        "concepts": _concepts(),
        "protocol": words.protocol(runs, folder),
        "style": resource("page.css"),
    }


def _warnings(run: EvaluatedRun, folder: Path) -> list[str]:
    """Return the warnings of a run without absolute paths."""
    return [each.replace(run.data, words.local_path(run.data, folder)) if run.data else each for each in run.warnings]


def _metrics(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Return the columns of the tables: Recall@K by K, then the clustering metrics."""
    recalls = [f"Recall@{k}" for k in sorted({k for run in runs for k in run.scores.recall})]
    return list(dict.fromkeys([*recalls, *(metric for run in runs for metric in run.scores.metrics)]))


def _hues(runs: Sequence[EvaluatedRun]) -> dict[EvaluatedRun, str]:
    """Return the color of each run, the same as in the figures."""
    others = [run for run in runs if run.name not in COLORS]
    return {run: css_color(method_color(run.name, others.index(run) if run in others else 0)) for run in runs}


def _gallery(kind: str, run: EvaluatedRun) -> dict[str, Any]:
    """Return queries with their nearest neighbors and, if it is not among these, the nearest positive."""
    distances, neighbors = run.nearest
    queries = choose_queries(kind, run.labels, neighbors, distances, count=QUERIES, embeddings=run.embeddings)
    shown = np.concatenate((queries.rows, queries.neighbors.reshape(-1), queries.nearest_right))
    urls = image_urls(run.thumbnails, shown, SIDE)

    def image(row: int, mark: str, distance: float = 0.0, rank: int = 0) -> dict[str, Any]:
        name = run.class_names[run.labels[row]]
        return {"url": urls[row], "name": name, "mark": mark, "distance": distance, "rank": rank}

    rows = []
    for q, query in enumerate(queries.rows.tolist()):
        lists = zip(queries.neighbors[q].tolist(), queries.marks[q].tolist(), queries.distances[q].tolist(), strict=True)
        near = [image(*each) for each in lists]
        mate, rank = int(queries.nearest_right[q]), int(queries.right_ranks[q])
        last = image(mate, "right", float(queries.right_distances[q]), rank) if rank > len(near) else None
        rows.append((image(query, "query"), near, last))
    return {"name": kind, "title": GALLERIES[kind], "rule": queries.rule, "rows": rows}


def _figures(runs: Sequence[EvaluatedRun], run: EvaluatedRun) -> list[dict[str, str]]:
    """Return the figures that have data to show."""
    places = {(each.method, each.size) for each in runs}
    several = len(places) == len(runs) > len({each.method for each in runs})  # several dimensions, no duplicates
    kind, title = ("scores", "Scores against dimension and K") if several else ("recall", "Recall@K")
    figures = [_figure(kind, title, words.recall_finding(runs), runs)]
    figures += [_figure(kind, title, finding, run) for kind, (title, finding) in words.single_run_figures(run).items()]
    if any(each.log for each in runs):
        figures.append(_figure("training", "Training", words.training_finding(runs), runs))
    return figures


def _figure(kind: str, title: str, finding: str, *shown: Any) -> dict[str, str]:
    """Return a figure as SVG with its finding, which is also the alternative text."""
    return {"name": kind, "title": title, "finding": finding, "svg": inline_svg(FIGURES[kind](*shown), kind)}


@cache
def _concepts() -> list[dict[str, str]]:
    """Return the illustrations of the losses, the same in every report."""
    return [_figure(kind, *texts) for kind, texts in CONCEPTS.items()]


def _map(runs: Sequence[EvaluatedRun], room: int, max_mb: float, folder: Path, progress: bool) -> str:
    run = runs[0]
    captions = [words.local_path(path, folder) if Path(path).is_absolute() else path for path in run.paths]
    captions = captions or [f"image {row:,}" for row in range(len(run))]
    views = [View(words.display_name(each), each.positions, *each.nearest, each.scores.ranks) for each in runs]
    try:
        return map_html(views, run.labels, run.class_names, captions, run.thumbnails, max_bytes=room, progress=progress)
    except NoRoomError as error:
        raise ValueError(f"max_mb must leave the map more than {room:,} bytes, got {max_mb:g}: {error}") from error

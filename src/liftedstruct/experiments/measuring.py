"""One training after the other, each embedded and measured on the test classes, then a page of all; nothing is done twice."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from liftedstruct.embedder import EMBEDDER, Embedder, Embeddings, embed
from liftedstruct.evaluation.files import EMBEDDINGS
from liftedstruct.experiments.steps import Steps
from liftedstruct.experiments.summary import summary
from liftedstruct.extras import require
from liftedstruct.figures.curves import NAMES
from liftedstruct.figures.published import Published
from liftedstruct.packed import PackedImages
from liftedstruct.progress import say
from liftedstruct.report.page import write_report
from liftedstruct.report.sources import read_runs
from liftedstruct.training import TrainConfig, starting_trunk, train_or_resume

__all__ = ["REPORT", "UNTRAINED", "carry_out", "check_tools", "describe_run", "number_of_steps"]

REPORT = "report.html"
MANY = 5_000  # images from which on it takes so long to measure them that it is said how far it is
UNTRAINED = "pool5.npz"  # the pooled features of a trunk that was not trained on this, as the paper calls them


def check_tools(config: TrainConfig) -> None:
    """Raise before any work if something that the end of it needs is not installed."""
    for module in ("jinja2", "matplotlib", "openTSNE"):
        require(module, "figures")
    _untrained(config)


def number_of_steps(configs: Sequence[TrainConfig]) -> int:
    """How many steps :func:`carry_out` has."""
    return len(configs) + 2


def carry_out(
    configs: Sequence[TrainConfig],
    packed: PackedImages,
    folder: Path,
    steps: Steps,
    *,
    also: Sequence[Path] = (),
    published: Sequence[Published] | None = None,
) -> str:
    """Measure the untrained trunk, then each training, and write a page of all; what came out, as a table and in words.

    Args:
        configs: of the trainings, the most important last.
        packed: the data of all of them.
        folder: for the embeddings of the untrained trunk and the page.
        steps: says which step it is.
        also: folders of finished runs to show beside these.
        published: what others report for this data, to show in the table.

    """
    folder.mkdir(parents=True, exist_ok=True)
    with steps.step("measure the untrained trunk"):
        untrained = _measure_untrained(configs[0], packed, folder)
    runs = list(also)
    for config in configs:
        with steps.step(f"train {describe_run(config)}"):
            runs.append(_measure_trained(config, packed))
    paths = [*reversed(runs), untrained]
    with steps.step("write the page"):
        page = folder / REPORT
        if not _is_newer(page, paths):
            write_report(paths, page)
    return f"{summary(paths, published)}\n\nMade in {steps.took}. Open {page.absolute()} in a browser."


def describe_run(config: TrainConfig) -> str:
    """What to call a training."""
    seed = f", seed {config.seed}" if config.seed else ""
    return f"{NAMES.get(config.loss, config.loss)}, {config.dim} dimensions{seed}, {config.steps:,} steps"


def _measure_untrained(config: TrainConfig, packed: PackedImages, folder: Path) -> Path:
    """Embed and measure the test classes with the trunk as it is before any training; the file of the embeddings."""
    file, embedder = folder / UNTRAINED, _untrained(config)
    if not _is_of(file, packed, weights=embedder.trunk.weights, trunk=embedder.trunk.name, crop=embedder.crop):
        embed(embedder, packed, packed.test, progress=True, out=file)
    return _measured(file)


def _measure_trained(config: TrainConfig, packed: PackedImages) -> Path:
    """Train, embed and measure, as far as that is not done already; the folder of the run."""
    run = train_or_resume(config)
    file = run.folder / EMBEDDINGS
    newer = file.exists() and file.stat().st_mtime >= (run.folder / EMBEDDER).stat().st_mtime
    if not (newer and _is_of(file, packed)):
        embed(run.embedder(), packed, packed.test, progress=True, out=file)
    return _measured(run.folder)


def _untrained(config: TrainConfig) -> Embedder:
    return Embedder(starting_trunk(config), 0, crop=config.crop)


def _is_of(file: Path, packed: PackedImages, **protocol: object) -> bool:
    """Whether a file has the embeddings of this data's test classes, made as the protocol says."""
    if not file.is_file():
        return False
    try:
        found = Embeddings.load(file)
    except ValueError:  # it is written anew
        return False
    wanted = {"checksum": packed.checksum, **protocol}
    return found.part == "test" and all(found.protocol.get(name) == value for name, value in wanted.items())


def _is_newer(page: Path, paths: Sequence[Path]) -> bool:
    """Whether a page was written after all that it shows."""
    shown = [run.scores_file for run in read_runs(paths, progress=False)]
    return page.is_file() and page.stat().st_mtime >= max(file.stat().st_mtime for file in shown)


def _measured(path: Path) -> Path:
    """Say the scores, which are kept beside the embeddings."""
    run = read_runs([path], progress=False)[0]
    scores = replace(run, progress=len(run) > MANY).scores
    names = {"Recall@1": "Recall@1", "NMI, affinity": "NMI", "F1, affinity": "F1"}
    parts = [f"{short} {100 * scores.measures[name].value:.1f} %" for name, short in names.items()]
    say(f"      {', '.join(parts)} on the test classes")
    return path

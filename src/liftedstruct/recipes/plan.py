"""One training after the other, each embedded and measured on the test classes, then a page of all; nothing is done twice."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from liftedstruct import __version__
from liftedstruct.data import PackedImages
from liftedstruct.data.packed_files import EDGE, SIZE
from liftedstruct.embedder import EMBEDDINGS, SHA, Embedder, Embeddings, embed
from liftedstruct.evaluation import Scores
from liftedstruct.figures.published import Published
from liftedstruct.figures.style import METHOD_NAMES
from liftedstruct.recipes.prepared import read_kept
from liftedstruct.recipes.steps import Steps
from liftedstruct.recipes.summary import COLUMNS, summary
from liftedstruct.report.page import write_report
from liftedstruct.report.run_results import Run, read_runs
from liftedstruct.runtime.atomic import write_json
from liftedstruct.runtime.extras import require
from liftedstruct.runtime.progress import say
from liftedstruct.training import TrainConfig, check_run, starting_trunk, train_or_resume
from liftedstruct.training.machine import find_device

__all__ = ["REPORT", "UNTRAINED", "carry_out", "check_tools", "describe_run", "number_of_steps"]

REPORT, SHOWN = "report.html", "report.json"  # the page, and what it shows
MANY = 5_000  # images from which on it takes so long to measure them that it is said how far it is
UNTRAINED = "pool5.npz"  # the pooled features of a trunk that was not trained on this, as the paper calls them


def check_tools(config: TrainConfig, size: int | None = None) -> int:
    """Raise before any work if what the end of it needs is not installed, or the crops do not fit into images of that size.

    Returns the size; where none is given, one that suits the crops.
    """
    for module in ("jinja2", "matplotlib", "openTSNE"):
        require(module, "figures")
    crop = _untrained(config).crop
    if size is None:
        return SIZE if crop <= SIZE else round(crop * EDGE)
    if crop > size:
        raise ValueError(
            f"the images must be at least as large as what the network is shown, {crop} px, got {size}. "
            "Pass a larger --size, or a smaller --crop."
        )
    return size


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
    for config in configs:
        check_run(config)
    folder.mkdir(parents=True, exist_ok=True)
    with steps.step("measure the untrained trunk"):
        untrained = _measure_untrained(configs[0], packed, folder)
    runs = list(also)
    for config in configs:
        with steps.step(f"train {describe_run(config)}"):
            runs.append(_measure_trained(config, packed, [*also, *(Path(each.out) for each in configs)]))
    paths = [*reversed(runs), untrained]
    with steps.step("write the page"):
        found = read_runs(paths, progress=False)
        page = _write_page(paths, found, folder)
    return f"{summary(found, published)}\n\nMade in {steps.took}. Open {page.absolute()} in a browser."


def describe_run(config: TrainConfig) -> str:
    """What to call a training."""
    seed = f", seed {config.seed}" if config.seed else ""
    return f"{METHOD_NAMES.get(config.loss, config.loss)}, {config.dim} dimensions{seed}, {config.steps:,} steps"


def _measure_untrained(config: TrainConfig, packed: PackedImages, folder: Path) -> Path:
    """Embed and measure the test classes with the trunk as it is before any training; the file of the embeddings."""
    file, embedder = folder / UNTRAINED, _untrained(config)
    if not _is_of(file, packed, embedder):
        embed(embedder.to(find_device(config.device)), packed, packed.test, progress=True, out=file)
    return _measured(file)


def _measure_trained(config: TrainConfig, packed: PackedImages, others: Sequence[Path]) -> Path:
    """Train, embed and measure, as far as that is not done already, here or by another run; the folder of the run."""
    run = train_or_resume(config, others=others)
    if run.recall_at_1 is not None and not run.best_step:
        say("      no step was better on the held-out classes than the start, which is what was kept")
    file, embedder = run.folder / EMBEDDINGS, run.embedder()
    if not _is_of(file, packed, embedder):
        embed(embedder.to(find_device(config.device)), packed, packed.test, progress=True, out=file)
    return _measured(run.folder)


def _untrained(config: TrainConfig) -> Embedder:
    """Features as the trunk was trained to make them, and as the paper compares them: pooled by the average."""
    return Embedder(starting_trunk(replace(config, pool="average")), 0, crop=config.crop)


def _is_of(file: Path, packed: PackedImages, embedder: Embedder) -> bool:
    """Whether a file has the embeddings that this embedder makes of this data's test classes."""
    if not file.is_file():
        return False
    try:
        found = Embeddings.load(file)
    except ValueError:  # it is written anew
        return False
    wanted = {"checksum": packed.checksum, "crop": embedder.crop, SHA: embedder.short_sha()}
    return found.part == "test" and all(found.protocol.get(name) == value for name, value in wanted.items())


def _write_page(paths: Sequence[Path], runs: Sequence[Run], folder: Path) -> Path:
    """The page of these runs, written anew unless it is there and shows just them, as they are now."""
    page, kept = folder / REPORT, folder / SHOWN
    shown = [__version__, *(f"{run.name} {sha256(run.scores_file.read_bytes()).hexdigest()}" for run in runs)]
    if not (page.is_file() and read_kept(kept) == shown):
        kept.unlink(missing_ok=True)
        write_report(paths, page)
        write_json(kept, shown)
    return page


def _measured(path: Path) -> Path:
    """Say the scores, which are kept beside the embeddings."""
    run = read_runs([path], progress=False)[0]
    if run.scores_file.is_file():
        try:
            Scores.load(run.scores_file)
        except ValueError:  # damaged; in a folder of ours nobody else keeps anything under that name
            run.scores_file.unlink()
    scores = replace(run, progress=len(run) > MANY).scores
    parts = [f"{short} {100 * scores.measures[name].value:.1f} %" for name, short in COLUMNS.items()]
    say(f"      {', '.join(parts)} on the test classes")
    return path

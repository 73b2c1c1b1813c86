"""Train, embed and evaluate several runs one after the other, then write a report of all; nothing is done twice."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from liftedstruct import __version__
from liftedstruct.data import DEFAULT_SIZE, SIZE_PER_CROP, PackedImages
from liftedstruct.embedder import Embedder
from liftedstruct.embeddings import EMBEDDINGS, SHA, Embeddings, embed
from liftedstruct.evaluation import evaluate_file, scores_file
from liftedstruct.figures import EvaluatedRun, Published
from liftedstruct.figures.style import METHOD_NAMES
from liftedstruct.recipes.prepared import read_kept
from liftedstruct.recipes.steps import Steps
from liftedstruct.recipes.summary import COLUMNS, summary
from liftedstruct.report import read_runs, read_scores, write_report
from liftedstruct.runtime.atomic import write_json
from liftedstruct.runtime.extras import require
from liftedstruct.runtime.progress import say
from liftedstruct.training import TrainConfig, check_run, find_device, load_config, starting_trunk, train

__all__ = ["REPORT", "UNTRAINED", "check_requirements", "configure", "count_steps", "describe_run", "run_plan"]

REPORT, SHOWN = "report.html", "report.json"  # the report, and what it shows
MANY = 5_000  # images from which on evaluation shows its progress
UNTRAINED = "pool5.npz"  # pooled features of the untrained trunk, by the paper's name

# The paper's baselines, with rows laid out as in its equations. M: margins by five trials each on rendered products for quick,
# benchmarks/results/trials.txt, and by four trials of contrastive and five of triplet on held-out classes of CUB-200-2011 for
# the default recipe, benchmarks/results/recipe.txt; P: the paper. Triplets have 63 images: their steps see as many images.
PAIRS: dict[str, Any] = {"loss": {"name": "contrastive", "pairs": "rows"}, "sampler": "pairs"}
TRIPLETS: dict[str, Any] = {"loss": {"name": "triplet", "margin": 0.5, "triplets": "rows"}, "sampler": "triplets"}
BASELINES: dict[str | None, dict[str, dict[str, Any]]] = {
    None: {
        "contrastive": {**PAIRS, "lr": 4e-5},  # M
        "triplet": {**TRIPLETS, "loss": {**TRIPLETS["loss"], "triplets": "rows-semi-hard"}, "steps": 406},  # M
    },
    "quick": {"contrastive": PAIRS, "triplet": {**TRIPLETS, "steps": 325}},  # M
    "paper": {
        "contrastive": PAIRS,  # P
        "triplet": {**TRIPLETS, "loss": {**TRIPLETS["loss"], "margin": 1.0}, "batch_size": 120},  # P
    },
}


def configure(preset: str | None, loss: str, **settings: Any) -> TrainConfig:
    """The settings of a run of a comparison: the preset, what trials found for this loss, then what is given."""
    tried = BASELINES.get(preset, {}).get(loss, {"loss": loss})
    return load_config(preset=preset, **{**tried, **{name: value for name, value in settings.items() if value is not None}})


def check_requirements(config: TrainConfig, size: int | None = None) -> int:
    """Raise before any work if what the end of it needs is not installed, or the crops do not fit into images of that size.

    Returns the size; where none is given, one that suits the crops.
    """
    for module in ("jinja2", "matplotlib", "openTSNE"):
        require(module, "figures")
    crop = _untrained(config).crop
    if size is None:
        return DEFAULT_SIZE if crop <= DEFAULT_SIZE else round(crop * SIZE_PER_CROP)
    if crop > size:
        raise ValueError(
            f"the images must be at least as large as what the network is shown, {crop} px, got {size}. "
            "Pass a larger --size, or a smaller --crop."
        )
    return size


def count_steps(configs: Sequence[TrainConfig]) -> int:
    """How many steps :func:`run_plan` has."""
    return len(configs) + 2


def run_plan(
    configs: Sequence[TrainConfig],
    packed: PackedImages,
    folder: Path,
    steps: Steps,
    *,
    also: Sequence[Path] = (),
    published: Sequence[Published] | None = None,
) -> str:
    """Evaluate the untrained trunk, then each training, and write a report of all; the results as a table and in words.

    Args:
        configs: of the trainings, the most important last.
        packed: the data of all of them.
        folder: for the embeddings of the untrained trunk and the report.
        steps: says which step it is.
        also: folders of finished runs to show beside these.
        published: what others report for this data, to show in the table.

    """
    for config in configs:
        check_run(config)
    folder.mkdir(parents=True, exist_ok=True)
    with steps.step("evaluate the untrained trunk"):
        untrained = _measure_untrained(configs[0], packed, folder)
    runs = list(also)
    for config in configs:
        with steps.step(f"train {describe_run(config)}"):
            runs.append(_measure_trained(config, packed))
    paths = [*reversed(runs), untrained]
    with steps.step("write the report"):
        found = read_runs(paths, progress=False)
        report = _write_report(paths, found, folder)
    return f"{summary(found, published)}\n\nMade in {steps.took}. Open {report.absolute()} in a browser."


def describe_run(config: TrainConfig) -> str:
    """What to call a training."""
    seed = f", seed {config.seed}" if config.seed else ""
    return f"{METHOD_NAMES.get(config.loss.name, config.loss.name)}, {config.dim} dimensions{seed}, {config.steps:,} steps"


def _measure_untrained(config: TrainConfig, packed: PackedImages, folder: Path) -> Path:
    """Embed and measure the test classes with the trunk as it is before any training; the file of the embeddings."""
    file, embedder = folder / UNTRAINED, _untrained(config)
    if not _is_of(file, packed, embedder):
        embed(embedder.to(find_device(config.device)), packed, packed.test, progress=True).save(file)
    return _measured(file)


def _measure_trained(config: TrainConfig, packed: PackedImages) -> Path:
    """Train, embed and evaluate, as far as that is not done already; the folder of the run."""
    run = train(config)
    if run.recall_at_1 is not None and not run.best_step:
        say("      no step was better on the validation classes than the start, which is what was kept")
    file, embedder = run.folder / EMBEDDINGS, run.embedder()
    if not _is_of(file, packed, embedder):
        embed(embedder.to(find_device(config.device)), packed, packed.test, progress=True).save(file)
    return _measured(run.folder)


def _untrained(config: TrainConfig) -> Embedder:
    """Features as the trunk was trained to make them, and as the paper compares them: pooled by the average."""
    trunk = starting_trunk(config)
    return Embedder(trunk, 0, crop=config.crop or trunk.suggested["crop"])


def _is_of(file: Path, packed: PackedImages, embedder: Embedder) -> bool:
    """Whether a file has the embeddings that this embedder makes of this data's test classes."""
    if not file.is_file():
        return False
    try:
        found = Embeddings.load(file)
    except ValueError:  # it is written again
        return False
    wanted = {"checksum": packed.checksum, "crop": embedder.crop, SHA: embedder.short_sha()}
    return found.part == "test" and all(found.protocol.get(name) == value for name, value in wanted.items())


def _write_report(paths: Sequence[Path], runs: Sequence[EvaluatedRun], folder: Path) -> Path:
    """The report of these runs, written again unless it is there and shows just them, as they are now."""
    report, kept = folder / REPORT, folder / SHOWN
    shown = [__version__, *(f"{run.name} {sha256(scores_file(run.file).read_bytes()).hexdigest()}" for run in runs)]
    if not (report.is_file() and read_kept(kept) == shown):
        kept.unlink(missing_ok=True)
        write_report(paths, report)
        write_json(kept, shown)
    return report


def _measured(path: Path) -> Path:
    """Evaluate embeddings unless their scores are there, and print the scores, which are kept beside them."""
    found = Embeddings.load(path)
    try:
        scores = read_scores(path, found)
    except ValueError:  # there are none, or others
        scores = evaluate_file(path, progress=len(found) > MANY)
        scores.save(scores_file(path))
    parts = [f"{short} {100 * scores.measures[name].value:.1f} %" for name, short in COLUMNS.items()]
    say(f"      {', '.join(parts)} on the test classes")
    return path

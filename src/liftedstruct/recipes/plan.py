"""Train, embed and evaluate several runs, then write an HTML report. Finished work is reused."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from liftedstruct import __version__
from liftedstruct.data import DEFAULT_SIZE, SIZE_PER_CROP, PackedImages
from liftedstruct.embedder import Embedder
from liftedstruct.embeddings import EMBEDDINGS, SHA, Embeddings, embed
from liftedstruct.evaluation import evaluate_file, scores_file
from liftedstruct.figures import EvaluatedRun, Published
from liftedstruct.figures.style import method_name
from liftedstruct.recipes.prepared import read_kept
from liftedstruct.recipes.steps import Steps
from liftedstruct.recipes.summary import COLUMNS, summary
from liftedstruct.report import read_runs, read_scores, write_report
from liftedstruct.runtime.atomic import write_json
from liftedstruct.runtime.extras import require
from liftedstruct.runtime.progress import say
from liftedstruct.training import (
    Run,
    RunFolder,
    TrainConfig,
    check_run,
    find_device,
    load_config,
    shared_training,
    starting_trunk,
    train,
    truncate_run,
)

__all__ = ["PRETRAINED", "REPORT", "check_requirements", "configure", "count_steps", "describe_run", "run_plan"]

REPORT, SHOWN = "report.html", "report.json"  # the report, and a record of the runs that it shows
MANY = 5_000  # evaluation shows a progress bar above this number of images
PRETRAINED = "pool5.npz"  # pooled features of the trunk before training; pool5 is the paper's name

# Settings of the paper's baselines, with batch rows laid out as in its equations. P: from the paper. M: margins and learning
# rates from our own trials: for quick, five per loss on rendered products (benchmarks/results/trials.json); for the default
# recipe, four with contrastive and five with triplet on validation classes of CUB-200-2011 (benchmarks/results/recipe.jsonl).
# Triplet batches have 63 images, so triplet runs take more steps to see the same number of images.
PAIRS: dict[str, Any] = {"loss": {"name": "contrastive", "pairs": "rows"}, "sampler": "pairs"}
TRIPLETS: dict[str, Any] = {"loss": {"name": "triplet", "margin": 0.5, "triplets": "rows"}, "sampler": "triplets"}
BASELINES: dict[str | None, dict[str, dict[str, Any]]] = {
    None: {
        "contrastive": {**PAIRS, "lr": 4e-5},  # M
        "triplet": {**TRIPLETS, "loss": {**TRIPLETS["loss"], "triplets": "rows-semi-hard"}},  # M
    },
    "quick": {"contrastive": PAIRS, "triplet": {**TRIPLETS, "steps": 325}},  # M
    "paper": {
        "contrastive": PAIRS,  # P
        "triplet": {**TRIPLETS, "loss": {**TRIPLETS["loss"], "margin": 1.0}, "batch_size": 120},  # P
    },
}


def configure(preset: str | None, loss: str, **settings: Any) -> TrainConfig:
    """Return the settings of a run: the preset, then the tuned settings of this loss, then those given."""
    tuned = BASELINES.get(preset, {}).get(loss, {"loss": loss})
    return load_config(preset=preset, **{**tuned, **{name: value for name, value in settings.items() if value is not None}})


def check_requirements(config: TrainConfig, size: int | None = None) -> int:
    """Raise ValueError if a package for the report is missing, or if the crop is larger than the images.

    Returns:
        The size of the prepared images. If none is given, one that suits the crop.
    """
    for module in ("jinja2", "matplotlib", "openTSNE"):
        require(module, "figures")
    crop = _pretrained(config).crop
    if size is None:
        return DEFAULT_SIZE if crop <= DEFAULT_SIZE else round(crop * SIZE_PER_CROP)
    if crop > size:
        raise ValueError(
            f"the image size must be at least the crop, {crop} px, got {size} px. Pass a larger --size, or a smaller --crop."
        )
    return size


def count_steps(configs: Sequence[TrainConfig]) -> int:
    """Return the number of steps of `run_plan`."""
    return len(configs) + 2


def run_plan(
    configs: Sequence[TrainConfig],
    packed: PackedImages,
    folder: Path,
    steps: Steps,
    *,
    also: Sequence[TrainConfig] = (),
    published: Sequence[Published] | None = None,
) -> str:
    """Evaluate the trunk before training and each trained run, and write a report. Return a summary of the results.

    Args:
        configs: settings of the runs, in the order of the table.
        packed: prepared dataset of all runs.
        folder: folder for the report and the embeddings of the trunk before training.
        steps: counter that prints the steps.
        also: settings of finished runs to include in the report.
        published: published results on this dataset, shown in the table.

    """
    for config in configs:
        check_run(config)
    folder.mkdir(parents=True, exist_ok=True)
    baseline = _pretrained(configs[0])
    with steps.step(f"evaluate the {method_name(Path(PRETRAINED).stem, baseline.trunk.weights)} trunk"):
        pretrained = _evaluate_pretrained(baseline, configs[0], packed, folder)
    # the widest run by what it shares with narrower ones
    trained = {shared_training(each): train(each, progress=False) for each in sorted(also, key=lambda each: each.dim)}
    for config in sorted(configs, key=lambda each: -each.dim):
        wide = trained.get(shared_training(config))
        narrow = wide is not None and wide.config.dim > config.dim and not RunFolder(config.out).has_run()
        with steps.step(f"{'truncate' if narrow else 'train'} {describe_run(config)}"):
            if wide is not None and narrow:
                truncate_run(wide, config)
            run = _evaluate_trained(config, packed)
            if wide is None or wide.config.dim <= config.dim:
                trained[shared_training(config)] = run
    runs = [Path(config.out) for config in (*also, *configs)]
    paths = [*reversed(runs), pretrained]
    with steps.step("write the report"):
        found = read_runs(paths, progress=False)
        report = _write_report(paths, found, folder)
    return f"{summary(found, published)}\n\nFinished in {steps.took}. Open {report.absolute()} in a browser."


def describe_run(config: TrainConfig) -> str:
    """Describe a run: loss, dimension, seed and steps."""
    seed = f", seed {config.seed}" if config.seed else ""
    steps = f", {config.steps:,} steps" if config.steps else ""
    return f"{method_name(config.loss.name)}, {config.dim} dimensions{seed}{steps}"


def _evaluate_pretrained(embedder: Embedder, config: TrainConfig, packed: PackedImages, folder: Path) -> Path:
    """Embed and evaluate the test classes with the trunk before training. Return the file of the embeddings."""
    file = folder / PRETRAINED
    if not _is_of(file, packed, embedder):
        _embed_test(embedder.to(find_device(config.device)), packed).save(file)
    return _evaluated(file)


def _evaluate_trained(config: TrainConfig, packed: PackedImages) -> Run:
    """Train, embed and evaluate a run, reusing finished work."""
    run = train(config)
    if run.recall_at_1 is not None and not run.best_step:
        say("      training did not improve MAP@R on the validation classes, so the embedder from before training is kept")
    file, embedder = run.folder / EMBEDDINGS, run.embedder()
    if not _is_of(file, packed, embedder):
        _embed_test(embedder.to(find_device(config.device)), packed).save(file)
    _evaluated(run.folder)
    return run


def _pretrained(config: TrainConfig) -> Embedder:
    """Return an embedder with the trunk before training and no head: average-pooled features, the paper's baseline."""
    trunk = starting_trunk(config)
    return Embedder(trunk, 0, crop=config.crop or trunk.suggested["crop"])


def _is_of(file: Path, packed: PackedImages, embedder: Embedder) -> bool:
    """Return whether a file holds this embedder's embeddings of the test classes of this dataset."""
    if not file.is_file():
        return False
    try:
        found = Embeddings.load(file)
    except ValueError:  # corrupt: embed again
        return False
    wanted = {"checksum": packed.checksum, "crop": embedder.crop, SHA: embedder.short_sha(), "hflip": None}
    return found.part == "test" and all(found.protocol.get(name) == value for name, value in wanted.items())


def _write_report(paths: Sequence[Path], runs: Sequence[EvaluatedRun], folder: Path) -> Path:
    """Write the report, unless the existing one shows these runs with the same scores."""
    report, kept = folder / REPORT, folder / SHOWN
    shown = [__version__, *(f"{run.name} {sha256(scores_file(run.file).read_bytes()).hexdigest()}" for run in runs)]
    if not (report.is_file() and read_kept(kept) == shown):
        kept.unlink(missing_ok=True)
        write_report(paths, report)
        write_json(kept, shown)
    return report


def _evaluated(path: Path) -> Path:
    """Evaluate embeddings unless their scores are saved already, and print the scores."""
    found = Embeddings.load(path)
    try:
        scores = read_scores(path, found)
    except ValueError:  # missing, or of other embeddings
        scores = evaluate_file(path, progress=len(found) > MANY)
        scores.save(scores_file(path))
    parts = [f"{short} {100 * scores.metrics[name].value:.1f} %" for name, short in COLUMNS.items()]
    say(f"      {', '.join(parts)} on the test classes")
    return path


def _embed_test(embedder: Embedder, packed: PackedImages) -> Embeddings:
    """Embed the test images, each to be found among all others, also if the dataset declares queries."""
    found = embed(embedder, packed, packed.test, progress=True)
    return found.at(np.arange(len(found)))

"""Load evaluated runs: embeddings, scores, settings and log."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from liftedstruct.data import CARS, CUB, ONLINE_PRODUCTS, PackedImages
from liftedstruct.embeddings import EMBEDDINGS, Embeddings, embeddings_file
from liftedstruct.evaluation import Scores, are_scores_of, scores_file, with_recall_at
from liftedstruct.figures import EvaluatedRun, Thumbnails, placeholders, thumbnails_of
from liftedstruct.runtime.progress import say
from liftedstruct.training import CONFIG, RunFolder, TrainConfig
from liftedstruct.training.run_folder import is_finished

__all__ = ["read_runs", "read_scores"]

KS = (1, 2, 4, 8, 16, 32)
KS_OF = {ONLINE_PRODUCTS.name: (1, 10, 100, 1000)}  # as reported in papers


def read_runs(paths: Sequence[str | Path], progress: bool = True) -> list[EvaluatedRun]:
    """Load the runs of a report, all of the same images, and give each a unique name.

    Args:
        paths: run folders that hold `embeddings.npz`, or files of embeddings; each must have been evaluated.
        progress: print the progress of later computations, such as t-SNE, to stderr.

    """
    if not paths:
        raise ValueError("runs must have at least one entry, got none. Pass a run folder, or an .npz file of embeddings.")
    runs = [_read(Path(path), progress) for path in paths]
    for run in runs[1:]:
        if not run.scores.same_images(runs[0].scores):
            raise ValueError(
                f"runs of a report must be of the same images in the same order, but {runs[0].file} and {run.file} are not. "
                "Embed the same part of the same dataset with each."
            )
    for warning in dict.fromkeys(warning for run in runs for warning in run.warnings):
        say(f"warning: {warning}")
    return [replace(run, name=name) for run, name in zip(runs, _names(runs), strict=True)]


def read_scores(path: str | Path, found: Embeddings) -> Scores:
    """Load the saved scores of embeddings with the values of K that a report shows.

    Raises a ValueError with the command to run if these scores are missing.

    Args:
        path: run folder, or file of embeddings.
        found: embeddings at that path.

    """
    file = scores_file(path)
    scores = Scores.load(file) if file.is_file() else None
    if scores is None:
        problem = f"there is no {file}"
    elif found.queries.any():
        raise ValueError(f"{path} must not be apart into queries and gallery for a report. Embed it without the column split.")
    elif not are_scores_of(scores, found):
        problem = f"{file} holds scores of other embeddings"
    elif 1 not in scores.recall or "affinity" not in scores.clusters:
        problem = f"{file} lacks Recall@1 or the clusters of affinity propagation"
    elif scores.singles != "leave-out":
        problem = f"{file} counts images alone in their class as misses"
    else:
        return with_recall_at(scores, KS_OF.get(str(found.protocol.get("data")), KS))
    raise ValueError(f"{path} must have been evaluated, but {problem}. Run: liftedstruct evaluate {shlex.quote(str(path))}")


def _read(path: Path, progress: bool) -> EvaluatedRun:
    if path.name == EMBEDDINGS and path.with_name(CONFIG).is_file():
        path = path.parent
    file, found = embeddings_file(path), Embeddings.load(path)
    folder = RunFolder(path)
    config = folder.config() if (path / CONFIG).is_file() else None
    thumbnails, warnings = _open_images(found)
    run = EvaluatedRun(
        **vars(found),
        name="",
        method=_method(file, config),
        file=file,
        scores=read_scores(path, found),
        config=config,
        record=folder.record() if config else {},
        log=tuple(folder.read_log()) if config else (),
        thumbnails=thumbnails,
        warnings=(),
        progress=progress,
    )
    return replace(run, warnings=(*warnings, *_warnings(run, path.name)))


def _open_images(found: Embeddings) -> tuple[Thumbnails, list[str]]:
    """Return thumbnails of the images, or placeholders with a warning if the images are not available."""
    if not found.data:
        return placeholders, ["The embeddings do not record where their images are. Placeholders are shown instead."]
    try:
        packed = PackedImages(found.data)
    except (ValueError, OSError):
        return placeholders, [f"The images are no longer in {found.data}. Placeholders are shown instead."]
    known = len(found.rows) and found.rows.min() >= 0 and found.rows.max() < len(packed)
    same = known and np.array_equal(packed.contents[found.rows], found.contents)  # the checksum does not cover left-out images
    if not same or packed.checksum != found.protocol.get("checksum"):
        return placeholders, [
            f"The images in {found.data} are not the ones that were embedded. Placeholders are shown instead."
        ]
    return thumbnails_of(packed.images, found.rows), []


def _warnings(run: EvaluatedRun, name: str) -> list[str]:
    """Return the caveats of a run."""
    warnings = []
    known = next((each for each in (CARS, CUB, ONLINE_PRODUCTS) if each.name == run.dataset), None)
    if known and run.part == "test" and len(run) != known.images[1]:
        warnings.append(
            f"These are {len(run):,} test images of {known.name}, which has {known.images[1]:,}: "
            "the scores cannot be compared with published scores."
        )
    if run.seen and run.seen.any:
        warnings.append(f"Seen in the training of {name}: {run.seen}.")
    failed = next((line for line in run.log if "failed" in line), None)
    if failed is not None:
        warnings.append(f"The training of {name} failed at step {failed['step']:,}: {failed['failed']}")
    elif run.config and not is_finished(run.config, run.steps, *_best(run)):
        warnings.append(f"The training of {name} is not finished: step {run.steps:,} of {run.config.steps:,}.")
    return warnings


def _best(run: EvaluatedRun) -> tuple[int, float]:
    """Return the step with the best MAP@R on the validation classes, and that score, or 0 and -1 without validation."""
    scores = [(line["map_at_r"], -line["step"]) for line in run.log if "map_at_r" in line]
    best, step = max(scores, default=(-1.0, 0))
    return -step, best


def _method(file: Path, config: TrainConfig | None) -> str:
    if config is None:
        return _short_name(file)
    mined = any(str(value).endswith("semi-hard") for value in config.loss.options.values())
    return f"{config.loss.name}, semi-hard" if mined else config.loss.name


def _names(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Return unique names: the method, with the dimension if that is ambiguous, then the folder, then a number."""
    names = [run.method for run in runs]
    for longer in ([f"{run.method}, {run.size}-d" for run in runs], [_short_name(run.file) for run in runs]):
        names = [other if names.count(name) > 1 else name for name, other in zip(names, longer, strict=True)]
    return [f"{name} ({names[:at].count(name) + 1})" if names.count(name) > 1 else name for at, name in enumerate(names)]


def _short_name(file: Path) -> str:
    """Return the name of the run folder, or of the file without its suffix."""
    path = file.absolute()
    return path.parent.name if path.name == EMBEDDINGS else path.stem

"""Runs as a report finds them on the disk: embeddings, settings, log and scores, read and checked before anything is drawn."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from liftedstruct.data import PackedImages
from liftedstruct.data.datasets import CARS, CUB, ONLINE_PRODUCTS
from liftedstruct.embedder import EMBEDDINGS, SCORES, Embeddings, check_current
from liftedstruct.evaluation import Scores, evaluate_file
from liftedstruct.evaluation.evaluating import recall_estimates
from liftedstruct.evaluation.saved import belong, count_readings
from liftedstruct.figures.subject import KS, Subject
from liftedstruct.figures.thumbnails import Thumbnails, placeholders, thumbnails_of
from liftedstruct.retrieval import SINGLES
from liftedstruct.runtime.progress import say
from liftedstruct.training import TrainConfig
from liftedstruct.training.loop import TRAINED
from liftedstruct.training.run_folder import CONFIG, RunFolder

__all__ = ["Run", "read_runs"]

PARTS = ("test", "validation", "train", "all")
KS_OF = {ONLINE_PRODUCTS.name: (1, 10, 100, 1000)}  # as its papers have it


@dataclass(frozen=True, eq=False, kw_only=True)
class Run(Subject):
    """One run of a report: a folder that training made, or a file of embeddings by itself."""

    file: Path  # of the embeddings
    found: Embeddings  # what is in it
    config: TrainConfig | None  # None of embeddings by themselves
    record: Mapping[str, Any]  # versions and data that the run began with
    warnings: tuple[str, ...]  # what a reader of the page has to know

    @property
    def trained(self) -> bool:
        """Whether it was trained for this, as far as the files tell."""
        return self.config is not None or str(self.found.protocol.get("weights", "")).startswith(TRAINED)

    @property
    def steps(self) -> int:
        """Training steps that the log tells of."""
        return _last_step(self.log)

    @property
    def minutes(self) -> float:
        """Minutes that the steps of the log took, by their images per second; validations are not in it."""
        batch, seconds, before = (self.config.batch_size or 0) if self.config else 0, 0.0, 0
        for line in self.log:
            if line.get("images_per_second"):
                seconds += (line["step"] - before) * batch / line["images_per_second"]
                before = line["step"]
        return seconds / 60

    @property
    def readings(self) -> int | None:
        """How often the test classes of its data were read; None if the data is gone."""
        return count_readings(Path(self.found.data), self.found.protocol.get("checksum"))

    @cached_property
    def scores(self) -> Scores:
        """The scores beside the embeddings, if they are theirs; otherwise they are evaluated now."""
        kept = self._kept_scores()
        if kept is not None:
            self._say(f"scores of {self.scores_file}")
            return self._at_every_k(kept)
        self._say(f"Recall@K and clusters of {len(self):,} images")
        scores = evaluate_file(self.file, ks=self.ks, progress=self.progress)
        if self._may_keep():
            with contextlib.suppress(OSError):  # a disk that is only for reading
                scores.save(self.scores_file)
        return scores

    def _may_keep(self) -> bool:
        """Whether scores may be written beside the embeddings: there are none yet, or other ones of ours."""
        if not self.scores_file.exists():
            return True
        with contextlib.suppress(ValueError, OSError):
            Scores.load(self.scores_file)
            return True
        return False

    @property
    def ks(self) -> tuple[int, ...]:
        """The values of K of a report."""
        return KS_OF.get(self.data, KS)

    def _at_every_k(self, scores: Scores) -> Scores:
        """Recall@K also where it was not asked for: all of it is in the ranks, and nothing has to be read again."""
        seed, missed = int(scores.protocol.get("evaluation seed", "0")), SINGLES[scores.singles]
        more = recall_estimates(scores.ranks, scores.classes, sorted({*scores.recall, *self.ks}), missed, seed=seed)
        return replace(scores, recall={**more, **scores.recall})

    @property
    def scores_file(self) -> Path:
        """Where its scores are kept: in the run's folder, or beside a file of the same name."""
        return self.file.with_name(SCORES) if self.file.name == EMBEDDINGS else self.file.with_suffix(".json")

    def _kept_scores(self) -> Scores | None:
        if not self.scores_file.is_file():
            return None
        try:
            scores = Scores.load(self.scores_file)
        except ValueError as error:
            self._say(f"evaluated anew: {error}")
            return None
        if not belong(scores, self.embeddings, self.labels):
            why = "is of other embeddings"
        elif 1 not in scores.recall or "affinity" not in scores.clusters:
            why = "lacks Recall@1 or the clusters of affinity propagation"
        elif scores.singles != "leave-out" or not self._clusters_for_classes(scores):
            why = "was made with other settings than those of a report"
        else:
            return scores
        self._say(f"evaluated anew: {self.scores_file} {why}")
        return None

    def _clusters_for_classes(self, scores: Scores) -> bool:
        """Whether as many clusters were asked for as there are classes; the number itself may come out a little different."""
        asked = re.search(r"\(([\d,]+) asked", scores.protocol.get("clusters, affinity", ""))
        wanted = int(asked[1].replace(",", "")) if asked else len(np.unique(scores.clusters["affinity"]))
        return wanted == len(np.unique(self.labels))


def read_runs(paths: Sequence[str | Path], progress: bool = True) -> list[Run]:
    """The runs of a report, all of the same images, each with a name of its own.

    Args:
        paths: folders of runs that hold ``embeddings.npz``, or files that ``liftedstruct embed`` wrote.
        progress: whether what is computed of them later is said on stderr.

    """
    if not paths:
        raise ValueError("runs must be at least one, got none. Name the folder of a run, or an .npz file of embeddings.")
    runs = [_read(Path(path), progress) for path in paths]
    for run in runs[1:]:
        _check_same_images(runs[0], run)
    for warning in dict.fromkeys(warning for run in runs for warning in run.warnings):
        say(f"warning: {warning}")
    return [replace(run, name=name) for run, name in zip(runs, _names(runs), strict=True)]


def _read(path: Path, progress: bool) -> Run:
    if path.name == EMBEDDINGS and path.with_name(CONFIG).is_file():
        path = path.parent  # of a run
    folder = RunFolder(path)
    config = folder.config() if (path / CONFIG).is_file() else None
    file = _embeddings_file(path, config)
    found = Embeddings.load(file)
    _check_whole(file, found)
    check_current(file, found.protocol, found.data, found.part)
    record, log = (folder.record(), folder.read_log()) if config else ({}, [])
    thumbnails, warnings = _open_images(found)
    warnings += _incomplete(found)
    if found.seen and found.seen.any:
        warnings.append(f"Of the images that {path.name} is measured on, training has seen {found.seen}.")
    if config is not None:
        warnings += _doubts(folder, config, log)
    return Run(
        name="",
        method=_method(path, config),
        data=str(found.protocol.get("data", "")),
        part=found.part,
        embeddings=found.embeddings,
        labels=found.labels,
        class_names=found.class_names,
        thumbnails=thumbnails,
        log=tuple(log),
        margin=config.margin if config else 1.0,
        temperature=config.temperature if config else 1.0,
        progress=progress,
        file=file,
        found=found,
        config=config,
        record=record,
        warnings=tuple(warnings),
    )


def _embeddings_file(path: Path, config: TrainConfig | None) -> Path:
    """The file of embeddings that a path stands for."""
    if path.is_file():
        return path
    if not path.exists():
        raise ValueError(f"a run must be a folder or an .npz file of embeddings, there is nothing at {path}. Check the path.")
    if not (path / EMBEDDINGS).is_file():
        if config is None:
            raise ValueError(f"{path} must be the folder of a run, it has neither {CONFIG} nor {EMBEDDINGS}. Check the path.")
        raise ValueError(
            f"{path} must hold {EMBEDDINGS}, there is none. Write it with: liftedstruct embed {path} {config.data}"
        )
    return path / EMBEDDINGS


def _check_whole(file: Path, found: Embeddings) -> None:
    """Raise if the arrays of a file do not fit one another."""
    n, X, y = len(found.labels), found.embeddings, found.labels
    whole = X.ndim == 2 and X.dtype.kind == "f" and y.dtype.kind in "iu" and y.shape == (len(X),) == found.rows.shape
    if (
        not whole
        or not n == len(found.paths) == len(found.contents)
        or (n and not 0 <= y.min() <= y.max() < len(found.class_names))
    ):
        raise ValueError(f"{file} must have one label, row and path for each embedding, it does not. Write it anew with embed.")
    if found.part not in PARTS:
        raise ValueError(f"{file} must be of the part {', '.join(PARTS)}, got {found.part!r}. Write it anew with embed.")
    if n < 2:
        raise ValueError(f"{file} must have two images or more, got {n}. Embed another part.")


def _open_images(found: Embeddings) -> tuple[Thumbnails, list[str]]:
    """Small pictures of the images, or placeholders where they are gone, and a warning that says so."""
    try:
        packed = PackedImages(found.data)
    except (ValueError, OSError):
        return placeholders, [f"The images are no longer in {found.data}, so that grey pictures stand in their places."]
    known = len(found.rows) and found.rows.min() >= 0 and found.rows.max() < len(packed)
    same = known and np.array_equal(packed.contents[found.rows], found.contents)  # the checksum does not see what was left out
    if not same or packed.checksum != found.protocol.get("checksum"):
        return placeholders, [f"The images in {found.data} are others than those that were embedded, so they are not shown."]
    return thumbnails_of(packed.images, found.rows), []


def _incomplete(found: Embeddings) -> list[str]:
    """Whether test images of a benchmark are missing, so that no score of others can be compared."""
    benchmark = next((one for one in (CARS, CUB, ONLINE_PRODUCTS) if one.name == found.protocol.get("data")), None)
    if benchmark is None or found.part != "test" or len(found) == benchmark.images[1]:
        return []
    return [
        f"These are {len(found):,} test images of {benchmark.name}, which has {benchmark.images[1]:,}: "
        "the scores cannot be compared with those of others."
    ]


def _doubts(folder: RunFolder, config: TrainConfig, log: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is doubtful about a run."""
    doubts, steps = [], _last_step(log)
    failed = next((line for line in log if "failed" in line), None)
    if failed is not None:
        doubts.append(f"The training of {folder.path.name} failed at step {failed['step']:,}: {failed['failed']}")
    elif steps < config.steps:
        doubts.append(f"The training of {folder.path.name} is not finished: step {steps:,} of {config.steps:,}.")
    return doubts


def _last_step(log: Sequence[Mapping[str, Any]]) -> int:
    return max((line["step"] for line in log if "failed" not in line), default=0)


def _method(path: Path, config: TrainConfig | None) -> str:
    if config is None:
        return path.absolute().parent.name if path.name == EMBEDDINGS else path.absolute().stem
    return config.loss if config.negative == "given" else f"{config.loss}, {config.negative}"


def _check_same_images(first: Run, other: Run) -> None:
    a, b = first.found, other.found
    what = ""
    if len(a) != len(b):
        what = f"{len(a):,} and {len(b):,} images"
    elif not np.array_equal(a.contents, b.contents):
        at = int(np.argmax(a.contents != b.contents))
        what = f"{a.paths[at]!r} and {b.paths[at]!r} as image {at:,}, of other content"
    elif a.class_names != b.class_names or not np.array_equal(a.labels, b.labels):
        what = "the same images with other labels"
    if what:
        raise ValueError(
            f"the runs of a report must be of the same images, {first.file} and {other.file} have {what}. "
            "Embed the same part of the same data with each."
        )


def _names(runs: Sequence[Run]) -> list[str]:
    """What to call each run: its method; with its size, then its folder, where that is not enough; at last a number."""
    names = [run.method for run in runs]
    for more in (_method_and_size, _folder):
        names = [more(run) if names.count(name) > 1 else name for run, name in zip(runs, names, strict=True)]
    return [f"{name} ({names[:at].count(name) + 1})" if names.count(name) > 1 else name for at, name in enumerate(names)]


def _method_and_size(run: Run) -> str:
    return f"{run.method}, {run.size}-d"


def _folder(run: Run) -> str:
    path = run.file.absolute()
    return path.parent.name if path.name == EMBEDDINGS else path.stem

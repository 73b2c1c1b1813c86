"""A run as figures and reports show it: its embeddings and scores, and what is computed from them when first asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftedstruct.data import Indices
from liftedstruct.embeddings import Embeddings
from liftedstruct.evaluation import Scores
from liftedstruct.figures.galleries import SHOWN
from liftedstruct.figures.published import Published, published_for
from liftedstruct.figures.thumbnails import Thumbnails
from liftedstruct.losses import BatchInspection, inspect_batch
from liftedstruct.projection import tsne
from liftedstruct.retrieval import nearest_neighbors
from liftedstruct.runtime.progress import say
from liftedstruct.samplers import BalancedSampler
from liftedstruct.training import TRAINED, TrainConfig

__all__ = ["EvaluatedRun"]

BATCH_CLASSES = 32  # two images of each are the microscope's batch


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluatedRun(Embeddings):
    """The embeddings of a run, or of an untrained trunk, with their scores and the record of the training."""

    name: str  # in legends
    method: str  # what was trained: a loss, or the name of an untrained one
    file: Path  # of the embeddings
    scores: Scores
    config: TrainConfig | None  # None for embeddings that are not in the folder of a run
    record: Mapping[str, Any]  # versions and data that the run began with
    log: tuple[Mapping[str, Any], ...]  # lines of log.jsonl
    thumbnails: Thumbnails
    warnings: tuple[str, ...]  # what a reader of the report has to know
    progress: bool  # print progress to stderr

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return str(self.protocol.get("data", ""))

    @property
    def size(self) -> int:
        """d, of the embedding."""
        return int(self.embeddings.shape[1])

    @property
    def temperature(self) -> float:
        """What the loss divides distances by."""
        return self._loss_option("temperature")

    def _loss_option(self, name: str) -> float:
        """Margin or temperature of the loss; both are 1 in the paper, which is taken if nothing was trained."""
        return float(self.config.loss.options.get(name, 1.0)) if self.config else 1.0

    @property
    def trained(self) -> bool:
        """Whether it was trained for this, as far as the files tell."""
        return self.config is not None or str(self.protocol.get("weights", "")).startswith(TRAINED)

    @property
    def steps(self) -> int:
        """Training steps in the log."""
        return max((line["step"] for line in self.log if "failed" not in line), default=0)

    @property
    def minutes(self) -> float:
        """Minutes that the steps of the log took, by their images per second; without validations."""
        batch, seconds, before = self.config.batch_size if self.config else 0, 0.0, 0
        for line in self.log:
            if line.get("images_per_second"):
                seconds += (line["step"] - before) * batch / line["images_per_second"]
                before = line["step"]
        return seconds / 60

    @property
    def published(self) -> tuple[Published, ...]:
        """What others report for the test images of this dataset; nothing if these are other images."""
        return published_for(self.dataset) if self.part == "test" else ()

    @cached_property
    def nearest(self) -> tuple[NDArray[np.float64], Indices]:
        """Distances and rows of the five nearest images of each, 2 x (n, 5); fewer where there are not so many images."""
        if self.progress:
            say(f"{self.name}: neighbors of {len(self):,} images")
        return nearest_neighbors(self.embeddings, min(SHOWN, len(self) - 1))

    @cached_property
    def positions(self) -> NDArray[np.float32]:
        """Where each image lies on the map, (n, 2)."""
        return tsne(self.embeddings, progress=self.progress)

    def microscope(self, seed: int = 0) -> BatchInspection:
        """What the lifted loss sees in a batch of these images, two of each class."""
        sizes = np.unique(self.labels, return_counts=True)[1]
        batch_size = 2 * min(BATCH_CLASSES, int((sizes > 1).sum()))
        rows = BalancedSampler(self.labels, batch_size, samples_per_class=2, seed=seed).batch(0)
        return inspect_batch(self.embeddings[rows], self.labels[rows], self._loss_option("margin"), self.temperature)

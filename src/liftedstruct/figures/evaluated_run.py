"""Evaluated run for figures and reports: embeddings, scores, training record, and cached neighbors and map positions."""

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
from liftedstruct.figures.style import method_name
from liftedstruct.figures.thumbnails import Thumbnails
from liftedstruct.losses import BatchInspection, inspect_batch
from liftedstruct.projection import tsne
from liftedstruct.retrieval import nearest_neighbors
from liftedstruct.runtime.progress import say
from liftedstruct.samplers import BalancedSampler
from liftedstruct.training import TRAINED, TrainConfig

__all__ = ["EvaluatedRun"]

BATCH_CLASSES = 32  # classes in the batch that is inspected, two images per class


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluatedRun(Embeddings):
    """Embeddings of a run, or of a trunk that was not fine-tuned, with their scores and training record."""

    name: str  # unique among the runs of a report
    method: str  # loss, or the file's name if there is no run folder, such as "pool5"
    file: Path  # file of the embeddings
    scores: Scores
    config: TrainConfig | None  # None for embeddings that are not in a run folder
    record: Mapping[str, Any]  # versions and dataset at the start of the run
    log: tuple[Mapping[str, Any], ...]  # lines of log.jsonl
    thumbnails: Thumbnails
    warnings: tuple[str, ...]  # caveats for readers of the report
    progress: bool  # print progress to stderr

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return str(self.protocol.get("data", ""))

    @property
    def label(self) -> str:
        """Name of the method in tables and sentences."""
        return method_name(self.method, str(self.protocol.get("weights", "")))

    @property
    def size(self) -> int:
        """Dimension of the embedding, d."""
        return int(self.embeddings.shape[1])

    @property
    def temperature(self) -> float:
        """Temperature of the loss, the divisor of its distances."""
        return self._loss_option("temperature")

    def _loss_option(self, name: str) -> float:
        """Return the margin or temperature of the loss, or the paper's value, 1, if there was no training."""
        return float(self.config.loss.options.get(name, 1.0)) if self.config else 1.0

    @property
    def trained(self) -> bool:
        """Whether the run folder or the recorded origin of the weights shows that the embedder was trained."""
        return self.config is not None or str(self.protocol.get("weights", "")).startswith(TRAINED)

    @property
    def steps(self) -> int:
        """Number of training steps in the log."""
        return max((line["step"] for line in self.log if "failed" not in line), default=0)

    @property
    def minutes(self) -> float:
        """Training time in minutes from the logged images per second, without validation."""
        batch, seconds, before = self.config.batch_size if self.config else 0, 0.0, 0
        for line in self.log:
            if line.get("images_per_second"):
                seconds += (line["step"] - before) * batch / line["images_per_second"]
                before = line["step"]
        return seconds / 60

    @property
    def published(self) -> tuple[Published, ...]:
        """Scores published for the test images of this dataset; empty for other parts."""
        return published_for(self.dataset) if self.part == "test" else ()

    @cached_property
    def nearest(self) -> tuple[NDArray[np.float64], Indices]:
        """Distances and rows of the five nearest neighbors of each image, 2 x (n, 5), or (n, n - 1) for fewer images."""
        if self.progress:
            say(f"{self.name}: neighbors of {len(self):,} images")
        return nearest_neighbors(self.embeddings, min(SHOWN, len(self) - 1))

    @cached_property
    def positions(self) -> NDArray[np.float32]:
        """Position of each image on the t-SNE map, (n, 2)."""
        return tsne(self.embeddings, progress=self.progress)

    def inspect_batch(self, seed: int = 0) -> BatchInspection:
        """Inspect the lifted structured loss on a batch of these images, two per class."""
        sizes = np.unique(self.labels, return_counts=True)[1]
        batch_size = 2 * min(BATCH_CLASSES, int((sizes > 1).sum()))
        rows = BalancedSampler(self.labels, batch_size, samples_per_class=2, seed=seed).batch(0)
        return inspect_batch(self.embeddings[rows], self.labels[rows], self._loss_option("margin"), self.temperature)

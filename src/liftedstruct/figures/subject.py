"""What the figures of one run are drawn from: arrays, and what is computed from them when it is first asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftedstruct.data.image_set import Indices
from liftedstruct.evaluation import Scores, evaluate
from liftedstruct.figures.galleries import SHOWN
from liftedstruct.figures.published import Published, published_for
from liftedstruct.figures.thumbnails import Thumbnails, placeholders
from liftedstruct.losses import inspect_batch
from liftedstruct.losses.inspection import BatchInspection
from liftedstruct.projection import tsne
from liftedstruct.retrieval import nearest_neighbors
from liftedstruct.runtime.progress import say
from liftedstruct.samplers import BalancedSampler

__all__ = ["KS", "Subject"]

KS = (1, 2, 4, 8, 16, 32)
BATCH_CLASSES = 32  # two images of each are the microscope's batch


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """The embeddings of one run, or of an untrained trunk, and what is known of them."""

    name: str  # in legends
    method: str  # what was trained: a loss, or the name of an untrained one
    data: str  # name of the data set
    embeddings: NDArray[np.float32]  # (n, d)
    labels: Indices  # (n,), numbers into class_names
    class_names: tuple[str, ...]
    part: str = "test"  # of the split
    thumbnails: Thumbnails = placeholders
    log: tuple[Mapping[str, Any], ...] = ()  # lines of log.jsonl
    margin: float = 1.0  # the paper's alpha
    temperature: float = 1.0  # what the loss had the embeddings divided by
    progress: bool = False  # say what is being done

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def size(self) -> int:
        """d, of the embedding."""
        return int(self.embeddings.shape[1])

    @property
    def published(self) -> tuple[Published, ...]:
        """What others report for the test images of this data; nothing if these are others."""
        return published_for(self.data) if self.part == "test" else ()

    @cached_property
    def scores(self) -> Scores:
        """Recall@K, NMI and F1."""
        return evaluate(self.embeddings, self.labels, KS, progress=self.progress)

    @cached_property
    def nearest(self) -> tuple[NDArray[np.float64], Indices]:
        """Distances and rows of the five nearest images of each, 2 x (n, 5); fewer where there are not so many images."""
        self._say(f"neighbours of {len(self):,} images")
        return nearest_neighbors(self.embeddings, min(SHOWN, len(self) - 1))

    @cached_property
    def positions(self) -> NDArray[np.float32]:
        """Where each image lies on the map, (n, 2)."""
        return tsne(self.embeddings, progress=self.progress)

    def microscope(self, seed: int = 0) -> BatchInspection:
        """What the lifted loss sees in a batch of these images, two of each class."""
        sizes = np.unique(self.labels, return_counts=True)[1]
        rows = BalancedSampler(
            self.labels, 2 * min(BATCH_CLASSES, int((sizes > 1).sum())), samples_per_class=2, seed=seed
        ).batch(0)
        return inspect_batch(self.embeddings[rows], self.labels[rows], self.margin, self.temperature)

    def _say(self, line: str) -> None:
        if self.progress:
            say(f"{self.name}: {line}")

r"""Linear layers on feature vectors: no images, no run folder, no checkpoints.

Feature vectors have arbitrary units, so they are first rotated onto their principal axes and scaled. In these coordinates, the
layer is initialized with the leading axes, and an optimizer that adapts its step size per coordinate adapts it per axis. The
scale determines how many negatives matter. For the lifted structured loss, images of different classes start at a mean distance
of

$$
\alpha + \ln(2 (m - 2))
$$

At this distance, $J_{ij}$ is exactly 0 for a positive pair at distance 0 with all its $2 (m - 2)$ negatives. Far below, all
negatives count alike and the loss equals the loss of a collapsed batch; far above, only the nearest negative counts. The other
losses have no log-sum-exp and start at $2 \alpha$, where few negatives are within the margin.

How far the layer should move from its initialization depends on the data. If the vectors are already good, a high learning
rate degrades them for unseen classes; if they are poor, a low one changes too little. So `choose_lr` selects the learning
rate on held-out classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from liftedstruct.data import Indices, hold_out
from liftedstruct.retrieval import first_ranks
from liftedstruct.runtime import seeds
from liftedstruct.runtime.progress import Bar
from liftedstruct.runtime.threads import limit_threads
from liftedstruct.training.config import TrainConfig
from liftedstruct.training.heads import principal_components
from liftedstruct.training.learner import DivergedError, Learner, distance_scale
from liftedstruct.training.machine import seed_torch

__all__ = ["LEARNING_RATES", "Layer", "choose_lr", "fit_linear"]

Floats = NDArray[np.floating]

LEARNING_RATES = (1e-3, 4e-3, 1.6e-2, 6.4e-2)  # for weights initialized with unit-norm rows
MIN_CLASSES = 10  # minimum number of classes with at least two images to hold some of them out
PAIRS = 4096  # random pairs to estimate the mean distance between classes


@dataclass(frozen=True)
class Layer:
    """Linear layer `embedding = weight · (vector - mean)`. It needs no bias: no loss depends on a common offset."""

    mean: Floats  # (d,)
    weight: Floats  # (dim, d)
    losses: tuple[float, ...] = ()  # per step

    def __call__(self, X: Floats) -> Floats:
        """Embed vectors (n, d) as (n, dim), in their dtype."""
        embeddings: Floats = (X - self.mean.astype(X.dtype)) @ self.weight.T.astype(X.dtype)
        return embeddings


def fit_linear(X: Floats, labels: Indices, config: TrainConfig, *, progress: bool = False) -> Layer:
    """Train a linear layer.

    Args:
        X: (n, d), float32 or float64, finite.
        labels: (n,), class numbers; at least two classes must have at least two vectors.
        config: settings; only loss, sampler, head, optimizer, schedule, dim, batch_size, steps, lr, warmup, clip_norm and seed
            are used. The embedding dimension is at most d and at most n - 1.
        progress: show progress, as a bar on a terminal or as lines of text.

    """
    with torch.random.fork_rng(devices=[]):
        start = _start(X, labels, config)
        A, losses = _optimize(start, labels, config, progress)
    return Layer(start.mean, A @ start.axes, losses)


def choose_lr(X: Floats, labels: Indices, config: TrainConfig, class_names: Sequence[str], *, progress: bool = False) -> float:
    """Return the learning rate in `LEARNING_RATES` that is best on a held-out fifth of the classes, trained on the others.

    The score of a class is the mean reciprocal rank of the nearest vector of the same class. A higher learning rate is
    chosen only if its mean score is better by more than the standard error over the classes; otherwise the lower one is,
    since it stays closer to the initialization. With too few classes to hold some out, the lowest is returned.
    """
    numbers, counts = np.unique(labels, return_counts=True)
    if (counts > 1).sum() < MIN_CLASSES:
        return LEARNING_RATES[0]
    held = np.isin(labels, hold_out(numbers[counts > 1], class_names, 0.2, seed=(config.seed, 0, seeds.VALIDATION)))
    _, y, sizes = np.unique(labels[held], return_inverse=True, return_counts=True)
    best, scores = LEARNING_RATES[0], np.zeros(len(sizes))
    with torch.random.fork_rng(devices=[]):
        start = _start(X[~held], labels[~held], config)
        U = Layer(start.mean, start.axes)(X[held])  #                                             (n_held, r)
        for lr in LEARNING_RATES:
            try:
                A, _ = _optimize(start, labels[~held], replace(config, lr=lr), progress)
            except DivergedError:
                break  # higher learning rates diverge too
            of_classes = np.bincount(y, 1 / first_ranks(U @ A.T, y)) / sizes
            ahead = of_classes - scores
            if ahead.mean() > ahead.std(ddof=1) / math.sqrt(len(sizes)):
                best, scores = lr, of_classes
    return best


class _Start(NamedTuple):
    """Vectors on their principal axes, and the initial layer: `embedding = weight · axes · (vector - mean)`."""

    mean: Floats  # (d,)
    axes: Floats  # (r, d), scaled
    U: Tensor  # axes · (vector - mean)                                                               (n, r)
    weight: Tensor  # (dim, r)


def _start(X: Floats, labels: Indices, config: TrainConfig) -> _Start:
    mean: Floats = X.mean(axis=0, dtype=np.float64)
    F = X - mean  #                                                                                   (n, d)
    peak = float(np.abs(F).max()) or 1.0
    F /= peak  # so that no square overflows
    n, d = F.shape
    seed_torch(config.seed, 1, seeds.WEIGHTS)
    V = principal_components(torch.from_numpy(F), min(d, n - 1)).double()
    U = torch.from_numpy(F) @ V.T  #                                                                  (n, r)
    head = nn.Linear(len(V), min(config.dim, len(V)))
    if config.head.name == "pca":
        nn.init.eye_(head.weight)  # the leading axes
    else:
        unit = {"scale": 1.0} if "scale" in config.head.options else {}
        replace(config.head, options={**config.head.options, **unit}).make(head, lambda: U)
    weight = head.weight.detach()
    scale = _scale(U @ weight.T.double(), labels, config)
    return _Start(mean, scale / peak * V.numpy(), (scale * U).float(), weight)


def _scale(embeddings: Tensor, labels: Indices, config: TrainConfig) -> float:
    """Return the factor that sets the mean distance between classes to the starting distance of the loss."""
    i, j = np.random.default_rng([config.seed, 0, seeds.SAMPLE]).integers(len(labels), size=(2, PAIRS))
    i, j = i[labels[i] != labels[j]], j[labels[i] != labels[j]]
    distance = torch.linalg.vector_norm(embeddings[i] - embeddings[j], dim=1).mean().item()
    m = config.sampler.make(labels, config.batch_size, seed=config.seed).batch_size
    loss, factor = config.loss.make(), float(config.head.options.get("scale", 1.0))
    wanted = loss.starting_distance(m) if hasattr(loss, "starting_distance") else 2 * distance_scale(loss)
    return factor * wanted / distance if distance > 0 else factor


def _optimize(start: _Start, labels: Indices, config: TrainConfig, progress: bool) -> tuple[Floats, tuple[float, ...]]:
    """Run all steps and return the weight (dim, r) and the loss of each step."""
    U, y, losses = start.U, torch.from_numpy(labels), []
    layer = nn.Linear(U.shape[1], len(start.weight), bias=False)
    layer.weight.data.copy_(start.weight)
    learner = Learner(config, layer, labels)
    m = learner.sampler.batch_size
    with limit_threads(3 * m * layer.weight.numel()), Bar(f"fit, lr {config.lr:g}", config.steps * m, wanted=progress) as bar:
        for step in range(config.steps):
            if learner.refresh_due(step):
                learner.refresh(layer(U).detach().numpy())
            rows = torch.from_numpy(learner.sampler.batch(step))
            losses.append(learner.take_step(step, U[rows], y[rows]).loss)
            bar.advance(m)
    return layer.weight.detach().double().numpy(), tuple(losses)

r"""A linear layer on feature vectors that are there already: the loop without images, a run's folder or a state to go on from.

Vectors come in any units, so they are turned onto their principal axes and scaled first. There the layer begins with the
strongest axes, and an optimizer that has a rate for each coordinate has one for each axis. The scale decides how many
negatives count: the start has other classes at a mean distance of

.. math:: \alpha + \ln 2 (m - 2)

for the lifted structured loss, where :math:`J_{ij}` of a pair that coincides, with all its 2 (m - 2) negatives at that
distance, is just 0: far below, all negatives count alike and the loss is that of a collapsed batch; far above, only the
nearest one counts. The other losses have no such sum and begin at :math:`2 \alpha`, where few negatives are within the margin.

How far to go from the start is a question of the data. Where the vectors are good already, a high rate spoils them for
classes that were not there; where they are hardly of use, a low one changes nothing. So :func:`choose_rate` asks held-out
classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from liftedstruct.data.class_names import draw, group_by_name
from liftedstruct.data.image_set import Indices
from liftedstruct.losses import LOSSES
from liftedstruct.retrieval import first_ranks
from liftedstruct.runtime.progress import Bar
from liftedstruct.runtime.threads import limit_threads
from liftedstruct.samplers import SAMPLERS, HardNegativeSampler
from liftedstruct.training.config import TrainConfig, batches_of
from liftedstruct.training.heads import HEADS, pca
from liftedstruct.training.inputs import HELD_OUT, difficult_neighbours, make_batches
from liftedstruct.training.loop import SAMPLE, WEIGHTS
from liftedstruct.training.machine import seed_torch
from liftedstruct.training.optimizers import OPTIMIZERS, rate

__all__ = ["RATES", "DivergedError", "Layer", "choose_rate", "fit_linear", "suited"]

Floats = NDArray[np.floating]

RATES = (1e-3, 4e-3, 1.6e-2, 6.4e-2)  # of weights that begin as directions of length 1
LEAST_CLASSES = 10  # with two images or more, to hold some out
PAIRS = 4096  # of images, to measure the distance of other classes on
BATCH_SIZE = 128  # the paper's
HUGE = 1e12  # no embedding of use is so large; its square still fits float32


class DivergedError(ValueError):
    """The rate is so high that the embeddings grow without end."""


@dataclass(frozen=True)
class Layer:
    """``embedding = weight · (vector - mean)``. No loss depends on a constant that is added to all embeddings."""

    mean: Floats  # (d,)
    weight: Floats  # (dim, d)
    losses: tuple[float, ...] = ()  # of each step

    def __call__(self, X: Floats) -> Floats:
        """Embeddings, (n, dim), in the type of the vectors, (n, d)."""
        embeddings: Floats = (X - self.mean.astype(X.dtype)) @ self.weight.T.astype(X.dtype)
        return embeddings


def fit_linear(X: Floats, labels: Indices, config: TrainConfig, *, progress: bool = False) -> Layer:
    """Train a linear layer.

    Args:
        X: (n, d), float32 or float64, finite.
        labels: (n,), class numbers; two classes or more have two images or more.
        config: the settings of loss, batches, start, optimizer and schedule, and dim, steps, clip and seed. The embedding has
            no more dimensions than the vectors, nor than n - 1. The batch size is a maximum, see :func:`suited`.
        progress: show how far it is, on the terminal or as lines of text.

    """
    start = _begin(X, labels, config)
    A, losses = _descend(start, labels, config, progress)
    return Layer(start.mean, A @ start.axes, losses)


def choose_rate(
    X: Floats, labels: Indices, config: TrainConfig, class_names: Sequence[str] | None = None, *, progress: bool = False
) -> float:
    """The rate of :data:`RATES` that does best on a fifth of the classes, trained on the others.

    The score of a class is the mean over its images of 1 / rank of the nearest one of the class. A higher rate is taken if it
    is ahead by more than the standard error over the classes; otherwise the lower one, which stays nearer to the start. With
    too few classes to hold some out it is the least of all. Classes whose names differ only in case, blanks or Unicode form
    are held out together.
    """
    numbers, counts = np.unique(labels, return_counts=True)
    classes = group_by_name(numbers[counts > 1], class_names or [str(c) for c in range(numbers[-1] + 1)])
    if len(classes) < LEAST_CLASSES:
        return RATES[0]
    held = np.isin(labels, draw(classes, len(classes) // 5, np.random.default_rng([config.seed, 0, HELD_OUT])))
    _, y, sizes = np.unique(labels[held], return_inverse=True, return_counts=True)
    start = _begin(X[~held], labels[~held], config)
    U = Layer(start.mean, start.axes)(X[held])  #                                                 (n_held, r)
    best, scores = RATES[0], np.zeros(len(sizes))
    for lr in RATES:
        try:
            A, _ = _descend(start, labels[~held], replace(config, lr=lr), progress)
        except DivergedError:
            break  # so would the higher ones
        of_classes = np.bincount(y, 1 / first_ranks(U @ A.T, y)) / sizes
        ahead = of_classes - scores
        if ahead.mean() > ahead.std(ddof=1) / math.sqrt(len(sizes)):
            best, scores = lr, of_classes
    return best


def suited(config: TrainConfig, labels: Indices) -> TrainConfig:
    """The settings with batches that the classes can fill: no larger than asked for, and more images of each of few classes."""
    kind = batches_of(config)
    most = min(config.batch_size or BATCH_SIZE, len(labels))
    if kind != "balanced":
        unit = SAMPLERS[kind].unit
        return replace(config, batches=kind, batch_size=most // unit * unit)
    sizes = np.unique(labels, return_counts=True)[1]
    sizes = sizes[sizes > 1]
    classes = min(len(sizes), most // config.images)
    if classes < 2:
        raise ValueError(f"batch_size must have room for two classes of {config.images} images, got {most}. Raise it.")
    images = max(config.images, min(most // classes, int(sizes.mean())))
    return replace(config, batches=kind, batch_size=classes * images, images=images)


class _Start(NamedTuple):
    """Vectors on their principal axes, and the layer as it begins there: ``embedding = weight · axes · (vector - mean)``."""

    mean: Floats  # (d,)
    axes: Floats  # (r, d), with the scale
    U: Tensor  # axes · (vector - mean)                                                               (n, r)
    weight: Tensor  # (dim, r)


def _begin(X: Floats, labels: Indices, config: TrainConfig) -> _Start:
    mean: Floats = X.mean(axis=0, dtype=np.float64)
    F = X - mean  #                                                                                   (n, d)
    peak = float(np.abs(F).max()) or 1.0
    F /= peak  # now no square overflows
    n, d = F.shape
    with torch.random.fork_rng(devices=[]):
        seed_torch(config.seed, 1, WEIGHTS)
        turn = nn.Linear(d, min(d, n - 1), dtype=torch.float64)
        pca(turn, 1.0, torch.from_numpy(F))
        V = turn.weight.detach()
        U = torch.from_numpy(F) @ V.T  #                                                              (n, r)
        head = nn.Linear(turn.out_features, min(config.dim, turn.out_features))
        if config.head == "pca":
            nn.init.eye_(head.weight)  # the strongest axes
        else:
            HEADS[config.head](head, 1.0, U, torch.from_numpy(labels))
    weight = head.weight.detach()
    scale = _scale(U @ weight.T.double(), labels, config)
    return _Start(mean, scale / peak * V.numpy(), (scale * U).float(), weight)


def _scale(embeddings: Tensor, labels: Indices, config: TrainConfig) -> float:
    """What takes other classes to the mean distance that the loss begins at."""
    i, j = np.random.default_rng([config.seed, 0, SAMPLE]).integers(len(labels), size=(2, PAIRS))
    i, j = i[labels[i] != labels[j]], j[labels[i] != labels[j]]
    distance = torch.linalg.vector_norm(embeddings[i] - embeddings[j], dim=1).mean().item()
    m = suited(config, labels).batch_size
    assert m is not None
    wanted = config.margin + math.log(2 * (m - 2)) if config.loss == "lifted_struct" else 2 * (config.margin or 1.0)
    return config.head_scale * wanted / distance if distance > 0 else config.head_scale


def _descend(start: _Start, labels: Indices, config: TrainConfig, progress: bool) -> tuple[Floats, tuple[float, ...]]:
    """All steps: the weight, (dim, r), and the loss of each step."""
    config = suited(config, labels)
    assert config.batch_size is not None
    U, A, y = start.U, nn.Parameter(start.weight.clone()), torch.from_numpy(labels)
    batches, losses = make_batches(config, labels), []
    options = {"negative": config.negative} if config.loss == "triplet" else {}
    loss: nn.Module = LOSSES[config.loss](config.margin, **options)
    groups = [{"params": [A], "weight_decay": config.weight_decay}]
    optimizer = OPTIMIZERS[config.optimizer](groups, config.momentum)
    with (
        limit_threads(3 * config.batch_size * A.numel()),
        Bar(f"fit, rate {config.lr:g}", config.steps * config.batch_size, wanted=progress) as bar,
    ):
        for step in range(config.steps):
            if isinstance(batches, HardNegativeSampler) and step % config.refresh_every == 0:
                batches.set_hard_negatives(difficult_neighbours((U @ A.T).detach().numpy(), labels, config.difficult))
            rows = torch.from_numpy(batches.batch(step))
            optimizer.param_groups[0]["lr"] = config.lr * rate(
                config.schedule, step, config.steps, warmup=config.warmup, decays=config.decays, factor=config.decay_factor
            )
            optimizer.zero_grad()
            X = U[rows] @ A.T  #                                                                      (m, dim)
            if not (largest := X.detach().abs().max().item()) < HUGE:
                raise DivergedError(
                    f"lr must keep the embeddings finite, got {config.lr:g} and {largest:.3g} in step {step}. Lower it."
                )
            J = loss(X, y[rows])
            J.backward()
            if config.clip:
                nn.utils.clip_grad_norm_([A], config.clip)
            optimizer.step()
            losses.append(J.item())
            bar.advance(config.batch_size)
    return A.detach().double().numpy(), tuple(losses)

"""What goes into the network at a step: crops of pixels, or features of a frozen trunk that were computed once."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from liftedstruct.data import PackedImages
from liftedstruct.data.image_set import Indices
from liftedstruct.data.splits import hold_out
from liftedstruct.embedder import Embedder, embed_rows
from liftedstruct.retrieval import nearest_neighbours
from liftedstruct.runtime.progress import Bar
from liftedstruct.samplers import BalancedBatches, Batches, MinedBatches, PairBatches, TripletBatches
from liftedstruct.training.config import TrainConfig
from liftedstruct.training.run_folder import RunFolder

__all__ = [
    "Ahead",
    "Batch",
    "Features",
    "Pixels",
    "Source",
    "difficult_neighbours",
    "fitting_size",
    "make_batches",
    "pairable",
    "random_views",
    "recoloured",
    "split",
]

BLOCK = 64  # images that go through a trunk at once where there is no gradient
LARGE = 256  # images of a class, above which hard negatives are searched among the other classes only
QUERIES = 1 << 13  # images whose neighbours are searched at once
# Last word of a seed, so that no two random choices share a stream; batches.py has 0 and 1.
HELD_OUT, CROPS, FIXED_CROPS = 2, 3, 4
GREY = torch.tensor([0.299, 0.587, 0.114])  # how bright red, green and blue are to the eye


class Batch(NamedTuple):
    """What a step works on."""

    rows: Indices  # numbers of the images in the packed set   (m,)
    labels: Tensor  # (m,)
    inputs: Tensor  # (m, ...), as the source makes them


class Source(Protocol):
    """Where a batch comes from, and what the embedder makes of it."""

    def inputs(self, rows: Indices, step: int) -> Tensor:
        """What the network is given for these images at this step, a function of the seed and the step."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Their embeddings."""

    def embed(self, rows: Indices, embedder: Embedder) -> NDArray[np.float32]:
        """Embeddings of centre crops by this embedder (that of the run, or its average), in evaluation mode; the mode stays."""


class Pixels:
    """Random crops, straight from the packed set."""

    def __init__(self, config: TrainConfig, embedder: Embedder, packed: PackedImages) -> None:
        self.embedder, self.packed, self.config = embedder, packed, config

    def inputs(self, rows: Indices, step: int) -> Tensor:
        return random_views(self.packed, rows, self.config, np.random.default_rng([self.config.seed, step, CROPS]))

    def forward(self, inputs: Tensor) -> Tensor:
        y: Tensor = self.embedder(inputs)
        return y

    def embed(self, rows: Indices, embedder: Embedder) -> NDArray[np.float32]:
        return embed_rows(embedder, self.packed, rows, BLOCK, embedder.crop)


class Features:
    """Features of a frozen trunk: of each image's centre crop, and of some fixed random crops if wanted."""

    def __init__(
        self,
        config: TrainConfig,
        embedder: Embedder,
        packed: PackedImages,
        rows: Indices,
        folder: RunFolder,
        progress: bool,
    ) -> None:
        self.embedder, self.seed = embedder, config.seed
        self.at = np.full(len(packed), -1)
        self.at[rows] = np.arange(len(rows))
        shape = (len(rows), config.feature_crops, embedder.trunk.width)
        found = folder.load_features()
        if found is None or found.shape != shape:
            found = self._compute(config, packed, rows, progress)
            folder.save_features(found)
        self.features = torch.from_numpy(found)  #                                            (n, crops, width)

    @torch.no_grad()
    def _compute(self, config: TrainConfig, packed: PackedImages, rows: Indices, progress: bool) -> NDArray[np.float32]:
        made = np.empty((len(rows), config.feature_crops, self.embedder.trunk.width), dtype=np.float32)
        crop = self.embedder.crop
        self.embedder.eval()
        with Bar("features", len(rows) * config.feature_crops, wanted=progress) as bar:
            for view in range(config.feature_crops):
                rng = np.random.default_rng([config.seed, view, FIXED_CROPS])
                for start in range(0, len(rows), BLOCK):
                    block = rows[start : start + BLOCK]
                    if view == 0:
                        pixels = torch.from_numpy(packed.center_crops(block, crop))
                    else:
                        pixels = random_views(packed, block, config, rng)
                    features = self.embedder.features(pixels).float().cpu()
                    made[start : start + BLOCK, view] = features.numpy()
                    bar.advance(len(block))
        return made

    def of_centres(self, rows: Indices) -> Tensor:
        """Features of centre crops.                                                              (n, width)"""
        return self.features[self.at[rows], 0]

    def inputs(self, rows: Indices, step: int) -> Tensor:
        rng = np.random.default_rng([self.seed, step, CROPS])
        views = rng.integers(self.features.shape[1], size=len(rows))
        return self.features[self.at[rows], views]

    def forward(self, inputs: Tensor) -> Tensor:
        return self.embedder.head(inputs.to(next(self.embedder.parameters()).device))

    @torch.no_grad()
    def embed(self, rows: Indices, embedder: Embedder) -> NDArray[np.float32]:
        dropout, device = embedder.dropout.training, next(embedder.parameters()).device
        embedder.dropout.eval()
        made = torch.cat([embedder.head(part.to(device)).cpu() for part in self.of_centres(rows).split(4096)])
        embedder.dropout.train(dropout)
        return made.numpy()


def random_views(packed: PackedImages, rows: Indices, config: TrainConfig, rng: np.random.Generator) -> Tensor:
    """Crops to train on, as the settings have them.                                          (m, crop, crop, 3)"""
    assert config.train_crop is not None
    pixels = packed.random_crops(rows, config.train_crop, rng=rng, hflip=config.mirror, min_scale=config.least_area)
    crops = torch.from_numpy(pixels)
    return recoloured(crops, config.colour, rng) if config.colour else crops


def recoloured(crops: Tensor, strength: float, rng: np.random.Generator) -> Tensor:
    r"""Crops, (m, h, w, 3) bytes, each in another light: one affine map of its pixels, by three random factors.

    Brightness multiplies a pixel, contrast its difference from the mean grey of the crop, and saturation its difference from
    its own grey; each by :math:`1 \pm` at most the strength.
    """
    factors = 1 + strength * rng.uniform(-1, 1, (3, len(crops), 1, 1, 1))
    brightness, contrast, saturation = torch.from_numpy(factors).float()
    x = crops.float()
    grey = (x @ GREY).unsqueeze(-1)  #                                                            (m, h, w, 1)
    level = grey.mean(dim=(1, 2), keepdim=True)  #                                                (m, 1, 1, 1)
    grey.mul_(brightness * contrast * (1 - saturation)).add_(level * (brightness * (1 - contrast)))
    x.mul_(brightness * contrast * saturation).add_(grey)
    return x.round_().clamp_(0, 255).byte()


class Ahead:
    """Batches, one of them made on a thread while the network works on the one before."""

    def __init__(self, make: Callable[[int], Batch]) -> None:
        self.make, self.pool = make, ThreadPoolExecutor(1, "batches")
        self.waiting: tuple[int, Future[Batch]] | None = None

    def take(self, step: int, one_more: bool) -> Batch:
        """The batch of this step; with ``one_more`` the next is begun."""
        if self.waiting is None or self.waiting[0] != step:
            self.waiting = step, self.pool.submit(self.make, step)
        batch = self.waiting[1].result()
        self.waiting = (step + 1, self.pool.submit(self.make, step + 1)) if one_more else None
        return batch

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


def split(packed: PackedImages, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Numbers of the images to train on and to validate on. The test classes are in neither.

    The validation classes are those of the packed set; where it has none, a fraction of its training classes, by the seed, of
    which those whose names differ only in case, blanks or Unicode form are drawn as one.
    """
    if len(packed.validation) or not fraction:
        return packed.train, packed.validation
    classes = np.unique(packed.labels[packed.train])
    held_out = hold_out(classes, packed.class_names, fraction, seed=[seed, 0, HELD_OUT], keep=2)
    held = np.isin(packed.labels[packed.train], held_out)
    return packed.train[~held], packed.train[held]


def fitting_size(batches: str, images: int, labels: Indices) -> int:
    """How many images a batch has if nobody says: 64 or a little less, and what the data can fill."""
    n, classes = len(labels), pairable(labels)
    sizes = {
        "balanced": images * max(2, min(64 // images, classes, n // images)),
        "mined": min(64, n),
        "pairs": max(4, min(64, n // 4 * 4)),
        "triplets": max(3, min(63, n // 3 * 3)),
    }
    return sizes[batches]


def make_batches(config: TrainConfig, labels: Indices) -> Batches:
    """The sampler that the settings name; that of mined batches knows no difficult neighbours yet."""
    m, seed = config.batch_size, config.seed
    assert m is not None
    if m > len(labels):
        raise ValueError(f"batch_size must be at most the number of training images, {len(labels)}, got {m}. Lower it.")
    if config.batches == "pairs":
        return PairBatches(labels, m, seed=seed, self_pairs=config.self_pairs)
    if config.batches == "triplets":
        return TripletBatches(labels, m, seed=seed)
    if config.batches == "mined":
        return MinedBatches(labels, np.full((len(labels), 1), -1), m, mined=config.mined, seed=seed)
    if m % config.images:
        raise ValueError(f"batch_size must be a multiple of images, {config.images}, got {m}. Pass {m - m % config.images}.")
    classes = pairable(labels)
    if 2 <= classes < m // config.images:
        raise ValueError(
            f"batch_size must be at most {classes * config.images}, {config.images} images of each of the {classes} training "
            f"classes that have two, got {m}. Lower it, or pass batches pairs."
        )
    return BalancedBatches(labels, m // config.images, config.images, seed=seed)


def pairable(labels: Indices) -> int:
    """Classes with two images or more."""
    return int((np.unique(labels, return_counts=True)[1] > 1).sum())


def difficult_neighbours(embeddings: NDArray[np.float32], labels: Indices, count: int) -> Indices:
    """For each image the nearest images of other classes, nearest first; -1 where there are fewer.       (n, count)

    Images of small classes search among all images, for so many neighbours that enough are of other classes; those of each
    large class among the other classes only. So the memory does not grow with the size of the largest class.
    """
    n, table = len(labels), np.full((len(labels), count), -1, dtype=np.int64)
    _, y, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    small = np.flatnonzero(sizes[y] <= LARGE)
    k = min(n, count + int(sizes[y[small]].max(initial=0)))  # an image finds itself, too
    for start in range(0, len(small), QUERIES):
        rows = small[start : start + QUERIES]
        _, near = nearest_neighbours(embeddings, k, embeddings[rows])
        same = y[near] == y[rows, None]  #                                                                (b, k)
        order = np.argsort(same, axis=1, kind="stable")[:, :count]
        found = np.where(np.take_along_axis(same, order, 1), -1, np.take_along_axis(near, order, 1))
        table[rows, : found.shape[1]] = found
    for c in np.flatnonzero(sizes > LARGE):
        rows, others = np.flatnonzero(y == c), np.flatnonzero(y != c)
        if len(others):
            _, near = nearest_neighbours(embeddings[others], min(count, len(others)), embeddings[rows])
            table[rows, : near.shape[1]] = others[near]
    return table

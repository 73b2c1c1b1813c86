"""Index batches for each loss: which images meet in a batch.

A sampler needs the labels and a seed, and nothing else: batch number t is a function of the two (``sampler.batch(t)``), so
the state of a sampler is one number, a run goes on exactly where it stopped, and the ranks of a distributed run agree without
talking to each other. The lifted losses compare all images of a batch, so ranks have to gather their embeddings before the
loss.

To iterate over a sampler is one epoch, ``steps_per_epoch`` batches; the next iteration is the next epoch. An endless stream is
``itertools.chain.from_iterable(itertools.repeat(sampler))``.

>>> labels = ["cup", "cup", "lamp", "lamp", "sofa", "sofa"]
>>> batches = BalancedBatches(labels, classes=2, images=2, seed=0)
>>> for epoch in range(2):
...     for batch in batches:
...         print([labels[i] for i in batch])
['sofa', 'sofa', 'cup', 'cup']
['sofa', 'sofa', 'cup', 'cup']
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from liftedstruct.runtime.checks import LabelsLike, as_classes, as_number, check_count

__all__ = ["BATCHES", "BalancedBatches", "Batches", "MinedBatches", "PairBatches", "TripletBatches"]

Indices = NDArray[np.int64]


class Batches(ABC):
    """What all samplers share: the images sorted by class, the epochs, the state, and the split over ranks.

    Batch t is number t % steps_per_epoch of epoch t // steps_per_epoch. A loader with workers takes batches before they are
    used, so what an iteration has yielded is not part of the state: the epoch moves when an iteration begins.
    """

    unit: int  # rows that belong together and stay on one rank
    steps_per_epoch: int
    step: int  # number of the batch that the next iteration begins with

    def __init__(self, labels: LabelsLike, batch_size: int, seed: int, rank: int, world_size: int) -> None:
        y, names = as_classes(labels)
        if y.ndim != 1 or not len(y):
            raise ValueError(f"labels must have shape (n,) with n >= 1, got {y.shape}. Pass one label per image.")
        self.labels, self.batch_size, self.seed = y, check_count("batch_size", batch_size), check_count("seed", seed, 0)
        self.rank, self.world_size, self.step = check_count("rank", rank, 0), check_count("world_size", world_size), 0
        if rank >= world_size:
            raise ValueError(f"rank must be less than world_size, got rank {rank} of {world_size}. Ranks count from 0.")
        if batch_size % (self.unit * world_size):
            raise ValueError(
                f"batch_size must be a multiple of {self.unit * world_size} ({self.unit} rows belong together, on {world_size} "
                f"ranks), got {batch_size}. Pass {-(-batch_size // (self.unit * world_size)) * self.unit * world_size}."
            )
        self.sizes = np.bincount(y, minlength=len(names))  # images of each class                     (C,)
        self.starts = np.cumsum(self.sizes) - self.sizes  # where it starts in ``members``            (C,)
        self.members = np.argsort(y, kind="stable")  # images sorted by class ...                     (n,)
        self.position = np.argsort(self.members)  # ... and where each image is among them            (n,)
        self.single_image_classes = int((self.sizes == 1).sum())  # these can only be negatives

    @abstractmethod
    def _whole_batch(self, step: int) -> Indices:
        """Batch number ``step``, all ranks together."""

    def batch(self, step: int) -> Indices:
        """This rank's part of batch number ``step``; the parts in order of rank are the batch of a single process."""
        return np.split(self._whole_batch(step), self.world_size)[self.rank]

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[Indices]:
        # A DataLoader may make two iterators and use one, so nothing may happen before the first batch is asked for.
        first, self.step = self.step, (self.step // self.steps_per_epoch + 1) * self.steps_per_epoch
        for step in range(first, self.step):
            yield self.batch(step)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; if a restored state is within that epoch, it stays there."""
        epoch = check_count("epoch", epoch, 0)
        if epoch != self.step // self.steps_per_epoch:
            self.step = epoch * self.steps_per_epoch

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """What to save: the step, and enough to notice a restore into other batches. Plain numbers and strings.

        Args:
            step: number of the next batch, epoch * steps_per_epoch + batches used of it; by default where the next epoch
                begins, which is right between two epochs.

        """
        return {"step": self.step if step is None else check_count("step", step, 0), **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where ``state`` was taken, on any number of ranks: the next iteration yields what is left of that epoch."""
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise ValueError(
                    f"the saved state must be of the same batches: {key} is {state.get(key)!r} there and {value!r} here. "
                    "Restore it into a sampler made with the same labels and settings."
                )
        self.step = check_count("step", state.get("step", -1), 0)

    def _identity(self) -> dict[str, Any]:
        return {
            "batches": type(self).__name__,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "labels": f"{len(self.labels)} images, crc32 {crc32(self.labels.tobytes()):08x}",
        }

    def _rng(self, step: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, step, 1])  # 1: not the stream of any permutation

    def _need_positives(self) -> None:
        if self.sizes.max() < 2:
            raise ValueError(
                f"a batch needs a class with at least two images, got {len(self.sizes)} classes of one image each. "
                "Label images of one thing alike."
            )

    def _need_negatives(self) -> None:
        if len(self.sizes) < 2:
            raise ValueError("a batch needs images of at least two classes, got one class. Add images of another class.")

    def _other_class(self, images: Indices, t: Indices) -> Indices:
        """For each image the t-th of those of other classes."""
        start, size = self.starts[self.labels[images]], self.sizes[self.labels[images]]
        return self.members[np.where(t < start, t, t + size)]

    def _same_class(self, images: Indices, rng: np.random.Generator) -> Indices:
        """For each image another one of its class, all of these equally likely."""
        start, size = self.starts[self.labels[images]], self.sizes[self.labels[images]]
        return self.members[start + (self.position[images] - start + rng.integers(1, size)) % size]

    def _others(self, images: Indices) -> Indices:
        """How many images of other classes each image has."""
        return len(self.labels) - self.sizes[self.labels[images]]

    def _stream(self, start: int, stop: int, n: int) -> Indices:
        """Entries start..stop-1 of an endless stream in which every epoch of n holds 0..n-1 in another random order."""
        epoch, at = np.divmod(np.arange(start, stop), n)
        return np.concatenate([shuffled(at[epoch == e], n, (self.seed, int(e))) for e in np.unique(epoch)])


class PairBatches(Batches):
    """Pairs in rows 2t and 2t + 1, positive and negative in turn: the paper's batches, for the contrastive and lifted losses.

    Every positive pair of the data set comes once in an epoch, in random order (an epoch need not end where a batch ends);
    beside each stands a negative pair drawn at random from all of them.

    Args:
        labels: (n,), integers of any size or strings.
        batch_size: m, a multiple of 4; the paper's 128 is 32 positive and 32 negative pairs.
        seed: every draw descends from it.
        self_pairs: count (x, x) as a positive pair, as the authors' released code does.
        rank, world_size: yield this rank's part of each batch.

    """

    unit = 4

    def __init__(
        self,
        labels: LabelsLike,
        batch_size: int = 128,
        *,
        seed: int = 0,
        self_pairs: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(labels, batch_size, seed, rank, world_size)
        self._need_negatives()
        if not self_pairs:
            self._need_positives()
        self.self_pairs = self_pairs
        n = self.sizes.astype(np.int64)
        self._pairs_before = np.concatenate(([0], np.cumsum(n * (n + 1) // 2 if self_pairs else n * (n - 1) // 2)))
        self.n_pairs = int(self._pairs_before[-1])
        self._negatives_up_to = np.cumsum(self._others(np.arange(len(self.labels))))  # ordered negative pairs (i, .) so far
        self.steps_per_epoch = -(-self.n_pairs // (batch_size // 4))

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "self_pairs": self.self_pairs}

    def _whole_batch(self, step: int) -> Indices:
        half = self.batch_size // 4
        batch = np.empty((half, 2, 2), dtype=np.int64)
        batch[:, 0] = self._positive_pairs(self._stream(step * half, (step + 1) * half, self.n_pairs))
        u = self._rng(step).integers(self._negatives_up_to[-1], size=half)  # one number for each ordered negative pair
        batch[:, 1, 0] = i = np.searchsorted(self._negatives_up_to, u, side="right")
        batch[:, 1, 1] = self._other_class(i, u - self._negatives_up_to[i] + self._others(i))
        return batch.reshape(-1)

    def _positive_pairs(self, q: Indices) -> Indices:
        """The positive pairs with these numbers, counted class by class.                                      (len, 2)"""
        c = np.searchsorted(self._pairs_before, q, side="right") - 1
        a, b = triangle(q - self._pairs_before[c])
        members: Indices = self.members[self.starts[c][:, None] + np.stack((a, b if self.self_pairs else b + 1), axis=1)]
        return members


class TripletBatches(Batches):
    """Anchor, positive and negative in rows 3t, 3t + 1, 3t + 2, for the triplet loss.

    Every image that has another of its class is an anchor once in an epoch, in random order; positive and negative are drawn
    at random.

    Args:
        labels: (n,), integers of any size or strings.
        batch_size: m, a multiple of 3; the paper uses 120.
        seed: every draw descends from it.
        rank, world_size: yield this rank's part of each batch.

    """

    unit = 3

    def __init__(self, labels: LabelsLike, batch_size: int = 120, *, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        super().__init__(labels, batch_size, seed, rank, world_size)
        self._need_negatives()
        self._need_positives()
        self._anchors = np.flatnonzero(self.sizes[self.labels] > 1)
        self.steps_per_epoch = -(-len(self._anchors) // (batch_size // 3))

    def _whole_batch(self, step: int) -> Indices:
        third = self.batch_size // 3
        anchors = self._anchors[self._stream(step * third, (step + 1) * third, len(self._anchors))]
        rng = self._rng(step)
        negatives = self._other_class(anchors, rng.integers(self._others(anchors)))
        return np.stack((anchors, self._same_class(anchors, rng), negatives), axis=1).reshape(-1)


class BalancedBatches(Batches):
    """So many classes, so many images of each, class by class.

    In an epoch each class comes at most once, in random order; the classes left over at its end have to wait for the next.
    Classes of one image are left out. A class with fewer images than asked for repeats some, as few times as possible.

    Args:
        labels: (n,), integers of any size or strings.
        classes: classes in a batch.
        images: images of each class, at least 2.
        seed: every draw descends from it.
        rank, world_size: yield this rank's part of each batch.

    """

    def __init__(
        self, labels: LabelsLike, classes: int = 64, images: int = 2, *, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        self.unit = self.images = check_count("images", images, 2)
        self.classes = check_count("classes", classes, 2)
        super().__init__(labels, classes * images, seed, rank, world_size)
        self._need_positives()
        self._classes = np.flatnonzero(self.sizes > 1)
        if len(self._classes) < classes:
            raise ValueError(
                f"classes must be at most the number of classes with two images or more, {len(self._classes)} here, "
                f"got {classes}. Pass classes={len(self._classes)}, or use PairBatches."
            )
        self.steps_per_epoch = len(self._classes) // classes

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "images": self.images}

    def _whole_batch(self, step: int) -> Indices:
        epoch, at = divmod(step, self.steps_per_epoch)
        chosen = np.arange(at * self.classes, (at + 1) * self.classes)
        chosen = self._classes[shuffled(chosen, len(self._classes), (self.seed, epoch))]
        rng = self._rng(step)
        rows = []
        for c in chosen:
            size = int(self.sizes[c])
            rounds = [rng.permutation(size) for _ in range(-(-self.images // size))]
            rows.append(self.members[self.starts[c] + np.concatenate(rounds)[: self.images]])
        return np.concatenate(rows)


class MinedBatches(Batches):
    """A few random positive pairs, then for each side of each pair its difficult neighbours: the paper's importance sampling.

    The pairs come first, in rows 2t and 2t + 1. Then come the images nearest to them: the most difficult of every side, then
    the second most difficult, and so on. No image comes twice. Where the neighbours run out, random images fill the batch.

    Args:
        labels: (n,), integers of any size or strings.
        difficult: (n, h), for each image its nearest images of other classes, nearest first; -1 where there are fewer.
            Replace it with :meth:`set_difficult` as the embedding moves; it is not part of the state, hand it in again.
        batch_size: m.
        mined: share of the batch that is mined, 0 to 1; the rest are the pairs.
        seed: every draw descends from it.
        rank, world_size: yield this rank's part of each batch.

    """

    unit = 1

    def __init__(
        self,
        labels: LabelsLike,
        difficult: ArrayLike,
        batch_size: int = 128,
        *,
        mined: float = 0.5,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(labels, batch_size, seed, rank, world_size)
        self._need_negatives()
        self._need_positives()
        n = len(self.labels)
        if n < batch_size:
            raise ValueError(f"batch_size must be at most the number of images, {n} here, got {batch_size}. Pass {n} or fewer.")
        share = number if 0 <= (number := as_number(mined)) <= 1 else 1.0
        self.mined, self.n_batch_pairs = share, int(batch_size * (1 - share)) // 2
        if self.n_batch_pairs < 1:
            raise ValueError(
                f"mined must be a number from 0 to 1 that leaves room for a pair in a batch of {batch_size}, got {mined!r}. "
                "Pass a smaller share, or a larger batch_size."
            )
        self._mates = np.flatnonzero(self.sizes[self.labels] > 1)
        self.steps_per_epoch = -(-len(self._mates) // (2 * self.n_batch_pairs))
        self.set_difficult(difficult)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "mined": self.mined}

    def set_difficult(self, difficult: ArrayLike) -> None:
        """Replace the neighbours from the next batch on; do so between epochs if a loader with workers takes batches ahead."""
        table = np.asarray(difficult)
        n = len(self.labels)
        if table.ndim != 2 or len(table) != n or table.dtype.kind not in "iu":
            raise ValueError(
                f"difficult must be an integer array of shape ({n}, h), got {table.dtype} of shape {table.shape}. "
                "Pass for each image its nearest images of other classes."
            )
        own = (table >= 0) & (self.labels[np.clip(table, 0, n - 1)] == self.labels[:, None])
        wrong = np.flatnonzero(((table < -1) | (table >= n) | own).any(axis=1))
        if len(wrong):
            raise ValueError(
                f"difficult must hold images of other classes (0 to {n - 1}) or -1, "
                f"got {table[wrong[0]].tolist()} in row {wrong[0]}. Leave out images of the row's own class."
            )
        self.difficult = table.astype(np.int64)

    def _whole_batch(self, step: int) -> Indices:
        rng = self._rng(step)
        taken = np.zeros(len(self.labels), dtype=bool)
        pairs = self._disjoint_pairs(rng, taken)
        near = self.difficult[pairs].T.reshape(-1)  # rank by rank, each side of each pair in turn
        near = near[(near >= 0) & ~taken[near]]
        near = near[np.sort(np.unique(near, return_index=True)[1])]  # the first of each, in this order
        near = near[: self.batch_size - len(pairs)]
        taken[near] = True
        fill = rng.choice(np.flatnonzero(~taken), self.batch_size - len(pairs) - len(near), replace=False)
        return np.concatenate((pairs, near, fill))

    def _disjoint_pairs(self, rng: np.random.Generator, taken: NDArray[np.bool_]) -> Indices:
        """Random positive pairs that share no image: each from a random image and a random free one of its class."""
        rows: list[int] = []
        for i in rng.permutation(self._mates):
            if len(rows) == 2 * self.n_batch_pairs:
                break
            c = self.labels[i]
            mates = self.members[self.starts[c] : self.starts[c] + self.sizes[c]]
            mates = mates[~taken[mates] & (mates != i)]
            if not taken[i] and len(mates):
                j = rng.choice(mates)
                taken[[i, j]] = True
                rows += [int(i), int(j)]
        return np.array(rows, dtype=np.int64)


def shuffled(positions: Indices, n: int, key: tuple[int, int]) -> Indices:
    """Where a random permutation of 0..n-1, drawn by ``key``, sends these positions, without making the permutation.

    A data set of 50 classes of 5,000 images has 625 million positive pairs; a list of them would fill the memory of a laptop.
    A Feistel network over the next even number of bits is a permutation of 0..2^bits - 1; results of n or more are sent
    through it again until they fall below n (fewer than four times on average). Small permutations are made.
    """
    rng = np.random.default_rng([*key, 0])
    if n <= 4096:
        return rng.permutation(n)[positions]
    half = ((n - 1).bit_length() + 1) // 2
    mask = np.uint64((1 << half) - 1)
    rounds = rng.integers(1 << 63, size=8, dtype=np.uint64)
    result = positions.astype(np.uint64)
    todo = np.arange(len(result))
    while len(todo):
        left, right = result[todo] >> np.uint64(half), result[todo] & mask
        for k in rounds:
            mixed = (right + k) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        result[todo] = (left << np.uint64(half)) | right
        todo = todo[result[todo] >= n]
    return result.astype(np.int64)


def triangle(q: Indices) -> tuple[Indices, Indices]:
    """The q-th of (0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2), (0, 3), ..."""
    b = ((np.sqrt(8.0 * q + 1) - 1) / 2).astype(np.int64)
    b -= b * (b + 1) // 2 > q  # the root is off by one for some q of more than 52 bits
    b += (b + 1) * (b + 2) // 2 <= q
    return q - b * (b + 1) // 2, b


BATCHES: dict[str, type[Batches]] = {
    "balanced": BalancedBatches,
    "mined": MinedBatches,
    "pairs": PairBatches,
    "triplets": TripletBatches,
}

"""Batch samplers for each loss, which choose the images that share a batch.

A sampler needs only the labels and a seed. Batch number t is a function of the two (`sampler.batch(t)`), so the state of a
sampler is one number and a run resumes exactly where it stopped. `HardNegativeSampler` also depends on its table of hard
negatives (`sampler.arrays()`). The batch size is an upper bound: a sampler uses the largest size that does not exceed it and
that the dataset can fill (`sampler.batch_size`).

Iterating over a sampler yields one epoch of `steps_per_epoch` batches; the next iteration yields the next epoch. For an endless
stream, use `itertools.chain.from_iterable(itertools.repeat(sampler))`. In a DataLoader, pass a sampler as `batch_sampler`.

Examples:
    >>> labels = ["cup", "cup", "lamp", "lamp", "sofa", "sofa"]
    >>> sampler = BalancedSampler(labels, batch_size=4, samples_per_class=2, seed=0)
    >>> for epoch in range(2):
    ...     for batch in sampler:
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

from liftedstruct.runtime import seeds
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_classes, as_embeddings, as_number, check_count

__all__ = ["SAMPLERS", "BalancedSampler", "HardNegativeSampler", "PairSampler", "Sampler", "TripletSampler"]

Indices = NDArray[np.int64]

LARGE = 256  # class size above which only the other classes are searched for hard negatives
QUERIES = 1 << 13  # images per search for hard negatives


class Sampler(ABC):
    """Base class of the samplers: images sorted by class, epochs and state.

    Batch t is batch t % steps_per_epoch of epoch t // steps_per_epoch. A loader with workers fetches batches before they are
    used, so the batches yielded so far are not part of the state: the epoch advances when an iteration begins.
    """

    unit: int = 1  # the batch size is a multiple of this
    layout: str | None = None  # "pairs" or "triplets" if rows 2t.. or 3t.. belong together, as some losses require
    refresh_every: int | None = None  # steps between calls of refresh(); None if it is not needed
    batch_size: int
    steps_per_epoch: int
    step: int  # number of the first batch of the next iteration

    def __init__(self, labels: LabelsLike, batch_size: int, seed: int = 0, *, positives: bool = True) -> None:
        y, names = as_classes(labels)
        if y.ndim != 1 or not len(y):
            raise ValueError(f"labels must have shape (n,) with n >= 1, got {y.shape}. Pass one label per image.")
        if len(names) < 2:
            raise ValueError("a batch needs images of at least two classes, got one class. Add images of another class.")
        self.sizes = np.bincount(y, minlength=len(names))  # images per class                         (C,)
        if positives and self.sizes.max() < 2:
            raise ValueError(
                f"a batch needs a class with at least two images, got {len(names)} classes with one image each. "
                "Give images of the same class the same label."
            )
        m = min(check_count("batch_size", batch_size, self.unit), len(y))
        self.batch_size = max(self.unit, m // self.unit * self.unit)
        self.labels, self.seed, self.step = y, check_count("seed", seed, 0), 0
        self.starts = np.cumsum(self.sizes) - self.sizes  # start of each class in `members`          (C,)
        self.members = np.argsort(y, kind="stable")  # images sorted by class ...                     (n,)
        self.position = np.argsort(self.members)  # ... and the position of each image among them     (n,)
        self.single_image_classes = int((self.sizes == 1).sum())  # these can only be negatives

    @abstractmethod
    def batch(self, step: int) -> Indices:
        """Return the indices of the images in batch number `step`.                                       (batch_size,)"""

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[Indices]:
        # A DataLoader may create two iterators and use only one, so nothing may change before the first batch is requested.
        first, self.step = self.step, (self.step // self.steps_per_epoch + 1) * self.steps_per_epoch
        for step in range(first, self.step):
            yield self.batch(step)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. A restored position within that epoch is kept."""
        epoch = check_count("epoch", epoch, 0)
        if epoch != self.step // self.steps_per_epoch:
            self.step = epoch * self.steps_per_epoch

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return the state to save: the step, and enough to detect a restore into a different sampler.

        The state consists of plain numbers and strings.

        Args:
            step: number of the next batch, epoch * steps_per_epoch + batches used in it. Default: the start of the next
                epoch, which is correct between two epochs.

        """
        return {"step": self.step if step is None else check_count("step", step, 0), **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state`: the next iteration yields the rest of that epoch."""
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise ValueError(
                    f"the state must come from the same sampler: {key} must be {value!r}, got {state.get(key)!r}. "
                    "Load it into a sampler with the same labels and settings."
                )
        self.step = check_count("step", state.get("step", -1), 0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save with the state, by name."""
        return {}

    def load_arrays(self, arrays: dict[str, NDArray[Any]]) -> None:  # noqa: B027
        """Restore the arrays that `arrays` returned."""

    def refresh(self, embeddings: EmbeddingsLike) -> None:  # noqa: B027
        """Adapt to the current embeddings of all images, (n, d). Call this every `refresh_every` steps."""

    def _identity(self) -> dict[str, Any]:
        return {
            "sampler": type(self).__name__,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "labels": f"{len(self.labels)} images, crc32 {crc32(self.labels.tobytes()):08x}",
        }

    def _rng(self, step: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, step, seeds.DRAWS])

    def _other_class(self, images: Indices, t: Indices) -> Indices:
        """Return for each image the t-th image of the other classes."""
        start, size = self.starts[self.labels[images]], self.sizes[self.labels[images]]
        return self.members[np.where(t < start, t, t + size)]

    def _same_class(self, images: Indices, rng: np.random.Generator) -> Indices:
        """Draw another image of the same class for each image, uniformly."""
        start, size = self.starts[self.labels[images]], self.sizes[self.labels[images]]
        return self.members[start + (self.position[images] - start + rng.integers(1, size)) % size]

    def _n_negatives(self, images: Indices) -> Indices:
        """Return the number of images of other classes for each image."""
        return len(self.labels) - self.sizes[self.labels[images]]

    def _stream(self, start: int, stop: int, n: int) -> Indices:
        """Return entries start..stop-1 of an endless stream, in which each epoch is a new random permutation of 0..n-1."""
        epoch, at = np.divmod(np.arange(start, stop), n)
        return np.concatenate([shuffled(at[epoch == e], n, (self.seed, int(e))) for e in np.unique(epoch)])


class PairSampler(Sampler):
    """Sampler of alternating positive and negative pairs, in rows 2t and 2t + 1: the paper's batches.

    For the contrastive and lifted structured losses. Every positive pair of the dataset occurs once per epoch, in random order
    (an epoch need not end at the end of a batch). Each is followed by a random negative pair, drawn from all negative pairs.

    Args:
        labels: (n,), integers of any size or strings.
        batch_size: m, rounded down to a multiple of 4; the paper's 128 is 32 positive and 32 negative pairs.
        self_pairs: count (x, x) as a positive pair, as the authors' released code does.
        seed: random seed.

    Examples:
        >>> labels = ["cup", "cup", "lamp", "lamp"]
        >>> [labels[i] for i in PairSampler(labels, batch_size=4).batch(0)]  # a positive pair, then a negative pair
        ['cup', 'cup', 'lamp', 'cup']

    """

    unit = 4
    layout = "pairs"

    def __init__(self, labels: LabelsLike, batch_size: int = 128, *, self_pairs: bool = False, seed: int = 0) -> None:
        super().__init__(labels, batch_size, seed, positives=not self_pairs)
        self.self_pairs = self_pairs
        n = self.sizes.astype(np.int64)
        self._pairs_before = np.concatenate(([0], np.cumsum(n * (n + 1) // 2 if self_pairs else n * (n - 1) // 2)))
        self.n_pairs = int(self._pairs_before[-1])
        self._negatives_up_to = np.cumsum(self._n_negatives(np.arange(len(self.labels))))  # ordered pairs (i, .) so far
        self.steps_per_epoch = -(-self.n_pairs // (self.batch_size // 4))

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "self_pairs": self.self_pairs}

    def batch(self, step: int) -> Indices:
        half = self.batch_size // 4
        batch = np.empty((half, 2, 2), dtype=np.int64)
        batch[:, 0] = self._positive_pairs(self._stream(step * half, (step + 1) * half, self.n_pairs))
        u = self._rng(step).integers(self._negatives_up_to[-1], size=half)  # numbers of ordered negative pairs
        batch[:, 1, 0] = i = np.searchsorted(self._negatives_up_to, u, side="right")
        batch[:, 1, 1] = self._other_class(i, u - self._negatives_up_to[i] + self._n_negatives(i))
        return batch.reshape(-1)

    def _positive_pairs(self, q: Indices) -> Indices:
        """Return the positive pairs with these numbers, counted class by class.                               (len, 2)"""
        c = np.searchsorted(self._pairs_before, q, side="right") - 1
        a, b = triangle(q - self._pairs_before[c])
        members: Indices = self.members[self.starts[c][:, None] + np.stack((a, b if self.self_pairs else b + 1), axis=1)]
        return members


class TripletSampler(Sampler):
    """Sampler of triplets: anchor, positive and negative in rows 3t, 3t + 1, 3t + 2, for the triplet loss.

    Every image with another image of its class is an anchor once per epoch, in random order. Positives and negatives are drawn
    at random.

    Args:
        labels: (n,), integers of any size or strings.
        batch_size: m, rounded down to a multiple of 3; the paper uses 120.
        seed: random seed.

    Examples:
        >>> labels = ["cup", "cup", "lamp", "lamp"]
        >>> [labels[i] for i in TripletSampler(labels, batch_size=3).batch(0)]
        ['lamp', 'lamp', 'cup']

    """

    unit = 3
    layout = "triplets"

    def __init__(self, labels: LabelsLike, batch_size: int = 120, *, seed: int = 0) -> None:
        super().__init__(labels, batch_size, seed)
        self._anchors = np.flatnonzero(self.sizes[self.labels] > 1)
        self.steps_per_epoch = -(-len(self._anchors) // (self.batch_size // 3))

    def batch(self, step: int) -> Indices:
        third = self.batch_size // 3
        anchors = self._anchors[self._stream(step * third, (step + 1) * third, len(self._anchors))]
        rng = self._rng(step)
        negatives = self._other_class(anchors, rng.integers(self._n_negatives(anchors)))
        return np.stack((anchors, self._same_class(anchors, rng), negatives), axis=1).reshape(-1)


class BalancedSampler(Sampler):
    """Sampler of class-balanced batches: several classes with the same number of images each.

    Each class occurs at most once per epoch, in random order. Classes that do not fill another batch are left out of that
    epoch. Classes with one image are never used. A class with fewer than `samples_per_class` images repeats some of them, as
    few times as possible. If there are too few classes to fill the batch, each contributes more images, up to the mean class
    size.

    Args:
        labels: (n,), integers of any size or strings.
        batch_size: m, rounded down to classes times images per class.
        samples_per_class: images per class in a batch, at least 2.
        seed: random seed.

    Examples:
        >>> labels = ["cup", "cup", "lamp", "lamp", "sofa", "sofa"]
        >>> [labels[i] for i in BalancedSampler(labels, batch_size=4, samples_per_class=2).batch(0)]
        ['sofa', 'sofa', 'cup', 'cup']

    """

    def __init__(self, labels: LabelsLike, batch_size: int = 64, *, samples_per_class: int = 4, seed: int = 0) -> None:
        samples = check_count("samples_per_class", samples_per_class, 2)
        if check_count("batch_size", batch_size) < 2 * samples:
            raise ValueError(
                f"batch_size must have room for two classes with samples_per_class={samples} images each, got {batch_size}. "
                f"Pass {2 * samples} or more, or lower samples_per_class."
            )
        super().__init__(labels, batch_size, seed)
        self._classes = np.flatnonzero(self.sizes > 1)
        if len(self._classes) < 2:
            raise ValueError(
                "a balanced batch needs at least two classes with two images or more, got one. Add images, or use PairSampler."
            )
        room = max(2, self.batch_size // samples)
        self.classes_per_batch = min(room, len(self._classes))
        if self.classes_per_batch < room:
            mean_size = int(self.sizes[self._classes].mean())
            samples = max(samples, min(self.batch_size // self.classes_per_batch, mean_size))
        self.samples_per_class, self.batch_size = samples, self.classes_per_batch * samples
        self.steps_per_epoch = len(self._classes) // self.classes_per_batch

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "samples_per_class": self.samples_per_class}

    def batch(self, step: int) -> Indices:
        epoch, at = divmod(step, self.steps_per_epoch)
        chosen = np.arange(at * self.classes_per_batch, (at + 1) * self.classes_per_batch)
        chosen = self._classes[shuffled(chosen, len(self._classes), (self.seed, epoch))]
        rng = self._rng(step)
        rows = []
        for c in chosen:
            size = int(self.sizes[c])
            rounds = [rng.permutation(size) for _ in range(-(-self.samples_per_class // size))]
            rows.append(self.members[self.starts[c] + np.concatenate(rounds)[: self.samples_per_class]])
        return np.concatenate(rows)


class HardNegativeSampler(Sampler):
    """Sampler of random positive pairs and the hard negatives of their images: the paper's importance sampling.

    The pairs come first, in rows 2t and 2t + 1. Their nearest images of other classes follow: the nearest of every image in a
    pair, then the second nearest, and so on. No image occurs twice. Random images fill the batch if the hard negatives run
    out, and before the first `refresh`.

    Args:
        labels: (n,), integers of any size or strings.
        batch_size: m.
        hard_fraction: fraction of hard negatives in a batch, at least 0 and less than 1; the rest are positive pairs.
        n_hard: hard negatives to find per image.
        refresh_every: steps between searches for hard negatives.
        seed: random seed.

    Examples:
        >>> import numpy as np
        >>> sampler = HardNegativeSampler(["a", "a", "b", "c"], batch_size=4, hard_fraction=0.5)
        >>> sampler.refresh(np.array([[0.0], [1.0], [2.0], [9.0]]))
        >>> sampler.hard_negatives[:2, :2].tolist()  # image 2 is nearest to both images of class a
        [[2, 3], [2, 3]]

    """

    def __init__(
        self,
        labels: LabelsLike,
        batch_size: int = 64,
        *,
        hard_fraction: float = 0.5,
        n_hard: int = 10,
        refresh_every: int = 200,
        seed: int = 0,
    ) -> None:
        super().__init__(labels, batch_size, seed)
        share = number if 0 <= (number := as_number(hard_fraction)) <= 1 else 1.0
        self.hard_fraction, self.n_batch_pairs = share, int(self.batch_size * (1 - share)) // 2
        if self.n_batch_pairs < 1:
            raise ValueError(
                f"hard_fraction must be a number from 0 to 1 that leaves room for a pair in a batch of {self.batch_size}, "
                f"got {hard_fraction!r}. Pass a smaller fraction, or a larger batch_size."
            )
        self.n_hard, self.refresh_every = check_count("n_hard", n_hard), check_count("refresh_every", refresh_every)
        self._mates = np.flatnonzero(self.sizes[self.labels] > 1)
        self.steps_per_epoch = -(-len(self._mates) // (2 * self.n_batch_pairs))
        self.hard_negatives = np.full((len(self.labels), 1), -1)  # none yet                          (n, h)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "hard_fraction": self.hard_fraction}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"hard_negatives": self.hard_negatives}

    def load_arrays(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.set_hard_negatives(arrays["hard_negatives"])

    def refresh(self, embeddings: EmbeddingsLike) -> None:
        """Find the hard negatives of every image: its `n_hard` nearest images of other classes.

        For images of small classes, the search covers all images and returns enough neighbors that `n_hard` belong to other
        classes. For images of large classes, it covers only the other classes, so memory does not grow with the class size.

        Args:
            embeddings: (n, d), embeddings of all images, in the order of the labels.

        """
        from liftedstruct.retrieval import nearest_neighbors

        X: NDArray[np.floating] = as_embeddings(embeddings).detach().cpu().numpy()
        y, n, count = self.labels, len(self.labels), self.n_hard
        if len(X) != n:
            raise ValueError(f"embeddings must have one row for each of the {n} labels, got {len(X)} rows. Embed all images.")
        table = np.full((n, count), -1)
        small = np.flatnonzero(self.sizes[y] <= LARGE)
        k = min(n, count + int(self.sizes[y[small]].max(initial=0)))  # an image also finds itself
        for start in range(0, len(small), QUERIES):
            rows = small[start : start + QUERIES]
            _, near = nearest_neighbors(X, k, X[rows])
            same = y[near] == y[rows, None]  #                                                            (b, k)
            order = np.argsort(same, axis=1, kind="stable")[:, :count]
            found = np.where(np.take_along_axis(same, order, 1), -1, np.take_along_axis(near, order, 1))
            table[rows, : found.shape[1]] = found
        for c in np.flatnonzero(self.sizes > LARGE):
            rows, others = np.flatnonzero(y == c), np.flatnonzero(y != c)
            _, near = nearest_neighbors(X[others], min(count, len(others)), X[rows])
            table[rows, : near.shape[1]] = others[near]
        self.set_hard_negatives(table)

    def set_hard_negatives(self, table: ArrayLike) -> None:
        """Use your own table of hard negatives from the next batch on.

        If a loader with workers prefetches batches, call this between epochs.

        Args:
            table: (n, h), for each image its nearest images of other classes, nearest first, padded with -1.

        """
        table, n = np.asarray(table), len(self.labels)
        if table.ndim != 2 or len(table) != n or table.dtype.kind not in "iu":
            raise ValueError(
                f"hard negatives must be an integer array of shape ({n}, h), got {table.dtype} of shape {table.shape}. "
                "Pass the nearest images of other classes for each image."
            )
        own = (table >= 0) & (self.labels[np.clip(table, 0, n - 1)] == self.labels[:, None])
        wrong = np.flatnonzero(((table < -1) | (table >= n) | own).any(axis=1))
        if len(wrong):
            raise ValueError(
                f"hard negatives must be images of other classes (0 to {n - 1}) or -1, "
                f"got {table[wrong[0]].tolist()} in row {wrong[0]}. Remove images of the row's own class."
            )
        self.hard_negatives = table.astype(np.int64)

    def batch(self, step: int) -> Indices:
        rng = self._rng(step)
        taken = np.zeros(len(self.labels), dtype=bool)
        pairs = self._disjoint_pairs(rng, taken)
        near = self.hard_negatives[pairs].T.reshape(-1)  # rank by rank, over all images of the pairs
        near = near[(near >= 0) & ~taken[near]]
        near = near[np.sort(np.unique(near, return_index=True)[1])]  # without repetitions, in the same order
        near = near[: self.batch_size - len(pairs)]
        taken[near] = True
        fill = rng.choice(np.flatnonzero(~taken), self.batch_size - len(pairs) - len(near), replace=False)
        return np.concatenate((pairs, near, fill))

    def _disjoint_pairs(self, rng: np.random.Generator, taken: NDArray[np.bool_]) -> Indices:
        """Draw random positive pairs that share no image: a random image and a random unused image of its class."""
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
    """Return the entries at these positions of a random permutation of 0..n-1, seeded by `key`, without storing it.

    A dataset with 50 classes of 5,000 images has 625 million positive pairs; a list of them would fill the memory of a laptop.
    A Feistel network over the next even number of bits is a permutation of 0..2^bits - 1. Results of n or more pass through it
    again until they fall below n (fewer than four passes on average). Small permutations are stored.
    """
    rng = np.random.default_rng([*key, seeds.PERMUTATION])
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
    """Return the q-th of the pairs (0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2), (0, 3), ..."""
    b = ((np.sqrt(8.0 * q + 1) - 1) / 2).astype(np.int64)
    b -= b * (b + 1) // 2 > q  # the root is off by one for some q of more than 52 bits
    b += (b + 1) * (b + 2) // 2 <= q
    return q - b * (b + 1) // 2, b


SAMPLERS: dict[str, type[Sampler]] = {
    "balanced": BalancedSampler,
    "hard_negatives": HardNegativeSampler,
    "pairs": PairSampler,
    "triplets": TripletSampler,
}

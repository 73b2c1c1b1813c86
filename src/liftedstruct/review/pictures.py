"""Near duplicates, and leaks: duplicates in different parts of the split."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from liftedstruct.review.suggestions import Collection, Suggestion
from liftedstruct.runtime.limits import available_cores

__all__ = ["Look", "duplicates", "look_at", "near_duplicates"]

NEAREST = 2  # neighbors of an image that may be its duplicates
FAR, CLOSE = 1.0, 0.5  # distance of a pair that is looked at, and that is listed if it has no images, in the local scale
PAIRS = 50_000  # most pairs to look at
SIMILAR = 0.75  # least similarity of images
SIDE, VIEW, MARGIN = 32, 14, 0.03  # pixels of what is kept of an image and of what is compared; what a copy may crop
WINDOWS = [(left, top, 1 - right, 1 - bottom) for left, top, right, bottom in itertools.product((0, MARGIN), repeat=4)]


class Look(NamedTuple):
    """What is compared of an image: a small copy and the perceptual hash."""

    small: Image.Image
    phash: NDArray[np.bool_]

    def views(self) -> NDArray[np.float32]:
        """Return the whole and slightly cropped, without mean color and of length 1, (16, VIEW² · 3)."""
        boxes = [tuple(SIDE * each for each in window) for window in WINDOWS]
        found = [np.asarray(self.small.resize((VIEW, VIEW), Image.Resampling.BOX, box), np.float32) for box in boxes]
        X = np.stack(found).reshape(len(boxes), -1, 3)
        X = (X - X.mean(axis=1, keepdims=True)).reshape(len(boxes), -1)
        return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-6)  # type: ignore[no-any-return]


def look_at(image: Image.Image) -> Look:
    """Return what is compared of an RGB image."""
    import imagehash

    small = image.resize((SIDE, SIDE), Image.Resampling.BOX)
    return Look(small, imagehash.phash(image).hash.ravel())


def similarity(a: Look, b: Look) -> float:
    """Return how similar two images are, at most 1: the correlation of their best views, less what the hashes differ."""
    A, B = a.views(), b.views()
    return float(max((A @ B[0]).max(), (B @ A[0]).max()) - (a.phash != b.phash).mean() / 2)


def near_duplicates(
    items: Collection, look: Callable[[int], Look | None] | None = None, progress: Callable[[float], object] = bool
) -> list[tuple[float, int, int]]:
    """Return pairs of rows that are near duplicates with their similarity, most similar first, the lower row first.

    A pair is looked at if one is among the two nearest of the other and their distance is below the local scale, the median
    distance of the farther half of the neighbors of each. Without images, it must be below half of that.

    Args:
        items: embeddings and their neighbors.
        look: function from a row to what is compared of its image; None if it cannot be read. It is called by threads.
        progress: is called with the fraction that is done.

    """
    D, J = items.distances[:, :NEAREST], items.neighbors[:, :NEAREST]
    if not D.size:
        return []
    scale = np.median(items.distances[:, items.distances.shape[1] // 2 :], axis=1)
    rows = np.repeat(np.arange(len(D)), D.shape[1])
    ratio = D.ravel() / np.maximum(np.minimum(scale[rows], scale[J.ravel()]), 1e-30)
    pairs = np.sort(np.stack((rows, J.ravel()), axis=1), axis=1)
    _, at = np.unique(pairs[:, 0] * len(D) + pairs[:, 1], return_index=True)
    at = at[ratio[at] < (FAR if look else CLOSE)]
    at = np.sort(at[np.argsort(ratio[at], kind="stable")[:PAIRS]])
    looks: dict[int, Look | None] = {}
    if look is not None:
        seen = np.unique(pairs[at]).tolist()
        with ThreadPoolExecutor(available_cores()) as pool:
            for done, (row, found) in enumerate(zip(seen, pool.map(look, seen), strict=True)):
                looks[row] = found
                progress(done / len(seen))
    found = []
    for (a, b), far in zip(pairs[at].tolist(), ratio[at].tolist(), strict=True):
        x, y = looks.get(a), looks.get(b)
        score = 1 - far if x is None or y is None else similarity(x, y)
        if score >= (1 - CLOSE if x is None or y is None else SIMILAR):
            found.append((score, a, b))
    return sorted(found, key=lambda pair: (-pair[0], *pair[1:]))


def duplicates(items: Collection, pairs: list[tuple[float, int, int]], most: int = 1000) -> list[Suggestion]:
    """List near duplicates, of kind leaks where one is a test image and the other is not, to drop one of each pair."""
    found = []
    for score, a, b in pairs:
        parts = {items.parts[a], items.parts[b]} if items.parts else set()
        leak = "test" in parts and parts & {"train", "validation"}
        keep, drop = (a, b) if not leak or items.parts[a] == "test" else (b, a)  # type: ignore[index]
        names = [items.names[items.labels[row]] for row in (drop, keep)]
        if leak:
            reason = f"Nearly the same picture is a test image and a {items.parts[drop]} image, so the scores are too high."  # type: ignore[index]
        elif names[0] != names[1]:
            reason = f"Nearly the same picture is “{names[0] or 'no product'}” and “{names[1] or 'no product'}”: one must be wrong."
        else:
            reason = "Nearly the same picture twice, of the same product."
        kind = "leaks" if leak else "duplicates"
        found.append(Suggestion(kind, score, reason, (drop,), (keep,), "drop", targets=(drop,)))
    return [each for kind in ("duplicates", "leaks") for each in [x for x in found if x.kind == kind][:most]]

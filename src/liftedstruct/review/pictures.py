"""Near duplicates, and leaks: duplicates in different parts of the split."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from liftedstruct.review.suggestions import Collection, Indices, Suggestion, ranked
from liftedstruct.runtime.limits import available_cores

__all__ = ["Look", "duplicates", "look_at", "near_duplicates"]

CLOSE = 0.25  # distance of a pair that is listed if it has no images, in the local scale
IMAGES, PAIRS = 100_000, 50_000  # most images to read, and most pairs to compare
BITS, ALIKE = 16, 4  # of the hashes of a pair that may differ; images with the most similar hash to compare
SIMILAR = 0.84  # least similarity of images
SIDE, VIEW, MARGIN = 32, 14, 0.03  # pixels of what is kept of an image and of what is compared; what a copy may crop
WINDOWS = [(left, top, 1 - right, 1 - bottom) for left, top, right, bottom in itertools.product((0, MARGIN), repeat=4)]


class Look(NamedTuple):
    """What is compared of an image: a small copy and the perceptual hash."""

    small: Image.Image
    phash: NDArray[np.bool_]

    def views(self) -> NDArray[np.float32]:
        """Return the whole and slightly cropped, without mean color and of length 1, (16, VIEW² · 3)."""
        boxes = [(SIDE * left, SIDE * top, SIDE * right, SIDE * bottom) for left, top, right, bottom in WINDOWS]
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


def near_duplicates(items: Collection, look: Callable[[int], Look | None] | None = None) -> list[tuple[float, int, int]]:
    """Return pairs of rows that are near duplicates with their similarity, most similar first, the lower row first.

    Each image is compared with its neighbors and with the images of the most similar hash. A pair without images must be much
    closer than the local scale, the distance of the third nearest image of each, or usually of the nearest, if that is less.

    Args:
        items: embeddings and their neighbors.
        look: function from a row to what is compared of its image; None if it cannot be read. It is called by threads.

    """
    D, J, n = items.distances, items.neighbors.ravel(), len(items.labels)
    if not D.size:
        return []
    scale = np.minimum(D[:, :3][:, -1], np.median(D[:, 0]))
    rows = np.repeat(np.arange(n), D.shape[1])
    ratio = D.ravel() / np.maximum(np.minimum(scale[rows], scale[J]), 1e-30)
    looks: dict[int, Look] = {}
    if look is not None:
        seen = np.argsort(ratio[:: D.shape[1]], kind="stable")[:IMAGES].tolist()
        with ThreadPoolExecutor(available_cores()) as pool:
            looks = {row: found for row, found in zip(seen, pool.map(look, seen), strict=True) if found is not None}
    there = np.isin(np.arange(n), list(looks))
    bare = ~(there[rows] & there[J])
    close = np.flatnonzero((ratio < CLOSE) & bare)
    pairs = {(1 - ratio[i].item(), *sorted((rows[i].item(), J[i].item()))) for i in close}
    pairs |= {(similarity(looks[a], looks[b]), a, b) for a, b in _candidates(rows[~bare], J[~bare], looks)}
    best = {pair[1:]: pair for pair in sorted(pairs) if pair[0] >= SIMILAR or not there[list(pair[1:])].all()}
    return sorted(best.values(), key=lambda pair: (-pair[0], *pair[1:]))


def _candidates(rows: Indices, others: NDArray[np.integer], looks: dict[int, Look]) -> list[list[int]]:
    """Return the given pairs of images and those with the most similar hashes, as far as their hashes are similar."""
    import faiss

    if len(looks) < 2:
        return []
    seen = np.array(sorted(looks))
    codes = np.packbits(np.stack([looks[row].phash for row in seen.tolist()]), axis=1)
    index = faiss.IndexBinaryFlat(64)
    index.add(codes)
    alike = index.search(codes, min(ALIKE + 1, len(seen)))[1]
    a = np.concatenate((np.searchsorted(seen, rows), np.repeat(np.arange(len(seen)), alike.shape[1])))
    b = np.concatenate((np.searchsorted(seen, others), alike.ravel()))
    pairs = np.unique(np.sort(np.stack((a, b), axis=1), axis=1)[a != b], axis=0)
    bits = np.bitwise_count(codes[pairs[:, 0]] ^ codes[pairs[:, 1]]).sum(axis=1)
    order = np.argsort(bits, kind="stable")[: min(PAIRS, int((bits <= BITS).sum()))]
    found: list[list[int]] = seen[pairs[order]].tolist()
    return found


def duplicates(items: Collection, pairs: list[tuple[float, int, int]]) -> list[Suggestion]:
    """List near duplicates, of kind leaks where one is a test image and the other of another part, to drop one of each pair."""
    found = []
    for score, a, b in pairs:
        parts = ("", "") if items.parts is None else (items.parts[a], items.parts[b])
        leak = all(parts) and (parts[0] == "test") != (parts[1] == "test")
        drop, keep = (a, b) if leak and parts[1] == "test" else (b, a)
        A, B = (items.names[items.labels[row]] or "no product" for row in (drop, keep))
        said = "twice, of the same product" if A == B else f"as “{A}” and as “{B}”: one must be wrong"
        said = "in the test part and in another: scores are too high" if leak else said
        reason = f"Nearly the same image {said}."
        found.append(Suggestion("leaks" if leak else "duplicates", score, reason, (drop,), (keep,), "drop", "", (drop,)))
    return ranked(each for each in found if each.kind == "duplicates") + ranked(each for each in found if each.kind == "leaks")

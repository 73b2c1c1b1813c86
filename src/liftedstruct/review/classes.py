"""Classes that look like one, a class that looks like two, and images that are far from all classes."""

import itertools

import numpy as np
from numpy.typing import NDArray

from liftedstruct.retrieval import nearest_neighbors
from liftedstruct.review.suggestions import Collection, Suggestion, ranked

__all__ = ["classes_like_one", "classes_like_two", "outliers"]

MIXED, APART, ALONE = 0.5, 1.0, 1.5  # least scores
SHOWN, NEAREST, STEPS = 4, 5, 10  # images of a class; neighbors that count; of 2-means


def classes_like_one(items: Collection) -> list[Suggestion]:
    r"""List pairs of classes whose images are mixed, and suggest to merge the smaller into the larger.

    Of the $n_a - 1$ nearest images of each image of class $a$, let $s$ be the number of class $a$ and $c$ the number of class
    $b$. If the two were one class, $c / (s + c)$ would be $n_b / (n_a + n_b - 1)$ on average. The score is the fraction of
    that, of $a$ or of $b$, whichever is lower.
    """
    y, C, sizes, names = items.labels, len(items.names), items.sizes, items.names
    near = y[items.neighbors]
    counts = np.arange(near.shape[1]) < np.maximum(1, sizes[y] - 1)[:, None]
    own = np.bincount(y, (counts & (near == y[:, None])).sum(axis=1), C)
    row, column = np.nonzero(counts & (near != y[:, None]))
    pairs, votes = np.unique(y[row].astype(np.int64) * C + near[row, column], return_counts=True)
    a, b = np.divmod(pairs, C)
    mixed = np.minimum(1, votes / (votes + own[a]) * (sizes[a] + sizes[b] - 1) / sizes[b])
    scores = dict(zip(pairs.tolist(), mixed.tolist(), strict=True))
    found = []
    for code in scores:
        small, large = divmod(code, C)
        score = min(scores[code], scores.get(large * C + small, 0.0))
        if score >= MIXED and (sizes[small], -small) < (sizes[large], -large) and names[small] and names[large]:
            reason = f"“{names[small]}” and “{names[large]}” are mixed {100 * score:.0f} % as much as if they were one product."
            rows, others = _mixed_rows(items, small, large), _mixed_rows(items, large, small)
            targets = tuple(np.flatnonzero(y == small).tolist())
            found.append(Suggestion("one", score, reason, rows, others, "merge", names[large], targets))
    return ranked(found)


def _mixed_rows(items: Collection, a: int, b: int) -> tuple[int, ...]:
    """Return images of class a, those with the most neighbors of class b first."""
    rows = np.flatnonzero(items.labels == a)
    votes = (items.labels[items.neighbors[rows]] == b).sum(axis=1)
    return tuple(rows[np.argsort(-votes, kind="stable")][:SHOWN].tolist())


def classes_like_two(items: Collection) -> list[Suggestion]:
    """List classes that fall into two halves farther apart than a typical class and its nearest class.

    The halves are those of 2-means. The score is the distance of their means, divided by the median distance of the mean of a
    class to the nearest mean of another class, times the fraction of nearest images within the class that are of the same half,
    compared with a random split, times the fraction of the smaller half that has a neighbor in it: wrong labels have none.
    """
    X, y, sizes = np.asarray(items.X, np.float32), items.labels, items.sizes
    used, found = np.flatnonzero(sizes), []
    if len(used) < 3:
        return []
    order, starts = np.argsort(y, kind="stable"), np.cumsum(sizes) - sizes
    means = np.add.reduceat(X[order], starts[used]) / sizes[used, None]
    typical = max(float(np.median(nearest_neighbors(means, 1)[0])), 1e-30)
    for c in used[sizes[used] >= 4]:
        rows = order[starts[c] : starts[c] + sizes[c]]
        side = _halves(X[rows])
        small, large = sorted((rows[side], rows[~side]), key=len)
        if len(small) < 2 or not items.names[c]:
            continue
        near = items.neighbors[rows, : sizes[c] - 1]
        same = y[near] == c
        crossed = (same & (np.isin(near, small) != np.isin(rows, small)[:, None])).sum() / max(1, same.sum())
        chance = 2 * len(small) * len(large) / (len(rows) * (len(rows) - 1))
        gap = float(np.linalg.norm(X[small].mean(axis=0) - X[large].mean(axis=0))) / typical
        score = gap * np.isin(items.neighbors[small, :NEAREST], small).any(axis=1).mean() * max(0.0, 1 - crossed / chance)
        if score >= APART:
            name = items.names[c]
            value = next(new for k in itertools.count(2) if (new := f"{name} {k}") not in items.names)
            reason = (
                f"{len(small):,} of the {len(rows):,} images of “{name}” are apart, {gap:.1f} times as far as another product."
            )
            shown, others = tuple(small[:SHOWN].tolist()), tuple(large[:SHOWN].tolist())
            found.append(Suggestion("two", float(score), reason, shown, others, "relabel", value, tuple(small.tolist())))
    return ranked(found)


def _halves(X: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which rows are in the second cluster of 2-means, which starts from two rows that are far apart."""
    first = X[np.argmax(((X - X.mean(axis=0)) ** 2).sum(axis=1))]
    centers = [first, X[np.argmax(((X - first) ** 2).sum(axis=1))]]
    for _ in range(STEPS):
        side = ((X - centers[1]) ** 2).sum(axis=1) < ((X - centers[0]) ** 2).sum(axis=1)
        if not side.any() or side.all():
            break
        centers = [X[~side].mean(axis=0), X[side].mean(axis=0)]
    return np.asarray(side)


def outliers(items: Collection) -> list[Suggestion]:
    """List images that are far from their nearest images, compared with these and with all images.

    Let r be the mean distance of an image to its five nearest. The score is r divided by the median r of these five, or by the
    median r of all images, whichever is lower.
    """
    near = items.neighbors[:, :NEAREST]
    if not near.size:
        return []
    r = np.asarray(items.distances[:, :NEAREST], np.float64).mean(axis=1)
    scores = r / np.maximum(np.maximum(np.median(r[near], axis=1), np.median(r)), 1e-30)
    reason = "Its nearest images are {:.1f} times as far as usual: it is like nothing else here."
    return ranked(
        Suggestion("outliers", float(scores[i]), reason.format(scores[i]), (i,), tuple(near[i].tolist()), "drop", "", (i,))
        for i in np.flatnonzero(scores >= ALONE).tolist()
    )

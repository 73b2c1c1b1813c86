"""Classes that look like one, and a class that looks like two."""

import numpy as np
from numpy.typing import NDArray

from liftedstruct.retrieval import nearest_neighbors
from liftedstruct.review.suggestions import Collection, Indices, Suggestion

__all__ = ["classes_like_one", "classes_like_two"]

MIXED, APART = 0.5, 1.0  # least scores
SHOWN = 4  # images of each class
STEPS = 10  # of 2-means
NEAREST = 5  # neighbors of an image of the smaller half, one of which must be in it


def classes_like_one(items: Collection, most: int = 200) -> list[Suggestion]:
    r"""List pairs of classes whose images are mixed, and suggest to merge the smaller into the larger.

    Of the $n_a - 1$ nearest images of each image of class $a$, let $s$ be the number of class $a$ and $c$ the number of class
    $b$. If the two were one class, $c / (s + c)$ would be $n_b / (n_a + n_b - 1)$ on average. The score is the fraction of that,
    of $a$ or of $b$, whichever is lower.
    """
    y, C, sizes = items.labels, len(items.names), items.sizes
    near = y[items.neighbors]
    looked = np.arange(near.shape[1]) < np.maximum(1, sizes[y] - 1)[:, None]
    own = np.bincount(y, (looked & (near == y[:, None])).sum(axis=1), C)
    row, column = np.nonzero(looked & (near != y[:, None]))
    pairs, votes = np.unique(y[row].astype(np.int64) * C + near[row, column], return_counts=True)
    a, b = np.divmod(pairs, C)
    rates = votes / (votes + own[a])
    of_mixed = np.minimum(1.0, rates * (sizes[a] + sizes[b] - 1) / sizes[b])
    mixed = dict(zip(pairs.tolist(), zip(of_mixed.tolist(), rates.tolist(), strict=True), strict=True))
    found = []
    for code in mixed:
        large, small = sorted(divmod(code, C), key=lambda c: (-sizes[c], c))
        there, back = mixed.get(small * C + large, (0.0, 0.0)), mixed.get(large * C + small, (0.0, 0.0))
        if code == small * C + large and min(there[0], back[0]) >= MIXED and items.names[small] and items.names[large]:
            found.append((min(there[0], back[0]), small, large, there[1], back[1]))
    suggestions = []
    for score, small, large, there_rate, back_rate in sorted(found, key=lambda each: (-each[0], each[1:3]))[:most]:
        A, B = items.names[small], items.names[large]
        rows = _nearest_rows(items, small, large)
        reason = (
            f"{100 * there_rate:.0f} % of the images nearest to “{A}” are “{B}”, and {100 * back_rate:.0f} % the other way round: "
            "two names for one product?"
        )
        targets = tuple(np.flatnonzero(y == small).tolist())
        suggestions.append(Suggestion("one", float(score), reason, *rows, "merge", B, targets))
    return suggestions


def classes_like_two(items: Collection, most: int = 200) -> list[Suggestion]:
    """List classes that fall into two halves farther apart than a typical class and its nearest class.

    The halves are those of 2-means. The score is the distance of their means, divided by the median distance of the mean of a
    class to the nearest mean of another class, times the fraction of nearest images within the class that are of the same half,
    compared with a random split, times the fraction of the smaller half that has a neighbor in it.
    """
    X, y, sizes, k = np.asarray(items.X, np.float32), items.labels, items.sizes, items.neighbors.shape[1]
    used = np.flatnonzero(sizes)
    if len(used) < 3:
        return []
    order, starts = np.argsort(y, kind="stable"), np.cumsum(sizes) - sizes
    means = np.add.reduceat(X[order], starts[used]) / sizes[used, None]
    typical = float(np.median(nearest_neighbors(means, 1)[0]))
    found = []
    for c in used[sizes[used] >= 4]:
        rows = order[starts[c] : starts[c] + sizes[c]]
        side = _halves(X[rows])
        small = rows[side] if 2 * side.sum() <= len(rows) else rows[~side]
        large = np.setdiff1d(rows, small)
        if len(small) < 2 or not items.names[c]:
            continue
        near = items.neighbors[rows, : min(k, sizes[c] - 1)]
        same = y[near] == c
        crossed = same & (np.isin(near, small) != np.isin(rows, small)[:, None])
        chance = 2 * len(small) * len(large) / (len(rows) * (len(rows) - 1))
        gap = float(np.linalg.norm(X[small].mean(axis=0) - X[large].mean(axis=0))) / max(typical, 1e-30)
        alike = (
            np.isin(items.neighbors[small, :NEAREST], small).any(axis=1).mean()
        )  # else they are wrong labels of several products
        score = gap * float(alike) * max(0.0, 1 - crossed.sum() / max(1, same.sum()) / chance)
        if score >= APART:
            found.append((score, gap, int(c), small, large))
    suggestions = []
    for score, gap, c, small, large in sorted(found, key=lambda each: (-each[0], each[2]))[:most]:
        name, value = items.names[c], _new_name(items.names[c], set(items.names))
        reason = (
            f"{len(small):,} of the {len(small) + len(large):,} images of “{name}” are apart from the others, "
            f"{gap:.1f} times as far as a typical class is from its nearest class: two products?"
        )
        shown = (_central(X, rows) for rows in (small, large))
        suggestions.append(Suggestion("two", float(score), reason, *shown, "relabel", value, tuple(np.sort(small).tolist())))
    return suggestions


def _halves(X: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which rows are in the second cluster of 2-means, which starts from two rows that are far apart."""
    first = X[np.argmax(((X - X.mean(axis=0)) ** 2).sum(axis=1))]
    centers = np.stack((first, X[np.argmax(((X - first) ** 2).sum(axis=1))]))
    for _ in range(STEPS):
        side = ((X - centers[1]) ** 2).sum(axis=1) < ((X - centers[0]) ** 2).sum(axis=1)
        if not side.any() or side.all():
            break
        centers = np.stack((X[~side].mean(axis=0), X[side].mean(axis=0)))
    return side


def _nearest_rows(items: Collection, a: int, b: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return images of class a that have neighbors of class b, and these neighbors, nearest first."""
    rows = np.flatnonzero(items.labels == a)
    at, column = np.nonzero(items.labels[items.neighbors[rows]] == b)
    order = np.argsort(items.distances[rows[at], column], kind="stable")
    pairs = rows[at[order]], items.neighbors[rows[at], column][order]
    left, right = (list(dict.fromkeys(each.tolist()))[:SHOWN] for each in pairs)
    return tuple(left), tuple(right)


def _central(X: NDArray[np.float32], rows: Indices) -> tuple[int, ...]:
    order = np.argsort(((X[rows] - X[rows].mean(axis=0)) ** 2).sum(axis=1), kind="stable")
    return tuple(rows[order[:SHOWN]].tolist())


def _new_name(name: str, names: set[str]) -> str:
    number = 2
    while f"{name} {number}" in names:
        number += 1
    return f"{name} {number}"

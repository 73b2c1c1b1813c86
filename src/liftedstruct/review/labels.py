r"""Images that are likely of another class than their label says.

Two estimates of the class of an image are made without its own label. The first is the vote of its nearest images, with the
weight $w_j = \exp(-(D_{ij} - D_{i1}) / \sigma)$. The second is a ridge regression from embeddings to classes, which is far
better where classes overlap, since it weighs the directions in which they differ. With $A = X^T X + \lambda I$ and
$h_i = x_i^T A^{-1} x_i$, the output for class $c$ of a regression without image $i$ is

$$f_{ic} = \frac{x_i^T A^{-1} \sum_{j: y_j = c} x_j - h_i [y_i = c]}{1 - h_i}, \qquad s_{ic} = f_{ic} / n_{ic}^{0.85},$$

where $n_{ic}$ is the number of other images of the class. Its probabilities are $\mathrm{softmax}(s_i / \tau)$, and the mean
$p$ of two regressions is used, with a small and a large $\lambda$. With the vote $v$ for the own class,
the score is $1 / (1 + q)$ with $q = (p_{i y_i} + 0.2 v_i) / \max_{c \ne y_i} p_{ic}^{0.25}$, both at least 0.004.
"""

import numpy as np
from numpy.typing import NDArray

from liftedstruct.review.suggestions import Collection, Indices, Suggestion, ranked

__all__ = ["label_scores", "wrong_labels"]

RIDGES = ((0.5, 0.12), (4.0, 0.25))  # lambda, relative to the mean eigenvalue; tau, to the median score of the own class
SIGMA = 0.1  # relative to the median distance of the nearest image
VOTE = 0.2  # weight of the vote
SIZES = 0.85  # power of the size of a class; a little less than 1, since the sums of small classes are noisy
RIVAL, FLOOR = 0.25, 0.004  # power of the probability of the likeliest other class, and least probability
ROWS = 512  # images at once
SHOWN = 6  # neighbors
UNLIKELY = 0.95  # least score of the list; on CUB-200-2011 about two in three of these were wrong


def label_scores(items: Collection) -> tuple[NDArray[np.float64], Indices]:
    """Return for each image how unlikely its label is, from 0 to 1, and the likeliest other class, or -1.

    Images without a label have the score 0.
    """
    X, y, n = items.X, items.labels.astype(np.int64), len(items.labels)
    unknown = items.names.index("") if "" in items.names else -1
    C, unlikely, best = len(items.names), np.zeros(n), np.full(n, -1)
    if n < 2 or C < 2:
        return unlikely, best
    centered = np.asarray(X, np.float32) - np.mean(X, axis=0, dtype=np.float64).astype(np.float32)
    order, sizes = np.argsort(y, kind="stable"), items.sizes
    used, barred = np.flatnonzero(sizes), np.flatnonzero((sizes == 0) | (np.arange(C) == unknown))
    sums = np.zeros((C, X.shape[1]), np.float32)
    sums[used] = np.add.reduceat(centered[order], (np.cumsum(sizes) - sizes)[used])
    regressions = [_regression(centered, sums, y, sizes, *each) for each in RIDGES]
    D = items.distances
    W = np.exp(-(D - D[:, :1]) / max(SIGMA * float(np.median(D[:, 0])), 1e-30))
    vote = (W * (y[items.neighbors] == y[:, None])).sum(axis=1) / W.sum(axis=1)
    for at in range(0, n, ROWS):
        i = np.arange(at, min(n, at + ROWS))
        r, own_P, rival, P = np.arange(len(i)), VOTE * vote[i], np.zeros(len(i)), np.zeros((len(i), C), np.float32)
        for G, B, own in regressions:
            S = G[i] @ B.T  #                                                                                 (b, C)
            S[r, y[i]] = -np.inf
            S[:, barred] = -np.inf
            top = np.maximum(S.max(axis=1), own[i])
            E, e = np.exp(S - top[:, None], out=S), np.exp(own[i] - top)
            total = E.sum(axis=1) + e
            own_P += e / total / len(regressions)
            rival += E.max(axis=1) / total / len(regressions)
            P += E / total[:, None]
        unlikely[i] = 1 / (1 + (own_P + FLOOR) / (rival + FLOOR) ** RIVAL)
        best[i] = np.where(P.max(axis=1) > 0, P.argmax(axis=1), -1)
    found = (best >= 0) & (y != unknown)
    return np.where(found, unlikely, 0.0), np.where(found, best, -1)


def _regression(
    X: NDArray[np.float32], sums: NDArray[np.float32], y: Indices, sizes: Indices, ridge: float, temperature: float
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return G (n, d) and B (C, d) with s_ic / tau = g_i·b_c for the other classes, and s_ic / tau of the own class (n,)."""
    A = (X.T @ X).astype(np.float64)
    A.flat[:: len(A) + 1] += ridge * max(np.trace(A) / len(A), 1e-30)
    G = X @ np.linalg.inv(A).astype(np.float32)  # x_i^T A^-1                                                 (n, d)
    h = np.minimum((G * X).sum(axis=1), 1 - 1e-6)
    own = ((G * sums[y]).sum(axis=1) - h) / (1 - h) / np.maximum(sizes[y] - 1, 0.5) ** SIZES
    tau = np.float32(temperature * (max(np.median(own), 0.1 * np.median(np.abs(own))) or 1.0))
    B = sums / (tau * np.maximum(sizes, 1) ** SIZES).astype(np.float32)[:, None]
    return G / (1 - h[:, None]), B, (own / tau).astype(np.float32)


def wrong_labels(items: Collection) -> list[Suggestion]:
    """List images that are likely of another class, see `label_scores`, with the class and the nearest images that say so."""
    scores, others = label_scores(items)
    found = []
    for i in np.flatnonzero(scores >= UNLIKELY).tolist():
        near = items.labels[items.neighbors[i]]
        A, B = items.names[items.labels[i]], items.names[others[i]]
        says, own = (int((near[:SHOWN] == c).sum()) for c in (others[i], items.labels[i]))
        reason = f"{says} of the {len(near[:SHOWN])} images nearest to it are “{B}”, {own or 'none'} “{A}”."
        if not says:
            reason = f"It looks more like “{B}” than “{A}”, compared with all images of both."
        shown = items.neighbors[i][np.argsort(near != others[i], kind="stable")][:SHOWN]  # the other class first, nearest first
        found.append(Suggestion("labels", float(scores[i]), reason, (i,), tuple(shown.tolist()), "relabel", B, (i,)))
    return ranked(found)

r"""Images that are likely of another class than their label says.

Two estimates of the class of an image are made without its own label. The first is the vote of its nearest images, with the
weight $w_j = \exp(-(D_{ij} - D_{i1}) / \sigma)$. The second is a ridge regression from embeddings to classes, which is far
better where classes overlap, since it weighs the directions in which they differ. With $A = X^T X + \lambda I$ and
$h_i = x_i^T A^{-1} x_i$, the output for class $c$ of a regression without image $i$ is

$$f_{ic} = \frac{x_i^T A^{-1} \sum_{j: y_j = c} x_j - h_i [y_i = c]}{1 - h_i}, \qquad s_{ic} = f_{ic} / n_{ic},$$

where $n_{ic}$ is the number of other images of the class, so that classes of all sizes are alike. Its probabilities are
$\mathrm{softmax}(s_i / \tau)$.
"""

import numpy as np

from liftedstruct.review.suggestions import Collection, Floats, Indices, Suggestion

__all__ = ["label_scores", "wrong_labels"]

RIDGE = 2.0  # lambda, relative to the mean eigenvalue
TEMPERATURE = 0.17  # tau, relative to the median score of the own class
SIGMA = 0.1  # relative to the median distance of the nearest image
VOTE = 0.15  # weight of the vote
ROWS = 512  # images at once
SHOWN = 6  # neighbors
UNLIKELY = 0.97  # least score of the list; on CUB-200-2011 about two in three of these were wrong


def label_scores(items: Collection) -> tuple[Floats, Indices]:
    """Return for each image how unlikely its label is, from 0 to 1, and the likeliest other class, or -1.

    Images without a label have the score 0.
    """
    X, y, n = items.X, items.labels.astype(np.int64), len(items.labels)
    unknown = items.names.index("") if "" in items.names else -1
    C, unlikely, best = len(items.names), np.zeros(n), np.full(n, -1)
    if n < 2 or C < 2:
        return unlikely, best
    centered = np.asarray(X, np.float32) - np.mean(X, axis=0, dtype=np.float64).astype(np.float32)
    A = (centered.T @ centered).astype(np.float64)
    A.flat[:: len(A) + 1] += RIDGE * max(np.trace(A) / len(A), 1e-30)
    G = centered @ np.linalg.inv(A).astype(np.float32)  # x_i^T A^-1                                          (n, d)
    h = np.minimum((G * centered).sum(axis=1), 1 - 1e-6)
    order, sizes = np.argsort(y, kind="stable"), items.sizes
    used = np.flatnonzero(sizes)
    sums = np.zeros((C, X.shape[1]), np.float32)
    sums[used] = np.add.reduceat(centered[order], (np.cumsum(sizes) - sizes)[used])
    own_score = ((G * sums[y]).sum(axis=1) - h) / (1 - h) / np.maximum(sizes[y] - 1, 0.5)
    tau = TEMPERATURE * max(float(np.median(own_score)), 1e-30)
    D = items.distances
    W = np.exp(-(D - D[:, :1]) / max(SIGMA * float(np.median(D[:, 0])), 1e-30))
    vote = (W * (y[items.neighbors] == y[:, None])).sum(axis=1) / W.sum(axis=1)
    sums /= np.maximum(sizes, 1, dtype=np.float32)[:, None] * np.float32(tau)
    barred = np.flatnonzero((sizes == 0) | (np.arange(C) == unknown))
    for at in range(0, n, ROWS):
        i = np.arange(at, min(n, at + ROWS))
        r, own = np.arange(len(i)), own_score[i] / tau
        S = (G[i] / (1 - h[i, None])) @ sums.T  #                                                             (b, C), float32
        S[r, y[i]] = -np.inf
        S[:, barred] = -np.inf
        best[i] = S.argmax(axis=1)
        top = np.maximum(S[r, best[i]], own)
        best[i] = np.where(np.isfinite(S[r, best[i]]), best[i], -1)
        S -= top[:, None]
        others = np.exp(S, out=S).sum(axis=1)
        own = np.exp(own - top)
        unlikely[i] = 1 - (own / (own + others) + VOTE * vote[i]) / (1 + VOTE)
    found = (best >= 0) & (y != unknown)
    return np.where(found, unlikely, 0.0), np.where(found, best, -1)


def wrong_labels(items: Collection, most: int = 1000) -> list[Suggestion]:
    """List images that are likely of another class, see `label_scores`, with the class and the nearest images that say so."""
    scores, others = label_scores(items)
    found = []
    for i in np.argsort(-scores, kind="stable")[:most].tolist():
        if scores[i] < UNLIKELY:
            break
        near = items.labels[items.neighbors[i]]
        A, B = items.names[items.labels[i]], items.names[others[i]]
        says, own = (int((near[:SHOWN] == c).sum()) for c in (others[i], items.labels[i]))
        reason = f"{says or 'None'} of the {len(near[:SHOWN])} images nearest to it are “{B}”, {own or 'none'} “{A}”."
        if not says:
            reason = f"It looks more like “{B}” than “{A}”, compared with all images of both."
        order = np.argsort(near != others[i], kind="stable")  # the other class first, nearest first
        found.append(
            Suggestion("labels", float(scores[i]), reason, (i,), tuple(items.neighbors[i][order][:SHOWN].tolist()), "relabel", B, (i,))
        )
    return found

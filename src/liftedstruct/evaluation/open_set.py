r"""Open-set scores: is this the same class, and is this class in the gallery at all?

- True accept rate (TAR) at a false accept rate (FAR), of pairs of images: the fraction of pairs of one class whose distance is
  at most t. At most the fraction FAR of the pairs of two classes is that near, and t is the largest such distance.
- Identification rate at a false-match rate (FMR), of queries in a gallery: the fraction of queries whose nearest image is of
  their class and at most t away. At most the fraction FMR of the queries of absent classes has any image that near. Unless at
  least 1/FMR queries are of absent classes, each query also counts as one of an absent class, with the images of its class
  left out.

The intervals are of a class bootstrap, in which each draw finds its own t. The weight of a pair of two classes in a draw,
$w_c w_{c'}$, is taken as $w_c + w_{c'} - 1$, to first order.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from liftedstruct.evaluation.resampling import Array, bootstrap, interval
from liftedstruct.evaluation.scores import Estimate, Integers
from liftedstruct.retrieval import nearest_by_class, threshold_at
from liftedstruct.retrieval.nearest_classes import accepted_of
from liftedstruct.retrieval.two_sets import gallery_and_queries
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_number

__all__ = ["check_rates", "open_set_scores"]

GRID = 2000  # distances among which a draw chooses its t
BLOCK = 1 << 22  # distances that are computed at once
SAMPLE = 1 << 18  # pairs from which a distance is guessed that a little more than the wanted fraction of pairs reaches


def check_rates(rates: Iterable[float]) -> list[float]:
    """Return the rates, sorted; each must be between 0 and 1."""
    found = sorted({as_number(rate) for rate in rates})
    for rate in found:
        if not 0 < rate < 1:
            raise ValueError(f"a rate of false accepts must be between 0 and 1, got {rate!r}. Try 0.01.")
    return found


def open_set_scores(
    embeddings: EmbeddingsLike,
    labels: LabelsLike,
    queries: EmbeddingsLike | None,
    query_labels: LabelsLike | None,
    rates: list[float],
    samples: int,
    seed: int,
) -> dict[str, Estimate]:
    """Compute the TAR at each rate of false accepts, and the identification rate at each false-match rate, by their names."""
    X, y, Q, own = gallery_and_queries(embeddings, labels, queries, query_labels)
    same, other = nearest_by_class(embeddings, labels, queries, query_labels)
    classes = np.unique((y if own is None else own).numpy(), return_inverse=True)[1]
    n_classes = int(classes.max()) + 1
    scores: dict[str, Estimate] = {}
    n_rows = len(classes)
    genuine, of, near, near_of, different = _pairs(X, y, Q, own, rates)
    rounding = 1e-13 * max(float(each.double().square().sum(dim=1).max()) for each in (X, X if Q is None else Q))
    grid = near[np.linspace(0, len(near) - 1, min(GRID, len(near))).astype(np.int64)]
    accepted = _cumulative(genuine, classes[of], grid, n_classes)
    false = _cumulative(near, classes[near_of], grid, n_classes)
    sizes, others = (np.bincount(classes[rows], n, minlength=n_classes) for rows, n in ((of, None), (range(n_rows), different)))
    for rate in rates:
        k = accepted_of(int(different.sum()), rate)
        threshold = near[k] - rounding if k < len(near) else np.inf  # just too far; ties differ by the rounding error
        value = float((genuine < threshold).mean())

        def rates_of(W: Array, rate: float = rate) -> Array:
            V = 2 * W - 1 if Q is None else W
            last = ((V @ false) <= rate * (V @ others)[:, None]).sum(axis=1)  # points of the grid that are not too far
            hits = np.concatenate([np.zeros((len(W), 1)), W @ accepted], axis=1)[np.arange(len(W)), last]
            found: Array = hits / np.maximum(W @ sizes, 1e-300)
            return found

        scores[f"TAR at FAR {100 * rate:g} %"] = Estimate(
            value, *interval(value, bootstrap(rates_of, n_classes, samples, seed), n_classes)
        )
    for rate in rates:
        value = float(_identified(same, other, classes, np.ones((1, n_classes)), rate)[0])
        draws = bootstrap(lambda W, r=rate: _identified(same, other, classes, W, r), n_classes, samples, seed)  # type: ignore[misc]
        scores[f"identification rate at FMR {100 * rate:g} %"] = Estimate(value, *interval(value, draws, n_classes))
    return scores


def _cumulative(distances: Array, classes: Integers, grid: Array, n_classes: int) -> Array:
    """Return the number of distances of each class up to each point of a grid, (C, g)."""
    bins = np.searchsorted(grid, distances)
    inside = bins < len(grid)
    counts = np.bincount(classes[inside] * len(grid) + bins[inside], minlength=n_classes * len(grid))
    cumulative: Array = counts.reshape(n_classes, len(grid)).cumsum(axis=1).astype(np.float64)
    return cumulative


def _identified(same: Array, other: Array, classes: Integers, W: Array, rate: float) -> Array:
    """Compute the identification rate of weighted classes, (b,)."""
    mated = np.isfinite(same)
    absent = np.flatnonzero(~mated) if (~mated).sum() * rate >= 1 else np.arange(len(mated))
    absent = absent[np.argsort(other[absent], kind="stable")]
    hit = mated & (same < other)
    found = np.empty(len(W))
    for i, weights in enumerate(W):
        w = weights[classes]
        threshold = threshold_at(np.repeat(other[absent], w[absent].astype(np.int64)), rate) if w[absent].any() else np.inf
        found[i] = w[hit & (same <= threshold)].sum() / max(w[mated].sum(), 1e-300)
    return found


def _pairs(
    X: Tensor, y: Tensor, Q: Tensor | None, own: Tensor | None, rates: list[float]
) -> tuple[Array, Integers, Array, Integers, Integers]:
    """Return squared distances of pairs, computed in float64 from products of centered vectors.

    These are the distances of all pairs of one class, and the query of each; the smallest distances of pairs of two classes,
    sorted, and the query of each; and the number of pairs of two classes of each query.
    """
    center = X.double().mean(dim=0)
    G = X.double() - center
    A, a = (G, y) if Q is None or own is None else (Q.double() - center, own)
    g2, a2 = G.square().sum(dim=1), A.square().sum(dim=1)

    def squares(i: Tensor, j: Tensor) -> Tensor:
        return (A[i] - G[j]).square().sum(dim=1)

    sizes = torch.bincount(y)
    different = len(y) - torch.where(a < len(sizes), sizes[a.clamp(max=len(sizes) - 1)], 0)
    if not different.any():
        raise ValueError("labels must have at least two classes for open-set scores, got one. Add images of another class.")
    generator = torch.Generator().manual_seed(0)
    i, j = (torch.randint(len(each), (SAMPLE // max(1, X.shape[1] // 64),), generator=generator) for each in (a, y))
    drawn = squares(i, j)[a[i] != y[j]]
    fraction = 2 * rates[-1] + 20 / max(1, len(drawn))
    guess = float(drawn.quantile(fraction)) if len(drawn) and fraction < 1 else float("inf")
    while True:
        near, near_of, genuine, of = [], [], [], []
        for rows in torch.arange(len(a)).split(max(1, BLOCK // len(y))):
            D2 = (a2[rows, None] + g2 - 2 * A[rows] @ G.T).clamp_(min=0)
            one = a[rows, None] == y
            close = ~one & (guess >= D2)
            near.append(D2[close])
            near_of.append(rows.repeat_interleave(close.sum(dim=1)))
            if Q is None:
                one[torch.arange(len(rows)), rows] = False
            genuine.append(D2[one])
            of.append(rows.repeat_interleave(one.sum(dim=1)))
        if guess == float("inf") or sum(map(len, near)) > rates[-1] * int(different.sum()):
            break
        guess = 2 * guess if guess > 0 else float("inf")
    if not sum(map(len, of)):
        raise ValueError("labels must have a class with two images for open-set scores, got none. Add images.")
    found, order = torch.cat(near).sort()
    return (
        torch.cat(genuine).numpy(),
        torch.cat(of).numpy(),
        found.numpy(),
        torch.cat(near_of)[order].numpy(),
        different.numpy(),
    )

"""Clusters from a set of exemplars: assignment of the points, net similarity, and local improvement of the exemplars."""

from dataclasses import dataclass

import numpy as np
from numba import prange
from numpy.typing import NDArray

from liftedstruct.clustering.messages import FAR, Floats, Similarities
from liftedstruct.runtime.compiled import compiled

__all__ = ["Clustering", "refine_exemplars"]

Indices = NDArray[np.int64]

ROUNDING = 1e-7  # relative gain below which a change does not count as an improvement


@dataclass(frozen=True)
class Clustering:
    """Exemplars, and the exemplar of each point."""

    exemplars: Indices  # in ascending order                                                      (C,)
    chosen: Indices  # exemplar of each point; exemplars choose themselves                        (n,)
    net_similarity: float  # similarities of the points to their exemplars, plus the preference for each exemplar


def refine_exemplars(similarities: Similarities, is_exemplar: NDArray[np.bool_], preference: float) -> Clustering:
    """Assign the points to these exemplars and refine them, with steps that can only raise the net similarity.

    A point without an exemplar among its neighbors (on a graph) becomes an exemplar itself. Then, until nothing improves,
    exemplars are exchanged for members of their clusters, and exemplars whose removal raises the net similarity are removed.
    None are added.
    """
    clustering = _choose(similarities, _covered(similarities, is_exemplar), preference)
    while True:
        better = max(
            (_choose(similarities, exemplars, preference) for exemplars in _exchanged(similarities, clustering)),
            key=lambda each: each.net_similarity,
        )
        if better.net_similarity <= clustering.net_similarity + ROUNDING * abs(clustering.net_similarity):
            fewer = _without_needless(similarities, clustering.exemplars, preference)
            if len(fewer) == len(clustering.exemplars):
                return clustering
            better = _choose(similarities, fewer, preference)
        clustering = better


def _choose(similarities: Similarities, exemplars: Indices, preference: float) -> Clustering:
    chosen, _, value, _ = _nearest(similarities, exemplars)
    chosen[exemplars] = exemplars
    others = np.ones(similarities.n, bool)
    others[exemplars] = False
    return Clustering(exemplars, chosen, float(value[others].sum(dtype=np.float64) + preference * len(exemplars)))


def _covered(similarities: Similarities, is_exemplar: NDArray[np.bool_]) -> Indices:
    """Return the exemplars, plus the points without an exemplar among their neighbors."""
    is_exemplar = is_exemplar.copy()
    nearest = _nearest(similarities, np.flatnonzero(is_exemplar))[0]
    for i in np.flatnonzero((nearest < 0) & ~is_exemplar):
        row = slice(similarities.start[i], similarities.start[i] + similarities.degrees[i])
        is_exemplar[i] = not is_exemplar[similarities.columns[row]].any()  # an earlier point may have become an exemplar
    return np.flatnonzero(is_exemplar)


def _exchanged(similarities: Similarities, clustering: Clustering) -> list[Indices]:
    """Return two new sets of exemplars: one with the best exchange, one with the best exchange of every cluster at once.

    The second may lower the net similarity, because the gains are computed separately.
    """
    exemplars, chosen = clustering.exemplars, clustering.chosen
    _, second, value, value2 = _nearest(similarities, exemplars)
    members = chosen != np.arange(similarities.n)
    lost = np.zeros(similarities.n)  # change if exemplar k is removed without a replacement
    np.add.at(lost, chosen[members], np.where(second[members] >= 0, value2[members].astype(np.float64) - value[members], 0))
    stranded = np.bincount(chosen[members & (second < 0)], minlength=similarities.n)
    arrays = similarities.start, similarities.columns, similarities.values
    gain = _exchange_gains(*arrays, chosen, second, value, value2, lost, stranded)
    order = np.lexsort((-gain, chosen))  # by cluster, largest gain first
    first = order[np.flatnonzero(np.diff(chosen[order], prepend=-1))]
    everywhere = np.where(gain[first] > 0, first, chosen[first])
    best = int(first[np.argmax(gain[first])])
    only = np.where(exemplars == chosen[best], best, exemplars)
    return [np.sort(only), np.sort(everywhere)]


def _without_needless(similarities: Similarities, exemplars: Indices, preference: float) -> Indices:
    """Remove exemplars in one pass, largest gain first, except those affected by an earlier removal of the pass."""
    n = similarities.n
    nearest, second, value, value2 = _nearest(similarities, exemplars)
    here = np.zeros(n, bool)
    here[exemplars] = True
    members = np.flatnonzero(~here)
    gain = np.full(n, -np.inf)  # of removing an exemplar, after which it and its members choose other exemplars
    gain[exemplars] = np.where(nearest[exemplars] >= 0, value[exemplars].astype(np.float64) - preference, -np.inf)
    loss = np.where(second[members] >= 0, value2[members].astype(np.float64) - value[members], -np.inf)
    np.add.at(gain, nearest[members], loss)
    order = exemplars[np.argsort(-gain[exemplars], kind="stable")]
    touched = np.zeros(n, bool)
    for k in order[: int((gain[order] > 1e-6 * abs(preference)).sum())]:
        if not touched[k]:
            here[k] = False
            touched[second[nearest == k]] = True  # these receive its members
            touched[nearest[k]] = True  # receives the exemplar itself
            touched[nearest[second == k]] = True  # the members of these lose their second choice
            touched[nearest == k] = True
    return np.flatnonzero(here)


def _nearest(similarities: Similarities, exemplars: Indices) -> tuple[Indices, Indices, Floats, Floats]:
    """Return the two most similar exemplars of each point other than itself (-1 if there is none), and their similarities."""
    is_exemplar = np.zeros(similarities.n, bool)
    is_exemplar[exemplars] = True
    found: tuple[Indices, Indices, Floats, Floats] = _two_nearest(
        similarities.start, similarities.columns, similarities.values, exemplars, is_exemplar
    )
    return found


@compiled(parallel=True)
def _two_nearest(start, columns, s, exemplars, is_exemplar):  # type: ignore[no-untyped-def]
    n = len(is_exemplar)
    everything = len(columns) == 0
    nearest, second = np.full(n, -1), np.full(n, -1)
    value, value2 = np.full(n, FAR), np.full(n, FAR)
    for i in prange(n):
        for t in range(len(exemplars) if everything else start[i + 1] - start[i]):
            at = start[i] + (exemplars[t] if everything else t)
            k = exemplars[t] if everything else columns[at]
            if s[at] > value2[i] and is_exemplar[k]:
                if s[at] > value[i]:
                    second[i], value2[i] = nearest[i], value[i]
                    nearest[i], value[i] = k, s[at]
                else:
                    second[i], value2[i] = k, s[at]
    return nearest, second, value, value2


@compiled(parallel=True)
def _exchange_gains(start, columns, s, chosen, second, value, value2, lost, stranded):  # type: ignore[no-untyped-def]
    """Compute the gain in net similarity if point m replaces its exemplar k and all other points choose again."""
    n = len(chosen)
    everything = len(columns) == 0
    gains = np.empty(n)
    for m in prange(n):
        k = chosen[m]
        gain, without = lost[k], stranded[k]
        itself = value[k]  # similarity of k, as a member, to m or to the most similar other exemplar
        for t in range(n if everything else start[m + 1] - start[m]):
            at = start[m] + t
            i = t if everything else columns[at]
            if s[at] > FAR:
                if i == k:
                    itself = max(itself, s[at])
                elif chosen[i] == k:
                    if second[i] < 0:
                        gain += s[at] - value[i]
                        without -= 1
                    elif s[at] > value2[i]:
                        gain += s[at] - value2[i]
                elif chosen[i] != i and s[at] > value[i]:
                    gain += s[at] - value[i]
        if second[m] < 0:
            without -= 1
            gain -= value[m]
        else:
            gain -= value2[m]
        gains[m] = gain + itself if m != k and without == 0 and itself > FAR else -np.inf
    return gains

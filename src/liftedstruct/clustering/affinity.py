r"""Affinity propagation, also to a given number of clusters, also on a graph of nearest neighbors.

Similarity is :math:`s_{ik} = -\lVert x_i - x_k \rVert^2`, the preference of every point to be an exemplar is one number on that
scale, and what is maximized is the net similarity: the similarities of all points to their exemplars plus the preference for
each exemplar. The larger the preference, the more clusters.
"""

import math
from dataclasses import dataclass

import numba
import numpy as np

from liftedstruct.clustering.exemplars import Indices
from liftedstruct.clustering.preference_search import PreferenceSearch
from liftedstruct.clustering.similarities import all_pairs, guess_preference, median_similarity, neighbor_graph
from liftedstruct.distances import unit_scale
from liftedstruct.runtime.checks import EmbeddingsLike, as_embeddings, as_number, check_count, check_finite
from liftedstruct.runtime.limits import available_bytes
from liftedstruct.runtime.threads import limit_threads

__all__ = ["AffinityPropagation", "affinity_propagation"]

ITERATIONS = 2**8  # about as many as there are, for the number of threads


@dataclass(frozen=True)
class AffinityPropagation:
    """What affinity propagation found, and how."""

    labels: Indices  # cluster of each point, 0 .. C-1                                            (n,)
    exemplars: Indices  # row of each cluster's exemplar, ascending                               (C,)
    preference: float
    net_similarity: float
    n_iterations: int  # of all steps together
    converged: bool  # whether the messages that gave this result had converged
    neighbors: int | None  # of the graph; None if all pairs were used
    requested: int | None  # the K that was asked for
    history: tuple[tuple[float, int], ...]  # (preference, clusters) of every step of the search for K

    @property
    def n_clusters(self) -> int:
        """How many clusters there are."""
        return len(self.exemplars)


def affinity_propagation(
    embeddings: EmbeddingsLike,
    n_clusters: int | None = None,
    preference: float | None = None,
    neighbors: int | None = None,
    damping: float = 0.9,
    max_iter: int = 1000,
    convergence_iter: int | None = None,
    max_bytes: int | None = None,
    progress: bool = False,
) -> AffinityPropagation:
    r"""Clusters with exemplars, by Frey and Dueck's message passing, to a preference or to a number of clusters.

    With ``n_clusters=K`` the preference is searched by bisection (on the logarithm of its size, the next guess interpolated),
    each step starting from the messages of the one before. It ends at K exactly; or, where the number jumps over K, at the
    nearest that was met, with a warning if that is off by more than 1 %. K is reached by the preference alone,
    nothing is merged or split. The result is run once more from zero messages at the final preference; the one of larger net
    similarity is returned, unless it is further from K.

    Deterministic, whatever the number of threads: twins (duplicates, mutual nearest pairs) are told apart by preferences that
    differ by a ten thousandth, in an order that follows from the row number. Messages that oscillate are damped more.

    Args:
        embeddings: (n, d), array or tensor of any float type.
        n_clusters: K. Neither this nor a preference: the preference is the median similarity, as Frey and Dueck propose.
        preference: of every point to be an exemplar, on the scale of :math:`-\lVert x_i - x_k \rVert^2`.
        neighbors: messages go along the edges of the graph of so many nearest neighbors, made symmetric. A point can only
            choose an exemplar among its neighbors, so it has to grow with the size of the clusters. By default all pairs are
            used where they fit ``max_bytes``, and beyond that max(50, 5 n / K) neighbors.
        damping: share of the old message that is kept, 0.5 to 1.
        max_iter: of each step.
        convergence_iter: iterations without a change of the exemplars after which the messages count as converged; by default
            five times the span of the damping, 5 / (1 - damping), which is 50 at 0.9.
        max_bytes: memory that the form with all pairs may take (8 n² bytes); half of what is available by default.
        progress: print on stderr how far the search is.

    >>> found = affinity_propagation(np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]]), n_clusters=2)
    >>> found.labels, found.exemplars
    (array([0, 0, 0, 1, 1, 1]), array([1, 4]))
    """
    given = as_embeddings(embeddings).detach().cpu().double()
    X = given - given.mean(dim=0)
    check_finite(given, X.square().sum().item())
    n, K = len(X), n_clusters
    _check(n, K, preference, neighbors, damping)
    check_count("max_iter", max_iter)
    if convergence_iter is None:
        convergence_iter = math.ceil(5 / (1 - damping) - 1e-9)
    check_count("convergence_iter", convergence_iter)
    k = _form(n, K, neighbors, max_bytes)

    # Messages are float32, so embeddings of any size are scaled to about 1, and what is on the scale of similarities back.
    scale = unit_scale(float(X.abs().max()))
    unit = scale**2
    X = X * scale
    largest = 4 * float(X.square().sum(dim=1).max())  # ‖x_i - x_k‖² of centred rows
    similarities = all_pairs(X) if k is None else neighbor_graph(X, k)
    search = PreferenceSearch(similarities, damping, max_iter, convergence_iter, progress, unit)
    with limit_threads(ITERATIONS * len(similarities.values), numba.get_num_threads, numba.set_num_threads):
        if K is not None:
            found = search.find(K, guess_preference(X, K), largest, k)
            preference = found.preference / unit
        else:
            preference = median_similarity(X) / unit if preference is None else float(preference)
            most = 2 * n * max(largest, 1.0)  # beyond it nothing changes but the digits
            found = search.step(min(max(preference * unit, -most), most))
    clustering = found.clustering
    alone = clustering.net_similarity - found.preference * found.n_clusters  # without the exemplars' preferences
    return AffinityPropagation(
        labels=np.searchsorted(clustering.exemplars, clustering.chosen),
        exemplars=clustering.exemplars,
        preference=preference,
        net_similarity=alone / unit + preference * found.n_clusters,
        n_iterations=sum(step.iterations for step in search.steps),
        converged=found.converged,
        neighbors=k,
        requested=K,
        history=tuple((step.preference / unit, step.n_clusters) for step in search.steps),
    )


def _form(n: int, K: int | None, neighbors: int | None, max_bytes: int | None) -> int | None:
    """How many neighbors the graph has, or None for all pairs."""
    most, k = (available_bytes() // 2 if max_bytes is None else max_bytes), neighbors
    if k is None and 8 * n**2 > most:
        k = max(50, math.ceil(5 * n / K) if K else 100)
        if k >= n - 1:
            raise ValueError(
                f"{n:,} points in {K or 'any number of'} clusters must have memory for all pairs, {8 * n**2 / 1e9:.1f} GB, got "
                f"{most / 1e9:.1f} GB. Raise max_bytes, pass neighbors, or ask for more clusters."
            )
    return None if k is not None and k >= n - 1 else k


def _check(n: int, K: int | None, preference: float | None, k: int | None, damping: float) -> None:
    if K is not None and preference is not None:
        raise ValueError("one of n_clusters and preference must be given, got both. The preference follows from n_clusters.")
    if K is not None and check_count("n_clusters", K) > n:
        raise ValueError(
            f"n_clusters must be at most the number of points, got {K:,} for {n:,} points. Ask for fewer clusters."
        )
    if preference is not None and not math.isfinite(as_number(preference)):
        raise ValueError(f"preference must be finite, got {preference}. The median similarity is a good start.")
    if k is not None:
        check_count("neighbors", k)
    if not 0.5 <= as_number(damping) < 1:
        raise ValueError(f"damping must be at least 0.5 and less than 1, got {damping}. Frey and Dueck use 0.5 to 0.9.")

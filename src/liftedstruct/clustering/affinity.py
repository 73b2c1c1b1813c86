r"""Affinity propagation at a given preference or for a given number of clusters, on all pairs or on a nearest-neighbor graph.

The similarity is $s_{ik} = -\lVert x_i - x_k \rVert^2$. All points have the same preference to be an exemplar, on the scale
of the similarities. The algorithm maximizes the net similarity: the similarities of all points to their exemplars plus the
preference for each exemplar. A larger preference gives more clusters.
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

ITERATIONS = 2**8  # a typical number, used to choose the number of threads


@dataclass(frozen=True)
class AffinityPropagation:
    """Result of `affinity_propagation`.

    Attributes:
        labels: (n,), cluster of each point, 0..C-1.
        exemplars: (C,), row of each cluster's exemplar, ascending.
        preference: the final preference.
        net_similarity: similarities of the points to their exemplars, plus the preference for each exemplar.
        n_iterations: total number of iterations of all steps.
        converged: whether the messages of this result converged.
        neighbors: number of neighbors in the graph; None if all pairs were used.
        requested: the requested number of clusters, if any.
        history: preference and number of clusters of every step of the search.
    """

    labels: Indices
    exemplars: Indices
    preference: float
    net_similarity: float
    n_iterations: int
    converged: bool
    neighbors: int | None
    requested: int | None
    history: tuple[tuple[float, int], ...]

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
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
    r"""Cluster embeddings by affinity propagation (Frey and Dueck), at a given preference or for a given number of clusters.

    With `n_clusters=K`, the preference is found by bisection (on the logarithm of its magnitude, with interpolation), and each
    step starts from the messages of the previous one. The search ends at exactly K clusters or, if the number skips K, at the
    nearest number found, with a warning if that is off by more than 1%. Only the preference is adjusted: no clusters are
    merged or split. The final preference is run again from zero messages, and the result with the larger net similarity is
    returned, unless its number of clusters is farther from K.

    The result is deterministic and does not depend on the number of threads. Ties between twins (duplicates, mutual nearest
    neighbors) are broken by preferences that differ by up to a ten-thousandth, in an order determined by the row number.
    Oscillating messages are damped more.

    Args:
        embeddings: (n, d), array or tensor of any float type.
        n_clusters: number of clusters, K. Without this and without a preference, the preference is the median similarity, as
            Frey and Dueck propose.
        preference: preference of every point to be an exemplar, on the scale of $-\lVert x_i - x_k \rVert^2$.
        neighbors: pass messages on the graph of this many nearest neighbors, made symmetric. A point can only choose an
            exemplar among its neighbors, so the number must grow with the size of the clusters. Default: all pairs if they fit
            `max_bytes`, otherwise max(50, 5 n / K) neighbors, or 100 without K.
        damping: fraction of the old message to keep, at least 0.5 and less than 1.
        max_iter: maximum number of iterations per step.
        convergence_iter: iterations without a change of the exemplars after which the messages count as converged. Default:
            5 / (1 - damping), which is 50 at 0.9.
        max_bytes: memory limit for all pairs (8 n² bytes). Default: half of the available memory.
        progress: print the progress of the search on stderr.

    Returns:
        An `AffinityPropagation` with the cluster of each point in `labels` and the rows of the exemplars in `exemplars`.

    Raises:
        ValueError: if K cannot be reached on the graph, if there is not enough memory, or if an input is invalid.

    Warns:
        UserWarning: if the number of clusters is off by more than 1%.

    Examples:
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

    # Messages are float32, so embeddings are scaled to about 1, and values on the scale of similarities are scaled back.
    scale = unit_scale(float(X.abs().max()))
    unit = scale**2
    X = X * scale
    largest = 4 * float(X.square().sum(dim=1).max())  # bound on ‖x_i - x_k‖² of centered rows
    similarities = all_pairs(X) if k is None else neighbor_graph(X, k)
    search = PreferenceSearch(similarities, damping, max_iter, convergence_iter, progress, unit)
    with limit_threads(ITERATIONS * len(similarities.values), numba.get_num_threads, numba.set_num_threads):
        if K is not None:
            found = search.find(K, guess_preference(X, K), largest, k)
            preference = found.preference / unit
        else:
            preference = median_similarity(X) / unit if preference is None else float(preference)
            most = 2 * n * max(largest, 1.0)  # a larger magnitude changes nothing but costs precision
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
    """Return the number of neighbors in the graph, or None for all pairs."""
    most, k = (available_bytes() // 2 if max_bytes is None else max_bytes), neighbors
    if k is None and 8 * n**2 > most:
        k = max(50, math.ceil(5 * n / K) if K else 100)
        if k >= n - 1:
            raise ValueError(
                f"{n:,} points in {K or 'any number of'} clusters need {8 * n**2 / 1e9:.1f} GB of memory for all pairs, got "
                f"{most / 1e9:.1f} GB. Raise max_bytes, pass neighbors, or request more clusters."
            )
    return None if k is not None and k >= n - 1 else k


def _check(n: int, K: int | None, preference: float | None, k: int | None, damping: float) -> None:
    if K is not None and preference is not None:
        raise ValueError("n_clusters and preference must not be given together, got both. Drop one: n_clusters sets the other.")
    if K is not None and check_count("n_clusters", K) > n:
        raise ValueError(
            f"n_clusters must be at most the number of points, got {K:,} for {n:,} points. Request fewer clusters."
        )
    if preference is not None and not math.isfinite(as_number(preference)):
        raise ValueError(f"preference must be finite, got {preference}. The median similarity is a good first choice.")
    if k is not None:
        check_count("neighbors", k)
    if not 0.5 <= as_number(damping) < 1:
        raise ValueError(f"damping must be at least 0.5 and less than 1, got {damping}. Frey and Dueck use 0.5 to 0.9.")

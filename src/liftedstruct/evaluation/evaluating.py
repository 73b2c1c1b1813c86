"""Compute the paper's three metrics of an embedding, with confidence intervals and protocol."""

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from liftedstruct.clustering import affinity_propagation, contingency, kmeans, nmi, pairwise_f1
from liftedstruct.evaluation.open_set import check_rates, open_set_scores
from liftedstruct.evaluation.resampling import AGREEMENTS, LEVEL, Array, bootstrap, interval, weighted_recall
from liftedstruct.evaluation.scores import Estimate, Integers, Scores
from liftedstruct.retrieval import SINGLES, check_ks, first_ranks
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_classes, as_embeddings, as_labels, check_count, pick
from liftedstruct.runtime.progress import say

__all__ = ["CLUSTERINGS", "Ids", "by_first_image", "digest_of", "evaluate", "hits_by_class", "with_recall_at"]

Ids = Sequence[int] | Sequence[str] | NDArray[np.generic]

CLUSTERINGS = {"affinity": ("affinity",), "both": ("affinity", "kmeans"), "kmeans": ("kmeans",), "none": ()}
SAMPLES = 1000  # bootstrap draws


def evaluate(
    embeddings: EmbeddingsLike,
    labels: LabelsLike,
    ks: Iterable[int] = (1, 2, 4, 8),
    clustering: Literal["affinity", "kmeans", "both", "none"] | None = "affinity",
    *,
    n_clusters: int | None = None,
    singles: Literal["leave-out", "miss"] = "leave-out",
    samples: int = SAMPLES,
    seed: int = 0,
    progress: bool = False,
    ids: Ids | None = None,
    protocol: Mapping[str, str] | None = None,
    queries: EmbeddingsLike | None = None,
    query_labels: LabelsLike | None = None,
    open_set: Iterable[float] = (),
) -> Scores:
    """Compute Recall@K, NMI and F1 as in the paper, with 95 % confidence intervals from a class bootstrap.

    With `queries`, compute Recall@K of the queries in the gallery of all images, without clustering.

    The interval estimates how much the score would vary between test sets with the same number of classes of the same kind.
    `liftedstruct.evaluation.resampling` describes the method and its coverage. If the score is the same in all classes, the
    interval has zero width.

    Args:
        embeddings: (n, d), any float type. Distances are Euclidean.
        labels: (n,), integers or strings, with at least two classes.
        ks: values of K for Recall@K.
        clustering: clustering for NMI and F1. None or "none" skips both metrics, and so do queries.
        n_clusters: number of clusters. Default: the number of classes.
        singles: whether images that are alone in their class are excluded from Recall@K or count as misses.
        samples: number of bootstrap draws.
        seed: seed of the bootstrap and of k-means.
        progress: print progress to stderr.
        ids: (n,), ids of the images, or of the queries, such as their paths. `compare` rejects scores with different ids.
        protocol: further lines to print and save with the scores: trunk, weights, crop, ... Lines that this function
            writes itself, such as "images" and "distance", take precedence.
        queries: (m, d), embeddings of queries that are not in the gallery. Default: every image is a query.
        query_labels: (m,), labels of the queries.
        open_set: rates of false accepts, such as 0.01. At each, the true accept rate of pairs and the identification rate of
            queries are computed, as `liftedstruct.evaluation.open_set` defines them.

    Returns:
        The scores with their intervals and protocol. Print them for a table; `Scores.save` writes them as JSON.

    Examples:
        >>> import numpy as np
        >>> x = np.array([[0.0], [0.1], [1.0], [1.1], [1.2], [2.0], [2.1], [1.3]])
        >>> scores = evaluate(x, list("aabbbccc"), ks=(1, 2), clustering="kmeans", protocol={"trunk": "none"})
        >>> scores.recall[1].value, round(scores.f1["kmeans"].value, 4)  # 10 / (8 + 7) pairs
        (0.875, 0.6667)
        >>> print(scores)  # doctest: +ELLIPSIS
        Recall@1           87.5 %   31.7 to 100.0
        ...
        trunk             none
        images            8
        classes           3
        distance          Euclidean
        clusters, kmeans  3 by k-means
        intervals         95 %, class bootstrap, 1,000 draws
        evaluation seed   0

    """
    X = as_embeddings(embeddings)
    as_labels(labels, X)  # checks the shape
    y = by_first_image(as_classes(labels)[0])
    n, n_classes = len(y), int(y.max()) + 1
    if n_classes < 2:
        raise ValueError("labels must have at least two classes, got one. Add images of another class.")
    if n_classes == n and queries is None:
        raise ValueError(f"labels must have a class with at least two images, got {n} images of {n} classes. Add images.")
    ks, missed = check_ks(ks), pick(SINGLES, singles, "singles")
    names = pick(CLUSTERINGS, "none" if clustering is None or queries is not None else clustering, "clustering")
    K = n_classes if n_clusters is None else check_count("n_clusters", n_clusters)
    if names and n < K:
        raise ValueError(f"n_clusters must be at most the number of images, got {K:,} for {n:,} images. Use fewer clusters.")
    check_count("samples", samples), check_count("seed", seed, 0)
    rates = check_rates(open_set)
    count = n if queries is None else len(queries)  # queries
    if ids is not None and np.shape(ids) != (count,):
        raise ValueError(f"ids must have shape (n,), got {np.shape(ids)} for {count:,} images. Pass one id per image.")
    own, alone = {"images": f"{n:,}", "classes": f"{n_classes:,}", "distance": "Euclidean"}, "single-image classes"
    ranks = first_ranks(X, labels, progress, queries, query_labels)
    if query_labels is not None:
        own, alone = {"queries": f"{count:,}", "gallery": own.pop("images"), **own}, "queries of no class in the gallery"
        y = by_first_image(as_classes(query_labels)[0])
        if not ranks.any():
            raise ValueError(f"query_labels must have a class of the gallery, got {count} queries of others. Check the labels.")
    if absent := int((ranks == 0).sum()):
        own[alone] = f"{absent:,}, {'counted as misses in' if missed else 'excluded from'} Recall@K"
    clusters = {}
    for name in names:
        if progress:
            say(f"clustering {n:,} images with {name}, {K:,} clusters")
        clusters[name], own[f"clusters, {name}"] = _cluster(name, X, K, seed, progress)
    own["intervals"] = f"{100 * LEVEL:.0f} %, class bootstrap, {samples:,} draws"
    own["evaluation seed"] = str(seed)
    return Scores(
        recall=_recall_estimates(ranks, y, ks, missed, samples, seed),
        nmi={name: _agreement("NMI", y, clusters[name], samples, seed) for name in names},
        f1={name: _agreement("F1", y, clusters[name], samples, seed) for name in names},
        protocol={str(name): str(text) for name, text in {**(protocol or {}), **own}.items()},
        singles=singles,
        images={} if ids is None else {"ids": digest_of(ids)},
        classes=y,
        ranks=ranks,
        clusters=clusters,
        open_set=open_set_scores(X, labels, queries, query_labels, rates, samples, seed) if rates else {},
    )


def digest_of(ids: Ids) -> str:
    """Return the first 16 hex digits of a hash of the ids, in order."""
    return hashlib.sha256("\0".join(map(str, np.asarray(ids).tolist())).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def hits_by_class(ranks: Integers, classes: Integers, ks: Iterable[int], missed: bool) -> tuple[Array, Array]:
    """Return the number of hits per class at each K, (C, s), and of queries per class, (C,)."""
    hits = [np.bincount(classes, weights=(ranks > 0) & (ranks <= k)) for k in ks]
    queries = np.bincount(classes, weights=(ranks > 0) | missed)
    return np.stack(hits, axis=1).astype(np.float64, copy=False), queries.astype(np.float64, copy=False)


def with_recall_at(scores: Scores, ks: Iterable[int]) -> Scores:
    """Return the scores with Recall@K at further values of K, computed from the saved ranks."""
    seed, missed = int(scores.protocol.get("evaluation seed", "0")), SINGLES[scores.singles]
    more = _recall_estimates(scores.ranks, scores.classes, sorted({*scores.recall, *ks}), missed, SAMPLES, seed)
    return replace(scores, recall={**more, **scores.recall})


def _recall_estimates(
    ranks: Integers, classes: Integers, ks: Iterable[int], missed: bool, samples: int, seed: int
) -> dict[int, Estimate]:
    """Return Recall@K with its interval, from the rank of the first image of the same class per query."""
    hits, queries = hits_by_class(ranks, classes, ks, missed)
    hits, queries = hits[queries > 0], queries[queries > 0]
    draws = bootstrap(partial(weighted_recall, hits, queries), len(queries), samples, seed)
    values = hits.sum(axis=0) / queries.sum()
    return {
        k: Estimate(v, *interval(v, column, len(queries))) for k, v, column in zip(ks, values.tolist(), draws.T, strict=True)
    }


def _agreement(kind: str, y: Integers, clusters: Integers, samples: int, seed: int) -> Estimate:
    """Return NMI or F1 of clusters with its interval."""
    value, table = {"NMI": nmi, "F1": pairwise_f1}[kind](y, clusters), contingency(y, clusters)
    draws = bootstrap(partial(AGREEMENTS[kind][0], table), len(table.class_sizes), samples, seed)
    return Estimate(value, *interval(value, draws, len(table.class_sizes)))


def _cluster(name: str, X: Tensor, K: int, seed: int, progress: bool) -> tuple[Integers, str]:
    """Return the cluster labels and a description of the clustering for the protocol."""
    if name == "kmeans":
        return kmeans(X, K, seed=seed).labels, f"{K:,} by k-means"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # warns if K was not reached; the protocol states it
        found = affinity_propagation(X, n_clusters=K, progress=progress)
    reached = "" if len(found.exemplars) == K else f" ({K:,} requested)"
    graph = "all pairs" if found.neighbors is None else f"{found.neighbors:,} neighbors"
    rest = "" if found.converged else ", not converged"
    return found.labels, f"{len(found.exemplars):,}{reached} by affinity propagation on {graph}{rest}"


def by_first_image(classes: Integers) -> Integers:
    """Renumber classes in the order of their first images, so that the numbers do not depend on the class names."""
    _, first, numbers = np.unique(classes, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers]

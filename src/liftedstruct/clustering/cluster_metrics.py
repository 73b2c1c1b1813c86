r"""Agreement of clusters with classes: normalized mutual information, and F1 over pairs of images.

Both are computed from the contingency table $n_{kj}$, the number of images of class j in cluster k. With 11,316 classes and as
many clusters, it has 128 million cells, of which at most one per image is nonempty. Only those are stored.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from liftedstruct.runtime.checks import LabelsLike, as_classes

__all__ = ["Contingency", "contingency", "nmi", "pairwise_f1"]


@dataclass(frozen=True)
class Contingency:
    """Nonempty cells of the table of clusters and classes, sorted by class, then by cluster."""

    counts: NDArray[np.int64]  # n_kj of each cell                                                    (cells,)
    clusters: NDArray[np.int64]  # k of each cell                                                     (cells,)
    classes: NDArray[np.int64]  # j of each cell                                                      (cells,)
    cluster_sizes: NDArray[np.int64]  # n_k                                                           (clusters,)
    class_sizes: NDArray[np.int64]  # n_j                                                             (classes,)
    n: int


def contingency(labels: LabelsLike, clusters: LabelsLike) -> Contingency:
    """Count the images of each class in each cluster.

    Args:
        labels: (n,), class of each image, integers of any size or strings.
        clusters: (n,), cluster of each image, integers of any size or strings.

    Examples:
        >>> table = contingency(["a", "a", "a", "b"], [0, 0, 1, 1])
        >>> table.counts.tolist(), table.class_sizes.tolist(), table.cluster_sizes.tolist()
        ([2, 1, 1], [3, 1], [2, 2])

    """
    j, _ = as_classes(labels)
    k, cluster_names = _as_clusters(clusters)
    if j.ndim != 1 or j.shape != k.shape or not len(j):
        raise ValueError(
            f"labels and clusters must have the same shape (n,) with n >= 1, got {j.shape} and {k.shape}. "
            "Pass a label and a cluster for each image."
        )
    cells, counts = np.unique(j * len(cluster_names) + k, return_counts=True)
    return Contingency(
        counts=counts,
        clusters=cells % len(cluster_names),
        classes=cells // len(cluster_names),
        cluster_sizes=np.bincount(k),
        class_sizes=np.bincount(j),
        n=len(j),
    )


def nmi(labels: LabelsLike, clusters: LabelsLike) -> float:
    r"""Compute the normalized mutual information (NMI) of classes and clusters, with the arithmetic mean of the entropies.

    $$
    \text{NMI} = \frac{2 I}{H_\Omega + H_C}
    $$

    with the mutual information $I$ and the entropies $H_\Omega$ of the clusters and $H_C$ of the classes

    $$
    I = \sum_{k,j} \frac{n_{kj}}{n} \log \frac{n\, n_{kj}}{n_k\, n_j}
    $$

    $$
    H_\Omega = \sum_k \frac{n_k}{n} \log \frac{n}{n_k}
    $$

    $$
    H_C = \sum_j \frac{n_j}{n} \log \frac{n}{n_j}
    $$

    for $n_{kj}$ images of class j in cluster k, $n_k$ images in the cluster and $n_j$ in the class. The paper prints
    I / (2 (H + H)), whose maximum would be 1/4; the authors' code uses the formula above, as does scikit-learn's
    `normalized_mutual_info_score`. The sums are exact up to the last rounding, so equal partitions give exactly 1.0 and
    independent ones exactly 0.0, in any order of the images.

    Args:
        labels: (n,), class of each image, integers of any size or strings.
        clusters: (n,), cluster of each image, integers of any size or strings; the numbering of the clusters does not matter.

    Returns:
        The NMI, 0 to 1.

    Examples:
        >>> nmi(["a", "a", "b", "b"], [1, 1, 0, 0])
        1.0
        >>> nmi(["a", "a", "b", "b"], [0, 1, 0, 1])
        0.0
        >>> round(nmi([0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2]), 4)
        0.5158

        One class in one cluster is a perfect match; one class in several clusters is not.

        >>> nmi([7, 7, 7], [0, 0, 0]), nmi([7, 7, 7], [0, 0, 1])
        (1.0, 0.0)

    """
    table = contingency(labels, clusters)
    entropies = _entropy(table.cluster_sizes, table.n) + _entropy(table.class_sizes, table.n)
    if not entropies:  # one class, one cluster
        return 1.0
    n_k, n_j = table.cluster_sizes[table.clusters], table.class_sizes[table.classes]
    I = math.fsum(table.counts / table.n * np.log(table.n * table.counts / (n_k * n_j)))  # noqa: E741
    return min(1.0, max(0.0, 2 * I / entropies))


def pairwise_f1(labels: LabelsLike, clusters: LabelsLike) -> float:
    r"""Compute the F1 score over pairs of images: two images in the same cluster are predicted to be of the same class.

    $$
    F_1 = \frac{2 P R}{P + R} = \frac{2\,TP}{(TP + FP) + (TP + FN)}
    $$

    with the number of pairs of the same class in the same cluster, of pairs in the same cluster, and of pairs of the same class

    $$
    TP = \sum_{k,j} \binom{n_{kj}}{2}
    $$

    $$
    TP + FP = \sum_k \binom{n_k}{2}
    $$

    $$
    TP + FN = \sum_j \binom{n_j}{2}
    $$

    for $n_{kj}$ images of class j in cluster k, $n_k$ images in the cluster and $n_j$ in the class. Precision P is the fraction
    of pairs within clusters that are of the same class. Recall R is the fraction of pairs of the same class that are within a
    cluster. All counts are integers.

    Args:
        labels: (n,), class of each image, integers of any size or strings.
        clusters: (n,), cluster of each image, integers of any size or strings; the numbering of the clusters does not matter.

    Returns:
        The F1 score, 0 to 1.

    Examples:
        Two of the four pairs within clusters are correct, and two of the four pairs of the same class are found:

        >>> round(pairwise_f1(["a", "a", "a", "b", "b"], [0, 0, 1, 1, 1]), 4)
        0.5

        If no class and no cluster has two images, there are no pairs. The partitions are then equal, and equal partitions have
        F1 = 1 and NMI = 1.

        >>> pairwise_f1([1, 2, 3], [0, 1, 2]), nmi([1, 2, 3], [0, 1, 2])
        (1.0, 1.0)

    """
    table = contingency(labels, clusters)
    both = _pairs(table.counts)  # TP
    either = _pairs(table.cluster_sizes) + _pairs(table.class_sizes)
    return 2 * both / either if either else 1.0


def _as_clusters(clusters: LabelsLike) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
    try:
        return as_classes(clusters)
    except ValueError as error:
        raise ValueError(f"clusters{str(error).removeprefix('labels')}") from None


def _entropy(sizes: NDArray[np.int64], n: int) -> float:
    return math.fsum(sizes / n * np.log(n / sizes))


def _pairs(sizes: NDArray[np.int64]) -> int:
    return int((sizes * (sizes - 1) // 2).sum())

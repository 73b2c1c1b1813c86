r"""How well clusters agree with classes: normalized mutual information, and F1 over pairs of images.

Both are read off the contingency table :math:`n_{kj}`, the number of images of class j in cluster k. With 11,316 classes and as
many clusters it has 128 million cells, of which at most one per image is not empty; only those are kept.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from liftedstruct.runtime.checks import LabelsLike, as_classes

__all__ = ["Contingency", "contingency", "nmi", "pairwise_f1"]


@dataclass(frozen=True)
class Contingency:
    """The cells of the table of clusters and classes that are not empty, sorted by class, then by cluster."""

    counts: NDArray[np.int64]  # n_kj of the cells                                                    (cells,)
    clusters: NDArray[np.int64]  # k of each                                                          (cells,)
    classes: NDArray[np.int64]  # j of each                                                           (cells,)
    cluster_sizes: NDArray[np.int64]  # n_k                                                           (clusters,)
    class_sizes: NDArray[np.int64]  # n_j                                                             (classes,)
    n: int


def contingency(labels: LabelsLike, clusters: LabelsLike) -> Contingency:
    """Count the images of each class in each cluster.

    Args:
        labels: (n,), the classes, integers of any size or strings.
        clusters: (n,), the clusters, integers of any size or strings.

    >>> table = contingency(["a", "a", "a", "b"], [0, 0, 1, 1])
    >>> table.counts.tolist(), table.class_sizes.tolist(), table.cluster_sizes.tolist()
    ([2, 1, 1], [3, 1], [2, 2])

    """
    j, _ = as_classes(labels)
    k, cluster_names = _as_clusters(clusters)
    if j.ndim != 1 or j.shape != k.shape or not len(j):
        raise ValueError(
            f"labels and clusters must have one shape (n,) with n >= 1, got {j.shape} and {k.shape}. "
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
    r"""Normalized mutual information of classes and clusters, 0 to 1, by the arithmetic mean of the entropies.

    .. math:: \mathrm{NMI} = \frac{2 I}{H_\Omega + H_C}, \qquad
              I = \sum_{k,j} \frac{n_{kj}}{n} \log \frac{n\, n_{kj}}{n_k\, n_j}, \qquad
              H_\Omega = \sum_k \frac{n_k}{n} \log \frac{n}{n_k}, \qquad
              H_C = \sum_j \frac{n_j}{n} \log \frac{n}{n_j}

    with :math:`n_{kj}` images of class j in cluster k, :math:`n_k` images in the cluster and :math:`n_j` in the class. The
    paper prints I / (2 (H + H)), whose largest value would be 1/4; its authors' code has the formula above. The same as
    scikit-learn's ``normalized_mutual_info_score``. The sums are exact to the last rounding, so that equal partitions give
    1.0 and independent ones 0.0 exactly, whatever the order of the images.

    Args:
        labels: (n,), the classes, integers of any size or strings.
        clusters: (n,), the clusters, integers of any size or strings; which number a cluster has does not matter.

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
    r"""F1 of the question "are these two images of one class?", asked of all pairs and answered by the clusters; 0 to 1.

    .. math:: F_1 = \frac{2 P R}{P + R} = \frac{2\,TP}{(TP + FP) + (TP + FN)}, \qquad
              TP = \sum_{k,j} \binom{n_{kj}}{2}, \qquad
              TP + FP = \sum_k \binom{n_k}{2}, \qquad
              TP + FN = \sum_j \binom{n_j}{2}

    with :math:`n_{kj}` images of class j in cluster k, :math:`n_k` images in the cluster and :math:`n_j` in the class.
    Precision P is the share of the pairs within clusters that are of one class, recall R the share of the pairs of one class
    that are within a cluster. Counted in whole numbers.

    Args:
        labels: (n,), the classes, integers of any size or strings.
        clusters: (n,), the clusters, integers of any size or strings; which number a cluster has does not matter.

    Two of the four pairs within clusters are right, and two of the four pairs of one class are found:

    >>> round(pairwise_f1(["a", "a", "a", "b", "b"], [0, 0, 1, 1, 1]), 4)  # pairs within clusters 4, within classes 4, both 2
    0.5

    Where no class and no cluster has two images there is no pair to ask about. The partitions are equal then, and equal
    partitions have F1 = 1, as they have NMI = 1.

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

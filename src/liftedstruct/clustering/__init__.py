"""Clustering of embeddings and its agreement with the classes: affinity propagation, k-means, NMI and pairwise F1."""

from liftedstruct.clustering.affinity import AffinityPropagation, affinity_propagation
from liftedstruct.clustering.cluster_metrics import Contingency, contingency, nmi, pairwise_f1
from liftedstruct.clustering.kmeans import KMeans, kmeans

__all__ = [
    "AffinityPropagation",
    "Contingency",
    "KMeans",
    "affinity_propagation",
    "contingency",
    "kmeans",
    "nmi",
    "pairwise_f1",
]

"""Clusters of embeddings, and how well they agree with the classes: affinity propagation, k-means, NMI and F1."""

from liftedstruct.clustering.affinity import AffinityPropagation, affinity_propagation
from liftedstruct.clustering.agreement import nmi, pairwise_f1
from liftedstruct.clustering.kmeans import KMeans, kmeans

__all__ = ["AffinityPropagation", "KMeans", "affinity_propagation", "kmeans", "nmi", "pairwise_f1"]

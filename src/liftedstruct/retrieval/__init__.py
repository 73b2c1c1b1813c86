"""Nearest neighbors and retrieval metrics: exact Recall@K at any scale, precision at 1, R-precision and MAP@R."""

from liftedstruct.retrieval.nearest_classes import nearest_by_class, threshold_at
from liftedstruct.retrieval.neighbors import nearest_neighbors
from liftedstruct.retrieval.precision import map_at_r, precision_at_1, r_precision, retrieval_recall
from liftedstruct.retrieval.recall import SINGLES, check_ks, first_ranks, recall_at_k

__all__ = [
    "SINGLES",
    "check_ks",
    "first_ranks",
    "map_at_r",
    "nearest_by_class",
    "nearest_neighbors",
    "precision_at_1",
    "r_precision",
    "recall_at_k",
    "retrieval_recall",
    "threshold_at",
]

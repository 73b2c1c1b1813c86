"""Who is near whom: exact Recall@K at any scale, its sisters, and lists of nearest neighbours."""

from liftedstruct.retrieval.listing import nearest_neighbors
from liftedstruct.retrieval.precision import map_at_r, precision_at_1, r_precision, retrieval_recall
from liftedstruct.retrieval.ranks import first_ranks, recall_at_k

__all__ = [
    "first_ranks",
    "map_at_r",
    "nearest_neighbors",
    "precision_at_1",
    "r_precision",
    "recall_at_k",
    "retrieval_recall",
]

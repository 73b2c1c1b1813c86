"""Deep metric learning via lifted structured feature embedding: data, samplers, losses, training and exact evaluation."""

from typing import TYPE_CHECKING

from liftedstruct.losses import (
    BatchInspection,
    ContrastiveLoss,
    LiftedStructLoss,
    StructuredHingeLoss,
    TripletLoss,
    contrastive_loss,
    inspect_batch,
    lifted_struct_loss,
    structured_hinge_loss,
    triplet_loss,
)
from liftedstruct.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from liftedstruct.catalog import Catalog
    from liftedstruct.clustering import affinity_propagation, kmeans, nmi, pairwise_f1
    from liftedstruct.data import ImageSet, PackedImages, check_dataset, prepare, read_images
    from liftedstruct.embedder import Embedder, load, open_embedder
    from liftedstruct.embeddings import Embeddings, embed
    from liftedstruct.estimator import LiftedEmbedding
    from liftedstruct.evaluation import Comparison, Scores, compare, evaluate, evaluate_file
    from liftedstruct.exporting import export
    from liftedstruct.projection import tsne
    from liftedstruct.retrieval import map_at_r, nearest_neighbors, precision_at_1, r_precision, recall_at_k, retrieval_recall
    from liftedstruct.samplers import BalancedSampler, HardNegativeSampler, PairSampler, Sampler, TripletSampler
    from liftedstruct.training import Run, TrainConfig, load_config, train

__all__ = [
    "BalancedSampler",
    "BatchInspection",
    "Catalog",
    "Comparison",
    "ContrastiveLoss",
    "Embedder",
    "Embeddings",
    "HardNegativeSampler",
    "ImageSet",
    "LiftedEmbedding",
    "LiftedStructLoss",
    "PackedImages",
    "PairSampler",
    "Run",
    "Sampler",
    "Scores",
    "StructuredHingeLoss",
    "TrainConfig",
    "TripletLoss",
    "TripletSampler",
    "affinity_propagation",
    "check_dataset",
    "compare",
    "contrastive_loss",
    "embed",
    "evaluate",
    "evaluate_file",
    "export",
    "inspect_batch",
    "kmeans",
    "lifted_struct_loss",
    "load",
    "load_config",
    "map_at_r",
    "nearest_neighbors",
    "nmi",
    "open_embedder",
    "pairwise_f1",
    "precision_at_1",
    "prepare",
    "r_precision",
    "read_images",
    "recall_at_k",
    "retrieval_recall",
    "structured_hinge_loss",
    "train",
    "triplet_loss",
    "tsne",
]

__version__ = "0.1.0"

# Imported on first use: a loss in your own training loop needs only torch and numpy, and no image library.
__getattr__ = lazy_names(
    __name__,
    {
        "catalog": ("Catalog",),
        "clustering": ("affinity_propagation", "kmeans", "nmi", "pairwise_f1"),
        "data": ("ImageSet", "PackedImages", "check_dataset", "prepare", "read_images"),
        "embedder": ("Embedder", "load", "open_embedder"),
        "embeddings": ("Embeddings", "embed"),
        "estimator": ("LiftedEmbedding",),
        "evaluation": ("Comparison", "Scores", "compare", "evaluate", "evaluate_file"),
        "exporting": ("export",),
        "projection": ("tsne",),
        "retrieval": ("map_at_r", "nearest_neighbors", "precision_at_1", "r_precision", "recall_at_k", "retrieval_recall"),
        "samplers": ("BalancedSampler", "HardNegativeSampler", "PairSampler", "Sampler", "TripletSampler"),
        "training": ("Run", "TrainConfig", "load_config", "train"),
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

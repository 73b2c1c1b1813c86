"""Deep metric learning by lifted structured feature embedding: images, batches, the loss and its baselines, and the measure."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from liftedstruct.losses import (
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

if TYPE_CHECKING:
    from liftedstruct.clustering import affinity_propagation, kmeans, nmi, pairwise_f1
    from liftedstruct.data import PackedImages, prepare, read_images
    from liftedstruct.embedder import Embedder
    from liftedstruct.embeddings import embed
    from liftedstruct.estimator import LiftedEmbedding
    from liftedstruct.evaluation import compare, evaluate
    from liftedstruct.projection import tsne
    from liftedstruct.retrieval import (
        map_at_r,
        nearest_neighbors,
        precision_at_1,
        r_precision,
        recall_at_k,
        retrieval_recall,
    )
    from liftedstruct.training import TrainConfig, resume, train

__all__ = [
    "ContrastiveLoss",
    "Embedder",
    "LiftedEmbedding",
    "LiftedStructLoss",
    "PackedImages",
    "StructuredHingeLoss",
    "TrainConfig",
    "TripletLoss",
    "affinity_propagation",
    "compare",
    "contrastive_loss",
    "embed",
    "evaluate",
    "inspect_batch",
    "kmeans",
    "lifted_struct_loss",
    "map_at_r",
    "nearest_neighbors",
    "nmi",
    "pairwise_f1",
    "precision_at_1",
    "prepare",
    "r_precision",
    "read_images",
    "recall_at_k",
    "resume",
    "retrieval_recall",
    "structured_hinge_loss",
    "train",
    "triplet_loss",
    "tsne",
]

__version__ = "0.1.0"

# Imported when they are first used: a loss in somebody's loop needs torch and numpy, and no image library.
_LATER = {
    "Embedder": "liftedstruct.embedder",
    "LiftedEmbedding": "liftedstruct.estimator",
    "PackedImages": "liftedstruct.data",
    "TrainConfig": "liftedstruct.training",
    "affinity_propagation": "liftedstruct.clustering",
    "compare": "liftedstruct.evaluation",
    "embed": "liftedstruct.embeddings",
    "evaluate": "liftedstruct.evaluation",
    "kmeans": "liftedstruct.clustering",
    "map_at_r": "liftedstruct.retrieval",
    "nearest_neighbors": "liftedstruct.retrieval",
    "nmi": "liftedstruct.clustering",
    "pairwise_f1": "liftedstruct.clustering",
    "precision_at_1": "liftedstruct.retrieval",
    "prepare": "liftedstruct.data",
    "r_precision": "liftedstruct.retrieval",
    "read_images": "liftedstruct.data",
    "recall_at_k": "liftedstruct.retrieval",
    "resume": "liftedstruct.training",
    "retrieval_recall": "liftedstruct.retrieval",
    "train": "liftedstruct.training",
    "tsne": "liftedstruct.projection",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'liftedstruct' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

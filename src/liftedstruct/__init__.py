"""Deep metric learning by lifted structured feature embedding: images, batches, the loss and its baselines, and the measure."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from liftedstruct.losses import (
    ContrastiveLoss,
    LiftedStructLoss,
    StructuredHingeLoss,
    TripletLoss,
    contrastive_loss,
    lifted_struct_loss,
    loss_microscope,
    structured_hinge_loss,
    triplet_loss,
)

if TYPE_CHECKING:
    from liftedstruct.clusters import affinity_propagation, kmeans, nmi, pairwise_f1
    from liftedstruct.embedder import Embedder, embed
    from liftedstruct.estimator import LiftedEmbedding
    from liftedstruct.evaluation import compare, evaluate
    from liftedstruct.images import read_images
    from liftedstruct.neighbours import (
        map_at_r,
        nearest_neighbours,
        precision_at_1,
        r_precision,
        recall_at_k,
        retrieval_recall,
    )
    from liftedstruct.packed import PackedImages, prepare
    from liftedstruct.projection import tsne
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
    "kmeans",
    "lifted_struct_loss",
    "loss_microscope",
    "map_at_r",
    "nearest_neighbours",
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
    "PackedImages": "liftedstruct.packed",
    "TrainConfig": "liftedstruct.training",
    "affinity_propagation": "liftedstruct.clusters",
    "compare": "liftedstruct.evaluation",
    "embed": "liftedstruct.embedder",
    "evaluate": "liftedstruct.evaluation",
    "kmeans": "liftedstruct.clusters",
    "map_at_r": "liftedstruct.neighbours",
    "nearest_neighbours": "liftedstruct.neighbours",
    "nmi": "liftedstruct.clusters",
    "pairwise_f1": "liftedstruct.clusters",
    "precision_at_1": "liftedstruct.neighbours",
    "prepare": "liftedstruct.packed",
    "r_precision": "liftedstruct.neighbours",
    "read_images": "liftedstruct.images",
    "recall_at_k": "liftedstruct.neighbours",
    "resume": "liftedstruct.training",
    "retrieval_recall": "liftedstruct.neighbours",
    "train": "liftedstruct.training",
    "tsne": "liftedstruct.projection",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'liftedstruct' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Deep metric learning by lifted structured feature embedding: the loss, its baselines, batches to train with."""

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

__all__ = [
    "ContrastiveLoss",
    "LiftedStructLoss",
    "StructuredHingeLoss",
    "TripletLoss",
    "contrastive_loss",
    "lifted_struct_loss",
    "loss_microscope",
    "structured_hinge_loss",
    "triplet_loss",
]

__version__ = "0.1.0"

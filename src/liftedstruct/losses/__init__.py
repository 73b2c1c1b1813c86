"""Losses, one file per paper. Each loss is a function of embeddings and labels, plus an `nn.Module` for training loops."""

from torch import nn

from liftedstruct.losses.contrastive import ContrastiveLoss, contrastive_loss
from liftedstruct.losses.inspection import BatchInspection, effective_rank, inspect_batch
from liftedstruct.losses.lifted_struct import LiftedStructLoss, StructuredHingeLoss, lifted_struct_loss, structured_hinge_loss
from liftedstruct.losses.triplet import TripletLoss, triplet_loss

__all__ = [
    "LOSSES",
    "BatchInspection",
    "ContrastiveLoss",
    "LiftedStructLoss",
    "StructuredHingeLoss",
    "TripletLoss",
    "contrastive_loss",
    "effective_rank",
    "inspect_batch",
    "lifted_struct_loss",
    "structured_hinge_loss",
    "triplet_loss",
]

LOSSES: dict[str, type[nn.Module]] = {
    "contrastive": ContrastiveLoss,
    "lifted_struct": LiftedStructLoss,
    "structured_hinge": StructuredHingeLoss,
    "triplet": TripletLoss,
}

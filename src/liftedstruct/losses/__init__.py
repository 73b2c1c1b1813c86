"""One file per paper. A loss is a function of embeddings and labels, with a module as its twin for people's own loops."""

from torch import nn

from liftedstruct.losses.contrastive import ContrastiveLoss, contrastive_loss
from liftedstruct.losses.lifted_struct import LiftedStructLoss, StructuredHingeLoss, lifted_struct_loss, structured_hinge_loss
from liftedstruct.losses.microscope import Microscope, loss_microscope
from liftedstruct.losses.triplet import TripletLoss, triplet_loss

__all__ = [
    "LOSSES",
    "ContrastiveLoss",
    "LiftedStructLoss",
    "Microscope",
    "StructuredHingeLoss",
    "TripletLoss",
    "contrastive_loss",
    "lifted_struct_loss",
    "loss_microscope",
    "structured_hinge_loss",
    "triplet_loss",
]

LOSSES: dict[str, type[nn.Module]] = {
    "contrastive": ContrastiveLoss,
    "lifted_struct": LiftedStructLoss,
    "structured_hinge": StructuredHingeLoss,
    "triplet": TripletLoss,
}

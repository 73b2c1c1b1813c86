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


class _Losses(dict[str, type[nn.Module]]):
    """Registry of losses by name. `pml:<class>` is a loss of pytorch-metric-learning, imported when it is looked up."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and name.startswith("pml:"))

    def __missing__(self, name: str) -> type[nn.Module]:
        if name not in self:
            raise KeyError(name)
        from liftedstruct.losses.pml import pml_loss

        return pml_loss(name)


LOSSES: dict[str, type[nn.Module]] = _Losses(
    contrastive=ContrastiveLoss,
    lifted_struct=LiftedStructLoss,
    structured_hinge=StructuredHingeLoss,
    triplet=TripletLoss,
)

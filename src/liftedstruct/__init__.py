"""Deep metric learning by lifted structured feature embedding: the images, the batches, the loss and its baselines."""

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
    from liftedstruct.images import read_images
    from liftedstruct.packed import PackedImages, prepare

__all__ = [
    "ContrastiveLoss",
    "LiftedStructLoss",
    "PackedImages",
    "StructuredHingeLoss",
    "TripletLoss",
    "contrastive_loss",
    "lifted_struct_loss",
    "loss_microscope",
    "prepare",
    "read_images",
    "structured_hinge_loss",
    "triplet_loss",
]

__version__ = "0.1.0"

# Imported when they are first used: a loss in somebody's loop needs torch and numpy, and no image library.
_LATER = {
    "PackedImages": "liftedstruct.packed",
    "prepare": "liftedstruct.packed",
    "read_images": "liftedstruct.images",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'liftedstruct' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

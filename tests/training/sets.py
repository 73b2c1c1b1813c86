"""Small datasets and settings shared by the training tests."""

from pathlib import Path
from typing import Any

from liftedstruct.data import PackedImages, prepare
from liftedstruct.data.products import product_images
from liftedstruct.training import Run, TrainConfig, merge_settings, train


def products(folder: Path, classes: int = 24, images: int = 6, size: int = 32, validation: float = 0.25) -> PackedImages:
    """Prepare rendered products: half of the classes for training and validation, the others for testing."""
    image_set = product_images(classes, images, size)
    if validation:
        image_set = image_set.with_validation(validation)
    return prepare(image_set, folder, size=size, progress=False)


def settings(packed: PackedImages, out: Path, **changes: Any) -> TrainConfig:
    """Return settings of a run with the small trunk that takes about a second."""
    one: dict[str, Any] = {
        "data": packed.folder,
        "out": out,
        "trunk": "small",
        "dim": 16,
        "crop": 28,
        "batch_size": 16,
        "steps": 12,
        "normalize": False,
        "pool": "avg",
        "train_dim": 0,
        "min_dim": 0,
        "head": "orthogonal",
        "loss": {"name": "lifted_struct", "margin": 1.0, "temperature": 1.0},
        "sampler": {"name": "balanced", "samples_per_class": 2},
        "augmentation": "random_crop",
        "lr": 1e-3,
        "schedule": "cosine",
        "warmup": 0,
        "ema_decay": 0.0,
        "validate_every": 4,
        "log_every": 2,
        "threads": 1,
    }
    return merge_settings(one, changes)


def run(packed: PackedImages, out: Path, **changes: Any) -> Run:
    return train(settings(packed, out, **changes), progress=False)

"""Presets: named changes to the default recipe of `TrainConfig`, with the sources of their values."""

from typing import Any

__all__ = ["PRESETS"]

# Source of a value: P the paper, C the authors' code (or their answers about it), M our own measurements.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "trunk": "googlenet",  # P; C: BVLC's weights, passed as weights
        "pool": "avg",  # P
        "train_dim": 0,  # P
        "min_dim": 0,  # P
        "normalize": False,  # C
        "dropout": 0.4,  # C
        "head": "uniform",  # C
        "loss": {"name": "lifted_struct", "margin": 1.0, "temperature": 1.0},  # P
        "sampler": "pairs",  # P, C: 32 positive and 32 negative pairs
        "batch_size": 128,  # P; 120 for triplets
        "steps": 20_000,  # P; C: 40,000 on CUB
        "crop": 227,  # P
        "augmentation": "random_crop",  # P, with horizontal flips
        "optimizer": "caffe_sgd",  # P: head x 10; C: momentum 0.9, weight decay 2e-4, learning rates of biases
        "lr": 1e-4,  # C: on Cars and Online Products; 1e-6 on CUB
        "schedule": "constant",  # C
        "freeze": 0,  # P
        "ema_decay": 0.0,  # C
        "pretrained_mix": 0.0,  # C
        "warmup": 0,  # C
    },
    "quick": {  # a few minutes on two cores
        "train_dim": 0,
        "min_dim": 0,
        "loss": {"name": "lifted_struct", "margin": 1.0, "temperature": 0.05},
        "sampler": {"name": "balanced", "samples_per_class": 2},
        "steps": 320,
        "crop": 224,  # the resolution that the trunk was pretrained at
        "augmentation": "random_crop",
        "schedule": "cosine",
        "lr": 2e-4,  # M: 1e-4 was 0.7 points better on birds, and 4.0 worse on rendered products in 80 steps
        "ema_decay": 0.0,
        "pretrained_mix": 0.0,
        "warmup": 0,
    },
}

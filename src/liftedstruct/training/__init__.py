"""Training: settings, heads, optimizers, the exact gradient of big batches, the run's folder, and the loop over all of it."""

from liftedstruct.training.config import TrainConfig, load_config
from liftedstruct.training.presets import PRESETS
from liftedstruct.training.runs import Run, check_run, resume, starting_trunk, train, train_or_resume, trained_alike

__all__ = [
    "PRESETS",
    "Run",
    "TrainConfig",
    "check_run",
    "load_config",
    "resume",
    "starting_trunk",
    "train",
    "train_or_resume",
    "trained_alike",
]

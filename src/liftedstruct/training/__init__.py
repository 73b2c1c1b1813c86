"""Training: settings, head initializations, optimizers, augmentations, gradient caching, run folders and the training loop."""

from liftedstruct.training.config import REGISTRIES, TrainConfig, config_settings, load_config, merge_settings
from liftedstruct.training.inputs import count_pairable, split_rows
from liftedstruct.training.loop import TRAINED
from liftedstruct.training.machine import find_device
from liftedstruct.training.presets import PRESETS
from liftedstruct.training.run_folder import CONFIG, RunFolder
from liftedstruct.training.runs import Run, check_run, shared_training, starting_trunk, train, truncate_run

__all__ = [
    "CONFIG",
    "PRESETS",
    "REGISTRIES",
    "TRAINED",
    "Run",
    "RunFolder",
    "TrainConfig",
    "check_run",
    "config_settings",
    "count_pairable",
    "find_device",
    "load_config",
    "merge_settings",
    "shared_training",
    "split_rows",
    "starting_trunk",
    "train",
    "truncate_run",
]

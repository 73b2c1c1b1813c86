"""The number of training steps: chosen on held-out training classes, and planned to fit a time budget.

With a constant learning rate and an EMA of the weights, the score at step t is the score of a run of t steps. So one trial
run, stopped when MAP@R on held-out classes no longer improves, chooses the length of the run on all classes.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from liftedstruct.data import Indices, PackedImages
from liftedstruct.runtime.progress import say
from liftedstruct.training.config import TrainConfig, parse_minutes
from liftedstruct.training.inputs import can_validate, count_pairable, split_rows
from liftedstruct.training.pace import measure_pace, resolve_crops
from liftedstruct.training.run_folder import TRIAL, RunFolder
from liftedstruct.trunks import make_trunk

__all__ = ["EVERY", "PATIENCE", "choose_steps", "plan_for", "trial_config"]

# The trial run is evaluated on this fraction of the training classes, or fewer if they have more images, but not too few.
HELD_OUT, IMAGES, CLASSES = 0.2, 1000, 10
MIN_CLASSES = 20  # fewer training classes with pairs are too few to hold some out
STEPS, EPOCHS, MIN_STEPS = 400, 30, 50  # without a trial: at most STEPS, and at most EPOCHS, but at least MIN_STEPS
EVERY, PATIENCE = 50, 100  # steps between evaluations of a trial by default, and without improvement until it stops
OVERHEAD = 0.85  # fraction of a budget that is left for steps and evaluations, after the heads, checkpoints and starting
ENOUGH = 300  # steps below which smaller crops and more frozen stages are worth it


def trial_config(config: TrainConfig, images: int, classes: int) -> TrainConfig:
    """Return the settings of the trial run, in a folder of the run folder, for these numbers of training images and classes."""
    return replace(
        config,
        out=str(Path(config.out) / TRIAL),
        budget=None,
        steps=config.max_steps,
        patience=config.patience or PATIENCE,
        validation=max(min(HELD_OUT, max(IMAGES / images, CLASSES / classes)), 2 / classes),
        validate_every=config.validate_every or EVERY,
    )


def needs_trial(config: TrainConfig, packed: PackedImages) -> bool:
    """Return whether a trial run chooses the number of steps: there are no validation classes, but enough classes for some."""
    if can_validate(packed.labels[_validation_rows(config, packed)]):
        return False
    if count_pairable(packed.labels[packed.train]) < MIN_CLASSES:
        return False
    return can_validate(packed.labels[_validation_rows(_trial_of(config, packed), packed)])


def choose_steps(config: TrainConfig, packed: PackedImages, best_step: Callable[[TrainConfig], int], progress: bool) -> int:
    """Return the number of steps for a run on all training classes.

    Args:
        config: settings of the run.
        packed: its dataset.
        best_step: trains with the given settings and returns the step with the best MAP@R on the validation classes.
        progress: print the choice.

    """
    labels = packed.labels[packed.train]
    if not needs_trial(config, packed):
        batch_size = config.sampler.make(labels, config.batch_size).batch_size
        steps: int = min(STEPS, config.max_steps, max(MIN_STEPS, EPOCHS * len(labels) // batch_size))
        why = f"{EPOCHS} epochs, at most {STEPS}, since there are too few classes with two or more images to hold some out"
    else:
        trial = _trial_of(config, packed)
        share = f"{trial.validation:.2g} of the training classes"
        if progress:
            say(f"choosing the number of steps, at most {config.max_steps:,}, on {share}")
        best = best_step(trial)
        steps = min(config.max_steps, max(MIN_STEPS, best))
        why = f"best on {share}, which are now trained on too" if steps == best else f"the minimum; {share} were best at {best}"
    if progress:
        say(f"{steps:,} steps: {why}")
    return steps


def plan_for(config: TrainConfig, progress: bool) -> TrainConfig:
    """Return the settings with crops, frozen stages and maximum length planned to train within `config.budget`.

    A trial run that was already started keeps its plan. Otherwise the speed is measured on noise. A trial run, if there is one,
    takes as many steps as the run itself. Crops shrink first, then more stages are frozen (if some are frozen by default), as
    long as fewer than `ENOUGH` steps fit.
    """
    assert config.budget is not None
    trial = RunFolder(Path(config.out) / TRIAL)
    if trial.has_run():
        begun = trial.config()
        if progress:
            say(f"resuming with the plan of {trial.path}: at most {begun.max_steps:,} steps")
        crop, frozen = config.train_crop or begun.train_crop, begun.freeze if config.freeze is None else config.freeze
        return replace(config, budget=None, train_crop=crop, freeze=frozen, max_steps=begun.max_steps)
    trunk = make_trunk(config.trunk.name, pretrained=False, **config.trunk.options)
    packed = PackedImages(config.data)
    crop = min(resolve_crops(config, trunk, packed.size)[1], packed.size)
    frozen = trunk.suggested["freeze"] if config.freeze is None else config.freeze
    plans = [(crop, frozen)]
    if config.train_crop is None:
        plans += [(round(crop * share / 4) * 4, frozen) for share in (0.85, 0.7)]
    if config.freeze is None and isinstance(frozen, int) and frozen:
        plans += [(plans[-1][0], min(frozen + more, len(trunk.stages) - 1)) for more in (1, 2)]
    seconds, runs, validated = 60 * parse_minutes(config.budget) * OVERHEAD, 1, len(_validation_rows(config, packed))
    if needs_trial(config, packed):
        runs, validated = 2, len(_validation_rows(_trial_of(config, packed), packed))
    for crop, frozen in plans:
        planned = replace(config, train_crop=crop, freeze=frozen)
        pace = measure_pace(planned)
        per_step = runs * config.batch_size / pace.train + validated / (config.validate_every or EVERY) / pace.embed
        steps = int(seconds / per_step)
        if steps >= ENOUGH:
            break
    if progress and steps < MIN_STEPS:
        minutes = per_step * MIN_STEPS / OVERHEAD / 60
        say(f"warning: budget {config.budget} is too short for {MIN_STEPS} steps, the minimum: about {minutes:.0f} min")
    steps = min(config.max_steps, max(steps, MIN_STEPS))
    if progress:
        say(f"budget {config.budget}: at most {steps:,} steps, training crops of {crop} px, {frozen} stages frozen")
    return replace(planned, budget=None, max_steps=steps)


def _trial_of(config: TrainConfig, packed: PackedImages) -> TrainConfig:
    labels = packed.labels[packed.train]
    return trial_config(config, len(labels), len(np.unique(labels)))


def _validation_rows(config: TrainConfig, packed: PackedImages) -> Indices:
    return split_rows(packed, config.validation, config.seed)[1]

"""From a folder of images to an embedding of them, evaluated on classes that it has never seen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from liftedstruct.data import ImageSet, PackedImages
from liftedstruct.recipes.plan import check_requirements, count_steps, run_plan
from liftedstruct.recipes.prepared import PREPARED, check_data, prepare_in
from liftedstruct.recipes.steps import Steps
from liftedstruct.training import TrainConfig, count_pairable, load_config, split_rows

__all__ = ["fit"]

RUN = "run"  # name of the run's folder
ENOUGH = 100  # training classes, of which a tenth is held out: a choice by fewer than ten classes would be chance
VALIDATION = 0.1
EPOCHS = 30  # that an image of a small set is seen, about, unless somebody says how many steps
MIN_STEPS = 40  # steps


def fit(
    image_set: ImageSet,
    out: str | Path,
    *,
    preset: str | None = None,
    dim: int = 64,
    trunk: str | None = None,
    weights: str | Path | None = None,
    steps: int | None = None,
    size: int | None = None,
    crop: int | None = None,
    resize_mode: str = "squash",
    force: bool = False,
    seed: int = 0,
) -> str:
    """Prepare the images, check them, train, evaluate on the test classes, write a report; the results as a table.

    Args:
        image_set: what :func:`liftedstruct.read_images` returns, with its split.
        out: folder for all of it, created if absent; what is there already is reused.
        preset: differences from the default recipe, a name in ``liftedstruct.training.PRESETS``.
        dim: dimensions of the embedding.
        trunk: network below the last layer, if not the preset's.
        weights: file with the trunk's weights.
        steps: of the training; by default those of the preset, fewer for a small set.
        size: side of the prepared images in pixels; by default 256, more for crops that are larger.
        crop: side of what the network is shown, if not the preset's.
        resize_mode: how a rectangle becomes a square.
        force: go on although the check found serious issues.
        seed: every random choice descends from it.

    """
    folder = Path(out)
    given: dict[str, Any] = {"trunk": trunk, "weights": weights, "steps": steps, "crop": crop}
    config = load_config(
        preset=preset,
        data=str(folder / PREPARED),
        out=str(folder / RUN),
        dim=dim,
        seed=seed,
        **{name: value for name, value in given.items() if value is not None},
    )
    size = check_requirements(config, size)
    _check_split(image_set)
    work = Steps(count_steps([config]) + 2)
    with work.step(f"prepare {len(image_set):,} images of {len(image_set.class_names):,} classes"):
        packed = prepare_in(folder, image_set, size=size, resize_mode=resize_mode)
    with work.step("check them"):
        check_data(image_set, packed, folder, force)
    return run_plan([_adapted(config, packed, steps is None)], packed, folder, work)


def _check_split(image_set: ImageSet) -> None:
    """Raise if there is too little on one side of the split to learn from or to evaluate."""
    for rows, purpose in ((image_set.train, "train on"), (image_set.test, "test")):
        labels = image_set.labels[rows]
        classes, pairs = len(np.unique(labels)), count_pairable(labels)
        if classes < 2 or pairs < (2 if purpose == "train on" else 1):
            raise ValueError(
                f"there must be two classes to {purpose}, with two images each, got {classes} of which {pairs} have two. "
                "Add images, or choose the test classes with --test-classes."
            )


def _adapted(config: TrainConfig, packed: PackedImages, free: bool) -> TrainConfig:
    """The settings for this number of images: validation classes if there are enough, fewer steps for a small dataset."""
    if not len(packed.validation):
        enough = len(np.unique(packed.labels[packed.train])) >= ENOUGH
        config = replace(config, validation=VALIDATION) if enough else replace(config, validate_every=0)
    labels = packed.labels[split_rows(packed, config.validation, config.seed)[0]]
    batch_size = config.sampler.make(labels, config.batch_size).batch_size
    steps = min(config.steps, max(MIN_STEPS, EPOCHS * len(labels) // batch_size))
    return replace(config, steps=steps) if free else config

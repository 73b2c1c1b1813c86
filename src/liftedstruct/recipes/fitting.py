"""From a folder of pictures to an embedding of them, measured on classes that it has never seen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from liftedstruct.data import ImageSet, PackedImages
from liftedstruct.recipes.plan import carry_out, check_tools, number_of_steps
from liftedstruct.recipes.prepared import PREPARED, consult, prepare_in
from liftedstruct.recipes.steps import Steps
from liftedstruct.training import TrainConfig, load_config
from liftedstruct.training.inputs import split
from liftedstruct.training.linear import suited

__all__ = ["fit"]

RUN = "run"  # name of the run's folder
ENOUGH = 100  # training classes, of which a tenth is held out: a choice by fewer than ten classes would be chance
VALIDATION = 0.1
BATCH = 64  # images, if there are so many of enough classes
TIMES = 30  # that an image of a small set is seen, about, unless somebody says how many steps
FEWEST = 40  # steps


def fit(
    image_set: ImageSet,
    out: str | Path,
    *,
    preset: str = "quick",
    dim: int = 64,
    trunk: str | None = None,
    weights: str | Path | None = None,
    steps: int | None = None,
    size: int | None = None,
    crop: int | None = None,
    fit: str = "resize",
    anyway: bool = False,
    seed: int = 0,
) -> str:
    """Prepare the images, have the doctor look at them, train, measure on the test classes, write a page; the table of it.

    Args:
        image_set: what :func:`liftedstruct.read_images` returns, with its split.
        out: folder for all of it, made if absent; what is there already is reused.
        preset: settings of the training.
        dim: numbers in an embedding.
        trunk: network below the last layer, if not the preset's.
        weights: file with the trunk's weights.
        steps: of the training; by default those of the preset, fewer for a small set.
        size: side of the prepared images in pixels; by default 256, more for crops that are larger.
        crop: side of what the network is shown, if not the preset's.
        fit: how a rectangle becomes a square.
        anyway: go on though the doctor found something serious.
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
    size = check_tools(config, size)
    _check_split(image_set)
    work = Steps(number_of_steps([config]) + 2)
    with work.step(f"prepare {len(image_set):,} images of {len(image_set.class_names):,} classes"):
        packed = prepare_in(folder, image_set, size=size, fit=fit)
    with work.step("have the doctor look at them"):
        consult(image_set, packed, folder, anyway)
    return carry_out([_suited(config, packed, steps is None)], packed, folder, work)


def _check_split(image_set: ImageSet) -> None:
    """Raise if there is too little on one side of the split to learn from or to measure."""
    for rows, purpose in ((image_set.train, "train on"), (image_set.test, "test")):
        sizes = np.unique(image_set.labels[rows], return_counts=True)[1]
        pairs = int((sizes > 1).sum())
        if len(sizes) < 2 or pairs < (2 if purpose == "train on" else 1):
            raise ValueError(
                f"there must be two classes to {purpose}, with two pictures each, got {len(sizes)} of which {pairs} have two. "
                "Add pictures, or choose the classes for the test with --test-classes."
            )


def _suited(config: TrainConfig, packed: PackedImages, free: bool) -> TrainConfig:
    """The settings that suit the number of images: held-out classes if there are enough, fewer steps for a small set."""
    if not len(packed.validation):
        enough = len(np.unique(packed.labels[packed.train])) >= ENOUGH
        config = replace(config, validation=VALIDATION) if enough else replace(config, validate_every=0)
    labels = packed.labels[split(packed, config.validation, config.seed)[0]]
    config = suited(replace(config, batch_size=config.batch_size or BATCH), labels)
    assert config.batch_size is not None
    steps = min(config.steps, max(FEWEST, TIMES * len(labels) // config.batch_size))
    return replace(config, steps=steps) if free else config

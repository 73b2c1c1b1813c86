"""Train an embedding on your own images and evaluate it on classes not seen in training."""

from pathlib import Path
from typing import Any

import numpy as np

from liftedstruct.data import ImageSet
from liftedstruct.recipes.plan import check_requirements, count_steps, run_plan
from liftedstruct.recipes.prepared import PREPARED, check_data, prepare_in
from liftedstruct.recipes.steps import Steps
from liftedstruct.training import count_pairable, load_config

__all__ = ["fit"]

RUN = "run"  # name of the run folder


def fit(
    image_set: ImageSet,
    out: str | Path,
    *,
    preset: str | None = None,
    dim: int = 64,
    trunk: str | None = None,
    weights: str | Path | None = None,
    steps: int | None = None,
    budget: str | None = None,
    size: int | None = None,
    crop: int | None = None,
    resize_mode: str = "squash",
    force: bool = False,
    seed: int = 0,
) -> str:
    """Prepare and check the images, train, evaluate on the test classes, and write an HTML report. Return a table of results.

    Args:
        image_set: images with their split, as returned by `liftedstruct.read_images`.
        out: output folder, created if missing. Existing results are reused, and a stopped run resumes.
        preset: name of a preset in `liftedstruct.training.PRESETS`. Default: the default recipe.
        dim: dimension of the embedding.
        trunk: network below the head. Default: the preset's.
        weights: file with the trunk's weights, or "random".
        steps: training steps. Default: the preset's, or chosen on held-out training classes.
        budget: time for training, such as 30m or 2h. Default: no limit.
        size: side of the prepared images in pixels. Default: 256, more for larger crops.
        crop: side of the center crop that is embedded, in pixels. Default: the preset's.
        resize_mode: how a rectangular image becomes square.
        force: continue even if the check finds serious issues.
        seed: seed of every random choice.

    """
    folder = Path(out)
    given: dict[str, Any] = {"trunk": trunk, "weights": weights, "steps": steps, "budget": budget, "crop": crop}
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
    with work.step("check the images"):
        check_data(image_set, packed, folder, force)
    return run_plan([config], packed, folder, work)


def _check_split(image_set: ImageSet) -> None:
    """Raise ValueError if the training or test classes are too few to train or evaluate."""
    for rows, part, least in ((image_set.train, "training", 2), (image_set.test, "test", 1)):
        labels = image_set.labels[rows]
        classes, pairs = len(np.unique(labels)), count_pairable(labels)
        if classes < 2 or pairs < least:
            raise ValueError(
                f"the split must have at least 2 {part} classes, {least} of them with two or more images, got {classes} and "
                f"{pairs}. Add images, or choose the test classes with --test-classes."
            )

"""The paper's experiment on one of its datasets: all losses and embedding dimensions, compared with published results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from liftedstruct.data import CARS, CUB, META, ONLINE_PRODUCTS, ImageSet, KnownDataset, PackedImages, read_images
from liftedstruct.embedder import EMBEDDER
from liftedstruct.embeddings import EMBEDDINGS
from liftedstruct.figures import published_for
from liftedstruct.recipes.plan import check_requirements, configure, count_steps, describe_run, run_plan
from liftedstruct.recipes.prepared import PREPARED, prepare_in
from liftedstruct.recipes.steps import Steps, duration
from liftedstruct.runtime.checks import check_count, pick
from liftedstruct.runtime.progress import say
from liftedstruct.training import RunFolder, TrainConfig, check_run, shared_training
from liftedstruct.training.pace import measure_pace

__all__ = ["DATASETS", "LOSSES_OF_THE_PAPER", "SIZES_OF_THE_PAPER", "reproduce"]

LOSSES_OF_THE_PAPER = ("contrastive", "triplet", "lifted_struct")  # the paper's own loss last
SIZES_OF_THE_PAPER = (64, 128, 256, 512)
DATASETS: dict[str, KnownDataset] = {"cub": CUB, "cars": CARS, "online-products": ONLINE_PRODUCTS}
RESIZE_MODE_OF = {"online-products": "trim-letterbox"}  # from the authors' code; images of the other datasets are squashed
# Settings of the authors' code for a dataset that differ from the preset `paper`.
PAPER_ON: dict[str, dict[str, Any]] = {"cub": {"lr": 1e-6, "steps": 40_000}}

Plan = Mapping[str, TrainConfig]  # settings by the name of the run folder


def reproduce(
    name: str,
    data: str | Path,
    out: str | Path | None = None,
    *,
    preset: str | None = "paper",
    losses: Sequence[str] = LOSSES_OF_THE_PAPER,
    sizes: Sequence[int] = SIZES_OF_THE_PAPER,
    seeds: Sequence[int] = (0,),
    only: Sequence[str] | None = None,
    trunk: str | None = None,
    weights: str | Path | None = None,
    steps: int | None = None,
    crop: int | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> str:
    """Train with every loss and dimension, evaluate, and write a report with published results. Return a table of results.

    The dataset and all settings are checked before the first training. Finished runs are skipped, and a stopped run resumes.

    Args:
        name: name of the dataset, one of `DATASETS`.
        data: the dataset, as downloaded or prepared.
        out: output folder, created if missing. Default: `reproduce-NAME-PRESET`.
        preset: name of a preset in `liftedstruct.training.PRESETS`, or None for the default recipe.
        losses: names of the losses.
        sizes: dimensions of the embedding.
        seeds: seeds, one run per loss, dimension and seed.
        only: train only these runs of the plan, such as `triplet-64`. The report shows all finished runs.
        trunk: network below the head. Default: the preset's.
        weights: file with the trunk's weights, or "random".
        steps: training steps per run. Default: the preset's.
        crop: side of the center crop that is embedded, in pixels. Default: the preset's.
        force: continue even if the dataset is incomplete or was prepared with other settings.
        dry_run: return the plan with an estimate of its time, and train nothing.

    """
    dataset = pick(DATASETS, name, "the dataset")
    data, folder = Path(data), Path(f"reproduce-{name}-{preset or 'default'}" if out is None else out)
    ready = (data / META).is_file()
    settings = PAPER_ON.get(name, {}) if preset == "paper" else {}
    given = {"trunk": trunk, "weights": weights, "steps": steps, "crop": crop}
    settings = settings | {key: value for key, value in given.items() if value is not None}
    plan = {
        _run_name(loss, size, seed): configure(
            preset,
            loss,
            data=str(data if ready else folder / PREPARED),
            out=str(folder / _run_name(loss, size, seed)),
            **{
                **settings,
                "dim": check_count("sizes", size),
                "seed": check_count("seeds", seed, 0),
                "validate_every": 0,
            },
        )
        for seed in seeds
        for size in sizes
        for loss in losses
    }
    if not plan:
        raise ValueError("losses, sizes and seeds must each have at least one entry, got an empty one. Leave it out.")
    first = next(iter(plan.values()))
    chosen = plan if only is None else {run: pick(plan, run, "a run of the plan") for run in only}
    size, resize_mode = check_requirements(first), RESIZE_MODE_OF.get(name, "squash")
    if ready:
        packed = PackedImages(data)
        _check_whole(dataset, packed, data, force)
        _check_prepared(packed, size, resize_mode, force)
        check_requirements(first, packed.size)
    else:
        image_set = read_images(data, name)
        for warning in image_set.warnings:
            say(f"warning: {warning}")
        _check_whole(dataset, image_set, data, force)
    for config in plan.values():
        check_run(config)
    text = _plan_text(plan, chosen, f"{dataset.name}, preset {preset or 'default'}, output in {folder}", dataset)
    if dry_run:
        return text
    say(text)
    work = Steps(count_steps(list(chosen.values())) + (not ready))
    if not ready:
        with work.step(f"prepare {len(image_set):,} images"):
            packed = prepare_in(folder, image_set, size=size, resize_mode=resize_mode)
        _check_whole(dataset, packed, data, force)  # without the images that could not be decoded
    others = [config for run, config in plan.items() if run not in chosen and _is_done(config)]
    published = published_for(dataset.name)
    return run_plan(list(chosen.values()), packed, folder, work, also=others, published=published)


def _run_name(loss: str, size: int, seed: int) -> str:
    return f"{loss}-{size}" + (f"-seed-{seed}" if seed else "")


def _is_done(config: TrainConfig) -> bool:
    """Return whether a run is fully trained and embedded."""
    return RunFolder(config.out).is_finished() and all((Path(config.out) / name).is_file() for name in (EMBEDDER, EMBEDDINGS))


def _steps_left(config: TrainConfig) -> int:
    """Return the number of steps to run, at most; if the number is still to be chosen, the trial run counts too."""
    folder = RunFolder(config.out)
    state = folder.progress() if folder.has_run() else None
    return folder.config().steps - state["step"] if state else config.steps or 2 * config.max_steps


def _check_prepared(packed: PackedImages, size: int, resize_mode: str, force: bool) -> None:
    """Raise ValueError if the dataset was prepared with another size or resize mode, unless `force` is set."""
    if (packed.size, packed.resize_mode) != (size, resize_mode) and not force:
        raise ValueError(
            f"{packed.folder} must be prepared with --size {size} --resize-mode {resize_mode}, "
            f"got {packed.size} px and {packed.resize_mode}. Pass the dataset as downloaded, or --force."
        )


def _check_whole(dataset: KnownDataset, images: ImageSet | PackedImages, data: Path, force: bool) -> None:
    """Raise ValueError if this is another dataset, or an incomplete one, unless `force` is set."""
    name, found = images.name, (len(images.train), len(images.test))
    if name != dataset.name:
        raise ValueError(f"data must be {dataset.name}, got {name!r} in {data}. Pass the right folder or archive.")
    if found == dataset.images:
        return
    expected = f"{dataset.images[0]:,} training and {dataset.images[1]:,} test images"
    got = f"{found[0]:,} and {found[1]:,} in {data}"
    if not force:
        raise ValueError(f"{name} must have {expected}, got {got}. Download it again, or pass --force.")
    say(f"warning: {name} should have {expected}, got {got}: the scores cannot be compared with published scores")


def _plan_text(plan: Plan, chosen: Plan, title: str, dataset: KnownDataset) -> str:
    """Return the plan as text, with the estimated time of each run."""
    if all(_is_done(config) for config in chosen.values()):
        return f"plan: {title}\nall {len(chosen):,} runs are done"
    pace = measure_pace(next(iter(plan.values())))
    rows, total = [], dataset.images[1] / pace.embed  # embedding with the trunk before training
    ready = [config for run, config in plan.items() if run in chosen or _is_done(config)]
    widest = {shared_training(config): config for config in sorted(ready, key=lambda each: each.dim)}
    for run, config in plan.items():
        begun = RunFolder(config.out).has_run()
        narrow = not begun and widest.get(shared_training(config), config).dim > config.dim  # truncated, not trained
        left = 0 if narrow else _steps_left(config)
        seconds = left * config.batch_size / pace.train + dataset.images[1] / pace.embed
        if _is_done(config):
            status = "done"
        elif run not in chosen:
            status = "not selected"
        else:
            total += seconds
            status = "truncate" if narrow else "resume" if begun else "train"
            status += f", {'about' if config.steps or narrow else 'at most'} {duration(seconds)}"
        rows.append(f"  {run:<{max(map(len, plan))}}  {describe_run(config)}: {status}")
    lines = [f"plan: {title}", *rows]
    speed = f"{pace.train:.3g} images/s training and {pace.embed:.3g} images/s embedding, measured on noise"
    most = "about" if all(config.steps for config in chosen.values()) else "at most"
    lines.append(f"{most} {duration(total)} in total on this machine ({speed}), excluding preparation, evaluation and report")
    return "\n".join(lines)

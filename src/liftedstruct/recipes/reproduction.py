"""The paper's experiment on one of its datasets: every loss, every size of the embedding, and what others report beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from liftedstruct.data import CARS, CUB, META, ONLINE_PRODUCTS, ImageSet, KnownDataset, PackedImages, read_images
from liftedstruct.embeddings import EMBEDDINGS
from liftedstruct.figures import published_for
from liftedstruct.recipes.pace import measure_pace
from liftedstruct.recipes.plan import check_requirements, configure, count_steps, describe_run, run_plan
from liftedstruct.recipes.prepared import PREPARED, prepare_in
from liftedstruct.recipes.steps import Steps, duration
from liftedstruct.runtime.checks import check_count, pick
from liftedstruct.runtime.progress import say
from liftedstruct.training import RunFolder, TrainConfig, check_run

__all__ = ["DATASETS", "LOSSES_OF_THE_PAPER", "SIZES_OF_THE_PAPER", "reproduce"]

LOSSES_OF_THE_PAPER = ("contrastive", "triplet", "lifted_struct")  # its own last
SIZES_OF_THE_PAPER = (64, 128, 256, 512)
DATASETS: dict[str, KnownDataset] = {"cub": CUB, "cars": CARS, "online-products": ONLINE_PRODUCTS}
RESIZE_MODE_OF = {"online-products": "trim-letterbox"}  # as the authors' code has it; the others are squashed
# Where the authors' code has other settings for a dataset than the preset that follows the paper.
PAPER_ON: dict[str, dict[str, Any]] = {"cub": {"lr": 1e-6, "steps": 40_000}}

Plan = Mapping[str, TrainConfig]  # by the names of the runs' folders


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
    """Train with every loss and size, evaluate, and write a report with published results beside ours; a table of the results.

    Everything that can be wrong is checked before the first training. What is done already is skipped, and a training that
    was stopped resumes.

    Args:
        name: of the dataset, one of ``DATASETS``.
        data: where it is, as downloaded, or prepared already.
        out: folder for all of it, created if absent; default ``reproduce-NAME-PRESET``.
        preset: differences from the default recipe; None for the recipe itself.
        losses: what to train with.
        sizes: dimensions of the embedding.
        seeds: a training for each.
        only: train only these runs of the plan, such as ``triplet-64``; the report shows all that are done.
        trunk: network below the last layer, if not the preset's.
        weights: file with the trunk's weights.
        steps: training steps of every run, if not those of the preset.
        crop: side of what the network is shown, if not the preset's.
        force: go on if the data is incomplete.
        dry_run: return the plan with an estimate of its time, and do nothing.

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
        raise ValueError("losses, sizes and seeds must each have one entry or more, one of them has none. Leave it out.")
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
    text = _plan_text(plan, chosen, f"{dataset.name}, preset {preset or 'default'}, into {folder}", dataset)
    if dry_run:
        return text
    say(text)
    work = Steps(count_steps(list(chosen.values())) + (not ready))
    if not ready:
        with work.step(f"prepare {len(image_set):,} images"):
            packed = prepare_in(folder, image_set, size=size, resize_mode=resize_mode)
        _check_whole(dataset, packed, data, force)  # without what could not be read
    others = [folder / run for run in plan if run not in chosen and _is_done(plan[run])]
    published = published_for(dataset.name)
    return run_plan(list(chosen.values()), packed, folder, work, also=others, published=published)


def _run_name(loss: str, size: int, seed: int) -> str:
    return f"{loss}-{size}" + (f"-seed-{seed}" if seed else "")


def _is_done(config: TrainConfig) -> bool:
    """Whether a run is trained to its end and embedded."""
    return _steps_left(config) == 0 and (Path(config.out) / EMBEDDINGS).is_file()


def _steps_left(config: TrainConfig) -> int:
    folder = RunFolder(config.out)
    state = folder.progress() if folder.has_run() else None
    return config.steps - (state["step"] if state else 0)


def _check_prepared(packed: PackedImages, size: int, resize_mode: str, force: bool) -> None:
    """Raise if the images were prepared otherwise than this experiment would do it."""
    if (packed.size, packed.resize_mode) != (size, resize_mode) and not force:
        raise ValueError(
            f"{packed.folder} must be prepared with --size {size} --resize-mode {resize_mode}, "
            f"it is of {packed.size} px and {packed.resize_mode}. Name the data as downloaded, or pass --force."
        )


def _check_whole(dataset: KnownDataset, images: ImageSet | PackedImages, data: Path, force: bool) -> None:
    """Raise if this is other data, or less of it than all that report a score have used."""
    name, found = images.name, (len(images.train), len(images.test))
    if name != dataset.name:
        raise ValueError(f"data must be {dataset.name}, {data} holds {name!r}. Name the right folder or archive.")
    if found == dataset.images:
        return
    wanted = " and ".join(f"{n:,}" for n in dataset.images)
    got = f"{data} has {found[0]:,} and {found[1]:,}"
    if not force:
        raise ValueError(
            f"{name} must have {wanted} images to train on and to test, {got}. Download it again, or pass --force for scores "
            "that cannot be compared."
        )
    say(f"warning: {name} has {wanted} images, {got}; these scores cannot be compared with those of others")


def _plan_text(plan: Plan, chosen: Plan, title: str, dataset: KnownDataset) -> str:
    """What will be done and about how long each part takes."""
    if all(_is_done(config) for config in chosen.values()):
        return f"plan: {title}\nall {len(chosen):,} runs are done"
    pace = measure_pace(next(iter(plan.values())))
    rows, total = [], dataset.images[1] / pace.embed  # of the untrained trunk
    for run, config in plan.items():
        left = _steps_left(config)
        seconds = left * config.batch_size / pace.train + dataset.images[1] / pace.embed
        if _is_done(config):
            word = "done"
        elif run not in chosen:
            word = "not now"
        else:
            total += seconds
            word = f"{'train' if left == config.steps else 'resume'}, about {duration(seconds)}"
        rows.append(f"  {run:<{max(map(len, plan))}}  {describe_run(config)}: {word}")
    lines = [f"plan: {title}", *rows]
    rates = f"{pace.train:.3g} images/s to train, {pace.embed:.3g} to embed, measured now on noise"
    lines.append(
        f"about {duration(total)} in all on this machine ({rates}); preparing, evaluating and the report are not included"
    )
    return "\n".join(lines)

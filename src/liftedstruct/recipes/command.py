"""The commands ``liftedstruct demo``, ``fit`` and ``reproduce``; what trains and draws is imported when one is called."""

from pathlib import Path
from typing import Literal

from liftedstruct.arguments import names, open_data, whole_numbers
from liftedstruct.data import DEFAULT_SIZE, META

__all__ = ["demo_command", "fit_command", "reproduce_command"]


def demo_command(out: Path = Path("liftedstruct-demo"), seed: int = 0, full: bool = False) -> None:
    """Learn to tell rendered products apart by each loss, measure that on products never seen, and show it on a page.

    Args:
        out: folder for all of it, made if absent; a second run reuses what is there.
        seed: of the products, the batches and the crops.
        full: the version of an hour, with embeddings of 64, 128, 256 and 512 numbers and longer training.
    """
    from liftedstruct.recipes.demonstration import FULL, SHORT, demo

    print(demo(out, seed=seed, scale=FULL if full else SHORT))


def fit_command(
    data: str,
    out: Path = Path("fitted"),
    kind: str | None = None,
    test_classes: str | None = None,
    preset: str = "quick",
    dim: int = 64,
    trunk: str | None = None,
    weights: Path | None = None,
    steps: int | None = None,
    size: int | None = None,
    crop: int | None = None,
    fit: Literal["resize", "letterbox", "trim-letterbox"] = "resize",
    anyway: bool = False,
    seed: int = 0,
) -> None:
    """Learn an embedding of your own pictures: prepare, check-up, training, measurement and a page, in one command.

    Args:
        data: folder of class folders, CSV file or archive; or products:N for N rendered products.
        out: folder for all of it, made if absent; a second run reuses what is there.
        kind: layout of the data, if it is not to be recognised (see "liftedstruct list data").
        test_classes: fraction of the classes for the test, such as 0.3, or their names with commas between; half by default.
        preset: settings of the training (see "liftedstruct list presets").
        dim: numbers in an embedding.
        trunk: network below the last layer, if not the preset's (see "liftedstruct list trunks").
        weights: file with the trunk's weights, or random.
        steps: of the training; by default those of the preset, fewer for a small set.
        size: side of the prepared images in pixels; by default 256, more for crops that are larger.
        crop: side in pixels of what the network is shown, if not the preset's.
        fit: how a rectangle becomes a square.
        anyway: go on though the doctor found something serious.
        seed: every random choice descends from it.
    """
    from liftedstruct.recipes.fitting import fit as fit_images

    if (Path(data) / META).is_file():
        raise ValueError(f"data must be pictures, {data} is prepared already. Train on it: liftedstruct train {data} --out RUN")
    image_set = open_data(data, kind, test_classes, 0.0, seed, size or DEFAULT_SIZE)
    text = fit_images(
        image_set,
        out,
        preset=preset,
        dim=dim,
        trunk=trunk,
        weights=weights,
        steps=steps,
        size=size,
        crop=crop,
        fit=fit,
        anyway=anyway,
        seed=seed,
    )
    print(text)


def reproduce_command(
    name: Literal["cub", "cars", "online-products"],
    data: Path,
    out: Path | None = None,
    preset: str = "paper",
    losses: str = "contrastive,triplet,lifted_struct",
    sizes: str = "64,128,256,512",
    seeds: str = "0",
    only: str | None = None,
    trunk: str | None = None,
    weights: Path | None = None,
    steps: int | None = None,
    crop: int | None = None,
    anyway: bool = False,
    dry_run: bool = False,
) -> None:
    """Do the paper's experiment: train with every loss and size, measure, and put published numbers beside what comes out.

    Args:
        name: of the data set.
        data: where it is, as downloaded, or prepared already.
        out: folder for all of it, made if absent; by default reproduce-NAME-PRESET. A second run goes on.
        preset: settings of every training (see "liftedstruct list presets").
        losses: names with commas between.
        sizes: numbers in an embedding, with commas between.
        seeds: a training for each, with commas between.
        only: train only these runs of the plan, such as triplet-64, with commas between; the page shows all that are done.
        trunk: network below the last layer, if not the preset's (see "liftedstruct list trunks").
        weights: file with the trunk's weights, which the preset paper needs.
        steps: training steps of every run, if not those of the preset.
        crop: side in pixels of what the network is shown, if not the preset's.
        anyway: go on if images are missing; the scores cannot be compared with those of others then.
        dry_run: print what would be done and about how long it would take, and do nothing.
    """
    from liftedstruct.recipes.reproduction import reproduce

    text = reproduce(
        name,
        data,
        out,
        preset=preset,
        losses=names("--losses", losses),
        sizes=whole_numbers("--sizes", sizes),
        seeds=whole_numbers("--seeds", seeds),
        only=None if only is None else names("--only", only),
        trunk=trunk,
        weights=weights,
        steps=steps,
        crop=crop,
        anyway=anyway,
        dry_run=dry_run,
    )
    print(text)

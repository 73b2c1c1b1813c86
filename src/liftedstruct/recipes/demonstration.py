"""The whole pipeline on rendered products: from nothing to a report of what each loss learned."""

from dataclasses import dataclass
from pathlib import Path

from liftedstruct.data.products import write_products
from liftedstruct.recipes.plan import check_requirements, configure, count_steps, run_plan
from liftedstruct.recipes.prepared import PREPARED, check_data, prepare_in
from liftedstruct.recipes.reproduction import LOSSES_OF_THE_PAPER, SIZES_OF_THE_PAPER
from liftedstruct.recipes.steps import Steps
from liftedstruct.runtime.checks import check_count
from liftedstruct.trunks import DEFAULT_TRUNK

__all__ = ["FULL", "SHORT", "Scale", "demo"]

PIXELS, CROP = 144, 128  # sides of the images and of the crops, in pixels


@dataclass(frozen=True)
class Scale:
    """How much of it."""

    name: str
    products: int
    steps: int
    sizes: tuple[int, ...]
    trunk: str = DEFAULT_TRUNK
    batch: int = 60  # images, which pairs of pairs, triplets and couples divide: as many for every loss


SHORT = Scale("short", products=600, steps=100, sizes=(64,))
FULL = Scale("full", products=1000, steps=250, sizes=SIZES_OF_THE_PAPER)


def demo(out: str | Path, *, seed: int = 0, scale: Scale = SHORT) -> str:
    """Learn to tell rendered products apart by each loss, measure that on products never seen; the table of it.

    Every loss has the same trunk and sees as many images; its settings are those of the preset ``quick``.

    Args:
        out: folder for all of it, created if absent; what is there already is reused.
        seed: of the products, the batches and the crops.
        scale: how much of it.

    """
    folder = Path(out) / f"{scale.name}-seed-{check_count('seed', seed, 0)}"
    configs = [
        configure(
            "quick",
            loss,
            data=str(folder / PREPARED),
            out=str(folder / f"{loss}-{dim}"),
            trunk=scale.trunk,
            dim=dim,
            steps=scale.steps,
            batch_size=scale.batch,
            crop=CROP,
            validate_every=0,
            seed=seed,
        )
        for dim in scale.sizes
        for loss in LOSSES_OF_THE_PAPER
    ]
    check_requirements(configs[0], PIXELS)
    steps = Steps(count_steps(configs) + 3)
    with steps.step(f"render images of {scale.products:,} products"):
        image_set = write_products(folder / "photos", n_classes=scale.products, size=PIXELS, seed=seed)
    with steps.step(f"prepare {len(image_set):,} images"):
        packed = prepare_in(folder, image_set, size=PIXELS)
    with steps.step("check them"):
        check_data(image_set, packed, folder, force=True)  # of very many products two may look alike
    return run_plan(configs, packed, folder, steps)

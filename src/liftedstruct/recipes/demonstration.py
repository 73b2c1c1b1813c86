"""Demo: the complete pipeline on rendered products, from rendering to a report that compares the losses."""

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

PIXELS, CROP = 144, 128  # sides of the prepared images and of the crops, in pixels


@dataclass(frozen=True)
class Scale:
    """Size of the demo."""

    name: str
    products: int
    steps: int
    sizes: tuple[int, ...]
    trunk: str = DEFAULT_TRUNK
    batch: int = 60  # a multiple of 4, 3 and 2, so that batches have the same size for every loss


SHORT = Scale("short", products=600, steps=100, sizes=(64,))
FULL = Scale("full", products=1000, steps=250, sizes=SIZES_OF_THE_PAPER)


def demo(out: str | Path, *, seed: int = 0, scale: Scale = SHORT) -> str:
    """Train on rendered products with each loss, evaluate on test classes, and write an HTML report. Return a table of results.

    All runs fine-tune the same trunk on the same number of images, with the settings of the preset `quick`.

    Args:
        out: output folder, created if missing. Existing results are reused.
        seed: seed of the products, batches and crops.
        scale: size of the demo.

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
    with steps.step(f"render {scale.products:,} products"):
        image_set = write_products(folder / "photos", n_classes=scale.products, size=PIXELS, seed=seed)
    with steps.step(f"prepare {len(image_set):,} images"):
        packed = prepare_in(folder, image_set, size=PIXELS)
    with steps.step("check the images"):
        check_data(image_set, packed, folder, force=True)  # among many products, two may look alike
    return run_plan(configs, packed, folder, steps)

"""Demo: the complete pipeline on rendered products, from rendering to a report and a search among products never seen."""

from dataclasses import dataclass
from pathlib import Path

from liftedstruct.catalog import Answer, Catalog, answers_picture
from liftedstruct.data import ImageSet
from liftedstruct.data.products import write_products
from liftedstruct.recipes.plan import check_requirements, configure, count_steps, run_plan
from liftedstruct.recipes.prepared import PREPARED, check_data, prepare_in
from liftedstruct.recipes.reproduction import LOSSES_OF_THE_PAPER, SIZES_OF_THE_PAPER
from liftedstruct.recipes.steps import Steps
from liftedstruct.runtime.atomic import replacing
from liftedstruct.runtime.checks import check_count
from liftedstruct.trunks import DEFAULT_TRUNK

__all__ = ["FULL", "SHORT", "Scale", "demo"]

PIXELS, CROP = 144, 128  # sides of the prepared images and of the crops, in pixels
SHOWN = 6  # queries in the picture


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
    """Train on rendered products with each loss, evaluate on test classes, write an HTML report, and search a catalog.

    The catalog holds the images of the test products, which were not seen in training, except for one query each. Return a
    table of results and some answers.

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
    steps = Steps(count_steps(configs) + 4)
    with steps.step(f"render {scale.products:,} products"):
        image_set = write_products(folder / "photos", n_classes=scale.products, size=PIXELS, seed=seed)
    with steps.step(f"prepare {len(image_set):,} images"):
        packed = prepare_in(folder, image_set, size=PIXELS)
    with steps.step("check the images"):
        check_data(image_set, packed, folder, force=True)  # among many products, two may look alike
    table = run_plan(configs, packed, folder, steps)
    with steps.step("search a catalog of the test products"):
        found = _search(folder, image_set, Path(configs[-1].out))
    return f"{table}\n\n{found}"


def _search(folder: Path, image_set: ImageSet, run: Path) -> str:
    """Put the images of the test classes into a catalog, search it for one image of each, and describe some answers."""
    root, queries, rows = folder / "photos", dict[str, str](), list[tuple[str, str]]()
    for path, label in zip(image_set.paths, image_set.labels, strict=True):
        product = image_set.class_names[label]
        if image_set.parts[label] == "test":
            if product in queries:
                rows.append((f"{root.name}/{path}", product))
            else:
                queries[product] = str(root / path)
    table = folder / "catalog.csv"
    with replacing(table) as file:
        file.write("".join(f"{path},{product}\n" for path, product in [("path", "product"), *rows]).encode())
    with Catalog.open(folder / "catalog", model=run) as catalog:
        catalog.add(table, prune=True, new_model=True, progress=True)
        answers = catalog.search(list(queries.values()), k=5, group_by="product")
    hits = sum(answer.product == product for product, answer in zip(queries, answers, strict=True))
    picture = folder / "search.png"
    with replacing(picture) as file:
        answers_picture(list(queries.values())[:SHOWN], answers[:SHOWN]).save(file, "png")
    lines = [
        f"Search: one image of each of {len(queries):,} products not seen in training, in a catalog of {len(rows):,} others.",
        f"For {hits / len(queries):.1%} of the queries, the nearest image shows the same product. Some answers:",
        *(_describe(root, query, answer) for query, answer in list(zip(queries.values(), answers, strict=True))[:3]),
        f"See {picture.absolute()}, or try: liftedstruct search {folder / 'catalog'} PHOTO",
        f"Walk it in a browser: liftedstruct explore {folder / 'catalog'}",
    ]
    return "\n".join(lines)


def _describe(root: Path, query: str, answer: Answer) -> str:
    near = ", ".join(f"{match.product} ({match.distance:.3f})" for match in answer.matches[:3])
    return f"  {Path(query).relative_to(root)}: {near}"

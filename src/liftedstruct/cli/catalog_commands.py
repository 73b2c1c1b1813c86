"""The commands of a catalog. Each is a thin wrapper around a method of `Catalog`."""

import json as json_format
from pathlib import Path
from typing import Any

from liftedstruct.cli.arguments import names
from liftedstruct.runtime.atomic import replacing
from liftedstruct.runtime.checks import check_out
from liftedstruct.runtime.progress import say

__all__ = ["add", "calibrate", "measure", "remove", "search", "status"]


def add(
    store: str,
    images: list[Path],
    run: Path | None = None,
    prune: bool = False,
    new_model: bool = False,
    index: str | None = None,
    batch_size: int = 64,
    device: str | None = None,
) -> int:
    """Add images to a catalog: embed those that are new or have changed. The same command resumes a stopped one.

    Args:
        store: folder of the catalog, created if missing; or postgresql://user@host:port/database#name,
            milvus://host:port#name or milvus:file.db#name.
        images: folders of images, CSV files with a column path, and images. The product of an image is its folder, or the
            column product or label; its id is its path in the folder, or the column id; other columns are metadata.
        run: run folder, embedder file or exported folder of the model. Default: the model of the catalog.
        prune: remove the items that are not among the images.
        new_model: embed all images again with another model, and replace the catalog when that is done.
        index: comma-separated metadata fields to index, so that filters by them are fast.
        batch_size: images per forward pass.
        device: cpu, cuda or cuda:N. Default: cuda if available.
    """
    from liftedstruct.catalog import Catalog
    from liftedstruct.embedder import load
    from liftedstruct.training import find_device

    model = None if run is None else load(run).to(find_device(device))
    with Catalog.open(store, model) as catalog:
        if run is None:
            catalog.embedder.to(find_device(device))
        added = catalog.add(list(images), prune=prune, new_model=new_model, batch_size=batch_size, progress=True)
        for field in names("--index", index) if index else ():
            catalog.index_field(field)
        for file, reason in added.unreadable.items():
            say(f"warning: {file} is left out: {reason}")
        print(f"{catalog.count():,} items in {store}: {added}")
    return 1 if added.unreadable and not (added.added + added.updated + added.unchanged) else 0


def search(
    store: str,
    photos: list[Path],
    k: int = 10,
    where: str | None = None,
    group_by: str | None = None,
    index: str = "exact",
    run: Path | None = None,
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Find the products of a catalog that are nearest to a photo.

    Args:
        store: folder or address of the catalog.
        photos: image files, or folders of them.
        k: number of matches.
        where: filter by metadata, id or product, such as "category = chair and price < 100".
        group_by: show only the nearest image for each value of this field, such as product.
        index: exact, or the name of an approximate index, such as hnsw.
        run: run folder, embedder file or exported folder of the model, if the catalog cannot find its own.
        json: print the answers as JSON.
        out: .png file for a picture of each photo with its matches.
    """
    from liftedstruct.catalog import Catalog, answers_picture
    from liftedstruct.data import list_files

    if out is not None and check_out("--out", out).suffix.lower() != ".png":
        raise ValueError(f"--out must be a .png file, got {out}. Rename it.")
    files, _ = list_files(photos)
    with Catalog.open(store) as catalog:
        if run is not None:
            catalog.use(run)
        bad: dict[int, str] = {}
        Q = catalog.embedder.encode(files, unreadable=bad)
        for i, reason in bad.items():
            say(f"warning: {files[i]} is left out: {reason}")
        if not len(Q):
            raise ValueError(f"photos must hold at least one readable image, got none of {len(files)}. Check the files.")
        answers = catalog.search(Q, k, where, group_by, index)
        threshold = (catalog.record.get("calibration") or {}).get("threshold")
    read = [file for i, file in enumerate(files) if i not in bad]
    if out is not None:
        with replacing(out) as stream:
            answers_picture(read, answers).save(stream, "png")
    if json:
        print(
            json_format.dumps(
                [
                    {"query": file, "verdict": answer.verdict, "margin": answer.margin, "threshold": threshold}
                    | {"matches": [vars(match) for match in answer.matches]}
                    for file, answer in zip(read, answers, strict=True)
                ]
            )
        )
        return
    for file, answer in zip(read, answers, strict=True):
        first = answer.matches[0].product or answer.matches[0].id if answer.matches else "nothing in the catalog"
        verdict = f" ({answer.verdict})" if answer.verdict else ""
        margin = "" if answer.margin is None else f", margin {answer.margin:.3f} to the next product"
        print(f"{file}: {first}{verdict}{margin}")
        for match in answer.matches:
            fields = " ".join(f"{name}={value}" for name, value in match.metadata.items())
            print(f"  {match.rank:>3}  {match.distance:.4f}  {match.product:<20}  {match.id}  {fields}".rstrip())


def remove(store: str, ids: list[str]) -> None:
    """Remove items from a catalog.

    Args:
        store: folder or address of the catalog.
        ids: ids of the items.
    """
    from liftedstruct.catalog import Catalog

    with Catalog.open(store) as catalog:
        removed = catalog.remove(ids)
        print(f"{removed:,} of {len(ids):,} items removed, {catalog.count():,} left in {store}")


def status(store: str) -> None:
    """Show what a catalog holds: items, products, model, calibration, indexed fields, and images that are gone.

    Args:
        store: folder or address of the catalog.
    """
    from liftedstruct.catalog import Catalog

    with Catalog.open(store) as catalog:
        print(catalog.status())


def calibrate(store: str, false_match_rate: float = 0.01, queries: list[Path] = [], seed: int = 0) -> None:  # noqa: B006
    """Learn the distance up to which a photo counts as a match, and measure the false-match rate on other products.

    Args:
        store: folder or address of the catalog.
        false_match_rate: requested rate of photos of absent products that are matched.
        queries: folders, CSV files and images with their products, such as photos of customers. Default: the images of the
            catalog.
        seed: seed of the choice of products to learn on.
    """
    from liftedstruct.catalog import Catalog
    from liftedstruct.catalog.calibration import calibrate as calibrate_catalog

    with Catalog.open(store) as catalog:
        print(calibrate_catalog(catalog, false_match_rate, queries or None, seed, progress=True))


def measure(store: str, index: str = "hnsw", k: int = 10, queries: list[Path] = [], n: int = 500, seed: int = 0) -> None:  # noqa: B006
    """Measure the recall, latency and memory of an approximate index beside the exact search.

    Args:
        store: folder or address of the catalog.
        index: name of the index; it is built if there is none.
        k: number of matches.
        queries: image files or folders of them. Default: images of the catalog.
        n: number of images of the catalog to draw as queries.
        seed: seed of the choice.
    """
    from liftedstruct.catalog import Catalog
    from liftedstruct.catalog.measuring import measure as measure_index
    from liftedstruct.data import list_files

    with Catalog.open(store) as catalog:
        Q: Any = catalog.embedder.encode(list_files(queries)[0], progress=True) if queries else None
        print(measure_index(catalog, index, Q, k, n, seed))

"""Preparation and check of the dataset of a recipe."""

import json
from pathlib import Path
from typing import Any

from liftedstruct.data import ImageSet, OtherDatasetError, PackedImages, check_dataset, prepare
from liftedstruct.runtime.atomic import write_json
from liftedstruct.runtime.progress import say

__all__ = ["PREPARED", "check_data", "prepare_in", "read_kept"]

KEPT, PREPARED = "check.json", "prepared"  # names in the output folder


def prepare_in(folder: Path, image_set: ImageSet, **settings: Any) -> PackedImages:
    """Prepare the images in the output folder of a recipe, with the settings of `liftedstruct.prepare`."""
    try:
        return prepare(image_set, folder / PREPARED, **settings)
    except OtherDatasetError as error:
        raise ValueError(f"{error.what}. Choose another --out, or remove {folder}.") from error


def check_data(image_set: ImageSet, packed: PackedImages, folder: Path, force: bool = False) -> None:
    """Check the dataset and print the result. Raise ValueError if there are serious issues, unless `force` is set.

    The result is saved in the folder, so that the same dataset is not checked again.
    """
    found = read_kept(folder / KEPT)
    whole = isinstance(found, dict) and found.keys() == {"checksum", "serious", "text"}
    if not whole or found["checksum"] != packed.checksum:
        check_up = check_dataset(image_set)
        found = {"checksum": packed.checksum, "serious": check_up.serious, "text": str(check_up)}
        write_json(folder / KEPT, found)
    say("\n".join(f"      {line}" for line in found["text"].splitlines() if line))
    if found["serious"] and not force:
        raise ValueError(
            f"{image_set.root} must have no serious issues, see above. Fix them, or write a list without the affected images "
            "with 'liftedstruct check --fix', or pass --force."
        )


def read_kept(file: Path) -> Any:
    """Read a JSON file of an earlier run. Return None if it is missing or corrupt."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None

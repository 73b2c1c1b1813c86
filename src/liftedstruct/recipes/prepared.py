"""The data of a recipe: prepared once, and checked."""

import json
from pathlib import Path
from typing import Any

from liftedstruct.data import ImageSet, OtherDatasetError, PackedImages, check_dataset, prepare
from liftedstruct.runtime.atomic import write_json
from liftedstruct.runtime.progress import say

__all__ = ["PREPARED", "check_data", "prepare_in", "read_kept"]

KEPT, PREPARED = "check.json", "prepared"  # their names in the folder of an experiment


def prepare_in(folder: Path, image_set: ImageSet, **settings: Any) -> PackedImages:
    """Prepare the images in the folder of an experiment, with the settings of :func:`liftedstruct.prepare`."""
    try:
        return prepare(image_set, folder / PREPARED, **settings)
    except OtherDatasetError as error:
        raise ValueError(f"{error.what}. Choose another --out, or remove {folder}.") from error


def check_data(image_set: ImageSet, packed: PackedImages, folder: Path, force: bool = False) -> None:
    """Print what the check of a dataset finds; raise if that is serious, unless forced.

    What was found is kept in the folder, so that the same data is not looked at again.
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
            f"{image_set.root} must be free of serious issues, see above. Fix them, or leave those images out "
            "by a list, which 'liftedstruct check' writes with --fix, or pass --force."
        )


def read_kept(file: Path) -> Any:
    """What an experiment has written to a JSON file; None if it is not there, or broken."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None

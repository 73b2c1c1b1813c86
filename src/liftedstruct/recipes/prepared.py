"""The data of an experiment: prepared once, and looked at by the doctor, who stops what would be in vain."""

import json
from pathlib import Path
from typing import Any

from liftedstruct.data import ImageSet, OtherDatasetError, PackedImages, check_dataset, prepare
from liftedstruct.runtime.atomic import write_json
from liftedstruct.runtime.progress import say

__all__ = ["PREPARED", "consult", "prepare_in", "read_kept"]

KEPT, PREPARED = "doctor.json", "prepared"  # their names in the folder of an experiment


def prepare_in(folder: Path, image_set: ImageSet, **settings: Any) -> PackedImages:
    """Prepare the images in the folder of an experiment, with the settings of :func:`liftedstruct.prepare`."""
    try:
        return prepare(image_set, folder / PREPARED, **settings)
    except OtherDatasetError as error:
        raise ValueError(f"{error.what}. Choose another --out, or remove {folder}.") from error


def consult(image_set: ImageSet, packed: PackedImages, folder: Path, anyway: bool = False) -> None:
    """Say what the doctor finds; raise if that is serious, unless told to go on anyway.

    What was found is kept in the folder, so that the same data is not looked at again.
    """
    found = read_kept(folder / KEPT)
    whole = isinstance(found, dict) and found.keys() == {"checksum", "serious", "text"}
    if not whole or found["checksum"] != packed.checksum:
        check_up = check_dataset(image_set)
        found = {"checksum": packed.checksum, "serious": check_up.serious, "text": str(check_up)}
        write_json(folder / KEPT, found)
    say("\n".join(f"      {line}" for line in found["text"].splitlines() if line))
    if found["serious"] and not anyway:
        raise ValueError(
            f"{image_set.root} must be free of what the doctor calls serious, see above. Mend that, or leave those images out "
            "by a list, which 'liftedstruct doctor' writes with --fix, or pass --anyway."
        )


def read_kept(file: Path) -> Any:
    """What an experiment has written to a JSON file; None if it is not there, or broken."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None

"""The files of a packed set, each written so that it is never half there."""

import json
from pathlib import Path
from typing import Any

__all__ = [
    "CONTENTS",
    "CONTENTS_PART",
    "EDGE",
    "HEADER",
    "IMAGES",
    "LABELS",
    "LEFT_OUT",
    "LOCK",
    "META",
    "PART",
    "PATHS",
    "PROGRESS",
    "SIZE",
    "VERSION",
    "npy_header",
    "read_record",
]

VERSION = 2
SIZE = 256  # side of the images, the paper's
EDGE = 8 / 7  # images are so much larger than the crops, about: 256 for 224
IMAGES, LABELS, CONTENTS, PATHS, META = "images.npy", "labels.npy", "contents.npy", "paths.json", "meta.json"
PART, CONTENTS_PART, PROGRESS = "images.npy.part", "contents.part", "progress.json"  # there while a prepare is not finished
LEFT_OUT = "left-out.json"  # there after a prepare that found too many images unreadable, until one succeeds
LOCK = "prepare.lock"  # there while one runs
HEADER = 128  # bytes before the first pixel: the .npy header, padded, so that n can be filled in at the end


def read_record(file: Path) -> dict[str, Any] | None:
    """What prepare wrote into one of its records; None where there is no such file, or it is not of prepare."""
    try:
        record = json.loads(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("format") == "liftedstruct packed" else None


def npy_header(n: int, size: int) -> bytes:
    """The head of a version 1.0 .npy file, in exactly ``HEADER`` bytes."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({n}, {size}, {size}, 3), }}"
    return b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + text.ljust(HEADER - 11).encode("ascii") + b"\n"

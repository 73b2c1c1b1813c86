"""Parsing of command arguments: datasets, classes, and lists of numbers or names."""

import math
from pathlib import Path

from liftedstruct.data import ImageSet, read_images
from liftedstruct.runtime.progress import say

__all__ = ["fraction_or_names", "fractions", "names", "open_data", "whole_numbers"]


def open_data(
    data: str,
    kind: str | None,
    test_classes: str | None,
    validation: float,
    seed: int,
    size: int = 128,
    decisions: Path | None = None,
) -> ImageSet:
    """Open the dataset that a command names."""
    if data.startswith("products:") and not Path(data).exists():
        from liftedstruct.data.products import product_images

        number = data.removeprefix("products:")
        if not number.isdecimal():
            raise ValueError(f"products:N must have a number of classes, got {data!r}. Pass, for example, products:1000.")
        if kind or test_classes:
            raise ValueError(f"{data} has its own layout and split, got --kind or --test-classes. Leave them out.")
        image_set = product_images(int(number), size=size, seed=seed)
        if decisions is not None:
            raise ValueError(f"--decisions must be given with images that are files, got {data}. Leave it out.")
        return image_set.with_validation(validation, seed) if validation else image_set
    classes = fraction_or_names(test_classes)
    image_set = read_images(data, kind, test_classes=classes, validation=validation, seed=seed, decisions=decisions)
    for warning in image_set.warnings:
        say(f"warning: {warning}")
    return image_set


def fraction_or_names(text: str | None) -> float | list[str] | None:
    """Parse a fraction between 0 and 1, such as 0.3, or comma-separated names; 001 is a name."""
    if text is None:
        return None
    try:
        fraction = float(text)
    except ValueError:
        fraction = math.nan
    return fraction if 0 < fraction < 1 else text.split(",")


def whole_numbers(flag: str, text: str) -> list[int]:
    """Parse comma-separated whole numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise ValueError(f"{flag} must be comma-separated whole numbers, got {text!r}. Pass, for example, {flag} 1,2,4,8.")
    return [int(part) for part in parts]


def fractions(flag: str, text: str) -> list[float]:
    """Parse comma-separated fractions between 0 and 1."""
    found = [fraction_or_names(part) for part in text.split(",")]
    if not all(isinstance(each, float) for each in found):
        raise ValueError(
            f"{flag} must be comma-separated numbers between 0 and 1, got {text!r}. Pass, for example, {flag} 0.01."
        )
    return [float(each) for each in found if isinstance(each, float)]


def names(flag: str, text: str) -> list[str]:
    """Parse comma-separated names."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts) or len(set(parts)) < len(parts):
        raise ValueError(f"{flag} must be distinct comma-separated names, got {text!r}. Remove empty or repeated names.")
    return parts

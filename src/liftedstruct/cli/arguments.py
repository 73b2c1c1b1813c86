"""What the arguments of commands stand for: a dataset, a choice of classes, a list of numbers or names."""

import math
from pathlib import Path

from liftedstruct.data import ImageSet, read_images
from liftedstruct.runtime.progress import say

__all__ = ["fraction_or_names", "names", "open_data", "whole_numbers"]


def open_data(data: str, kind: str | None, test_classes: str | None, validation: float, seed: int, size: int = 128) -> ImageSet:
    """The dataset that a command names."""
    if data.startswith("products:") and not Path(data).exists():
        from liftedstruct.data.products import product_images

        number = data.removeprefix("products:")
        if not number.isdecimal():
            raise ValueError(f"products:N must have a number of classes, got {data!r}. Try products:1000.")
        if kind or test_classes:
            raise ValueError(f"{data} has its own layout and split, got --kind or --test-classes. Leave them out.")
        image_set = product_images(int(number), size=size, seed=seed)
        return image_set.with_validation(validation, seed) if validation else image_set
    image_set = read_images(data, kind, test_classes=fraction_or_names(test_classes), validation=validation, seed=seed)
    for warning in image_set.warnings:
        say(f"warning: {warning}")
    return image_set


def fraction_or_names(text: str | None) -> float | list[str] | None:
    """0.3 is a fraction; anything else is names, also 001."""
    if text is None:
        return None
    try:
        fraction = float(text)
    except ValueError:
        fraction = math.nan
    return fraction if 0 < fraction < 1 else text.split(",")


def whole_numbers(flag: str, text: str) -> list[int]:
    """1,2,4 as numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise ValueError(f"{flag} must be whole numbers separated by commas, got {text!r}. Try {flag} 1,2,4,8.")
    return [int(part) for part in parts]


def names(flag: str, text: str) -> list[str]:
    """mug,lamp as names."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts) or len(set(parts)) < len(parts):
        raise ValueError(f"{flag} must be names separated by commas, each once, got {text!r}. Leave out what is empty.")
    return parts

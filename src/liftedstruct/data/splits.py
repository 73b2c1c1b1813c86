"""Random splits by class that keep classes with nearly the same name together.

`Red chair` and `red  chair` in different parts of a split would be a leak, so no random split separates class names that
differ only in case, whitespace or Unicode normalization.
"""

from collections.abc import Iterable, Sequence
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from liftedstruct.runtime.checks import as_number

__all__ = ["NAME_VARIATION", "group_by_name", "hold_out", "name_key"]

NAME_VARIATION = "case, whitespace or Unicode normalization"


def hold_out(
    classes: Iterable[int], class_names: Sequence[str], fraction: float, *, seed: Sequence[int], keep: int = 1
) -> NDArray[np.int64]:
    """Return a random fraction of the classes, sorted: at least one class, and at most all but `keep`.

    Classes whose names differ only in case, whitespace or Unicode normalization count as one and are held out together.

    Args:
        classes: class numbers to draw from.
        class_names: names of all classes, by class number.
        fraction: fraction of the classes to hold out, between 0 and 1.
        seed: seed of the random generator.
        keep: minimum number of classes that are not held out.

    Examples:
        >>> hold_out(range(4), ["Red chair", "sofa", "red  chair ", "lamp"], 0.3, seed=[0])
        array([3])
    """
    if not 0 < as_number(fraction) < 1:
        raise ValueError(f"the fraction of classes to hold out must be between 0 and 1, got {fraction}. Try 0.2.")
    groups = group_by_name(classes, class_names)
    if len(groups) <= keep:
        raise ValueError(
            f"holding out classes requires at least {keep + 1} whose names differ in more than {NAME_VARIATION}, "
            f"got {len(groups)}. Add classes, or rename them."
        )
    n = min(len(groups) - keep, max(1, round(fraction * len(groups))))
    drawn = np.random.default_rng(seed).choice(len(groups), n, replace=False)
    return np.sort(np.concatenate([groups[i] for i in drawn]))


def group_by_name(classes: Iterable[int], class_names: Sequence[str]) -> list[list[int]]:
    """Group class numbers by `name_key`, in the order of each group's first class.

    Examples:
        >>> group_by_name(range(3), ["Red chair", "sofa", "red  chair "])
        [[0, 2], [1]]
    """
    groups: dict[str, list[int]] = {}
    for c in classes:
        groups.setdefault(name_key(class_names[c]), []).append(int(c))
    return list(groups.values())


def name_key(name: str) -> str:
    """Normalize case, whitespace and Unicode of a class name."""
    return " ".join(normalize("NFKC", normalize("NFKC", name).casefold()).split())

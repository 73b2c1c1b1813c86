"""Class names that are most likely meant to be one: they differ only in case, blanks or Unicode form.

``Red chair`` and ``red  chair`` in the two halves of a split would be a leak, so no split that is drawn separates such names.
"""

from collections.abc import Iterable, Sequence
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

__all__ = ["SMALL_DIFFERENCES", "draw", "group_by_name", "name_key"]

SMALL_DIFFERENCES = "case, blanks or Unicode form"


def group_by_name(classes: Iterable[int], class_names: Sequence[str]) -> list[list[int]]:
    """Class numbers in groups, each of one name but for small differences; a group stands where its first class did.

    >>> group_by_name(range(3), ["Red chair", "sofa", "red  chair "])
    [[0, 2], [1]]
    """
    groups: dict[str, list[int]] = {}
    for c in classes:
        groups.setdefault(name_key(class_names[c]), []).append(int(c))
    return list(groups.values())


def draw(groups: Sequence[Sequence[int]], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The classes of n groups, sorted."""
    return np.sort(np.concatenate([groups[i] for i in rng.choice(len(groups), n, replace=False)]))


def name_key(name: str) -> str:
    """A name without the small differences."""
    return " ".join(normalize("NFKC", normalize("NFKC", name).casefold()).split())

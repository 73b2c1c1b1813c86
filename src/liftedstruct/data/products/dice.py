"""Random choices that are the same everywhere: Mersenne Twister by a text, and nothing of it but ``random()``.

The other methods of :class:`random.Random` may change between versions of Python; this one is promised not to.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["Dice"]

T = TypeVar("T")


class Dice:
    """Draws from one stream; equal keys give equal streams.

    >>> Dice("chair", 7).whole(1, 100) == Dice("chair", 7).whole(1, 100)
    True
    """

    def __init__(self, *key: object) -> None:
        self._random = random.Random(" ".join(map(str, key))).random

    def __call__(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * self._random()

    def whole(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + int(self._random() * (high - low + 1))

    def chance(self, p: float) -> bool:
        """True with probability ``p``."""
        return self._random() < p

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[int(self._random() * len(options))]

    def near(self, spread: float = 1.0) -> float:
        """About a normal deviate: mean 0, standard deviation ``spread``."""
        return spread * 2 * (self._random() + self._random() + self._random() - 1.5)

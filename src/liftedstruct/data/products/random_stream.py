"""Reproducible random draws: a Mersenne Twister seeded by a string, using only `random()`.

Python guarantees only the sequence of `random.Random.random()` across versions, not the results of other methods.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["RandomStream"]

T = TypeVar("T")


class RandomStream:
    """Stream of random draws; equal keys give equal streams. Calling it draws a uniform number.

    Examples:
        >>> RandomStream("chair", 7).integer(1, 100) == RandomStream("chair", 7).integer(1, 100)
        True
    """

    def __init__(self, *key: object) -> None:
        self._random = random.Random(" ".join(map(str, key))).random

    def __call__(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * self._random()

    def integer(self, low: int, high: int) -> int:
        """Draw an integer from `low` to `high`, inclusive."""
        return low + int(self._random() * (high - low + 1))

    def chance(self, p: float) -> bool:
        """Return True with probability `p`."""
        return self._random() < p

    def choice(self, options: Sequence[T]) -> T:
        """Draw one of the options; a single option does not advance the stream."""
        return options[int(self._random() * len(options))] if len(options) > 1 else options[0]

    def normal(self, std: float = 1.0) -> float:
        """Draw an approximately normal number with mean 0 and standard deviation `std`."""
        return std * 2 * (self._random() + self._random() + self._random() - 1.5)

"""Random draws that are the same everywhere: Mersenne Twister seeded by a text, and nothing of it but ``random()``.

The other methods of :class:`random.Random` may change between versions of Python; this one is promised not to.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["RandomStream"]

T = TypeVar("T")


class RandomStream:
    """Draws from one stream; equal keys give equal streams. Calling it draws a uniform number.

    >>> RandomStream("chair", 7).integer(1, 100) == RandomStream("chair", 7).integer(1, 100)
    True
    """

    def __init__(self, *key: object) -> None:
        self._random = random.Random(" ".join(map(str, key))).random

    def __call__(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * self._random()

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return low + int(self._random() * (high - low + 1))

    def chance(self, p: float) -> bool:
        """True with probability ``p``."""
        return self._random() < p

    def choice(self, options: Sequence[T]) -> T:
        """One of the options; nothing is drawn if there is only one."""
        return options[int(self._random() * len(options))] if len(options) > 1 else options[0]

    def normal(self, std: float = 1.0) -> float:
        """About a normal deviate: mean 0, standard deviation ``std``."""
        return std * 2 * (self._random() + self._random() + self._random() - 1.5)

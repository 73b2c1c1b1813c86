"""Numbered steps of a recipe, printed to stderr, and formatted durations."""

import contextlib
import time
from collections.abc import Iterator

from liftedstruct.runtime.progress import say

__all__ = ["Steps", "duration"]


class Steps:
    """Counter that prints each step: `[3/8] train contrastive, 64 dimensions`.

    Args:
        total: number of steps.

    """

    def __init__(self, total: int) -> None:
        self.total, self.done, self.start = total, 0, time.monotonic()

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Run one step in a `with` block."""
        self.done += 1
        say(f"[{self.done}/{self.total}] {what}")
        try:
            yield
        except KeyboardInterrupt:
            say(f"stopped in step {self.done} of {self.total}. Finished work is kept: run the same command again to resume.")
            raise

    @property
    def took(self) -> str:
        """Time since the start, formatted."""
        return duration(time.monotonic() - self.start)


def duration(seconds: float) -> str:
    """Format a number of seconds with a suitable unit.

    Examples:
        >>> [duration(s) for s in (0.4, 50, 130, 5400, 260_000)]
        ['1 s', '50 s', '2 min', '1.5 h', '3.0 days']
    """
    for unit, size, digits, below in (("s", 1, 0, 100), ("min", 60, 0, 90), ("h", 3600, 1, 48)):
        if seconds / size < below:
            return f"{max(seconds / size, 1):.{digits}f} {unit}"
    return f"{seconds / 86_400:.1f} days"

"""Numbered steps of a long piece of work, said one by one, with a word on how to resume."""

import contextlib
import time
from collections.abc import Iterator

from liftedstruct.runtime.progress import say

__all__ = ["Steps", "duration"]


class Steps:
    """Says which step is being done: ``[3/8] train contrastive, 64 dimensions``.

    Args:
        total: how many steps there are.

    """

    def __init__(self, total: int) -> None:
        self.total, self.done, self.start = total, 0, time.monotonic()

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Do one step."""
        self.done += 1
        say(f"[{self.done}/{self.total}] {what}")
        try:
            yield
        except KeyboardInterrupt:
            say(f"stopped in step {self.done} of {self.total}. What is done is kept: the same command resumes from here.")
            raise

    @property
    def took(self) -> str:
        """The time since the first step, in words."""
        return duration(time.monotonic() - self.start)


def duration(seconds: float) -> str:
    """So many seconds, in words, no finer than anybody needs.

    >>> [duration(s) for s in (0.4, 50, 130, 5400, 260_000)]
    ['1 s', '50 s', '2 min', '1.5 h', '3.0 days']
    """
    for unit, size, digits, below in (("s", 1, 0, 100), ("min", 60, 0, 90), ("h", 3600, 1, 48)):
        if seconds / size < below:
            return f"{max(seconds / size, 1):.{digits}f} {unit}"
    return f"{seconds / 86_400:.1f} days"

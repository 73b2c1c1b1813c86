"""Progress bars and messages on stderr."""

import contextlib
import errno
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

__all__ = ["Bar", "say", "stderr_console"]


class Bar:
    """Progress on stderr: a bar with the remaining time on a terminal, otherwise a line every few seconds.

    Args:
        verb: name of the task, such as "prepare".
        total: number of images (or other units) in total.
        done: number completed by an earlier run.
        wanted: show progress; False shows nothing.
        unit: name of the unit.
    """

    def __init__(self, verb: str, total: int, done: int = 0, wanted: bool = True, unit: str = "images") -> None:
        self.verb, self.total, self.first, self.done, self.unit = verb, total, done, done, unit
        self.start = self.last = time.monotonic()
        self.wanted = wanted
        self.rich: Progress | None = None
        if wanted and (console := stderr_console()).is_terminal:
            from rich import progress

            rate = unit + ", {task.fields[rate]:.0f}/s,"
            columns = (progress.BarColumn(), progress.MofNCompleteColumn(), rate, progress.TimeRemainingColumn())
            self.rich = progress.Progress(verb, *columns, "left", console=console)
            self.task = self.rich.add_task(verb, total=total, completed=done, rate=0.0)

    def __enter__(self) -> "Bar":
        if self.rich:
            self.rich.start()
        if self.first and self.wanted:
            say(f"resuming after {self.first:,} of {self.total:,} {self.unit}")
        return self

    def __exit__(self, *_: object) -> None:
        if self.rich:
            self.rich.stop()
        elif self.wanted and self.done > self.first:
            self._show_line()

    def advance(self, images: int = 1) -> None:
        """Count more images as done."""
        self.done += images
        if self.rich:  # redraws the bar at its own rate
            self.rich.update(self.task, completed=self.done, rate=self._rate())
        elif self.wanted and time.monotonic() - self.last > 5:
            self.last = time.monotonic()
            self._show_line()

    def _rate(self) -> float:
        return (self.done - self.first) / max(time.monotonic() - self.start, 1e-9)

    def _show_line(self) -> None:
        rate = self._rate()
        left = f", {(self.total - self.done) / rate:.0f} s left" if self.done < self.total else ""
        say(f"{self.verb}: {self.done:,} of {self.total:,} {self.unit}, {rate:.0f}/s{left}")


class _Stderr:
    """Stream to stderr that never raises: a closed terminal or pipe must not stop a long run."""

    def __init__(self) -> None:
        self.stream = sys.stderr  # None if it is closed; rich replaces sys.stderr while a bar is shown

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # ValueError: the stream is closed
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except (OSError, ValueError, AttributeError) as error:
            if getattr(error, "errno", None) in (errno.EIO, errno.EPIPE):  # or Python fails to flush again when it exits
                with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123
                    os.dup2(nowhere.fileno(), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def stderr_console() -> "Console":
    """Return a rich console on stderr that never raises."""
    from rich.console import Console

    return Console(file=_Stderr())  # type: ignore[arg-type]  # has the methods that rich uses


def say(line: str) -> None:
    """Print a line to stderr. Never raises."""
    print(line, file=_Stderr(), flush=True)

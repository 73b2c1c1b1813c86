"""A bounded queue whose worker thread takes what waits, up to a batch at a time."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["Batcher", "Busy"]

S = TypeVar("S")
T = TypeVar("T")


class Busy(Exception):  # noqa: N818 - a state, not a fault
    """The queue is full, or closed."""


class Batcher(Generic[S, T]):
    """Queue of items that a function works on, many at once, in a thread of its own.

    Args:
        name: name of the thread, in messages.
        work: function from a list of items to a result for each, or the exception to raise for it.
        most: items per call.
        room: items that may wait.

    """

    def __init__(self, name: str, work: Callable[[list[S]], Sequence[T | Exception]], most: int = 64, room: int = 256) -> None:
        self.name, self.work, self.most, self.room, self.closed = name, work, most, room, False
        self.waiting: deque[tuple[S, Future[T]]] = deque()
        self.change = threading.Condition()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def submit(self, items: Sequence[S]) -> list[Future[T]]:
        """Add items, all or none, and return their futures. An item whose future is cancelled is left out."""
        futures: list[Future[T]] = [Future() for _ in items]
        with self.change:
            if self.closed:
                raise Busy(f"the queue to {self.name} must be open, but the server is shutting down. Try again later.")
            if len(self.waiting) + len(items) > self.room:
                raise Busy(f"at most {self.room:,} requests may wait to {self.name}, got one more. Try again later.")
            if self.thread.ident is None:  # the first
                self.thread.start()
            self.waiting.extend(zip(items, futures, strict=True))
            self.change.notify()
        return futures

    def close(self) -> None:
        """Work on what waits, and end the thread."""
        with self.change:
            self.closed = True
            self.change.notify()
        if self.thread.ident is not None:
            self.thread.join()

    def _run(self) -> None:
        while True:
            with self.change:
                self.change.wait_for(lambda: self.waiting or self.closed)
                if not self.waiting:
                    return
                some = [self.waiting.popleft() for _ in range(min(self.most, len(self.waiting)))]
            batch = [(item, future) for item, future in some if future.set_running_or_notify_cancel()]
            try:
                results = self.work([item for item, _ in batch]) if batch else ()
            except Exception as error:
                results = [error] * len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

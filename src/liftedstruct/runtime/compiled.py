"""Functions compiled by numba, with a cache on the disk where one can be kept.

numba compiles a function when it is first called and keeps the machine code beside the source or in the user's cache folder.
Without a folder that it can write to (a read-only installation without a home folder) it refuses to define the function at
all, and with a full one it fails after it has compiled. Here both cost the time of compiling again, and nothing else.

Parallel loops wait for one another: two at once abort the process under numba's workqueue threading layer, the default on
macOS. Each of them uses all cores anyway.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numba
from numba.core.caching import FunctionCache

__all__ = ["Decorator", "compiled"]

F = TypeVar("F", bound=Callable[..., Any])
_parallel = threading.Lock()


class _Cache(FunctionCache):
    """numba's cache, in which a file that cannot be read or written counts as absent."""

    @contextlib.contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        with contextlib.suppress(Exception):  # OSError, or what pickle meets in a damaged file
            yield

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            self._save_overload(sig, data)  # type: ignore[no-untyped-call]
        except Exception:
            with contextlib.suppress(Exception):  # an index that is damaged is begun again
                self.flush()  # type: ignore[no-untyped-call]
                self._save_overload(sig, data)  # type: ignore[no-untyped-call]


class Decorator(Protocol):
    """Leaves the type of a function as it is."""

    def __call__(self, function: F) -> F: ...


def compiled(**options: Any) -> Any:
    """``numba.njit`` with these options and a cache that never fails; where functions have types, a :class:`Decorator`."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        with contextlib.suppress(RuntimeError, OSError):  # no folder can be written to
            dispatcher._cache = _Cache(function)  # type: ignore[no-untyped-call]
        if not options.get("parallel"):
            return dispatcher

        @functools.wraps(dispatcher)
        def call(*args: Any) -> Any:
            with _parallel:
                return dispatcher(*args)

        return call

    return decorate

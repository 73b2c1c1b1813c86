"""Functions compiled by numba, cached on disk if possible.

numba compiles a function on its first call and stores the machine code next to the source or in the user's cache folder. If
no folder is writable (a read-only installation without a home folder), it fails to define the function; on a full disk, it
fails after compiling. With `compiled`, both cases only cost the time to compile again.

Parallel loops run one at a time: two at once abort the process under numba's workqueue threading layer, the default on macOS.
Each of them uses all cores anyway.
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
    """numba's cache, treating files that cannot be read or written as missing."""

    @contextlib.contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        with contextlib.suppress(Exception):  # OSError, or any error of pickle on a corrupt file
            yield

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            self._save_overload(sig, data)  # type: ignore[no-untyped-call]
        except Exception:
            with contextlib.suppress(Exception):  # re-create a corrupt index
                self.flush()  # type: ignore[no-untyped-call]
                self._save_overload(sig, data)  # type: ignore[no-untyped-call]


class Decorator(Protocol):
    """Type of a decorator that preserves the type of the function."""

    def __call__(self, function: F) -> F: ...


def compiled(**options: Any) -> Any:
    """Return `numba.njit` with these options and a cache that never fails. Annotate the result as `Decorator` to keep types."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        with contextlib.suppress(RuntimeError, OSError):  # no writable folder
            dispatcher._cache = _Cache(function)  # type: ignore[no-untyped-call]
        if not options.get("parallel"):
            return dispatcher

        @functools.wraps(dispatcher)
        def call(*args: Any) -> Any:
            with _parallel:
                return dispatcher(*args)

        return call

    return decorate

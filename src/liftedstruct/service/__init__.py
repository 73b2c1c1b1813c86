"""A catalog over HTTP: search, items, images, classes; and the pages of the explorer."""

from typing import Any

from liftedstruct.runtime.extras import require
from liftedstruct.runtime.lazy import lazy_names

__all__ = ["check_binding", "create_app", "run_server"]

_get = lazy_names(__name__, {"app": ("create_app",), "guard": ("check_binding", "run_server")})


def __getattr__(name: str) -> Any:
    for module in ("fastapi", "uvicorn", "python_multipart") if name in __all__ else ():
        require(module, "serve")
    return _get(name)

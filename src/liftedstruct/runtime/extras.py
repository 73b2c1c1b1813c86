"""Optional packages: imported where they are used, and if absent, named with the pip command that brings them."""

from importlib import import_module
from typing import Any

__all__ = ["require"]


def require(module: str, extra: str) -> Any:
    """The module of an optional package, or a ValueError that says which extra of this package brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:  # of this package, or of one that it needs
        raise ValueError(
            f"{module} must be installed with all that it needs, {error.name} is missing. "
            f"Run: pip install 'liftedstruct[{extra}]'"
        ) from error

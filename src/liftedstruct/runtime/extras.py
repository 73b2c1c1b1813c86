"""Optional packages, imported on use. If one is missing, the error names the pip command that installs it."""

from importlib import import_module
from typing import Any

__all__ = ["require"]


def require(module: str, extra: str) -> Any:
    """Import a module of an optional package, or raise ValueError naming the extra of liftedstruct that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:  # the package itself, or one of its dependencies
        raise ValueError(
            f"{module} must be installed with its dependencies, but {error.name} is missing. "
            f"Run: pip install 'liftedstruct[{extra}]'"
        ) from error

"""The whole in one call: a demonstration, the paper's experiment, and a fit of one's own pictures."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftedstruct.recipes.demonstration import demo
    from liftedstruct.recipes.fitting import fit
    from liftedstruct.recipes.reproduction import reproduce

__all__ = ["demo", "fit", "reproduce"]

# Imported when they are first used: the commands are listed where nothing that draws is installed.
_LATER = {
    "demo": "liftedstruct.recipes.demonstration",
    "fit": "liftedstruct.recipes.fitting",
    "reproduce": "liftedstruct.recipes.reproduction",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'liftedstruct.recipes' has no attribute {name!r}")

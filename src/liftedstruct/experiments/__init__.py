"""The whole in one call: a demonstration, the paper's experiment, and a fit of one's own pictures."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftedstruct.experiments.demonstration import demo
    from liftedstruct.experiments.fitting import fit
    from liftedstruct.experiments.reproduction import reproduce

__all__ = ["demo", "fit", "reproduce"]

# Imported when they are first used: the commands are listed where nothing that draws is installed.
_LATER = {
    "demo": "liftedstruct.experiments.demonstration",
    "fit": "liftedstruct.experiments.fitting",
    "reproduce": "liftedstruct.experiments.reproduction",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'liftedstruct.experiments' has no attribute {name!r}")

"""Whole pipelines in one call: the demo, the paper's experiment, and training on one's own images."""

from typing import TYPE_CHECKING

from liftedstruct.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from liftedstruct.recipes.demonstration import demo
    from liftedstruct.recipes.fitting import fit
    from liftedstruct.recipes.reproduction import reproduce

__all__ = ["demo", "fit", "reproduce"]

# Imported when they are first used: the commands are listed where nothing that draws is installed.
__getattr__ = lazy_names(__name__, {"demonstration": ("demo",), "fitting": ("fit",), "reproduction": ("reproduce",)})

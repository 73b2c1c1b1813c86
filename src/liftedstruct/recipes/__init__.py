"""Complete pipelines in one call: the demo, the paper's experiments, and training on your own images."""

from typing import TYPE_CHECKING

from liftedstruct.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from liftedstruct.recipes.demonstration import demo
    from liftedstruct.recipes.fitting import fit
    from liftedstruct.recipes.reproduction import reproduce

__all__ = ["demo", "fit", "reproduce"]

# Imported on first use, so that the command line works without the packages for figures.
__getattr__ = lazy_names(__name__, {"demonstration": ("demo",), "fitting": ("fit",), "reproduction": ("reproduce",)})

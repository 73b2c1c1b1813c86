"""Explanatory figures of the paper (Figures 2 to 5), computed with this package's losses on fixed points."""

from liftedstruct.figures.illustrations.batch_graph import batch_graph
from liftedstruct.figures.illustrations.failure_modes import failure_modes
from liftedstruct.figures.illustrations.mining import mining
from liftedstruct.figures.illustrations.network_layouts import network_layouts

__all__ = ["batch_graph", "failure_modes", "mining", "network_layouts"]

"""The paper's explanatory figures, each computed by the losses of this package on real points: proofs, not drawings."""

from liftedstruct.figures.ideas.batch_edges import batch_graph
from liftedstruct.figures.ideas.failures import failure_modes
from liftedstruct.figures.ideas.hard_negatives import mining
from liftedstruct.figures.ideas.layouts import network_layouts

__all__ = ["batch_graph", "failure_modes", "mining", "network_layouts"]

"""The whole in one call: a demonstration, the paper's experiment, and a fit of one's own pictures."""

from liftedstruct.experiments.demo import demo
from liftedstruct.experiments.fit import fit
from liftedstruct.experiments.reproduce import reproduce

__all__ = ["demo", "fit", "reproduce"]

"""How good an embedding is, with error bars, and which of two is better.

A score of :func:`evaluate` has a 95 % interval by bootstrap over the classes and its protocol beside it; :func:`compare` tests
two of them for the same images.
"""

from liftedstruct.evaluation.comparing import Comparison, Difference, compare
from liftedstruct.evaluation.evaluating import CLUSTERINGS, evaluate
from liftedstruct.evaluation.saved import evaluate_file, read_embeddings
from liftedstruct.evaluation.scores import Estimate, Scores

__all__ = [
    "CLUSTERINGS",
    "Comparison",
    "Difference",
    "Estimate",
    "Scores",
    "compare",
    "evaluate",
    "evaluate_file",
    "read_embeddings",
]

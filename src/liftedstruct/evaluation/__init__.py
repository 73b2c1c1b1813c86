"""How good an embedding is, with error bars, and which of two is better.

A score of :func:`evaluate` has a 95 % interval by bootstrap over the classes and its protocol beside it; :func:`compare` tests
two of them for the same images. :func:`evaluate_file` does so for saved embeddings, and notes that the test classes were read.
"""

from liftedstruct.evaluation.comparing import Comparison, Difference, compare
from liftedstruct.evaluation.evaluating import CLUSTERINGS, evaluate, with_recall_at
from liftedstruct.evaluation.saved import (
    TEST_EVALUATIONS,
    TEST_EVALUATIONS_FILE,
    are_scores_of,
    check_comparable,
    count_test_evaluations,
    evaluate_file,
    scores_file,
)
from liftedstruct.evaluation.scores import Estimate, Scores

__all__ = [
    "CLUSTERINGS",
    "TEST_EVALUATIONS",
    "TEST_EVALUATIONS_FILE",
    "Comparison",
    "Difference",
    "Estimate",
    "Scores",
    "are_scores_of",
    "check_comparable",
    "compare",
    "count_test_evaluations",
    "evaluate",
    "evaluate_file",
    "scores_file",
    "with_recall_at",
]

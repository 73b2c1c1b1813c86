"""Evaluation of embeddings: scores with confidence intervals, and significance tests of differences.

`evaluate` computes scores with 95 % confidence intervals (class bootstrap) and their protocol. `compare` tests the difference
between two evaluations of the same images. `evaluate_file` evaluates saved embeddings and logs evaluations on test classes.
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

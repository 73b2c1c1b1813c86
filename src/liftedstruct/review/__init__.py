"""Ranked lists of what is likely wrong in a dataset or catalog, from its embeddings, labels and nearest neighbors."""

from liftedstruct.review.classes import classes_like_one, classes_like_two, outliers
from liftedstruct.review.labels import label_scores, wrong_labels
from liftedstruct.review.pictures import Look, duplicates, look_at, near_duplicates
from liftedstruct.review.suggestions import NEIGHBORS, Collection, Suggestion, collect

__all__ = ["KINDS", "NEIGHBORS", "Collection", "Look", "Suggestion", "classes_like_one", "classes_like_two", "collect"]
__all__ += ["duplicates", "label_scores", "look_at", "near_duplicates", "outliers", "wrong_labels"]

KINDS = {
    "labels": "Wrong labels",
    "duplicates": "Near duplicates",
    "one": "Two that look like one",
    "two": "One that looks like two",
    "outliers": "Outliers",
    "leaks": "Test leaks",
}

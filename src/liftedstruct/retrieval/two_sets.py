"""Queries apart from their gallery: the same types, dimensions and classes on both sides."""

import numpy as np
import torch
from torch import Tensor

from liftedstruct.retrieval.exact_distances import as_cpu_matrix
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_classes, as_labels

__all__ = ["as_queries", "gallery_and_queries"]


def as_queries(queries: EmbeddingsLike, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries, (m, d), and the gallery X, (n, d), as CPU matrices of one type."""
    Q = as_cpu_matrix(queries)
    if Q.shape[1] != X.shape[1]:
        raise ValueError(
            f"queries must have the same dimension as the embeddings, {X.shape[1]}, got {Q.shape[1]}. Embed both the same way."
        )
    bad = (~Q.isfinite().all(dim=1)).nonzero().squeeze(1)
    if len(bad):
        raise ValueError(f"queries must be finite, but row {int(bad[0])} is not (first of {len(bad)} such rows). Drop them.")
    return (Q, X) if Q.dtype == X.dtype else (Q.double(), X.double())


def gallery_and_queries(
    embeddings: EmbeddingsLike,
    labels: LabelsLike,
    queries: EmbeddingsLike | None = None,
    query_labels: LabelsLike | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, None, None]:
    """Return embeddings and labels of the gallery and of the queries, or None for queries that are the gallery itself.

    Labels are small integers that are equal for equal labels of either set.
    """
    X = as_cpu_matrix(embeddings)
    if queries is None:
        if query_labels is not None:
            raise ValueError("query_labels must come with queries, got none. Pass the embeddings of the queries too.")
        return X, as_labels(labels, X), None, None
    if query_labels is None:
        raise ValueError("queries must come with query_labels, got none. Pass a label for each query.")
    Q, X = as_queries(queries, X)
    y, own = (each.cpu().numpy() if isinstance(each, Tensor) else np.asarray(each) for each in (labels, query_labels))
    if (y.dtype.kind in "US") != (own.dtype.kind in "US"):
        raise ValueError(
            f"query_labels must be of the type of the labels, got {own.dtype} and {y.dtype}. Convert them to one of the two."
        )
    sizes = len(as_labels(labels, X)), len(as_labels(query_labels, Q))  # checks each
    classes = torch.from_numpy(as_classes(np.concatenate((y, own)))[0])
    return X, classes[: sizes[0]], Q, classes[sizes[0] :]

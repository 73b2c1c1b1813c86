"""Small collections with planted errors."""

import numpy as np

from liftedstruct.review import Collection, collect

__all__ = ["clusters", "collection", "named"]


def named(labels: np.ndarray) -> list[str]:
    return [f"class {c}" for c in labels]


def clusters(
    n_classes: int = 12, size: int = 8, dim: int = 16, spread: float = 0.25, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return embeddings and labels of Gaussian classes with random means."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(n_classes), size)
    return rng.standard_normal((n_classes, dim))[labels] + spread * rng.standard_normal((len(labels), dim)), labels


def collection(X: np.ndarray, labels: np.ndarray, **options: object) -> Collection:
    return collect(X.astype(np.float32), named(labels), **options)  # type: ignore[arg-type]

"""Eq. 3, Eq. 4 and Algorithm 1 as plain loops, written from the paper: the reference for all other versions."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def distance(X: Array, i: int, j: int) -> float:
    return math.sqrt(sum((float(a) - float(b)) ** 2 for a, b in zip(X[i], X[j], strict=True)))


def positive_pairs(y: list[int]) -> list[tuple[int, int]]:
    return [(i, j) for i in range(len(y)) for j in range(i + 1, len(y)) if y[i] == y[j]]


def bound(X: Array, y: list[int], alpha: float, i: int, j: int) -> float:
    """Compute J~_ij of Eq. 4, or minus infinity if neither image has a negative."""
    total = sum(math.exp(alpha - distance(X, i, k)) for k in range(len(y)) if y[k] != y[i])
    total += sum(math.exp(alpha - distance(X, j, k)) for k in range(len(y)) if y[k] != y[j])
    return math.log(total) + distance(X, i, j) if total else -math.inf


def smooth(X: Array, y: list[int], alpha: float) -> float:
    """Compute Eq. 4."""
    pairs = positive_pairs(y)
    return sum(max(0.0, bound(X, y, alpha, i, j)) ** 2 for i, j in pairs) / (2 * len(pairs)) if pairs else 0.0


def structured(X: Array, y: list[int], alpha: float, plus: bool = False) -> float:
    """Compute Eq. 3 or, with `plus`, the variant in its footnote."""
    total, pairs = 0.0, positive_pairs(y)
    for i, j in pairs:
        left = max((alpha - distance(X, i, k) for k in range(len(y)) if y[k] != y[i]), default=-math.inf)
        right = max((alpha - distance(X, j, k) for k in range(len(y)) if y[k] != y[j]), default=-math.inf)
        total += max(0.0, (left + right if plus else max(left, right)) + distance(X, i, j)) ** 2
    return total / (2 * len(pairs)) if pairs else 0.0


def gradient(X: Array, y: list[int], alpha: float) -> Array:
    """Run Algorithm 1 with equations 5 to 7."""
    m, P = len(y), len(positive_pairs(y))
    dX = np.zeros_like(X)

    def add(a: int, b: int, dJ_dD: float) -> None:
        D = distance(X, a, b)
        if D > 0:
            dX[a] += dJ_dD * (X[a] - X[b]) / D
            dX[b] += dJ_dD * (X[b] - X[a]) / D

    for i in range(m):
        for j in range(i + 1, m):
            if y[i] != y[j]:
                continue
            J_ij = bound(X, y, alpha, i, j)
            if J_ij <= 0:
                continue
            add(i, j, J_ij / P)
            denominator = math.exp(J_ij - distance(X, i, j))
            for k in range(m):
                if y[k] != y[i]:
                    add(i, k, -J_ij / P * math.exp(alpha - distance(X, i, k)) / denominator)
            for k in range(m):
                if y[k] != y[j]:
                    add(j, k, -J_ij / P * math.exp(alpha - distance(X, j, k)) / denominator)
    return dX

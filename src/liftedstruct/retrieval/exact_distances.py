r"""Definition of the exact distance, and a bound on the error of a float32 matrix product.

The distance between two images is defined to the last bit: $D_{ij}^2 = \sum_k (x_{ik} - x_{jk})^2$, with differences, squares
and sum in float64, added in the order of the dimensions. Thus $D_{ij} = D_{ji}$, equal vectors have distance 0, and images at
equal $D^2$ are tied; of these, the one with the lower index counts as nearer.

Nearly all comparisons are decided much faster, from the float32 product $a_i \cdot a_j$ of the centered and scaled vectors
$a = s (x - c)$. `slack` bounds the rounding error for any order of summation, so a comparison with a larger gap agrees with the
exact distance. The few others are decided by `squares`.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from liftedstruct.distances import unit_scale
from liftedstruct.runtime.checks import EmbeddingsLike, as_embeddings, check_finite
from liftedstruct.runtime.compiled import Decorator, compiled
from liftedstruct.runtime.threads import limit_threads, parallel_for

__all__ = ["Scaler", "as_cpu_matrix", "blocks_of", "kernel", "slack", "squares"]

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]

kernel: Decorator = compiled(nogil=True, error_model="numpy")

U = 2.0**-24  # half a unit in the last place of float32
LARGEST = 1e37  # squares up to this value cannot overflow float32 in intermediate results
SAMPLE = 1024  # rows used to estimate the center and the scale
TINY = 2.0**-120  # bound on the underflow error of float32, per dimension


def as_cpu_matrix(embeddings: EmbeddingsLike) -> Tensor:
    """Return the embeddings as a contiguous CPU tensor (n, d) in float32 or float64, detached from the graph."""
    return as_embeddings(embeddings).detach().cpu().contiguous()


def blocks_of(n: int, size: int, start: int = 0) -> Iterator[slice]:
    """Split start..n into slices of at most `size`."""
    return (slice(a, min(a + size, n)) for a in range(start, n, size))


class Scaler(NamedTuple):
    """Center and scale of the embeddings: a = scale (x - center) is of order one, so that products are accurate.

    The center is a median and the scale a power of two, from a sample of the rows, so a few outliers change neither. Any center
    and scale give the correct result; good ones make it fast.
    """

    center: Tensor  # c (d,), float64
    scale: float  # s
    least: float  # bound on the underflow error of a squared distance, in scaled units

    @staticmethod
    def fit(X: Tensor) -> "Scaler":
        """Fit a scaler to the embeddings, which must be finite; `norms` checks this."""
        step = -(-len(X) // SAMPLE)
        with limit_threads(X.numel() // step):
            sample = X[::step].double()
            center = sample.median(dim=0).values
            reach = torch.linalg.vector_norm(sample - center, dim=1)
        scale = unit_scale(next((r for r in (reach.median().item(), reach.max().item()) if 0 < r < math.inf), 1.0))
        return Scaler(center, scale, X.shape[1] * (TINY + scale * scale * 2.0**-1073))

    def norms(self, X: Tensor) -> Tensor:
        """Compute ‖a_i‖, (n,) in float64; raise an error if a row of X is not finite or its square overflows float64."""
        norms = X.new_empty(len(X), dtype=torch.float64)
        source, center, out = X.numpy(), self.center.numpy(), norms.numpy()
        parallel_for(lambda rows: norms_into(source[rows], center, self.scale, out[rows]), blocks_of(len(X), 4096))
        total = (norms / self.scale).square().sum().item()
        if not 4 * total <= torch.finfo(torch.float64).max:
            check_finite(X, total)
        return norms

    def transform(self, X: Tensor, rows: Integers) -> Tensor:
        """Return a_i of these rows, in float32."""
        A = X.new_empty((len(rows), X.shape[1]), dtype=torch.float32)
        scaled_into(X.numpy(), rows, self.center.numpy(), self.scale, A.numpy())
        return A

    def floor(self, approximate: Tensor, norms: Tensor) -> Tensor:
        r"""Bound from below the scaled D² of rows at a float32 squared distance of `approximate` or more from query i.     (b,)

        The error is at most e (‖a_i‖ + ‖a_j‖)². If ‖a_j‖ <= 4 ‖a_i‖, this is at most 25 e ‖a_i‖². Otherwise, D >= 3/4 ‖a_j‖,
        and it is at most (25 / 9) e D². If float32 may have overflowed, the bound is -inf.
        """
        e = 2 * (gamma(len(self.center)) + 16 * U)
        a = approximate.double()
        floor = torch.minimum(a - 25 * e * norms.square(), a / (1 + 3 * e)) - self.least
        return floor.masked_fill_(~((a < LARGEST) & (norms.square() < LARGEST)), -torch.inf)


@kernel
def gamma(d: int) -> float:
    """Return a bound on the relative error of a float32 dot product of d terms, for any order of summation."""
    return d * U / (1 - d * U)


@kernel
def slack(norm_i: float, norm_j: float, d: int, c: float, least: float) -> float:
    r"""Bound the difference between the float32 value of a_i·a_j - h_j and its value by `squares`, with h = ‖a‖² / 2.

    The error of the product is at most gamma(d) ‖a_i‖‖a_j‖. The rounding errors of a, h, the difference and the float64 sums
    add up to at most 5 U (‖a_i‖ + ‖a_j‖)², and the error of a float32 threshold c is at most 2 U |c|.
    """
    both = (norm_i + norm_j) * (norm_i + norm_j)
    both = both / (both <= LARGEST)  # infinite if the product may have overflowed
    return 1.001 * (gamma(d) * norm_i * norm_j + U * (5 * both + 2 * abs(c))) + least


@kernel
def squares(X: NDArray[np.floating], i: int, Y: NDArray[np.floating], columns: Integers, count: int, out: Doubles) -> None:
    """Compute D² from row i of X to the rows `columns[:count]` of Y, as defined above, eight rows at a time."""
    d = X.shape[1]
    q = 0
    while q + 8 <= count:
        j0, j1, j2, j3 = columns[q], columns[q + 1], columns[q + 2], columns[q + 3]
        j4, j5, j6, j7 = columns[q + 4], columns[q + 5], columns[q + 6], columns[q + 7]
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
        for k in range(d):
            x = np.float64(X[i, k])
            e0, e1, e2, e3 = x - Y[j0, k], x - Y[j1, k], x - Y[j2, k], x - Y[j3, k]
            e4, e5, e6, e7 = x - Y[j4, k], x - Y[j5, k], x - Y[j6, k], x - Y[j7, k]
            s0, s1, s2, s3 = s0 + e0 * e0, s1 + e1 * e1, s2 + e2 * e2, s3 + e3 * e3
            s4, s5, s6, s7 = s4 + e4 * e4, s5 + e5 * e5, s6 + e6 * e6, s7 + e7 * e7
        out[q], out[q + 1], out[q + 2], out[q + 3] = s0, s1, s2, s3
        out[q + 4], out[q + 5], out[q + 6], out[q + 7] = s4, s5, s6, s7
        q += 8
    for p in range(q, count):
        s = 0.0
        for k in range(d):
            e = np.float64(X[i, k]) - Y[columns[p], k]
            s += e * e
        out[p] = s


@kernel
def norms_into(X: NDArray[np.floating], center: Doubles, scale: float, norms: Doubles) -> None:
    """Compute the norms of scale (x - center)."""
    for i in range(X.shape[0]):
        s = 0.0
        for k in range(X.shape[1]):
            a = (X[i, k] - center[k]) * scale
            s += a * a
        norms[i] = np.sqrt(s)


@kernel
def scaled_into(X: NDArray[np.floating], rows: Integers, center: Doubles, scale: float, out: Singles) -> None:
    """Compute scale (x - center) for these rows of X, in float32."""
    for r in range(len(rows)):
        i = rows[r]
        for k in range(X.shape[1]):
            out[r, k] = np.float32((X[i, k] - center[k]) * scale)

"""Decorators, array types and vector products shared by the renderer's compiled functions."""

import numpy as np
from numpy.typing import NDArray

from liftedstruct.runtime.compiled import Decorator, compiled

__all__ = ["Floats", "Integers", "Singles", "cross", "dot", "inlined", "kernel"]

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Integers = NDArray[np.int32]

kernel: Decorator = compiled(nogil=True, error_model="numpy")
inlined: Decorator = compiled(nogil=True, error_model="numpy", forceinline=True)


@inlined
def dot(a: Floats, x: float, y: float, z: float) -> float:
    """Return the dot product of `a` and (x, y, z)."""
    product: float = a[0] * x + a[1] * y + a[2] * z
    return product


@inlined
def cross(a: Floats, b: Floats) -> tuple[float, float, float]:
    """Return the cross product of `a` and `b`."""
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]

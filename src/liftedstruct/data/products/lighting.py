"""Lighting of a scene: lights, shadows, reflections, and the contact shadow under a product."""

import math
from typing import NamedTuple

import numpy as np

from liftedstruct.data.products.kernels import Floats, Singles, dot, inlined, kernel

__all__ = ["FLOOR_CELLS", "SHADOW_CELLS", "Lights", "contact_map", "key_light_share", "shadow_cell", "surroundings"]

SHADOW_CELLS = 160  # side length of the key light's shadow map
FLOOR_CELLS = 48  # side length of the floor map


class Lights(NamedTuple):
    """Key light that casts shadows, fill light, and light from above and below."""

    key: Floats  # (3,), direction to the light
    key_frame: Floats  # (2, 3), two axes perpendicular to it
    fill: Floats
    colors: Floats  # (4, 3): key, fill, sky, bounce
    softness: float  # half width of the shadow's edge, in object units


@inlined
def shadow_cell(lights: Lights, radius: float, x: float, y: float, z: float) -> tuple[float, float, float]:
    """Return a point's position in cells of the key light's shadow map, and its height toward the light."""
    z -= 0.5 * radius
    cells = SHADOW_CELLS / (2.1 * radius)
    a, b = dot(lights.key_frame[0], x, y, z) * cells, dot(lights.key_frame[1], x, y, z) * cells
    return a + SHADOW_CELLS / 2, b + SHADOW_CELLS / 2, dot(lights.key, x, y, z)


@kernel
def contact_map(heights: Singles, radius: float) -> Singles:
    """Return how much of the sky the product hides from each floor cell; near parts count most. The map is blurred twice."""
    m = FLOOR_CELLS
    dark = np.zeros((m, m), np.float32)
    for i in range(m):
        for j in range(m):
            if heights[i, j] > -1e8:
                dark[i, j] = math.exp(7 * min(heights[i, j], 0.0) / radius)
    for reach in (1, 1, 3, 3):  # each pass transposes, so rows and columns alternate
        out = np.zeros((m, m), np.float32)
        for i in range(m):
            for j in range(m):
                total = 0.0
                for d in range(-reach, reach + 1):
                    total += dark[min(max(i + d, 0), m - 1), j]
                out[j, i] = total / (2 * reach + 1)
        dark = out
    return dark


@inlined
def key_light_share(
    lights: Lights, shadows: Singles, radius: float, x: float, y: float, z: float, bias: float, spread: float
) -> float:
    """Return the fraction of the key light that reaches a point, from nine samples of the shadow map."""
    a, b, c = shadow_cell(lights, radius, x, y, z)
    step = spread * (SHADOW_CELLS / (2.1 * radius))
    if not (-step <= a <= SHADOW_CELLS + step and -step <= b <= SHADOW_CELLS + step):
        return 1.0
    total = 0
    for i in range(-1, 2):
        for j in range(-1, 2):
            p, q = int(a + i * step), int(b + j * step)
            if not (0 <= p < SHADOW_CELLS and 0 <= q < SHADOW_CELLS) or shadows[q, p] < c + bias:
                total += 1
    return total / 9.0


@inlined
def lobe(x: float, n: float) -> float:
    """Approximate x ** n for x in [0, 1] without a logarithm (Schlick); return 0 for negative x."""
    return x / (n - n * x + x) if x > 0 else 0.0


@inlined
def surroundings(x: float, y: float, z: float, lights: Lights, blur: float) -> tuple[float, float, float]:
    """Return the reflected color: a bright tent above, a dark band at the horizon, the floor and two softboxes."""
    rise = z / (0.1 + blur)
    up = 0.5 + 0.5 * rise / math.sqrt(1 + rise * rise)
    band = 1 / (1 + (z + 0.05) ** 2 / (0.02 + blur)) ** 2
    boxes = 1.6 * lobe(dot(lights.key, x, y, z), 8.0 / (0.15 + blur))
    boxes += 0.8 * lobe(dot(lights.fill, x, y, z), 6.0 / (0.15 + blur))
    c = lights.colors
    level = (0.55 + 0.5 * max(z, 0.0)) * up
    dim = 1 - 0.75 * band * (1 - min(1.0, 1.5 * blur))
    return (
        dim * (c[2, 0] * level * 2.2 + c[3, 0] * (1 - up) * 2.0) + boxes * c[0, 0],
        dim * (c[2, 1] * level * 2.2 + c[3, 1] * (1 - up) * 2.0) + boxes * c[0, 1],
        dim * (c[2, 2] * level * 2.2 + c[3, 2] * (1 - up) * 2.0) + boxes * c[0, 2],
    )

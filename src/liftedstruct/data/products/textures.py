"""Surface colors of a material: texture grain and two-color patterns."""

import math

from liftedstruct.data.products.kernels import Floats, inlined, kernel

__all__ = ["PATTERNS", "TEXTURES", "chance", "noise", "surface_color"]

# columns of the material table, see Material.row
A, B, TEXTURE, TEXTURE_SCALE, PATTERN, P1, P2, P3, P4 = 0, 3, 6, 7, 8, 9, 10, 11, 12
GLOSS, SHINE, METAL, ALPHA, GLOW, SEED = 13, 14, 15, 16, 17, 18
TEXTURES = ("smooth", "wood", "brushed", "woven", "speckled", "leather", "wicker")
PATTERNS = ("plain", "bands", "pinstripes", "checks", "dots", "two-tone", "diagonal", "logo", "chevron", "tartan", "petals")


@inlined
def chance(i: int, j: int, seed: int) -> float:
    """Hash three integers to a pseudorandom number in [0, 1)."""
    h = (i * 374761393 + j * 668265263 + seed * 974634777) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 1274126177) & 0xFFFFFFFF
    return ((h ^ (h >> 16)) & 0xFFFFFF) / 16777216.0


@kernel
def noise(x: float, y: float, seed: int) -> float:
    """Return smooth noise in [0, 1) with one bump per unit."""
    i, j = math.floor(x), math.floor(y)
    a, b = x - i, y - j
    a, b = a * a * (3 - 2 * a), b * b * (3 - 2 * b)
    low = chance(i, j, seed) * (1 - a) + chance(i + 1, j, seed) * a
    high = chance(i, j + 1, seed) * (1 - a) + chance(i + 1, j + 1, seed) * a
    return low * (1 - b) + high * b


@inlined
def surface_color(m: Floats, row: int, u: float, v: float) -> tuple[float, float, float]:
    """Return the linear color at (u, v) of the material in this row of the table."""
    t = pattern_at(m, row, u, v)
    k = texture_at(int(m[row, TEXTURE]), u * m[row, TEXTURE_SCALE], v * m[row, TEXTURE_SCALE], int(m[row, SEED]))
    return (
        k * (m[row, A] + t * (m[row, B] - m[row, A])),
        k * (m[row, A + 1] + t * (m[row, B + 1] - m[row, A + 1])),
        k * (m[row, A + 2] + t * (m[row, B + 2] - m[row, A + 2])),
    )


@inlined
def texture_at(kind: int, u: float, v: float, seed: int) -> float:
    """Return the brightness factor of a texture's grain."""
    if kind == 1:  # wood: slightly bent streaks along u
        bend = 0.35 * noise(2.2 * u, 3 * v, seed)
        rings = noise(1.1 * u + 5, 26 * (v + bend), seed + 1)
        return 0.62 + 0.42 * rings + 0.22 * noise(4 * u, 90 * v, seed + 2)
    if kind == 2:  # brushed: hairlines along u
        return 0.84 + 0.32 * noise(3 * u, 220 * v, seed)
    if kind == 3:  # woven
        return 0.8 + 0.14 * math.sin(150 * u) * math.sin(150 * v) + 0.26 * noise(60 * u, 60 * v, seed)
    if kind == 4:  # speckled
        return 0.45 if chance(math.floor(70 * u), math.floor(70 * v), seed) > 0.93 else 1.0
    if kind == 5:  # leather: patches and creases
        return 0.74 + 0.2 * noise(9 * u, 9 * v, seed) + 0.16 * noise(55 * u, 55 * v, seed + 1)
    if kind == 6:  # wicker: strands over and under
        over = math.sin(55 * u) * (1.0 if math.floor(17.5 * v) % 2 else -1.0)
        return 0.72 + 0.28 * over + 0.15 * math.sin(110 * v)
    return 1.0


@inlined
def pattern_at(m: Floats, row: int, u: float, v: float) -> float:
    """Return the fraction of the second color at (u, v)."""
    kind = int(m[row, PATTERN])
    if kind == 0:
        return 0.0
    period, share = m[row, P1], m[row, P2]
    x, y = (u - m[row, P3]) / period, (v - m[row, P4]) / period
    fx, fy = x - math.floor(x), y - math.floor(y)
    inside = False
    if kind == 1:
        inside = fy < share
    elif kind == 2:
        inside = fx < share
    elif kind == 3:
        inside = (math.floor(x) + math.floor(y)) % 2 == 0
    elif kind == 4:
        x += 0.5 * (math.floor(y) % 2)
        fx = x - math.floor(x)
        inside = (fx - 0.5) ** 2 + (fy - 0.5) ** 2 < 0.25 * share
    elif kind == 5:
        inside = v > period
    elif kind == 6:
        x += y
        inside = x - math.floor(x) < share
    elif kind == 7:  # logo: symmetric, 5 x 5 cells from 15 bits
        i, j = math.floor(5 * x + 2.5), math.floor(5 * y + 2.5)
        inside = 0 <= i < 5 and 0 <= j < 5 and (int(share) >> (3 * j + min(i, 4 - i))) & 1 == 1
    elif kind == 8:
        y += 0.8 * abs(fx - 0.5)
        inside = y - math.floor(y) < share
    elif kind == 9:
        return (0.5 if fx < share else 0.0) + (0.5 if fy < share else 0.0)
    elif kind == 10:
        r, a = math.sqrt((fx - 0.5) ** 2 + (fy - 0.5) ** 2), math.atan2(fy - 0.5, fx - 0.5)
        inside = r < 0.45 * math.sqrt(share) * (0.65 + 0.35 * math.cos(5 * a)) and r > 0.07
    return 1.0 if inside else 0.0

"""Colors, materials and parts shared by several categories."""

import numpy as np

from liftedstruct.data.products.materials import DARK, Material, metal, plastic
from liftedstruct.data.products.meshes import TO_FRONT, Mesh, Point, spline
from liftedstruct.data.products.random_stream import RandomStream

__all__ = ["CASES", "FRAMES", "GLAZES", "HIDES", "INKS", "PLAINS", "SEATS", "button", "case_materials", "knob", "legs"]

SEATS = ("6e7076", "a89a86", "3b4250", "8a3b32", "c9bfae", "4f6357")
HIDES = ("2a2624", "6b4028", "d8d0c2", "7a2620")
PLAINS = ("f0eee8", "222224", "8a8d90", "5b7a8c", "a83a2e", "d8c8a4")
CASES = ("efece4", "1e1e20", "a8261e", "d8cdb4", "7c8186", "9cc4b4")
FRAMES = ("b3261e", "1c1c1e", "24508c", "e8e6e0", "3f6f56", "d9731e", "8fb8c4")
GLAZES = ("f2f0ec", "22262c", "a83a2e", "38587c", "d8cdb4", "5f7f6a", "d9a23e")
INKS = ("22262c", "a83a2e", "38587c", "f2f0ec", "d9a23e", "5f7f6a")
TURNED = ((0.35, 0), (0.5, 0.06), (0.38, 0.1), (0.7, 0.35), (0.45, 0.5), (0.75, 0.62), (0.75, 0.66), (0.5, 0.7), (0.6, 1))


def legs(m: Mesh, w: float, d: float, top: float, material: Material, style: str, thick: float, splay: float = 0.0) -> None:
    """Add four legs under a rectangle of half sizes (w, d)."""
    for sx, sy in ((-1, -1), (1, -1), (1, 1), (-1, 1)):
        x, y = sx * w, sy * d
        foot: Point = (sx * (w + splay), sy * (d + splay), 0)
        if style == "square":
            m.beam(foot, (x, y, top), thick, thick, material)
        elif style == "tapered":
            m.tube((foot, (x, y, top)), (0.4 * thick, 0.75 * thick), material, sides=10)
        elif style == "turned":
            m.lathe([(thick * r, top * z) for r, z in TURNED], material, (x, y, 0), sides=12)
        elif style == "hairpin":
            for end in ((x - 0.05, y, top), (x + 0.05 * sx, y + 0.05, top)):
                m.tube((foot, end), 0.2 * thick, material, sides=6)
        else:  # cabriole: bent outward at the knee
            knee = (sx * (w + 0.05), sy * (d + 0.05), 0.75 * top)
            path = spline((x, y, top), knee, (x, y, 0.2 * top), foot, n=9)
            m.tube(path, np.linspace(0.8, 0.4, 9) * thick, material, sides=8)


def case_materials(rng: RandomStream) -> tuple[Material, Material, Material]:
    """Draw materials for the body, a second part and the trim."""
    body = metal(rng, "steel", "chrome", "copper", brushed=True) if rng.chance(0.35) else plastic(rng, *CASES)
    return body, plastic(rng, DARK, DARK, "8a8d90", "efece4"), metal(rng, "chrome", "steel", "black")


def knob(m: Mesh, at: Point, r: float, depth: float, material: Material, mark: Material) -> None:
    """Add a rotary knob with a mark to a front."""
    x, y, z = at
    m.lathe([(r * 1.15, 0), (r, depth * 0.2), (r * 0.92, depth), (0, depth)], material, at, TO_FRONT, sides=18)
    m.box((x, y - depth, z + 0.5 * r), (0.16 * r, 0.008, 0.8 * r), mark, 0)


def button(m: Mesh, at: Point, r: float, depth: float, material: Material) -> None:
    """Add a round button to a front."""
    m.lathe([(r, 0), (r, depth), (0, depth)], material, at, TO_FRONT, sides=10)

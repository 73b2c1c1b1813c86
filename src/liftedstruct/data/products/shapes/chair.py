"""Chairs."""

import math

import numpy as np

from liftedstruct.data.products.materials import Material, fabric, leather, metal, plastic, rubber, wood
from liftedstruct.data.products.meshes import Mesh, rotation, spline
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes.parts import HIDES, PLAINS, SEATS, legs

__all__ = ["chair"]


def chair(m: Mesh, rng: RandomStream) -> None:
    """Build a dining chair, shell chair, office chair or armchair."""
    kind = rng.choice(("dining", "dining", "shell", "office", "arm"))
    timber = wood(rng, "oak", "pine", "walnut", "black", "white", "cherry")
    steel = metal(rng, "chrome", "steel", "black", "brass")
    soft = leather(rng, *HIDES) if rng.chance(0.35) else fabric(rng, rng.choice(SEATS))
    w, d, seat, back = rng(0.4, 0.54) / 2, rng(0.4, 0.5) / 2, rng(0.4, 0.5), rng(0.35, 0.62)
    lean = rng(0.03, 0.14)
    if kind == "dining":
        _dining(m, rng, w, d, seat, back, lean, timber, soft)
    elif kind == "shell":
        _shell(m, rng, w, d, seat, back, lean, plastic(rng, *PLAINS, gloss=35) if rng.chance(0.7) else soft)
        base = rng.choice(("wood", "sled", "star", "metal"))
        if base == "star":
            _star(m, rng, seat - 0.02, steel, False)
        elif base == "sled":
            for sx in (-1, 1):
                rail = ((sx * w, -d, 0.02), (sx * w, d, 0.02))
                path = spline((sx * 0.6 * w, -0.5 * d, seat - 0.01), *rail, (sx * 0.6 * w, 0.6 * d, seat), n=14)
                m.tube(path, 0.011, steel, sides=6)
        else:
            material, thick = (timber, 0.035) if base == "wood" else (steel, 0.022)
            legs(m, 0.6 * w, 0.6 * d, seat - 0.01, material, "tapered", thick, 0.09)
    elif kind == "office":
        _star(m, rng, seat - 0.03, steel if rng.chance(0.6) else plastic(rng, "202022"), True)
        m.cushion((0, 0, seat), (2 * w + 0.06, 2 * d + 0.06, 0.1), soft, 0.4)
        middle = (0, d + 0.03 + lean / 2, seat + 0.12 + back / 2)
        m.cushion(middle, (2 * w, 0.08, back), soft, rng(0.2, 0.5), rotation("x", -lean))
        m.beam((0, d - 0.05, seat - 0.02), (0, d + 0.08, seat + 0.3), 0.05, 0.02, steel)
        if rng.chance(0.6):
            _arms(m, w + 0.04, d, seat, 0.2, plastic(rng, "2a2a2c", gloss=20))
    else:
        high = rng(0.36, 0.46)
        legs(m, w + 0.02, d, high - 0.1, timber, rng.choice(("tapered", "square", "turned")), 0.035, rng(0, 0.03))
        m.box((0, 0, high - 0.09), (2 * w + 0.16, 2 * d + 0.1, 0.1), soft, 0.03)
        m.cushion((0, -0.02, high + 0.02), (2 * w + 0.02, 2 * d + 0.06, 0.14), soft, 0.35)
        m.cushion((0, d, high + back / 2), (2 * w + 0.14, 0.14, back + 0.1), soft, rng(0.2, 0.6), rotation("x", -lean))
        for sx in (-1, 1):
            m.cushion((sx * (w + 0.06), 0, high + 0.06), (0.1, 2 * d + 0.06, rng(0.24, 0.34)), soft, rng(0.2, 0.5))


def _dining(
    m: Mesh, rng: RandomStream, w: float, d: float, seat: float, back: float, lean: float, timber: Material, soft: Material
) -> None:
    thick = rng(0.03, 0.05)
    style = rng.choice(("square", "tapered", "turned", "tapered"))
    legs(m, w - 0.02, d - 0.02, seat, timber, style, thick, rng.choice((0, 0, 0.05)))
    if rng.chance(0.5):
        m.cushion((0, 0, seat + 0.02), (2 * w + 0.03, 2 * d + 0.03, rng(0.06, 0.1)), soft, 0.3)
    else:
        m.box((0, 0, seat), (2 * w + 0.02, 2 * d + 0.02, 0.03), timber, 0.012)
    if rng.chance(0.6):
        m.box((0, 0, seat - 0.05), (2 * w - 0.02, 2 * d - 0.02, 0.06), timber, 0.004)
    if rng.chance(0.45):
        for sx in (-1, 1):
            m.beam((sx * (w - 0.02), -d + 0.02, 0.3 * seat), (sx * (w - 0.02), d - 0.02, 0.3 * seat), 0.02, 0.03, timber)
        m.beam((-w + 0.02, 0, 0.3 * seat), (w - 0.02, 0, 0.3 * seat), 0.02, 0.03, timber)
    y0, y1 = d - 0.01, d + lean
    for sx in (-1, 1):
        m.beam((sx * (w - 0.015), y0, seat - 0.02), (sx * (w - 0.015), y1, seat + back), thick, thick * 0.8, timber)
    _back(m, rng, w, y0, y1, seat, back, timber, soft)
    if rng.chance(0.25):
        _arms(m, w, d, seat, rng(0.18, 0.24), timber)


def _shell(m: Mesh, rng: RandomStream, w: float, d: float, seat: float, back: float, lean: float, shell: Material) -> None:
    """Add seat and back as one curved sheet."""
    rows, columns, scoop = 11, 9, rng(0.02, 0.09)
    grid = np.empty((rows, columns, 3))
    below = ((-d - 0.03, seat - 0.03), (-0.3 * d, seat), (0.85 * d, seat + 0.02))
    line = spline(*below, (d + lean, seat + 0.6 * back), (d + lean + 0.06, seat + back), n=rows)  # (y, z)
    waist = rng(0.75, 1.05)
    for i, (y, z) in enumerate(line):
        half = w * (1.08 if i < 5 else 1.05 - (1.05 - waist) * (i - 4) / (rows - 5)) * (0.86 if i in (0, rows - 1) else 1.0)
        for j in range(columns):
            s = 2 * j / (columns - 1) - 1
            bent = scoop * s * s
            grid[i, j] = (half * s, y - (bent if i > 4 else 0), z + (bent if i <= 5 else 0))
    m.sheet(grid, shell)


def _back(
    m: Mesh, rng: RandomStream, w: float, y0: float, y1: float, seat: float, back: float, timber: Material, soft: Material
) -> None:
    """Add rails, slats, spindles, a panel or a cross between two posts."""
    style = rng.choice(("ladder", "slats", "spindles", "panel", "cross"))
    top = seat + back
    curve = rng(0.0, 0.05)
    path = spline((-w, y1, top - 0.02), (0, y1 + curve, top + rng(0, 0.04)), (w, y1, top - 0.02), n=9)
    m.tube(path, rng(0.02, 0.04), timber, sides=8, flat=0.5)

    def y(z: float) -> float:
        return y0 + (y1 - y0) * (z - seat) / back

    if style == "ladder":
        n, thick = rng.integer(1, 4), rng(0.025, 0.06)
        for k in range(n):
            z = seat + back * (k + 1) / (n + 1.2)
            m.box((0, y(z) + 0.3 * curve, z), (2 * w, 0.018, thick), timber)
    elif style in ("slats", "spindles"):
        n, thick = (rng.integer(3, 6), rng(0.025, 0.06)) if style == "slats" else (rng.integer(5, 9), 0.016)
        for k in range(n):
            x = 2 * w * ((k + 1) / (n + 1) - 0.5)
            m.beam((x, y0, seat), (x, y1 + 0.6 * curve, top - 0.02), thick, 0.014, timber, 0.004)
    elif style == "panel":
        tall = rng(0.4, 0.85) * back
        z = top - tall / 2 - 0.02
        m.cushion((0, y(z), z), (2 * w - 0.02, 0.05, tall), soft, 0.25, rotation("x", -math.atan((y1 - y0) / back)))
    else:
        for x in (-w, w):
            m.beam((x, y0, seat + 0.05), (-x, y1, top - 0.03), 0.03, 0.015, timber)


def _arms(m: Mesh, w: float, d: float, seat: float, rise: float, material: Material) -> None:
    for sx in (-1, 1):
        m.beam((sx * w, -0.5 * d, seat), (sx * w, -0.5 * d, seat + rise), 0.025, 0.03, material)
        m.beam((sx * w, -0.75 * d, seat + rise), (sx * w, d + 0.03, seat + rise + 0.01), 0.025, 0.05, material, 0.01)


def _star(m: Mesh, rng: RandomStream, top: float, material: Material, casters: bool) -> None:
    n, reach = rng.choice((4, 5, 5)), rng(0.24, 0.3)
    m.tube(((0, 0, 0.08), (0, 0, top)), rng(0.02, 0.035), material, sides=10)
    for k in range(n):
        a = 2 * math.pi * (k + 0.25) / n
        x, y = reach * math.cos(a), reach * math.sin(a)
        m.tube(((0, 0, 0.1), (x, y, 0.05 if casters else 0.015)), (0.026, 0.014), material, sides=6)
        if casters:
            m.cylinder(0.026, -0.015, 0.015, rubber(), (x, y, 0.026), rotation("x", 1.57), sides=10)

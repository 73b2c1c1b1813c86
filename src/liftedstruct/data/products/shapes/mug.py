"""Mugs."""

import math

import numpy as np

from liftedstruct.data.products.materials import Material, ceramic, linear, metal
from liftedstruct.data.products.meshes import Mesh, spline
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes.parts import GLAZES, INKS

__all__ = ["mug"]


def mug(m: Mesh, rng: RandomStream) -> None:
    """Build a mug with a handle and a glaze; some have a pattern, a logo or a saucer."""
    r, h = rng(0.34, 0.46), rng(0.7, 1.1)
    top, belly, foot = rng(0.85, 1.2), rng(0.85, 1.15), rng(0.65, 1.0)
    style = rng.choice(("straight", "straight", "barrel", "tulip", "cone", "step"))
    knots = {
        "straight": [(0.95, 0), (1, 0.05), (1, 0.5), (1, 1)],
        "barrel": [(0.85 * foot, 0), (belly * 1.05, 0.35), (belly * 1.05, 0.6), (0.92, 1)],
        "tulip": [(0.7 * foot, 0), (0.9 * belly, 0.25), (0.85, 0.6), (top, 1)],
        "cone": [(0.62 * foot, 0), (0.7, 0.3), (0.85, 0.65), (1.0, 1)],
        "step": [(0.7, 0), (0.72, 0.12), (1.0, 0.2), (1.0, 0.6), (1.0, 1)],
    }[style]
    code, ink = rng.choice(GLAZES), rng.choice(INKS)
    period = rng(0.09, 0.24)
    glaze = ceramic(rng, code).with_pattern(rng, ink, period, 0.45)
    if glaze.pattern == "two-tone":
        glaze = glaze._replace(places=(rng(0.25, 0.7) * h, 0, 0, 0))
    if glaze.pattern == "plain" and rng.chance(0.7):
        front = -math.pi / 2 * r * max(a for a, _ in knots)
        glaze = glaze.with_logo(rng, rng(0.3, 0.55), front, h * rng(0.42, 0.58), ink if ink != code else None)
    if rng.chance(0.1):
        glaze = metal(rng, "steel", "copper", brushed=True)
    outer = glaze._replace(pattern="plain")
    inner = ceramic(rng, "f2f0ec", code, ink)
    walls = spline(*((a * r, z * h) for a, z in knots), n=14)

    def radius_at(z: float) -> float:
        return float(np.interp(z, walls[:, 1], walls[:, 0]))

    rim, t = float(walls[-1, 0]), rng(0.025, 0.045)
    m.lathe([(0, 0), (walls[0, 0], 0)], outer, sides=40)
    m.lathe(walls, glaze, sides=40)
    lip = [walls[-1], (rim - 0.3 * t, h + 0.4 * t), (rim - 0.8 * t, h + 0.3 * t), (rim - t, h)]
    m.lathe(lip, inner if rng.chance(0.3) else outer, sides=40)
    m.lathe([(rim - t, h), *(walls[-2:0:-1] - (t, 0)), (0, 0.06)], inner, sides=40)
    if rng.chance(0.5):
        z = rng(0.6, 0.88) * h
        drink = Material(linear(rng.choice(("2a150a", "8a5a34", "6b7a3a"))), gloss=90, shine=0.05)
        m.lathe([(0, z), (min(radius_at(z), rim * 1.1) - t, z)], drink, sides=32)
    grip = outer if rng.chance(0.8) else inner
    up, down = rng(0.72, 0.88) * h, rng(0.14, 0.34) * h
    a, b = radius_at(up) - 0.02, radius_at(down) - 0.02
    out = max(a, b) + rng(0.2, 0.34)
    shape = rng.choice(("c", "d", "ear", "square", "loop"))
    if shape == "c":
        path = spline((a, up), (out, up - 0.02), (out, down + 0.04), (b, down), n=16)
    elif shape == "d":
        path = spline((a, up), (out * 0.92, up), (out, 0.5 * (up + down)), (out * 0.92, down), (b, down), n=16)
    elif shape == "ear":
        lobe = ((out * 0.95, up + 0.06), (out, 0.7 * up + 0.3 * down), (b + 0.08, down + 0.05))
        path = spline((a, up), *lobe, (b, down), n=16)
    elif shape == "square":
        side = ((out - 0.02, up), (out, up - 0.03), (out, down + 0.03), (out - 0.02, down))
        path = np.array(((a, up), *side, (b, down)))
    else:
        k = 0.5 * (up - down) * rng(0.55, 0.8)
        middle = 0.55 * h
        c = radius_at(middle) + 0.6 * k
        path = np.array([(c + 0.9 * k * math.cos(w), middle + k * math.sin(w)) for w in np.linspace(2.6, -2.6, 16)])
    m.tube(path, rng(0.035, 0.065), grip, sides=10, flat=rng(0.8, 1.6))
    if rng.chance(0.15):
        s = r * rng(1.6, 1.9)
        m.lathe([(0, -0.05), (0.6 * s, -0.05), (s, 0.02), (0.98 * s, 0.03), (0.6 * s, -0.02), (0, -0.02)], outer, sides=40)

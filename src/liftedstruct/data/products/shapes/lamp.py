"""Lamps."""

import math

from liftedstruct.data.products.materials import Material, ceramic, fabric, metal, plastic, wood
from liftedstruct.data.products.meshes import Mesh, Point, rotation, spline
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes.parts import FRAMES, GLAZES, INKS

__all__ = ["lamp"]

SHADES = ("f0e8d8", "e8e4da", "2a2a2c", "b8a888", "8a3b32", "4a5c6c")
HEADS = (  # of desk lamps
    [(0.3, 0), (0.36, 0.1), (0.45, 0.35), (1.0, 1.0)],
    [(0.35, 0), (0.4, 0.3), (0.8, 0.5), (1.0, 1.0)],
    [(0.5, 0), (0.75, 0.05), (0.95, 0.4), (1.0, 1.0)],
    [(0.45, 0), (0.5, 0.2), (0.5, 0.5), (0.9, 0.6), (1, 1)],
)
BASES = {  # of table lamps
    "gourd": [(0.6, 0), (1.0, 0.2), (0.8, 0.4), (0.4, 0.55), (0.6, 0.72), (0.5, 0.88), (0.15, 1)],
    "column": [(0.9, 0), (0.9, 0.06), (0.45, 0.1), (0.4, 0.5), (0.45, 0.9), (0.6, 0.94), (0.3, 1)],
    "jar": [(0.6, 0), (0.9, 0.25), (1.05, 0.6), (0.8, 0.85), (0.35, 0.93), (0.35, 1)],
    "stack": [(0.7, 0), (1.0, 0.14), (0.55, 0.28), (0.9, 0.42), (0.5, 0.56), (0.75, 0.7), (0.4, 0.84), (0.2, 1)],
    "bottle": [(0.8, 0), (0.85, 0.3), (0.8, 0.5), (0.35, 0.68), (0.25, 0.85), (0.25, 1)],
    "cone": [(1.0, 0), (0.8, 0.3), (0.5, 0.65), (0.2, 1)],
    "stick": [(0.9, 0), (0.9, 0.03), (0.15, 0.07), (0.1, 0.5), (0.1, 1)],
}
PATTERNED = ("plain", "plain", "plain", "pinstripes", "chevron", "dots", "bands", "petals")


def lamp(m: Mesh, rng: RandomStream) -> None:
    """Build a table lamp with a shade, a desk lamp with an arm, or a tripod floor lamp."""
    kind = rng.choice(("table", "table", "table", "desk", "tripod"))
    trim = metal(rng, "brass", "chrome", "black", "steel", "copper")
    if kind == "desk":
        _desk(m, rng, trim)
        return
    cloth = fabric(rng, rng.choice(SHADES), rng.choice(SHADES), rng.choice(PATTERNED), rng(0.05, 0.12))
    cloth = cloth._replace(glow=rng.choice((0.0, 0.12, 0.35)))
    h = _tripod(m, rng, trim) if kind == "tripod" else _base(m, rng, trim)
    low, high, tall = rng(0.19, 0.32), rng(0.08, 0.28), rng(0.2, 0.34)
    high = min(high, low)
    z = h + rng(-0.02, 0.05)
    style = rng.choice(("drum", "drum", "bell", "box", "pleat"))
    if style == "bell":
        m.lathe(spline((low, z), (0.5 * low + 0.42 * high, z + 0.35 * tall), (high, z + tall), n=8), cloth, sides=32)
    else:
        m.lathe([(low, z), (high, z + tall)], cloth, sides={"box": 4, "pleat": 14, "drum": 36}[style])
    if rng.chance(0.6) and style in ("drum", "pleat"):
        band = fabric(rng, rng.choice(SHADES))
        m.lathe([(low + 0.003, z), (low + (high - low) * 0.06 + 0.003, z + 0.06 * tall)], band, sides=36)
        m.lathe([(high + 0.003 - (high - low) * 0.06, z + 0.94 * tall), (high + 0.003, z + tall)], band, sides=36)
    m.cushion((0, 0, z + tall + 0.01), (0.03, 0.03, 0.05), trim, 1.0, n=5)


def _desk(m: Mesh, rng: RandomStream, trim: Material) -> None:
    """Add foot, arm with an elbow, and head."""
    shell = plastic(rng, *FRAMES) if rng.chance(0.6) else trim
    b = rng(0.13, 0.19)
    if rng.chance(0.7):
        m.lathe([(0, 0), (b, 0), (b, 0.02), (b * 0.8, rng(0.03, 0.06)), (0, 0.06)], shell, sides=30)
    else:
        m.box((0, 0, 0.02), (2 * b, 1.6 * b, 0.04), shell, 0.015)
    elbow: Point = (rng(-0.28, -0.05), 0, rng(0.36, 0.52))
    head: Point = (elbow[0] + rng(0.28, 0.46), 0, elbow[2] + rng(0.0, 0.25))
    if rng.chance(0.25):
        m.tube(spline((0, 0, 0.03), elbow, head, n=16), 0.013, trim)
    else:
        sides, thick = ((-0.025, 0.025), 0.008) if rng.chance(0.5) else ((0.0,), 0.014)
        for y in sides:
            m.tube(((0, y, 0.03), (elbow[0], y, elbow[2])), thick, trim, sides=6)
            m.tube(((elbow[0], y, elbow[2]), (head[0], y, head[2])), thick, trim, sides=6)
        for x, _, z in ((0, 0, 0.05), elbow, head):
            m.tube(((x, -0.04, z), (x, 0.04, z)), 0.024, shell, sides=10)
    r, deep = rng(0.09, 0.15), rng(0.12, 0.2)
    profile = rng.choice(HEADS)
    tip = rotation("y", -rng(0.2, 0.9)) @ rotation("x", math.pi)
    m.lathe([(0, -0.005), *((r * a, deep * z) for a, z in profile)], shell, head, tip, sides=24)
    bulb = [(0, 0.3 * deep), (0.4 * r, 0.55 * deep), (0.35 * r, 0.85 * deep), (0, 0.95 * deep)]
    m.lathe(bulb, Material((1.0, 0.93, 0.8), glow=rng.choice((0.2, 0.9))), head, tip, sides=12)


def _tripod(m: Mesh, rng: RandomStream, trim: Material) -> float:
    """Add three legs and return their height."""
    h = rng(0.7, 0.95)
    timber = wood(rng, "oak", "walnut", "pine", "black")
    spread = rng(0.2, 0.34)
    for k in range(3):
        a = 2 * math.pi * k / 3 + 0.5
        x, y = math.cos(a), math.sin(a)
        m.tube(((spread * x, spread * y, 0), (0.02 * x, 0.02 * y, h)), (0.014, 0.022), timber, sides=8)
    m.cylinder(0.05, 0, 0.03, trim, (0, 0, h - 0.02))
    if rng.chance(0.4):
        m.ring((0, 0, 0.35 * h), spread * 0.62, 0.008, trim)
    return h


def _base(m: Mesh, rng: RandomStream, trim: Material) -> float:
    """Add the base of a table lamp and return its height."""
    h = rng(0.4, 0.6)
    style = rng.choice(tuple(BASES))
    r = rng(0.11, 0.19)
    material = trim
    if rng.chance(0.6):
        material = ceramic(rng, *GLAZES).with_pattern(rng, rng.choice(INKS), rng(0.05, 0.12), 0.6)
    elif rng.chance(0.4):
        material = wood(rng, "oak", "walnut", "teak")
    knots = [(a * rng(0.9, 1.1) * r, z * h) for a, z in BASES[style]]
    line = knots if style in ("column", "stick") else spline(*knots, n=20)
    m.lathe([(0, 0), *line, (0, h)], material, sides=6 if rng.chance(0.12) else 28)
    if rng.chance(0.5):
        m.lathe([(0, 0), (r * 0.95, 0), (r * 0.95, 0.02), (0, 0.025)], trim)
    m.tube(((0, 0, h - 0.01), (0, 0, h + 0.16)), 0.012, trim, sides=6)
    return h

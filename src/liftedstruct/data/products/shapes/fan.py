"""Fans."""

import math

import numpy as np

from liftedstruct.data.products.materials import Material, glass, metal, plastic
from liftedstruct.data.products.meshes import TO_FRONT, Mesh, Point, rotation, spline
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes.parts import CASES, knob

__all__ = ["fan"]


def fan(m: Mesh, rng: RandomStream) -> None:
    """Build a desk, pedestal or box fan with three to six blades in a cage."""
    R = rng(0.26, 0.36)
    body = plastic(rng, *CASES) if rng.chance(0.6) else metal(rng, "chrome", "brass", "black", "steel")
    wire = metal(rng, "chrome", "black", "steel", "brass") if rng.chance(0.7) else body
    blades = plastic(rng, *CASES, "5b8fb0", "8fb0c8") if rng.chance(0.75) else metal(rng, "brass", "steel", "chrome")
    if rng.chance(0.2):
        blades = glass(rng, "88a8c0", 3)
    kind = rng.choice(("desk", "desk", "pedestal", "box"))
    n, twist, tilt = rng.choice((3, 3, 4, 5, 6)), rng(0.3, 0.65), 0.0 if kind == "box" else rng(-0.3, 0.05)
    height = {"desk": rng(0.42, 0.6), "pedestal": rng(0.95, 1.4), "box": R + 0.06}[kind]
    lean = rotation("x", tilt)
    to_front = lean @ TO_FRONT

    def place(x: float, y: float, z: float) -> Point:
        """Tilt and raise a point of the head."""
        a, b, c = (lean @ np.array((x, y, z))).tolist()
        return a, b, c + height

    wide, sweep, start = rng(0.5, 0.95) * math.pi / n * 1.5, rng(-0.3, 0.6), rng(0, 6)
    for k in range(n):
        grid = np.empty((6, 6, 3))
        for i in range(6):
            r = R * (0.16 + 0.72 * i / 5)
            span = wide * (0.6 + 0.4 * math.sin(math.pi * (0.15 + 0.7 * i / 5)))
            for j in range(6):
                s = j / 5 - 0.5
                a = start + 2 * math.pi * k / n + span * s + sweep * i / 5
                grid[i, j] = (r * math.cos(a), -0.02 + twist * s * 0.22 * R * 2, r * math.sin(a))
        m.sheet(grid, blades, (0, 0, height), lean)
    hub = [(0, 0.05), (0.12 * R, 0.05), (0.19 * R, 0.03), (0.19 * R, -0.05), (0, -0.05)]
    m.lathe(hub, body, (0, 0, height), to_front, sides=18)
    front = rng.choice(("radial", "radial", "spiral", "rings"))
    rim, deep = rng(0.007, 0.013), rng(0.06, 0.1)
    if kind != "box":
        for y in (-deep * 0.2, deep * 0.2):
            m.ring(place(0, y, 0), R, rim, body if rng.chance(0.5) else wire, to_front, 36)
        motor = [(0, 0.12), (0.3 * R, 0.1), (0.36 * R, 0), (0.36 * R, -0.05), (0, -0.06)]
        m.lathe(motor, body, place(0, 0.1, 0), lean @ rotation("x", -math.pi / 2), sides=20)
    boss = rng(0.14, 0.32) * R
    cap = plastic(rng, *CASES).with_logo(rng, boss, 0, 0)
    m.lathe([(boss, -0.01), (boss * 0.9, 0.015), (0, 0.02)], cap, place(0, -deep, 0), to_front, sides=18)
    if front == "rings":
        for k in range(1, 6):
            m.ring(place(0, -deep * math.cos(k / 6 * 1.3), 0), boss + (R - boss) * k / 6, 0.0035, wire, to_front, 28)
    spokes, swirl = rng.choice((16, 24, 32)) if front != "rings" else 6, rng(0.4, 1.0) if front == "spiral" else 0.0
    for k in range(spokes):
        for side in (-1, 1) if kind != "box" and k % 2 == 0 else (-1,):
            path = []
            for t in (0, 0.25, 0.5, 0.75, 1):
                r, a = boss + (R - boss) * t, 2 * math.pi * k / spokes + swirl * t
                path.append(place(r * math.cos(a), side * deep * math.cos(1.35 * t), r * math.sin(a)))
            m.tube(path, 0.0032, wire, sides=3)
    if kind == "box":
        _box(m, rng, R + 0.05, body, wire)
    else:
        _stand(m, rng, kind, R, height, body, wire)


def _box(m: Mesh, rng: RandomStream, s: float, body: Material, wire: Material) -> None:
    """Add a square case of half width `s`."""
    t, bevel = 0.05, min(rng(0.01, 0.05), 0.024)
    for sx in (-1, 1):
        m.box((sx * s, 0, s), (t, 0.2, 2 * s + t), body, bevel)
        m.box((0, 0, s + sx * s), (2 * s + t, 0.2, t), body, bevel)
        m.box((sx * 0.6 * s, 0, -0.03), (0.05, 0.28, 0.03), body)
    for sx, sz in ((-1, -1), (1, -1), (-1, 1), (1, 1)):
        gusset = [(0, 0), (-sx * 0.3 * s, 0), (0, -sz * 0.3 * s)]
        m.extrude(gusset if sx * sz < 0 else gusset[::-1], 0.02, body, (sx * s, -0.08, s + sz * s))
    knob(m, (rng.choice((-1, 1)) * 0.8 * s, -0.1, rng.choice((0.2, 1.8)) * s), 0.03, 0.03, wire, body)
    if rng.chance(0.5):
        m.tube(spline((-0.1, 2 * s + 0.02), (0, 2 * s + 0.08), (0.1, 2 * s + 0.02), n=8), 0.012, body)


def _stand(m: Mesh, rng: RandomStream, kind: str, R: float, height: float, body: Material, wire: Material) -> None:
    """Add a post on a foot, with switches."""
    foot = rng.choice(("disc", "disc", "square", "cross", "bell"))
    b = R * rng(0.55, 0.8) if kind == "desk" else R * rng(0.75, 1.0)
    m.tube(((0, 0.06, 0.02), (0, 0.06, height)), rng(0.015, 0.035), wire if rng.chance(0.5) else body, sides=10)
    if kind == "pedestal":
        m.tube(((0, 0.06, 0.02), (0, 0.06, 0.5 * height)), 0.032, body, sides=12)
    if foot == "disc":
        disc = [(0, 0), (b, 0), (b, 0.02), (0.85 * b, 0.045), (0.2 * b, 0.06), (0, 0.06)]
        m.lathe(disc, body, (0, 0.03, 0), flat=rng(0.8, 1.0))
    elif foot == "bell":
        m.lathe([(0, 0), (b, 0), (0.95 * b, 0.03), (0.5 * b, 0.07), (0.22 * b, 0.16), (0.16 * b, 0.2)], body, (0, 0.03, 0))
    elif foot == "square":
        m.box((0, 0.02, 0.03), (2 * b, 1.6 * b, 0.06), body, 0.025)
    else:
        for a in (0.78, 2.36):
            x, y = b * math.cos(a), b * math.sin(a)
            m.beam((-x, -y, 0.02), (x, y, 0.02), 0.07, 0.035, body)
    if foot in ("disc", "square") and kind == "desk":
        k = rng.integer(2, 5)
        for i in range(k):
            m.box((0.06 * (i - (k - 1) / 2), -0.55 * b, 0.06), (0.035, 0.03, 0.03), wire, 0.006)

"""Fans. Front is towards -y, up is z."""

import math

import numpy as np

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.meshes import Floats, Model, Point, arc, turn
from liftedstruct.data.products.shapes.parts import CASES, FLAT, glyph, knob_on_front
from liftedstruct.data.products.stuff import glass, metal, plastic

__all__ = ["fan"]


def fan(m: Model, dice: Dice) -> None:
    """Desk, pedestal or box fan, with three to six blades in a cage."""
    R = dice(0.26, 0.36)
    body = (
        m.paint(plastic(dice, dice.pick(CASES)))
        if dice.chance(0.6)
        else m.paint(metal(dice, dice.pick(("chrome", "brass", "black", "steel"))))
    )
    wire = m.paint(metal(dice, dice.pick(("chrome", "black", "steel", "brass")))) if dice.chance(0.7) else body
    blades = (
        m.paint(plastic(dice, dice.pick((*CASES, "5b8fb0", "8fb0c8"))))
        if dice.chance(0.75)
        else m.paint(metal(dice, dice.pick(("brass", "steel", "chrome"))))
    )
    if dice.chance(0.2):
        blades = m.paint(glass(dice, "88a8c0", 3))
    kind = dice.pick(("desk", "desk", "pedestal", "box"))
    n, twist, tilt = dice.pick((3, 3, 4, 5, 6)), dice(0.3, 0.65), 0.0 if kind == "box" else dice(-0.3, 0.05)
    height = {"desk": dice(0.42, 0.6), "pedestal": dice(0.95, 1.4), "box": R + 0.06}[kind]
    hub: Point = (0, 0, height)
    lean = turn("x", tilt)
    wide, sweep, start = dice(0.5, 0.95) * math.pi / n * 1.5, dice(-0.3, 0.6), dice(0, 6)
    for k in range(n):
        grid = np.empty((6, 6, 3))
        for i in range(6):
            r = R * (0.16 + 0.72 * i / 5)
            span = wide * (0.6 + 0.4 * math.sin(math.pi * (0.15 + 0.7 * i / 5)))
            for j in range(6):
                s = j / 5 - 0.5
                a = start + 2 * math.pi * k / n + span * s + sweep * i / 5
                grid[i, j] = (r * math.cos(a), -0.02 + twist * s * 0.22 * R * 2, r * math.sin(a))
        m.sheet(grid, blades, hub, lean)
    m.lathe([(0, 0.05), (0.12 * R, 0.05), (0.19 * R, 0.03), (0.19 * R, -0.05), (0, -0.05)], body, hub, lean @ FLAT, sides=18)
    front = dice.pick(("radial", "radial", "spiral", "rings"))
    rim, deep = dice(0.007, 0.013), dice(0.06, 0.1)
    if kind != "box":
        for y in (-deep * 0.2, deep * 0.2):
            m.ring(_turned(lean, (0, y, 0), hub), R, rim, body if dice.chance(0.5) else wire, lean @ FLAT, 36)
        m.lathe(
            [(0, 0.12), (0.3 * R, 0.1), (0.36 * R, 0), (0.36 * R, -0.05), (0, -0.06)],
            body,
            _turned(lean, (0, 0.1, 0), hub),
            lean @ turn("x", -math.pi / 2),
            sides=20,
        )
    boss = dice(0.14, 0.32) * R
    m.lathe(
        [(boss, -0.01), (boss * 0.9, 0.015), (0, 0.02)],
        m.paint(glyph(dice, plastic(dice, dice.pick(CASES)), boss, 0, 0)),
        _turned(lean, (0, -deep, 0), hub),
        lean @ FLAT,
        sides=18,
    )
    if front == "rings":
        for k in range(1, 6):
            m.ring(
                _turned(lean, (0, -deep * math.cos(k / 6 * 1.3), 0), hub),
                boss + (R - boss) * k / 6,
                0.0035,
                wire,
                lean @ FLAT,
                28,
            )
    spokes, swirl = dice.pick((16, 24, 32)) if front != "rings" else 6, dice(0.4, 1.0) if front == "spiral" else 0.0
    for k in range(spokes):
        for side in (-1, 1) if kind != "box" and k % 2 == 0 else (-1,):
            path = []
            for i in range(5):
                t = i / 4
                r, a = boss + (R - boss) * t, 2 * math.pi * k / spokes + swirl * t
                path.append(_turned(lean, (r * math.cos(a), side * deep * math.cos(1.35 * t), r * math.sin(a)), hub))
            m.tube(path, 0.0032, wire, sides=3)
    if kind == "box":
        s, t, c = R + 0.05, 0.05, dice(0.01, 0.05)
        for sx in (-1, 1):
            m.box((sx * s, 0, s), (t, 0.2, 2 * s + t), body, min(c, 0.024))
            m.box((0, 0, s + sx * s), (2 * s + t, 0.2, t), body, min(c, 0.024))
            m.box((sx * 0.6 * s, 0, -0.03), (0.05, 0.28, 0.03), body)
        for sx, sz in ((-1, -1), (1, -1), (-1, 1), (1, 1)):
            m.extrude(
                [(0, 0), (-sx * sz * 0.0 - sx * 0.3 * s, 0), (0, -sz * 0.3 * s)][:: 1 if sx * sz < 0 else -1],
                0.02,
                body,
                (sx * s, -0.08, s + sz * s),
            )
        knob_on_front(m, (dice.pick((-1, 1)) * 0.8 * s, -0.1, dice.pick((0.2, 1.8)) * s), 0.03, 0.03, wire, body)
        if dice.chance(0.5):
            m.tube(arc((-0.1, 0, 2 * s + 0.02), (0, 0, 2 * s + 0.08), (0.1, 0, 2 * s + 0.02), n=8), 0.012, body)
        return
    foot = dice.pick(("disc", "disc", "square", "cross", "bell"))
    b = R * dice(0.55, 0.8) if kind == "desk" else R * dice(0.75, 1.0)
    m.tube(((0, 0.06, 0.02), (0, 0.06, height)), dice(0.015, 0.035), wire if dice.chance(0.5) else body, sides=10)
    if kind == "pedestal":
        m.tube(((0, 0.06, 0.02), (0, 0.06, 0.5 * height)), 0.032, body, sides=12)
    if foot == "disc":
        m.lathe(
            [(0, 0), (b, 0), (b, 0.02), (0.85 * b, 0.045), (0.2 * b, 0.06), (0, 0.06)], body, (0, 0.03, 0), flat=dice(0.8, 1.0)
        )
    elif foot == "bell":
        m.lathe([(0, 0), (b, 0), (0.95 * b, 0.03), (0.5 * b, 0.07), (0.22 * b, 0.16), (0.16 * b, 0.2)], body, (0, 0.03, 0))
    elif foot == "square":
        m.box((0, 0.02, 0.03), (2 * b, 1.6 * b, 0.06), body, 0.025)
    else:
        for a in (0.78, 2.36):
            m.beam((-b * math.cos(a), -b * math.sin(a), 0.02), (b * math.cos(a), b * math.sin(a), 0.02), 0.07, 0.035, body)
    if foot in ("disc", "square") and kind == "desk":
        k = dice.whole(2, 5)
        for i in range(k):
            m.box((0.06 * (i - (k - 1) / 2), -0.55 * b, 0.06), (0.035, 0.03, 0.03), wire, 0.006)


def _turned(R: Floats, p: Point, at: Point) -> Point:
    x, y, z = R @ np.array(p)
    return (float(x) + at[0], float(y) + at[1], float(z) + at[2])

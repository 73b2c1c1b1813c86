"""Mugs. Front is towards -y, up is z."""

import math

import numpy as np

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.materials import linear, material
from liftedstruct.data.products.meshes import Model, arc
from liftedstruct.data.products.shapes.parts import GLAZES, INKS, glyph
from liftedstruct.data.products.stuff import ceramic, decor, metal

__all__ = ["mug"]


def mug(m: Model, dice: Dice) -> None:
    """A cup with its handle, glaze, and a decor or sign; some on a saucer."""
    r, h = dice(0.34, 0.46), dice(0.7, 1.1)
    top, belly, foot = dice(0.85, 1.2), dice(0.85, 1.15), dice(0.65, 1.0)
    style = dice.pick(("straight", "straight", "barrel", "tulip", "cone", "step"))
    knots = {
        "straight": [(0.95, 0), (1, 0.05), (1, 0.5), (1, 1)],
        "barrel": [(0.85 * foot, 0), (belly * 1.05, 0.35), (belly * 1.05, 0.6), (0.92, 1)],
        "tulip": [(0.7 * foot, 0), (0.9 * belly, 0.25), (0.85, 0.6), (top, 1)],
        "cone": [(0.62 * foot, 0), (0.7, 0.3), (0.85, 0.65), (1.0, 1)],
        "step": [(0.7, 0), (0.72, 0.12), (1.0, 0.2), (1.0, 0.6), (1.0, 1)],
    }[style]
    code, ink = dice.pick(GLAZES), dice.pick(INKS)
    period = dice(0.09, 0.24)
    row = decor(dice, ceramic(dice, code), ink, period, 0.45)
    if row[8] == 5:
        row[9] = dice(0.25, 0.7) * h
    if row[8] == 0 and dice.chance(0.7):
        row = glyph(
            dice,
            row,
            dice(0.3, 0.55),
            -math.pi / 2 * r * max(a for a, _ in knots),
            h * dice(0.42, 0.58),
            ink if ink != code else None,
        )
    if dice.chance(0.1):
        row = metal(dice, dice.pick(("steel", "copper")), True)
    glaze = m.paint(row)
    plain = list(row)
    plain[8] = 0.0
    outer = m.paint(plain)
    inner = m.paint(ceramic(dice, dice.pick(("f2f0ec", code, ink))))
    line = arc(*((a * r, z * h, 0.0) for a, z in knots), n=14)
    walls = [(float(p[0]), float(p[1])) for p in line]
    rim, t = walls[-1], dice(0.025, 0.045)
    m.lathe([(0, 0), (walls[0][0], 0)], outer, sides=40)
    m.lathe(walls, glaze, sides=40)
    m.lathe(
        [rim, (rim[0] - 0.3 * t, h + 0.4 * t), (rim[0] - 0.8 * t, h + 0.3 * t), (rim[0] - t, h)],
        inner if dice.chance(0.3) else outer,
        sides=40,
    )
    m.lathe([(rim[0] - t, h), *((a - t, z) for a, z in reversed(walls[1:-1])), (0, 0.06)], inner, sides=40)
    if dice.chance(0.5):
        z = dice(0.6, 0.88) * h
        m.lathe(
            [(0, z), (min(np.interp(z, [q for _, q in walls], [p for p, _ in walls]), rim[0] * 1.1) - t, z)],
            m.paint(material(linear(dice.pick(("2a150a", "8a5a34", "6b7a3a"))), gloss=90, shine=0.05)),
            sides=32,
        )
    grip = outer if dice.chance(0.8) else inner
    radius = [p for p, _ in walls]
    heights = [q for _, q in walls]
    up, down = dice(0.72, 0.88) * h, dice(0.14, 0.34) * h
    a, b = float(np.interp(up, heights, radius)) - 0.02, float(np.interp(down, heights, radius)) - 0.02
    out = max(a, b) + dice(0.2, 0.34)
    shape = dice.pick(("c", "d", "ear", "square", "loop"))
    if shape == "c":
        path = arc((a, 0, up), (out, 0, up - 0.02), (out, 0, down + 0.04), (b, 0, down), n=16)
    elif shape == "d":
        path = arc((a, 0, up), (out * 0.92, 0, up), (out, 0, 0.5 * (up + down)), (out * 0.92, 0, down), (b, 0, down), n=16)
    elif shape == "ear":
        path = arc(
            (a, 0, up),
            (out * 0.95, 0, up + 0.06),
            (out, 0, 0.7 * up + 0.3 * down),
            (b + 0.08, 0, down + 0.05),
            (b, 0, down),
            n=16,
        )
    elif shape == "square":
        path = np.array(
            ((a, 0, up), (out - 0.02, 0, up), (out, 0, up - 0.03), (out, 0, down + 0.03), (out - 0.02, 0, down), (b, 0, down)),
            dtype=float,
        )
    else:
        k = 0.5 * (up - down) * dice(0.55, 0.8)
        mid = 0.55 * h
        c = float(np.interp(mid, heights, radius)) + 0.6 * k
        path = np.array([(c + 0.9 * k * math.cos(w), 0, mid + k * math.sin(w)) for w in np.linspace(2.6, -2.6, 16)])
    m.tube(path, dice(0.035, 0.065), grip, sides=10, flat=dice(0.8, 1.6))
    if dice.chance(0.15):
        s = r * dice(1.6, 1.9)
        m.lathe([(0, -0.05), (0.6 * s, -0.05), (s, 0.02), (0.98 * s, 0.03), (0.6 * s, -0.02), (0, -0.02)], outer, sides=40)

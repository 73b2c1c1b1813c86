"""Lamps. Front is towards -y, up is z."""

import math

import numpy as np

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.materials import material
from liftedstruct.data.products.meshes import Model, Point, arc, turn
from liftedstruct.data.products.shapes.parts import FRAMES, GLAZES, INKS
from liftedstruct.data.products.stuff import ceramic, decor, fabric, metal, plastic, wood

__all__ = ["lamp"]

SHADES = ("f0e8d8", "e8e4da", "2a2a2c", "b8a888", "8a3b32", "4a5c6c")


def lamp(m: Model, dice: Dice) -> None:
    """Table lamp with a shade, desk lamp on an arm, or tripod floor lamp."""
    kind = dice.pick(("table", "table", "table", "desk", "tripod"))
    trim = m.paint(metal(dice, dice.pick(("brass", "chrome", "black", "steel", "copper"))))
    if kind == "desk":
        shell = m.paint(plastic(dice, dice.pick(FRAMES))) if dice.chance(0.6) else trim
        b = dice(0.13, 0.19)
        if dice.chance(0.7):
            m.lathe([(0, 0), (b, 0), (b, 0.02), (b * 0.8, dice(0.03, 0.06)), (0, 0.06)], shell, sides=30)
        else:
            m.box((0, 0, 0.02), (2 * b, 1.6 * b, 0.04), shell, 0.015)
        elbow: Point = (dice(-0.28, -0.05), 0, dice(0.36, 0.52))
        head: Point = (elbow[0] + dice(0.28, 0.46), 0, elbow[2] + dice(0.0, 0.25))
        if dice.chance(0.25):
            m.tube(arc((0, 0, 0.03), (elbow[0], 0, elbow[2]), head, n=16), 0.013, trim)
        else:
            pair = dice.chance(0.5)
            for y in (-0.025, 0.025) if pair else (0.0,):
                m.tube(((0, y, 0.03), (elbow[0], y, elbow[2])), 0.008 if pair else 0.014, trim, sides=6)
                m.tube(((elbow[0], y, elbow[2]), (head[0], y, head[2])), 0.008 if pair else 0.014, trim, sides=6)
            for p in ((0, 0, 0.05), elbow, head):
                m.tube(((p[0], -0.04, p[2]), (p[0], 0.04, p[2])), 0.024, shell, sides=10)
        r, deep = dice(0.09, 0.15), dice(0.12, 0.2)
        profile = dice.pick((
            [(0.3, 0), (0.36, 0.1), (0.45, 0.35), (1.0, 1.0)], [(0.35, 0), (0.4, 0.3), (0.8, 0.5), (1.0, 1.0)],
            [(0.5, 0), (0.75, 0.05), (0.95, 0.4), (1.0, 1.0)], [(0.45, 0), (0.5, 0.2), (0.5, 0.5), (0.9, 0.6), (1, 1)],
        ))  # fmt: skip
        tip = turn("y", -dice(0.2, 0.9)) @ turn("x", math.pi)
        m.lathe([(0, -0.005), *((r * a, deep * z) for a, z in profile)], shell, head, tip, sides=24)
        m.lathe(
            [(0, 0.3 * deep), (0.4 * r, 0.55 * deep), (0.35 * r, 0.85 * deep), (0, 0.95 * deep)],
            m.paint(material((1.0, 0.93, 0.8), glow=dice.pick((0.2, 0.9)))),
            head,
            tip,
            sides=12,
        )
        return
    code = dice.pick(SHADES)
    shade = fabric(
        dice,
        code,
        dice.pick(SHADES),
        dice.pick(("plain", "plain", "plain", "pinstripes", "chevron", "dots", "bands", "petals")),
        dice(0.05, 0.12),
    )
    shade[17] = dice.pick((0.0, 0.12, 0.35))
    cloth = m.paint(shade)
    if kind == "tripod":
        h = dice(0.7, 0.95)
        timber = m.paint(wood(dice, dice.pick(("oak", "walnut", "pine", "black"))))
        spread = dice(0.2, 0.34)
        for k in range(3):
            a = 2 * math.pi * k / 3 + 0.5
            m.tube(
                ((spread * math.cos(a), spread * math.sin(a), 0), (0.02 * math.cos(a), 0.02 * math.sin(a), h)),
                (0.014, 0.022),
                timber,
                sides=8,
            )
        m.lathe([(0, 0), (0.05, 0), (0.05, 0.03), (0, 0.03)], trim, (0, 0, h - 0.02))
        if dice.chance(0.4):
            m.ring((0, 0, 0.35 * h), spread * 0.62, 0.008, trim)
    else:
        h = dice(0.4, 0.6)
        style = dice.pick(("gourd", "column", "jar", "stack", "bottle", "cone", "stick"))
        r = dice(0.11, 0.19)
        stone = (
            m.paint(decor(dice, ceramic(dice, dice.pick(GLAZES)), dice.pick(INKS), dice(0.05, 0.12), 0.6))
            if dice.chance(0.6)
            else m.paint(wood(dice, dice.pick(("oak", "walnut", "teak"))))
            if dice.chance(0.4)
            else trim
        )
        knots = {
            "gourd": [(0.6, 0), (1.0, 0.2), (0.8, 0.4), (0.4, 0.55), (0.6, 0.72), (0.5, 0.88), (0.15, 1)],
            "column": [(0.9, 0), (0.9, 0.06), (0.45, 0.1), (0.4, 0.5), (0.45, 0.9), (0.6, 0.94), (0.3, 1)],
            "jar": [(0.6, 0), (0.9, 0.25), (1.05, 0.6), (0.8, 0.85), (0.35, 0.93), (0.35, 1)],
            "stack": [(0.7, 0), (1.0, 0.14), (0.55, 0.28), (0.9, 0.42), (0.5, 0.56), (0.75, 0.7), (0.4, 0.84), (0.2, 1)],
            "bottle": [(0.8, 0), (0.85, 0.3), (0.8, 0.5), (0.35, 0.68), (0.25, 0.85), (0.25, 1)],
            "cone": [(1.0, 0), (0.8, 0.3), (0.5, 0.65), (0.2, 1)],
            "stick": [(0.9, 0), (0.9, 0.03), (0.15, 0.07), (0.1, 0.5), (0.1, 1)],
        }[style]
        knots = [(a * dice(0.9, 1.1), z) for a, z in knots]
        smooth = style not in ("column", "stick")
        line = (
            arc(*((a * r, z * h, 0.0) for a, z in knots), n=20) if smooth else np.array([(a * r, z * h, 0.0) for a, z in knots])
        )
        m.lathe([(0, 0), *((float(p[0]), float(p[1])) for p in line), (0, h)], stone, sides=6 if dice.chance(0.12) else 28)
        if dice.chance(0.5):
            m.lathe([(0, 0), (r * 0.95, 0), (r * 0.95, 0.02), (0, 0.025)], trim)
        m.tube(((0, 0, h - 0.01), (0, 0, h + 0.16)), 0.012, trim, sides=6)
    low, high, tall = dice(0.19, 0.32), dice(0.08, 0.28), dice(0.2, 0.34)
    high = min(high, low)
    z = h + dice(-0.02, 0.05)
    style = dice.pick(("drum", "drum", "bell", "box", "pleat"))
    if style == "bell":
        line = arc((low, z, 0), (0.5 * low + 0.42 * high, z + 0.35 * tall, 0), (high, z + tall, 0), n=8)
        m.lathe([(float(p[0]), float(p[1])) for p in line], cloth, sides=32)
    else:
        sides = 4 if style == "box" else 14 if style == "pleat" else 36
        m.lathe([(low, z), (high, z + tall)], cloth, sides=sides)
    if dice.chance(0.6) and style in ("drum", "pleat"):
        band = m.paint(fabric(dice, dice.pick(SHADES)))
        m.lathe([(low + 0.003, z), (low + (high - low) * 0.06 + 0.003, z + 0.06 * tall)], band, sides=36)
        m.lathe([(high + 0.003 - (high - low) * 0.06, z + 0.94 * tall), (high + 0.003, z + tall)], band, sides=36)
    m.cushion((0, 0, z + tall + 0.01), (0.03, 0.03, 0.05), trim, 1.0, n=5)

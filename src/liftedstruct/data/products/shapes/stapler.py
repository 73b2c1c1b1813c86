"""Staplers, drawn along x. Front is towards -y, up is z."""

import math

import numpy as np

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.meshes import Model, Point, arc, turn
from liftedstruct.data.products.shapes.parts import FRAMES, glyph
from liftedstruct.data.products.stuff import metal, plastic, rubber

__all__ = ["stapler"]


def stapler(m: Model, dice: Dice) -> None:
    """Base, magazine and arm on a hinge, long side to the front."""
    L, w, gape = dice(0.9, 1.25), dice(0.17, 0.28), math.radians(dice(3, 15))
    hood = plastic(dice, dice.pick(FRAMES)) if dice.chance(0.75) else metal(dice, dice.pick(("chrome", "steel", "black")))
    if dice.chance(0.6):
        hood = glyph(dice, hood, dice(0.07, 0.12), dice(-0.2, 0.2) * L, 0.0)
    body = m.paint(hood)
    dark = m.paint(plastic(dice, dice.pick(("222224", "222224", "4a4c50", "e8e6e0"))))
    steel = m.paint(metal(dice, dice.pick(("chrome", "steel"))))
    t = dice(0.04, 0.09)
    base = dice.pick(("bar", "wedge", "wide", "boat"))
    lower = dark if dice.chance(0.55) else body
    if base == "bar":
        m.box((0, 0, t / 2), (L, w, t), lower, 0.018)
    elif base == "wide":
        m.box((0.02, 0, 0.3 * t), (L * 1.04, w * 1.35, 0.6 * t), lower, 0.014)
        m.box((0, 0, 0.6 * t), (L * 0.9, w * 0.8, 0.8 * t), lower, 0.014)
    elif base == "wedge":
        m.extrude([(-L / 2, 0), (L / 2, 0), (L / 2, 0.5 * t), (-0.3 * L, t), (-L / 2, 1.8 * t)], w, lower, bevel=0.015)
    else:
        m.cushion((0, 0, t / 2), (L * 1.05, w * 1.2, t), lower, 0.35)
    m.box((0.42 * L, 0, t + 0.004), (0.09 * L, 0.6 * w, 0.016), steel, 0.004)
    hinge: Point = (-0.42 * L, 0, t + dice(0.06, 0.12))
    swing = turn("y", -gape)

    def lift(x: float, z: float) -> Point:
        p = swing @ np.array((x, 0.0, z))
        return (float(p[0]) + hinge[0], 0.0, float(p[2]) + hinge[2])

    mag_l, mag_h = 0.9 * L, dice(0.05, 0.08)
    m.box(lift(mag_l / 2 - 0.02, 0.02), (mag_l, 0.55 * w, mag_h), steel, 0.006, swing)
    high = dice(0.1, 0.19)
    nose, hump = dice(0.5, 1.0), dice(0.7, 1.5)
    kind = dice.pick(("smooth", "angular", "flat", "swan", "round"))
    z0 = 0.02 + mag_h / 2
    reach = dice(0.88, 1.0) * L
    if kind == "smooth":
        line = arc(
            (reach, z0 + 0.1 * high, 0),
            (0.97 * reach, z0 + nose * high, 0),
            (0.5 * reach, z0 + high, 0),
            (0.1 * reach, z0 + hump * high, 0),
            (-0.08, z0, 0),
            n=12,
        )
    elif kind == "swan":
        line = arc(
            (reach, z0 + 0.2 * high, 0),
            (0.96 * reach, z0 + high, 0),
            (0.7 * reach, z0 + 0.75 * high, 0),
            (0.35 * reach, z0 + 0.6 * high, 0),
            (0.05 * reach, z0 + hump * high, 0),
            (-0.09, z0 - 0.02, 0),
            n=14,
        )
    elif kind == "round":
        line = arc(
            (reach, z0, 0),
            (0.9 * reach, z0 + 0.8 * high, 0),
            (0.45 * reach, z0 + 1.5 * high, 0),
            (0.05 * reach, z0 + 0.9 * high, 0),
            (-0.06, z0, 0),
            n=12,
        )
    elif kind == "angular":
        line = np.array(
            (
                (reach, z0, 0),
                (reach, z0 + 0.6 * nose * high, 0),
                (0.9 * reach, z0 + nose * high, 0),
                (0.2 * reach, z0 + hump * high, 0),
                (-0.05, z0 + 0.8 * high, 0),
                (-0.1, z0 - 0.04, 0),
            )
        )
    else:
        line = np.array(
            (
                (reach, z0, 0),
                (reach - 0.01, z0 + 0.7 * high, 0),
                (reach - 0.06, z0 + 0.8 * high, 0),
                (-0.02, z0 + 0.8 * high, 0),
                (-0.06, z0 + 0.7 * high, 0),
                (-0.07, z0 - 0.02, 0),
            )
        )
    outline = [(float(p[0]), float(p[1])) for p in line]
    m.extrude(outline, w * dice(0.75, 1.0), body, hinge, swing, dice(0.012, 0.05))
    if dice.chance(0.45):
        m.cushion(lift(0.82 * reach, z0 + 0.85 * nose * high), (0.3 * L, 0.7 * w, 0.05), dark, 0.5, swing)
    if dice.chance(0.5):
        m.box(
            lift(0.5 * reach, z0 + 0.3 * high),
            (0.75 * reach, w * 1.02, 0.02),
            dark if dice.chance(0.5) else steel,
            0.004,
            swing,
        )
    m.tube(((hinge[0], -0.56 * w, hinge[2]), (hinge[0], 0.56 * w, hinge[2])), dice(0.025, 0.045), steel, sides=14)
    for s in (-1, 1):
        m.extrude(
            [(-0.07, -0.1), (0.1, -0.1), (0.05, 0.04), (-0.05, 0.05)],
            0.02,
            dark if dice.chance(0.5) else steel,
            (hinge[0], s * 0.48 * w, hinge[2]),
            bevel=0.004,
        )
    m.box((0.0, 0, 0.004), (L * 0.98, w * 0.9, 0.012), m.paint(rubber()), 0)

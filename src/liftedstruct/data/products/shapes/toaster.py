"""Toasters. Front is towards -y, up is z."""

import math

import numpy as np

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.materials import linear, material
from liftedstruct.data.products.meshes import Model, arc, turn
from liftedstruct.data.products.shapes.parts import DARK, FLAT, case, glyph, knob_on_front
from liftedstruct.data.products.stuff import metal, plastic, rubber

__all__ = ["toaster"]


def toaster(m: Model, dice: Dice) -> None:
    """A case with slots on top, a lever, a knob, feet; some with bread or a rack."""
    body, dark, trim = case(m, dice)
    slots = dice.pick((1, 2, 2, 2, 4))
    w, d, h = (dice(0.72, 0.95) if slots < 4 else dice(0.95, 1.15)), dice(0.42, 0.6), dice(0.48, 0.64)
    lift = 0.035
    kind = dice.pick(("round", "box", "arch", "trapeze"))
    z = lift + h
    outline: list[tuple[float, float]]
    if kind == "box":
        m.box((0, 0, lift + h / 2), (w, d, h), body, dice(0.02, 0.07))
    else:
        if kind == "round":
            c, n = dice(0.08, 0.18), 6
            outline = [(-d / 2 + 0.02, lift), (d / 2 - 0.02, lift), (d / 2, lift + 0.04)]
            outline += [(d / 2 - c + c * math.cos(a), z - c + c * math.sin(a)) for a in np.linspace(0, math.pi / 2, n)]
            outline += [(-d / 2 + c - c * math.sin(a), z - c + c * math.cos(a)) for a in np.linspace(0, math.pi / 2, n)]
            outline += [(-d / 2, lift + 0.04)]
        elif kind == "arch":
            outline = [(-d / 2, lift), (d / 2, lift)] + [
                (d / 2 * math.cos(a), z - 0.45 * h + 0.45 * h * math.sin(a) ** 0.7) for a in np.linspace(0.0, math.pi, 13)
            ]
        else:
            k = dice(0.7, 0.9)
            outline = [
                (-d / 2, lift),
                (d / 2, lift),
                (d / 2 * k + 0.02, z - 0.04),
                (d / 2 * k - 0.03, z),
                (-d / 2 * k + 0.03, z),
                (-d / 2 * k - 0.02, z - 0.04),
            ]
        m.extrude(outline, w, body, rotation=turn("z", math.pi / 2), bevel=dice(0.02, 0.06))
    if dice.chance(0.6):  # end caps or a belt in another material
        for sx in (-1.0, 1.0):
            m.box((sx * (w / 2), 0, lift + 0.47 * h), (dice(0.03, 0.07), d * 0.94, 0.9 * h), dark, 0.014)
    if dice.chance(0.5):
        m.box((0, 0, lift + 0.04), (w + 0.015, d + 0.015, 0.09), dark, 0.012)
    for sx in (-1.0, 1.0):
        for sy in (-1.0, 1.0):
            m.lathe([(0.04, 0), (0.04, lift + 0.02), (0, lift + 0.02)], dark, (sx * 0.4 * w, sy * 0.34 * d, 0), sides=12)
    black = m.paint(material((0.015, 0.013, 0.012), gloss=4, shine=0.01))
    m.box((0, 0, z), (w * 0.86, d * (0.66 if slots > 1 else 0.4), 0.02), trim, 0.006)
    toast = dice.chance(0.25)
    crumb = m.paint(material(linear("b07838"), texture="leather", scale=2, gloss=4, shine=0.01))
    for sy in (0.0,) if slots == 1 else (-1.0, 1.0):
        for sx in (-1.0, 1.0) if slots == 4 else (0.0,):
            x, y, length = sx * 0.22 * w, sy * 0.16 * d, (0.38 if slots == 4 else 0.76) * w
            m.box((x, y, z + 0.006), (length, 0.11 * d + 0.015, 0.014), black, 0)
            if toast:
                m.box((x, y, z + 0.03), (length * 0.8, 0.05, 0.22), crumb, 0.022)
    front = dice.chance(0.5)  # controls on the long side or on the right end
    mark = m.paint(plastic(dice, "e8e8e6"))
    for k in range(2 if slots == 4 else 1):
        off = (k - 0.5) * 0.5 if slots == 4 else 0.0
        rise = lift + dice(0.55, 0.8) * h
        if front:
            x = 0.32 * w if slots < 4 else off * w
            m.box((x, -d / 2 - 0.002, lift + 0.55 * h), (0.03, 0.01, 0.55 * h), black, 0)
            m.box((x, -d / 2 - 0.035, rise), (dice(0.08, 0.13), 0.06, 0.045), dark, 0.014)
            knob_on_front(
                m,
                (x - (0.17 if slots < 4 else 0.12), -d / 2, lift + dice(0.25, 0.4) * h),
                dice(0.035, 0.055),
                0.045,
                trim if dice.chance(0.5) else dark,
                mark,
            )
        else:
            m.box((w / 2 + 0.022, off * d, lift + 0.5 * h), (0.01, 0.03, 0.6 * h), black, 0)
            m.box((w / 2 + 0.06, off * d, rise), (0.07, dice(0.09, 0.15), 0.045), dark, 0.014)
            m.lathe(
                [(0.06, 0), (0.05, 0.04), (0, 0.04)],
                trim,
                (w / 2 + 0.02, off * d + 0.11, lift + 0.22 * h),
                turn("y", math.pi / 2),
                sides=16,
            )
    n = dice.whole(0, 4)
    for k in range(n if front else 0):
        m.lathe(
            [(0.018, 0), (0.018, 0.014), (0, 0.014)],
            trim,
            (-0.34 * w + 0.06 * k, -d / 2 + 0.002, lift + 0.2 * h),
            FLAT,
            sides=10,
        )
    if dice.chance(0.5):
        m.box(
            (-0.1 * w, -d / 2 + (0.0 if kind in ("box", "round") else -0.004), lift + dice(0.45, 0.6) * h),
            (0.2, 0.012, 0.13),
            m.paint(glyph(dice, metal(dice, "steel", True), 0.1, 0, 0, DARK)),
            0.004,
        )
    if dice.chance(0.3):
        for k in range(dice.whole(2, 5)):
            m.box((0, -d / 2 + 0.001, lift + 0.12 + 0.05 * k), (0.7 * w, 0.012, 0.012), trim, 0)
    m.tube(
        arc((-w / 2, 0.1 * d, 0.08), (-w / 2 - 0.12, 0.2 * d, 0.02), (-w / 2 - 0.05, 0.6 * d, 0.015), n=8),
        0.012,
        m.paint(rubber()),
        sides=5,
    )

"""Coffee makers. Front is towards -y, up is z."""

import math

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.materials import material
from liftedstruct.data.products.meshes import Model, arc, turn
from liftedstruct.data.products.shapes.parts import DARK, FLAT, case, glyph, knob_on_front
from liftedstruct.data.products.stuff import glass, plastic

__all__ = ["coffee_maker"]


def coffee_maker(m: Model, dice: Dice) -> None:
    """Drip machine with a jug, espresso machine, or pod machine."""
    body, dark, trim = case(m, dice)
    kind = dice.pick(("drip", "drip", "espresso", "pod"))
    glow = m.paint(material((0.9, 0.25, 0.1), glow=0.6))
    if kind == "drip":
        w, d, h = dice(0.42, 0.6), dice(0.5, 0.66), dice(0.8, 1.0)
        base, head, bevel = dice(0.07, 0.13), dice(0.2, 0.34), dice(0.015, 0.06)
        m.box((0, 0, base / 2), (w, d, base), dark if dice.chance(0.4) else body, bevel)
        back = dice(0.28, 0.4) * d
        m.box((0, d / 2 - back / 2, h / 2), (w * dice(0.8, 1.0), back, h), body, bevel)
        if dice.chance(0.5):
            m.box((0, 0, h - head / 2), (w, d, head), body, bevel)
        else:
            m.lathe(
                [(0, 0), (0.42 * w, 0), (0.5 * w, head * 0.9), (0.47 * w, head), (0, head)],
                body,
                (0, -0.12 * d, h - head),
                flat=min(1.1, d / w * 0.75),
            )
            m.box((0, 0.1 * d, h - head / 2), (w * 0.92, 0.8 * d, head), body, bevel)
        m.box((0, 0, h + 0.01), (w * 0.8, d * 0.7, 0.03), dark, 0.012)
        cy, r = -0.12 * d, dice(0.36, 0.43) * w
        jh = h - head - base - 0.05
        m.lathe([(0, 0), (r * 1.02, 0), (r * 1.02, 0.012), (0, 0.015)], trim, (0, cy, base))
        belly, neck = dice(0.9, 1.05), dice(0.55, 0.85)
        thermos = dice.chance(0.3)
        wall = trim if thermos else m.paint(glass(dice, "c4cccc"))
        pot = [(0, 0), (r * 0.9, 0), (r * belly, 0.3 * jh), (r * 0.85, 0.65 * jh), (r * neck, 0.88 * jh)]
        if not thermos:
            full = dice(0.3, 0.65)
            m.lathe(
                [(0, 0.01), (r * 0.86, 0.01), (r * belly * 0.95, 0.3 * jh), (r * (belly - 0.1), full * jh), (0, full * jh)],
                m.paint(material((0.03, 0.014, 0.008), gloss=90, shine=0.05)),
                (0, cy, base + 0.015),
            )
        m.lathe(pot, wall, (0, cy, base + 0.015))
        m.lathe([(r * neck, 0.86 * jh), (r * neck * 1.03, 0.93 * jh), (0.3 * r, jh), (0, jh)], dark, (0, cy, base + 0.015))
        side = dice.pick((0.0, 0.0, 0.8, -0.8))
        ox, oy = math.sin(side), -math.cos(side)
        reach = dice(1.45, 1.7) * r
        m.tube(
            arc(
                (r * neck * ox, cy + r * neck * oy, base + 0.88 * jh),
                (reach * ox, cy + reach * oy, base + 0.75 * jh),
                (reach * ox, cy + reach * oy, base + 0.35 * jh),
                (r * ox, cy + r * oy, base + 0.2 * jh),
            ),
            0.024,
            dark,
            flat=0.7,
        )
        x0, n = dice(-0.3, 0.1) * w, dice.whole(1, 4)
        for k in range(n):
            m.lathe(
                [(0.02, 0), (0.02, 0.015), (0, 0.015)], trim if k else glow, (x0 + 0.07 * k, -d / 2, base / 2), FLAT, sides=10
            )
        if dice.chance(0.5):
            m.box(
                (dice(-0.1, 0.1) * w, -d / 2 + 0.01, h - head / 2),
                (0.4 * w, 0.03, 0.35 * head),
                m.paint(glyph(dice, plastic(dice, DARK), 0.3 * head, 0, 0)),
                0.01,
            )
    elif kind == "espresso":
        w, d, h = dice(0.6, 0.85), dice(0.5, 0.62), dice(0.7, 0.85)
        m.box((0, 0, 0.07), (w, d, 0.13), dark if dice.chance(0.3) else body, 0.03)
        m.box((0, -0.02, 0.14), (w * 0.86, d * 0.8, 0.02), trim, 0.004)
        m.box((0, d * 0.22, h / 2), (w, d * 0.55, h), body, 0.035)
        m.box((0, 0, h * 0.82), (w, d, h * 0.34), body, dice(0.02, 0.07))
        for sx in dice.pick(((0.0,), (0.0,), (-0.22, 0.22), (-0.15,))):
            x, y, z = sx * w, -0.22 * d, h * 0.65
            m.lathe([(0, 0.02), (0.1, 0.02), (0.1, -0.05), (0.085, -0.09), (0.03, -0.1), (0, -0.14)], trim, (x, y, z), sides=20)
            m.tube(((x, y - 0.08, z - 0.05), (x + 0.02, y - 0.34, z - 0.07)), (0.022, 0.032), dark, sides=8)
        wand = dice.pick((-1, 1))
        m.tube(
            arc(
                (wand * 0.4 * w, -0.4 * d, h * 0.68),
                (wand * 0.46 * w, -0.5 * d, h * 0.4),
                (wand * 0.42 * w, -0.5 * d, 0.26),
                n=8,
            ),
            0.012,
            trim,
            sides=6,
        )
        for k in range(dice.whole(1, 4)):
            knob_on_front(m, ((k - 1) * 0.17, -d / 2, h * 0.84), dice(0.03, 0.06), 0.04, dark, trim)
        if dice.chance(0.5):
            m.lathe(
                [(0.07, 0), (0.075, 0.015), (0.06, 0.02), (0, 0.02)],
                m.paint(plastic(dice, "f0f0ea")),
                (0.34 * w, -d / 2, h * 0.84),
                FLAT,
                sides=18,
            )
        if dice.chance(0.4):
            m.lathe([(0.08, 0), (0.13, 0.2), (0.13, 0.22), (0, 0.23)], m.paint(glass(dice, "8a8480")), (-0.2 * w, 0.1 * d, h))
    else:
        w, d, h = dice(0.3, 0.42), dice(0.55, 0.75), dice(0.6, 0.8)
        m.lathe([(0, 0), (0.9 * w / 2, 0), (w / 2, 0.02), (w / 2, dice(0.06, 0.1)), (0, 0.1)], dark, (0, -0.22 * d, 0))
        m.extrude(
            [
                (0.1 * d, 0),
                (0.5 * d, 0),
                (0.5 * d, 0.75 * h),
                (0.35 * d, h),
                (-0.3 * d, h),
                (-0.5 * d, 0.85 * h),
                (-0.42 * d, 0.66 * h),
                (0.02 * d, 0.58 * h),
                (0.12 * d, 0.3 * h),
            ],
            w,
            body,
            rotation=turn("z", math.pi / 2),
            bevel=dice(0.02, 0.06),
        )
        m.lathe([(0.05, 0), (0.045, -0.07), (0, -0.07)], trim, (0, -0.3 * d, 0.66 * h), sides=14)
        m.tube(
            arc(
                (-w / 2, -0.1 * d, h * 0.95),
                (-w / 2, -0.3 * d, h + 0.06),
                (w / 2, -0.3 * d, h + 0.06),
                (w / 2, -0.1 * d, h * 0.95),
                n=14,
            ),
            dice(0.015, 0.03),
            trim,
        )
        m.cushion((0, 0.45 * d, 0.4 * h), (0.8 * w, 0.26 * d, 0.7 * h), m.paint(glass(dice, "7a8890", 2)), 0.3)
        m.lathe([(0.035, 0), (0.04, 0.012), (0, 0.014)], glow if dice.chance(0.5) else trim, (0, 0.05 * d, h), sides=14)

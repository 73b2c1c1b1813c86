"""Kettles. Front is towards -y, up is z."""

import numpy as np

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.meshes import Model, arc
from liftedstruct.data.products.shapes.parts import CASES, DARK, glyph
from liftedstruct.data.products.stuff import ceramic, decor, glass, metal, plastic, wood

__all__ = ["kettle"]


def kettle(m: Model, dice: Dice) -> None:
    """Electric jug on its base, or stove kettle with an arched handle."""
    electric = dice.chance(0.55)
    if dice.chance(0.5):
        row = metal(dice, dice.pick(("steel", "chrome", "copper", "steel")))
    else:
        row = ceramic(dice, dice.pick(CASES)) if not electric else plastic(dice, dice.pick(CASES))
    row = decor(dice, row, dice.pick(("efece4", DARK, "a8261e")), dice(0.06, 0.14), 0.75)
    if dice.chance(0.3) and row[8] == 0:
        row = glyph(dice, row, 0.1, 0.0 if electric else -0.4, 0.35)
    see_through = electric and dice.chance(0.2)
    body = m.paint(glass(dice, "b8c8cc") if see_through else row)
    dark = m.paint(
        wood(dice, dice.pick(("walnut", "oak")))
        if dice.chance(0.2)
        else plastic(dice, dice.pick((DARK, DARK, "efece4", "7c8186")))
    )
    trim = m.paint(metal(dice, dice.pick(("chrome", "steel", "brass"))))
    r = dice(0.24, 0.34)
    h = dice(0.5, 0.72) if electric else dice(0.32, 0.5)
    top, belly, at = dice(0.5, 0.85), dice(0.95, 1.12), dice(0.15, 0.45)
    z0 = 0.06 if electric else 0.0
    points = arc(
        (r * dice(0.85, 1.0), z0, 0),
        (r * belly, z0 + at * h, 0),
        (r * (0.35 * belly + 0.65 * top), z0 + 0.78 * h, 0),
        (r * top, z0 + h, 0),
        n=10,
    )
    profile = [(0.0, z0), *((float(p[0]), float(p[1])) for p in points)]
    m.lathe(profile, body, sides=36)
    z = z0 + h
    if electric:
        m.lathe([(0, 0), (r * 1.05, 0), (r * 1.08, 0.02), (r * 0.98, 0.05), (0, 0.055)], dark, sides=36)
        m.lathe([(r * 0.99, z0), (r * 1.02, z0 + 0.03), (r * 0.98, z0 + 0.05)], trim if dice.chance(0.5) else dark, sides=36)
    if see_through:
        m.lathe(
            [(0, z0 + 0.04), (r * 0.9, z0 + 0.04), (r * 0.9, z0 + 0.5 * h), (0, z0 + 0.5 * h)],
            m.paint(glass(dice, "90b4c4", 2)),
            sides=24,
        )
    lid = dice.pick(("dome", "flat", "step"))
    rise = {"dome": dice(0.06, 0.12), "flat": 0.03, "step": 0.06}[lid]
    cap = trim if dice.chance(0.3) else dark if dice.chance(0.5) else m.paint(row)
    m.lathe(
        {
            "dome": [(r * top, z), (r * top * 0.9, z + 0.5 * rise), (r * top * 0.5, z + 0.9 * rise), (0, z + rise)],
            "flat": [(r * top, z), (r * top * 0.98, z + rise), (0, z + rise)],
            "step": [(r * top, z), (r * top * 0.8, z + 0.02), (r * top * 0.75, z + rise), (0, z + rise)],
        }[lid],
        cap,
        sides=32,
    )
    knob = dice.pick(("ball", "disc", "cone"))
    if not electric or dice.chance(0.5):
        m.lathe(
            {
                "ball": [(0.012, 0), (0.015, 0.02), (0.04, 0.035), (0.045, 0.055), (0.03, 0.08), (0, 0.085)],
                "disc": [(0.015, 0), (0.015, 0.03), (0.05, 0.035), (0.05, 0.05), (0, 0.055)],
                "cone": [(0.015, 0), (0.04, 0.06), (0, 0.065)],
            }[knob],
            dark,
            (0, 0, z + rise - 0.005),
            sides=14,
        )
    # spout on the left (-x), handle on the right or above
    low, reach = z0 + dice(0.35, 0.65) * h, r * dice(1.4, 1.8)
    spout = dice.pick(("goose", "beak", "straight")) if not electric or dice.chance(0.3) else "beak"
    if spout == "goose":
        path = arc(
            (-r * 0.7, 0, z0 + 0.25 * h),
            (-r * 1.25, 0, z0 + 0.3 * h),
            (-r * 1.4, 0, z0 + 0.75 * h),
            (-reach - 0.04, 0, z0 + 0.98 * h),
            n=12,
        )
        m.tube(path, np.linspace(0.055, 0.024, 12), m.paint(row), sides=10)
    elif spout == "straight":
        m.tube(((-r * 0.75, 0, low), (-reach, 0, z0 + 0.95 * h)), (0.08, 0.03), m.paint(row), sides=12)
    else:
        m.tube(
            arc((-r * 0.4, 0, z0 + 0.72 * h), (-r * 0.95, 0, z0 + 0.88 * h), (-r * dice(1.15, 1.4), 0, z0 + h), n=6),
            (0.15, 0.14, 0.115, 0.085, 0.06, 0.035),
            m.paint(row),
            sides=12,
            flat=0.75,
        )
    t = dice(0.022, 0.04)
    if electric or dice.chance(0.3):
        out = r * dice(1.5, 1.9)
        shape = dice.pick(("open", "closed", "angular"))
        up, down = z0 + 0.95 * h, z0 + dice(0.12, 0.4) * h
        if shape == "open":
            path = arc((r * top * 0.8, 0, up), (out * 0.95, 0, up + 0.04), (out, 0, z0 + 0.6 * h), (out * 0.95, 0, down), n=14)
        elif shape == "closed":
            path = arc((r * top * 0.8, 0, up), (out * 0.9, 0, up), (out, 0, z0 + 0.55 * h), (r * 0.9, 0, down), n=14)
        else:
            path = np.array(
                (
                    (r * top * 0.8, 0, up),
                    (out * 0.98, 0, up + 0.02),
                    (out, 0, up),
                    (out * 0.97, 0, down + 0.02),
                    (out * 0.95, 0, down),
                    (r * 0.85, 0, down),
                ),
                dtype=float,
            )
        m.tube(path, t, dark, sides=10, flat=dice(0.6, 1.2))
    else:
        peak, foot = z + dice(0.16, 0.3), r * dice(0.75, 1.0)
        if dice.chance(0.6):
            path = arc(
                (-foot, 0, z - 0.12 * h),
                (-foot * 0.95, 0, peak - 0.05),
                (0, 0, peak),
                (foot * 0.95, 0, peak - 0.05),
                (foot, 0, z - 0.12 * h),
                n=20,
            )
        else:
            path = np.array(
                (
                    (-foot, 0, z - 0.1 * h),
                    (-foot, 0, peak - 0.03),
                    (-foot + 0.03, 0, peak),
                    (foot - 0.03, 0, peak),
                    (foot, 0, peak - 0.03),
                    (foot, 0, z - 0.1 * h),
                ),
                dtype=float,
            )
        k = len(path)
        m.tube(path, 0.4 * t, trim, sides=8)
        m.tube(path[k // 4 : -(k // 4)] if k > 8 else path[2:4], t, dark, sides=10)
    if electric and dice.chance(0.5):
        m.box((0, -r * belly * 0.97, z0 + at * h), (0.05, 0.02, dice(0.2, 0.34)), m.paint(glass(dice, "6a7880", 3)), 0.01)

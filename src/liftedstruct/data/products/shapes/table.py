"""Tables. Front is towards -y, up is z."""

import math

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.materials import linear, material
from liftedstruct.data.products.meshes import Model
from liftedstruct.data.products.shapes.parts import legs
from liftedstruct.data.products.stuff import glass, metal, wood

__all__ = ["table"]


def table(m: Model, dice: Dice) -> None:
    """A top of some outline on four legs, a column, trestles or a frame."""
    h = dice.pick((0.4, 0.5, 0.75, 0.75, 1.0))
    shape = dice.pick(("rect", "rect", "round", "oval", "square", "octagon"))
    w = dice(0.8, 1.7) / 2 if shape in ("rect", "oval") else dice(0.5, 1.1) / 2
    d = w * dice(0.45, 0.7) if shape in ("rect", "oval") else w
    timber = m.paint(wood(dice, dice.pick(("oak", "pine", "walnut", "cherry", "white", "black", "teak"))))
    steel = m.paint(metal(dice, dice.pick(("chrome", "steel", "black", "brass", "iron"))))
    kind = dice.pick(("same", "same", "same", "glass", "stone", "other"))
    top = timber
    if kind == "glass":
        top = m.paint(glass(dice, "a8c0bc"))
    elif kind == "stone":
        top = m.paint(
            material(linear(dice.pick(("e4e2de", "4a4a4c", "c8b8a0"))), texture="leather", scale=0.6, gloss=90, shine=0.05)
        )
    elif kind == "other":
        top = m.paint(wood(dice, dice.pick(("oak", "walnut", "white", "black"))))
    t = dice(0.02, 0.06)
    if shape in ("rect", "square"):
        m.box((0, 0, h - t / 2), (2 * w, 2 * d, t), top, dice(0.003, 0.015))
        if kind == "same" and dice.chance(0.2):
            m.box((0, 0, h - t - 0.012), (2 * w - 0.05, 2 * d - 0.05, 0.02), timber)
    else:
        sides = 8 if shape == "octagon" else 40
        edge = dice(0.0, 0.5) * t
        m.lathe(
            [(0, h - t), (w - edge, h - t), (w, h - t + edge), (w, h - edge * 0.5), (w - edge, h), (0, h)],
            top,
            sides=sides,
            flat=d / w,
        )
    base = dice.pick(("legs", "legs", "legs", "column", "trestle", "frame", "cross"))
    under = h - t
    paint = timber if dice.chance(0.6) else steel
    inset = dice(0.03, 0.12) if shape in ("rect", "square") else 0.33 * w
    lw, ld = w - inset, max(d - inset, 0.1)
    if base == "legs":
        style = dice.pick(("square", "tapered", "turned", "hairpin", "cabriole"))
        legs(m, dice, lw, ld, under, steel if style == "hairpin" else timber, style, dice(0.035, 0.08), dice.pick((0, 0, 0.06)))
        if dice.chance(0.5) and style != "hairpin":
            rail = dice(0.06, 0.12)
            for s in (-1, 1):
                m.box((0, s * ld, under - rail / 2), (2 * lw, 0.02, rail), timber, 0.003)
                m.box((s * lw, 0, under - rail / 2), (0.02, 2 * ld, rail), timber, 0.003)
            if dice.chance(0.5):
                m.cushion((0, -ld - 0.02, under - rail / 2), (0.035, 0.03, 0.035), steel, 1.0, n=5)
        if dice.chance(0.35):
            m.box((0, 0, dice(0.18, 0.4) * h), (2 * lw, 2 * ld, 0.02), timber if kind != "glass" else top, 0.004)
    elif base == "column":
        r, foot = dice(0.03, 0.07), 0.55 * min(w, d * 1.4)
        waist = dice(0.5, 1.6)
        m.lathe(
            [
                (0, 0),
                (foot, 0),
                (foot, 0.02),
                (r * 1.6, 0.05),
                (r, 0.15 * h),
                (r * waist, 0.5 * h),
                (r, 0.85 * h),
                (r * 2.2, under),
                (0, under),
            ],
            paint,
            sides=24,
        )
    elif base == "trestle":
        for s in (-1, 1):
            for q in (-1, 1):
                m.beam((s * lw * 0.85, q * ld, 0), (s * lw * 0.85, q * ld * dice(-0.4, 0.5), under), 0.05, 0.04, paint)
            m.beam((s * lw * 0.85, -ld * 0.6, 0.25 * h), (s * lw * 0.85, ld * 0.6, 0.25 * h), 0.03, 0.03, paint)
        m.beam((-lw * 0.85, 0, 0.25 * h), (lw * 0.85, 0, 0.25 * h), 0.03, 0.05, paint)
    elif base == "frame":
        bar = dice(0.025, 0.06)
        for s in (-1, 1):
            x = s * lw
            for a, b in (
                ((x, -ld, 0), (x, -ld, under)),
                ((x, ld, 0), (x, ld, under)),
                ((x, -ld, bar / 2), (x, ld, bar / 2)),
                ((x, -ld, under - bar / 2), (x, ld, under - bar / 2)),
            ):
                m.beam(a, b, bar, bar, paint, 0.003)
    else:
        for angle in (0.7, -0.7):
            c = (lw * math.cos(angle), ld * math.sin(angle) * 1.3)
            m.beam((-c[0], -c[1], 0.02), (c[0], c[1], under), 0.05, 0.04, paint)
            m.beam((c[0], c[1], 0.02), (-c[0], -c[1], under), 0.05, 0.04, paint)

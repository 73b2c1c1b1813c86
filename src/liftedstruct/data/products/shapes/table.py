"""Tables."""

import math

from liftedstruct.data.products.materials import Material, glass, linear, metal, wood
from liftedstruct.data.products.meshes import Mesh
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes.parts import legs

__all__ = ["table"]


def table(m: Mesh, rng: RandomStream) -> None:
    """Build a table with a top of random outline on four legs, a column, trestles, a frame or crossed beams."""
    h = rng.choice((0.4, 0.5, 0.75, 0.75, 1.0))
    shape = rng.choice(("rect", "rect", "round", "oval", "square", "octagon"))
    w = rng(0.8, 1.7) / 2 if shape in ("rect", "oval") else rng(0.5, 1.1) / 2
    d = w * rng(0.45, 0.7) if shape in ("rect", "oval") else w
    timber = wood(rng, "oak", "pine", "walnut", "cherry", "white", "black", "teak")
    steel = metal(rng, "chrome", "steel", "black", "brass", "iron")
    kind = rng.choice(("same", "same", "same", "glass", "stone", "other"))
    top = timber
    if kind == "glass":
        top = glass(rng, "a8c0bc")
    elif kind == "stone":
        code = rng.choice(("e4e2de", "4a4a4c", "c8b8a0"))
        top = Material(linear(code), texture="leather", scale=0.6, gloss=90, shine=0.05)
    elif kind == "other":
        top = wood(rng, "oak", "walnut", "white", "black")
    t = rng(0.02, 0.06)
    if shape in ("rect", "square"):
        m.box((0, 0, h - t / 2), (2 * w, 2 * d, t), top, rng(0.003, 0.015))
        if kind == "same" and rng.chance(0.2):
            m.box((0, 0, h - t - 0.012), (2 * w - 0.05, 2 * d - 0.05, 0.02), timber)
    else:
        edge = rng(0.0, 0.5) * t
        profile = [(0, h - t), (w - edge, h - t), (w, h - t + edge), (w, h - edge * 0.5), (w - edge, h), (0, h)]
        m.lathe(profile, top, sides=8 if shape == "octagon" else 40, flat=d / w)
    base = rng.choice(("legs", "legs", "legs", "column", "trestle", "frame", "cross"))
    under = h - t
    material = timber if rng.chance(0.6) else steel
    inset = rng(0.03, 0.12) if shape in ("rect", "square") else 0.33 * w
    lw, ld = w - inset, max(d - inset, 0.1)
    if base == "legs":
        style = rng.choice(("square", "tapered", "turned", "hairpin", "cabriole"))
        leg = steel if style == "hairpin" else timber
        legs(m, lw, ld, under, leg, style, rng(0.035, 0.08), rng.choice((0, 0, 0.06)))
        if rng.chance(0.5) and style != "hairpin":
            rail = rng(0.06, 0.12)
            for s in (-1, 1):
                m.box((0, s * ld, under - rail / 2), (2 * lw, 0.02, rail), timber, 0.003)
                m.box((s * lw, 0, under - rail / 2), (0.02, 2 * ld, rail), timber, 0.003)
            if rng.chance(0.5):
                m.cushion((0, -ld - 0.02, under - rail / 2), (0.035, 0.03, 0.035), steel, 1.0, n=5)
        if rng.chance(0.35):
            m.box((0, 0, rng(0.18, 0.4) * h), (2 * lw, 2 * ld, 0.02), timber if kind != "glass" else top, 0.004)
    elif base == "column":
        r, foot = rng(0.03, 0.07), 0.55 * min(w, d * 1.4)
        post = [(r, 0.15 * h), (r * rng(0.5, 1.6), 0.5 * h), (r, 0.85 * h), (r * 2.2, under), (0, under)]
        m.lathe([(0, 0), (foot, 0), (foot, 0.02), (r * 1.6, 0.05), *post], material, sides=24)
    elif base == "trestle":
        for x in (-lw * 0.85, lw * 0.85):
            for q in (-1, 1):
                m.beam((x, q * ld, 0), (x, q * ld * rng(-0.4, 0.5), under), 0.05, 0.04, material)
            m.beam((x, -ld * 0.6, 0.25 * h), (x, ld * 0.6, 0.25 * h), 0.03, 0.03, material)
        m.beam((-lw * 0.85, 0, 0.25 * h), (lw * 0.85, 0, 0.25 * h), 0.03, 0.05, material)
    elif base == "frame":
        bar = rng(0.025, 0.06)
        for x in (-lw, lw):
            for y in (-ld, ld):
                m.beam((x, y, 0), (x, y, under), bar, bar, material, 0.003)
            for z in (bar / 2, under - bar / 2):
                m.beam((x, -ld, z), (x, ld, z), bar, bar, material, 0.003)
    else:
        for angle in (0.7, -0.7):
            x, y = lw * math.cos(angle), ld * math.sin(angle) * 1.3
            m.beam((-x, -y, 0.02), (x, y, under), 0.05, 0.04, material)
            m.beam((x, y, 0.02), (-x, -y, under), 0.05, 0.04, material)

"""What several products share: colours of a category, legs, cases, knobs and makers' signs."""

import math

import numpy as np

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.materials import linear
from liftedstruct.data.products.meshes import Model, Point, arc, turn
from liftedstruct.data.products.stuff import metal, plastic

__all__ = ["CASES", "DARK", "FLAT", "FRAMES", "GLAZES", "INKS", "PLAINS", "SEATS", "case", "glyph", "knob_on_front", "legs"]

SEATS = ("6e7076", "a89a86", "3b4250", "8a3b32", "c9bfae", "4f6357")
PLAINS = ("f0eee8", "222224", "8a8d90", "5b7a8c", "a83a2e", "d8c8a4")
CASES = ("efece4", "1e1e20", "a8261e", "d8cdb4", "7c8186", "9cc4b4")
DARK = "222224"
FRAMES = ("b3261e", "1c1c1e", "24508c", "e8e6e0", "3f6f56", "d9731e", "8fb8c4")
GLAZES = ("f2f0ec", "22262c", "a83a2e", "38587c", "d8cdb4", "5f7f6a", "d9a23e")
INKS = ("22262c", "a83a2e", "38587c", "f2f0ec", "d9a23e", "5f7f6a")
FLAT = turn("x", math.pi / 2)  # a lathe's axis towards the front


def legs(
    m: Model, dice: Dice, w: float, d: float, top: float, paint: int, style: str, thick: float, splay: float = 0.0
) -> None:
    """Four legs under a rectangle of half sizes (w, d)."""
    for sx, sy in ((-1, -1), (1, -1), (1, 1), (-1, 1)):
        a: Point = (sx * (w + splay), sy * (d + splay), 0)
        b: Point = (sx * w, sy * d, top)
        if style == "square":
            m.beam(a, b, thick, thick, paint)
        elif style == "tapered":
            m.tube((a, b), (0.4 * thick, 0.75 * thick), paint, sides=10)
        elif style == "turned":
            rings = (
                (0.35, 0),
                (0.5, 0.06),
                (0.38, 0.1),
                (0.7, 0.35),
                (0.45, 0.5),
                (0.75, 0.62),
                (0.75, 0.66),
                (0.5, 0.7),
                (0.6, 1),
            )
            m.lathe([(thick * r, top * z) for r, z in rings], paint, (sx * w, sy * d, 0), sides=12)
        elif style == "hairpin":
            for o in (-0.05, 0.05):
                m.tube((a, (sx * w + o * (sx if o > 0 else 1), sy * d + (o if o > 0 else 0), top)), 0.2 * thick, paint, sides=6)
        else:  # cabriole: bent outwards at the knee
            path = arc(
                (sx * w, sy * d, top), (sx * (w + 0.05), sy * (d + 0.05), 0.75 * top), (sx * w, sy * d, 0.2 * top), a, n=9
            )
            m.tube(path, np.linspace(0.8, 0.4, 9) * thick, paint, sides=8)


def glyph(dice: Dice, row: list[float], width: float, u: float, v: float, code: str | None = None) -> list[float]:
    """The material with a maker's sign at (u, v)."""
    out = list(row)
    light = sum(out[:3]) > 0.6
    out[3:6] = linear(code or (DARK if light else "e8e8e6"))
    out[8:13] = [7.0, width, float(dice.whole(1000, 32767)), u, v]
    return out


def case(m: Model, dice: Dice) -> tuple[int, int, int]:
    """Paints of the body, its second part and its trim."""
    row = metal(dice, dice.pick(("steel", "chrome", "copper")), True) if dice.chance(0.35) else plastic(dice, dice.pick(CASES))
    second = plastic(dice, dice.pick((DARK, DARK, "8a8d90", "efece4")))
    return m.paint(row), m.paint(second), m.paint(metal(dice, dice.pick(("chrome", "steel", "black"))))


def knob_on_front(m: Model, at: Point, r: float, depth: float, paint: int, mark: int) -> None:
    """A turning knob on a front, with its mark."""
    x, y, z = at
    m.lathe([(r * 1.15, 0), (r, depth * 0.2), (r * 0.92, depth), (0, depth)], paint, at, FLAT, sides=18)
    m.box((x, y - depth, z + 0.5 * r), (0.16 * r, 0.008, 0.8 * r), mark, 0)

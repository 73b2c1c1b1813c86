"""Chairs. Front is towards -y, up is z."""

import math

import numpy as np

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.meshes import Model, arc, turn
from liftedstruct.data.products.shapes.parts import PLAINS, SEATS, legs
from liftedstruct.data.products.stuff import fabric, leather, metal, plastic, rubber, wood

__all__ = ["chair"]


def chair(m: Model, dice: Dice) -> None:
    """Dining chair, shell, office chair or armchair."""
    kind = dice.pick(("dining", "dining", "shell", "office", "arm"))
    timber = m.paint(wood(dice, dice.pick(("oak", "pine", "walnut", "black", "white", "cherry"))))
    steel = m.paint(metal(dice, dice.pick(("chrome", "steel", "black", "brass"))))
    cover = (
        leather(dice, dice.pick(("2a2624", "6b4028", "d8d0c2", "7a2620")))
        if dice.chance(0.35)
        else fabric(dice, dice.pick(SEATS))
    )
    soft = m.paint(cover)
    w, d, seat, back = dice(0.4, 0.54) / 2, dice(0.4, 0.5) / 2, dice(0.4, 0.5), dice(0.35, 0.62)
    lean = dice(0.03, 0.14)
    if kind == "dining":
        thick = dice(0.03, 0.05)
        legs(
            m,
            dice,
            w - 0.02,
            d - 0.02,
            seat,
            timber,
            dice.pick(("square", "tapered", "turned", "tapered")),
            thick,
            dice.pick((0, 0, 0.05)),
        )
        if dice.chance(0.5):
            m.cushion((0, 0, seat + 0.02), (2 * w + 0.03, 2 * d + 0.03, dice(0.06, 0.1)), soft, 0.3)
        else:
            m.box((0, 0, seat), (2 * w + 0.02, 2 * d + 0.02, 0.03), timber, 0.012)
        if dice.chance(0.6):
            m.box((0, 0, seat - 0.05), (2 * w - 0.02, 2 * d - 0.02, 0.06), timber, 0.004)
        if dice.chance(0.45):
            for sx in (-1, 1):
                m.beam((sx * (w - 0.02), -d + 0.02, 0.3 * seat), (sx * (w - 0.02), d - 0.02, 0.3 * seat), 0.02, 0.03, timber)
            m.beam((-w + 0.02, 0, 0.3 * seat), (w - 0.02, 0, 0.3 * seat), 0.02, 0.03, timber)
        y0, y1 = d - 0.01, d + lean
        for sx in (-1, 1):
            m.beam((sx * (w - 0.015), y0, seat - 0.02), (sx * (w - 0.015), y1, seat + back), thick, thick * 0.8, timber)
        _back(m, dice, w, y0, y1, seat, back, timber, soft)
        if dice.chance(0.25):
            _arms(m, w, d, seat, dice(0.18, 0.24), timber)
    elif kind == "shell":
        shell = m.paint(plastic(dice, dice.pick(PLAINS), 35)) if dice.chance(0.7) else soft
        rows, cols, scoop = 11, 9, dice(0.02, 0.09)
        grid = np.empty((rows, cols, 3))
        line = arc(
            (0, -d - 0.03, seat - 0.03),
            (0, -0.3 * d, seat),
            (0, 0.85 * d, seat + 0.02),
            (0, d + lean, seat + 0.6 * back),
            (0, d + lean + 0.06, seat + back),
            n=rows,
        )
        waist = dice(0.75, 1.05)
        for i in range(rows):
            half = w * (1.08 if i < 5 else 1.05 - (1.05 - waist) * (i - 4) / (rows - 5)) * (0.86 if i in (0, rows - 1) else 1.0)
            for j in range(cols):
                s = 2 * j / (cols - 1) - 1
                grid[i, j] = (
                    half * s,
                    line[i, 1] - (scoop * s * s if i > 4 else 0),
                    line[i, 2] + (scoop * s * s if i <= 5 else 0),
                )
        m.sheet(grid, shell)
        base = dice.pick(("wood", "sled", "star", "metal"))
        if base == "star":
            _star(m, dice, seat - 0.02, steel, False)
        elif base == "sled":
            for sx in (-1, 1):
                m.tube(
                    arc(
                        (sx * 0.6 * w, -0.5 * d, seat - 0.01),
                        (sx * w, -d, 0.02),
                        (sx * w, d, 0.02),
                        (sx * 0.6 * w, 0.6 * d, seat),
                        n=14,
                    ),
                    0.011,
                    steel,
                    sides=6,
                )
        else:
            legs(
                m,
                dice,
                0.6 * w,
                0.6 * d,
                seat - 0.01,
                timber if base == "wood" else steel,
                "tapered",
                0.035 if base == "wood" else 0.022,
                0.09,
            )
    elif kind == "office":
        _star(m, dice, seat - 0.03, steel if dice.chance(0.6) else m.paint(plastic(dice, "202022")), True)
        m.cushion((0, 0, seat), (2 * w + 0.06, 2 * d + 0.06, 0.1), soft, 0.4)
        m.cushion((0, d + 0.03 + lean / 2, seat + 0.12 + back / 2), (2 * w, 0.08, back), soft, dice(0.2, 0.5), turn("x", -lean))
        m.beam((0, d - 0.05, seat - 0.02), (0, d + 0.08, seat + 0.3), 0.05, 0.02, steel)
        if dice.chance(0.6):
            _arms(m, w + 0.04, d, seat, 0.2, m.paint(plastic(dice, "2a2a2c", 20)))
    else:
        high = dice(0.36, 0.46)
        legs(m, dice, w + 0.02, d, high - 0.1, timber, dice.pick(("tapered", "square", "turned")), 0.035, dice(0, 0.03))
        m.box((0, 0, high - 0.09), (2 * w + 0.16, 2 * d + 0.1, 0.1), soft, 0.03)
        m.cushion((0, -0.02, high + 0.02), (2 * w + 0.02, 2 * d + 0.06, 0.14), soft, 0.35)
        m.cushion((0, d, high + back / 2), (2 * w + 0.14, 0.14, back + 0.1), soft, dice(0.2, 0.6), turn("x", -lean))
        for sx in (-1, 1):
            m.cushion((sx * (w + 0.06), 0, high + 0.06), (0.1, 2 * d + 0.06, dice(0.24, 0.34)), soft, dice(0.2, 0.5))


def _back(m: Model, dice: Dice, w: float, y0: float, y1: float, seat: float, back: float, timber: int, soft: int) -> None:
    """Rails, slats, spindles, a panel or a cross between two posts."""
    style = dice.pick(("ladder", "slats", "spindles", "panel", "cross"))
    top = seat + back
    curve = dice(0.0, 0.05)
    path = arc((-w, y1, top - 0.02), (0, y1 + curve, top + dice(0, 0.04)), (w, y1, top - 0.02), n=9)
    m.tube(path, dice(0.02, 0.04), timber, sides=8, flat=0.5)

    def y(z: float) -> float:
        return y0 + (y1 - y0) * (z - seat) / back

    if style == "ladder":
        n, thick = dice.whole(1, 4), dice(0.025, 0.06)
        for k in range(n):
            z = seat + back * (k + 1) / (n + 1.2)
            m.box((0, y(z) + 0.3 * curve, z), (2 * w, 0.018, thick), timber)
    elif style in ("slats", "spindles"):
        n, thick = (dice.whole(3, 6), dice(0.025, 0.06)) if style == "slats" else (dice.whole(5, 9), 0.016)
        for k in range(n):
            x = 2 * w * ((k + 1) / (n + 1) - 0.5)
            m.beam((x, y0, seat), (x, y1 + 0.6 * curve, top - 0.02), thick, 0.014, timber, 0.004)
    elif style == "panel":
        tall = dice(0.4, 0.85) * back
        z = top - tall / 2 - 0.02
        m.cushion((0, y(z), z), (2 * w - 0.02, 0.05, tall), soft, 0.25, turn("x", -math.atan((y1 - y0) / back)))
    else:
        m.beam((-w, y0, seat + 0.05), (w, y1, top - 0.03), 0.03, 0.015, timber)
        m.beam((w, y0, seat + 0.05), (-w, y1, top - 0.03), 0.03, 0.015, timber)


def _arms(m: Model, w: float, d: float, seat: float, rise: float, paint: int) -> None:
    for sx in (-1, 1):
        m.beam((sx * w, -0.5 * d, seat), (sx * w, -0.5 * d, seat + rise), 0.025, 0.03, paint)
        m.beam((sx * w, -0.75 * d, seat + rise), (sx * w, d + 0.03, seat + rise + 0.01), 0.025, 0.05, paint, 0.01)


def _star(m: Model, dice: Dice, top: float, paint: int, castors: bool) -> None:
    n, reach = dice.pick((4, 5, 5)), dice(0.24, 0.3)
    m.tube(((0, 0, 0.08), (0, 0, top)), dice(0.02, 0.035), paint, sides=10)
    dark = m.paint(rubber())
    for k in range(n):
        a = 2 * math.pi * (k + 0.25) / n
        tip = (reach * math.cos(a), reach * math.sin(a), 0.05 if castors else 0.015)
        m.tube(((0, 0, 0.1), tip), (0.026, 0.014), paint, sides=6)
        if castors:
            m.lathe(
                [(0, -0.015), (0.026, -0.015), (0.026, 0.015), (0, 0.015)],
                dark,
                (tip[0], tip[1], 0.026),
                turn("x", 1.57),
                sides=10,
            )

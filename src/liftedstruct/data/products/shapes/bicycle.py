"""Bicycles, drawn along x. Front is towards -y, up is z."""

import math

import numpy as np

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.materials import linear, material
from liftedstruct.data.products.meshes import Model, Point, arc, turn
from liftedstruct.data.products.shapes.parts import FRAMES
from liftedstruct.data.products.stuff import leather, metal, plastic, rubber

__all__ = ["bicycle"]

UPRIGHT = turn("x", math.pi / 2)  # a ring's axis along y


def bicycle(m: Model, dice: Dice) -> None:
    """Road, city, mountain, cruiser or BMX; drawn along x, the fork towards +x."""
    kind = dice.pick(("road", "city", "mountain", "cruiser", "bmx", "city"))
    small = kind == "bmx"
    R = dice(0.24, 0.27) if small else dice(0.32, 0.36)
    base = dice(0.86, 0.95) if small else dice(0.98, 1.14)
    paint = m.paint(plastic(dice, dice.pick(FRAMES), 110))
    steel, black = m.paint(metal(dice, dice.pick(("chrome", "steel", "black")))), m.paint(rubber())
    tyre = m.paint(rubber(dice.pick(("1b1b1c", "1b1b1c", "1b1b1c", "d8d0bc", "6b4a2c"))))
    hide = m.paint(leather(dice, dice.pick(("1f1c1a", "6b4028"))))
    fat = {"road": 0.013, "city": 0.019, "mountain": 0.03, "cruiser": 0.028, "bmx": 0.027}[kind] * dice(0.9, 1.1)
    thick = {"road": 0.016, "city": 0.015, "mountain": 0.021, "cruiser": 0.017, "bmx": 0.018}[kind] * dice(0.9, 1.2)
    rear, front = (-0.42 * base, 0.0, R), (0.58 * base, 0.0, R)
    crank: Point = (-0.03 * base, 0, R - dice(0.02, 0.06))
    tall = dice(0.16, 0.24) if small else dice(0.42, 0.56)
    seat_top: Point = (crank[0] - 0.3 * tall, 0, crank[2] + tall)
    head_x, head_z = front[0] - dice(0.11, 0.16), R + R * 0.9 + dice(0.02, 0.06)
    head_low: Point = (head_x, 0, head_z)
    rise = dice(0.1, 0.18)
    head_top: Point = (head_x - 0.3 * rise, 0, head_z + rise)
    n_spokes = dice.pick((10, 14, 18)) if not small or dice.chance(0.6) else 5
    rim = m.paint(plastic(dice, dice.pick(FRAMES), 60)) if dice.chance(0.25) else steel
    solid = dice.chance(0.06)
    for x, _, z in (rear, front):
        m.ring((x, 0, z), R - fat, fat, tyre, UPRIGHT, 32)
        m.ring((x, 0, z), R - 2.2 * fat, 0.011, rim, UPRIGHT, 32)
        m.lathe([(0, -0.045), (0.022, -0.045), (0.022, 0.045), (0, 0.045)], steel, (x, 0, z), UPRIGHT, sides=8)
        if solid:
            m.lathe([(R - 2.4 * fat, 0), (0.03, 0.02), (0, 0.02)], rim, (x, 0, z), UPRIGHT)
            continue
        for k in range(n_spokes):
            a, s = 2 * math.pi * k / n_spokes, 0.03 * (-1) ** k
            far = R - 2.2 * fat
            m.tube(
                (
                    (x + 0.02 * math.cos(a + 1), s, z + 0.02 * math.sin(a + 1)),
                    (x + far * math.cos(a), 0, z + far * math.sin(a)),
                ),
                0.0032 if n_spokes > 5 else 0.014,
                rim if n_spokes == 5 else steel,
                sides=3,
            )
    through = kind == "city" and dice.chance(0.55)
    sag = dice(0.0, 0.12) if kind == "cruiser" else 0.0
    m.tube((crank, seat_top), thick, paint)
    low = (0.5 * (crank[0] + head_low[0]), 0, 0.5 * (crank[2] + head_low[2]) - sag * 0.4)
    m.tube(arc(crank, low, head_low, n=7), thick * 1.15, paint)
    top_from = (
        (crank[0] - 0.06 * tall, 0, crank[2] + 0.25 * tall)
        if through
        else (seat_top[0] + 0.02, 0, seat_top[2] - dice(0.03, 0.12))
    )
    bend: Point = (0.5 * (top_from[0] + head_top[0]), 0, 0.5 * (top_from[2] + head_top[2]) + (-0.1 if through else sag))
    m.tube(arc(top_from, bend, (head_top[0], 0, head_top[2] - 0.03), n=8), thick, paint)
    m.tube((head_low, head_top), thick * 1.3, paint)
    for s in (-1, 1):
        m.tube((crank, (rear[0], 0.04 * s, rear[2])), 0.6 * thick, paint, sides=6)
        m.tube(((seat_top[0] + 0.01, 0.01 * s, seat_top[2] - 0.05), (rear[0], 0.04 * s, rear[2])), 0.55 * thick, paint, sides=6)
        m.tube(
            arc(
                (head_low[0], 0.03 * s, head_low[2]),
                (head_low[0] + 0.04, 0.045 * s, 0.6 * (head_low[2] + R)),
                (front[0], 0.045 * s, R),
                n=6,
            ),
            0.8 * thick,
            steel if kind == "road" else paint,
            sides=6,
        )
    post = dice(0.06, 0.2)
    top: Point = (seat_top[0] - 0.3 * post, 0, seat_top[2] + post)
    m.tube((seat_top, top), 0.6 * thick, steel)
    long, broad = (0.26, 0.12) if kind in ("road", "bmx", "mountain") else (0.25, 0.2)
    m.extrude(
        [
            (-long / 2, -broad / 2),
            (0, -broad / 2.4),
            (0.1, -0.025),
            (long / 2, -0.018),
            (long / 2, 0.018),
            (0.1, 0.025),
            (0, broad / 2.4),
            (-long / 2, broad / 2),
        ],
        0.05,
        hide,
        (top[0] + 0.02, 0, top[2] + 0.02),
        turn("x", -math.pi / 2),
        0.015,
    )
    _bars(m, dice, kind, head_top, steel, black)
    ring = dice(0.07, 0.1)
    m.ring((crank[0], -0.05, crank[2]), ring, 0.008, steel, UPRIGHT, 20)
    m.lathe([(0, 0), (0.03, 0), (0.03, 0.02), (0, 0.02)], steel, (crank[0], -0.04, crank[2]), UPRIGHT, sides=10)
    a = dice(0, 6)
    for s, turned in ((-1, a), (1, a + math.pi)):
        end: Point = (crank[0] + 0.15 * math.cos(turned), 0.07 * s, crank[2] + 0.15 * math.sin(turned))
        m.tube(((crank[0], 0.06 * s, crank[2]), end), 0.01, steel, sides=5)
        m.box((end[0], 0.11 * s, end[2]), (0.08, 0.08, 0.02), black)
    for z in (-1, 1):
        m.tube(((crank[0], -0.05, crank[2] + z * ring), (rear[0], -0.05, rear[2] + z * 0.035)), 0.005, black, sides=3)
    _extras(m, dice, kind, R, fat, rear, front, crank, steel, paint, black)


def _bars(m: Model, dice: Dice, kind: str, head: Point, steel: int, grip: int) -> None:
    """Stem, handlebar and grips."""
    x, _, z = head
    up = {"road": 0.04, "city": 0.14, "mountain": 0.06, "cruiser": 0.2, "bmx": 0.24}[kind] * dice(0.8, 1.2)
    x, z = x + 0.05, z + up
    sweep = dice(0.1, 0.24)
    m.tube(((head[0], 0, head[2] - 0.02), (x - 0.04, 0, z), (x, 0, z)), 0.014, steel, sides=6)
    for s in (-1, 1):
        if kind == "road":
            path = arc(
                (x, 0, z),
                (x + 0.02, 0.2 * s, z),
                (x + 0.1, 0.22 * s, z - 0.02),
                (x + 0.1, 0.22 * s, z - 0.12),
                (x, 0.22 * s, z - 0.14),
                n=14,
            )
        elif kind == "mountain":
            path = arc((x, 0, z), (x + 0.01, 0.15 * s, z + 0.02), (x - 0.03, 0.32 * s, z + 0.03), n=9)
        elif kind == "bmx":
            path = arc((x, 0, z - 0.16), (x, 0.1 * s, z - 0.14), (x, 0.16 * s, z), (x - 0.03, 0.34 * s, z + 0.02), n=10)
        else:
            path = arc(
                (x, 0, z), (x + 0.06, 0.16 * s, z + 0.02), (x - 0.04, 0.27 * s, z + 0.02), (x - sweep, 0.29 * s, z - 0.01), n=12
            )
        m.tube(path, 0.011, steel, sides=6)
        m.tube(path[-4:], 0.017, grip, sides=7)
    if kind == "bmx":
        m.tube(((x, -0.13, z - 0.04), (x, 0.13, z - 0.04)), 0.009, steel, sides=6)


def _extras(
    m: Model,
    dice: Dice,
    kind: str,
    R: float,
    fat: float,
    rear: Point,
    front: Point,
    crank: Point,
    steel: int,
    paint: int,
    black: int,
) -> None:
    """Mudguards, carrier, basket, chain guard, bottle."""
    touring = kind in ("city", "cruiser")
    if dice.chance(0.7 if touring else 0.08):
        guard = paint if dice.chance(0.5) else steel
        for (x, _, z), a0, a1 in ((rear, 0.2, 2.9), (front, 0.9, 2.8)):
            grid = np.empty((12, 3, 3))
            for i, a in enumerate(np.linspace(a0, a1, 12)):
                for j, s in enumerate((-1, 0, 1)):
                    r = R + 0.025 - 0.012 * abs(s)
                    grid[i, j] = (x + r * math.cos(a), s * 1.4 * fat, z + r * math.sin(a))
            m.sheet(grid, guard)
    if dice.chance(0.45 if touring else 0.05):
        x, z = rear[0], 2 * R + 0.07
        for y in (-0.06, 0, 0.06):
            m.tube(((x - 0.2, y, z), (x + 0.18, y, z)), 0.007, steel, sides=4)
        for s in (-1, 1):
            m.tube(((x, 0.05 * s, R), (x - 0.1, 0.06 * s, z)), 0.006, steel, sides=4)
            m.box((x + 0.19 * s - 0.01, 0, z), (0.015, 0.13, 0.012), steel, 0)
    if dice.chance(0.35 if touring else 0.03):
        wicker = m.paint(material(linear(dice.pick(("b08850", "6b4a2c", "2a2a2c"))), texture="wicker", scale=1.0, gloss=5))
        x, z = front[0] + 0.02, 2 * R + 0.06
        m.lathe(
            [(0, 0), (0.12, 0), (0.16, 0.2), (0.165, 0.21), (0.15, 0.2), (0.11, 0.01)], wicker, (x, 0, z), sides=16, flat=1.1
        )
    if dice.chance(0.5 if touring else 0.0):
        grid = np.array(
            [[(crank[0] + 0.1, -0.07, crank[2] + s * 0.06), (rear[0] + 0.05, -0.07, rear[2] + s * 0.03)] for s in (-1, 1)]
        )
        m.sheet(grid, paint if dice.chance(0.5) else black)
    if dice.chance(0.35 if kind in ("road", "mountain") else 0.05):
        cap = m.paint(plastic(dice, dice.pick(FRAMES)))
        m.tube(((crank[0] + 0.14, 0, crank[2] + 0.19), (crank[0] + 0.24, 0, crank[2] + 0.31)), 0.035, cap, sides=10)

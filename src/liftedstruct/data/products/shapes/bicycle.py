"""Bicycles, modeled along x."""

import math

import numpy as np

from liftedstruct.data.products.materials import Material, leather, linear, metal, plastic, rubber
from liftedstruct.data.products.meshes import TO_FRONT, Mesh, Point, rotation, spline
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes.parts import FRAMES

__all__ = ["bicycle"]

TIRE = {"road": 0.013, "city": 0.019, "mountain": 0.03, "cruiser": 0.028, "bmx": 0.027}  # radius of the cross section
TUBE = {"road": 0.016, "city": 0.015, "mountain": 0.021, "cruiser": 0.017, "bmx": 0.018}  # radius of the frame's tubes
STEM = {"road": 0.04, "city": 0.14, "mountain": 0.06, "cruiser": 0.2, "bmx": 0.24}  # height of the handlebar


def bicycle(m: Mesh, rng: RandomStream) -> None:
    """Build a road, city, mountain, cruiser or BMX bicycle along x, with the fork toward +x."""
    kind = rng.choice(("road", "city", "mountain", "cruiser", "bmx", "city"))
    small = kind == "bmx"
    R = rng(0.24, 0.27) if small else rng(0.32, 0.36)
    base = rng(0.86, 0.95) if small else rng(0.98, 1.14)
    paint = plastic(rng, *FRAMES, gloss=110)
    steel, black = metal(rng, "chrome", "steel", "black"), rubber()
    tire = rubber(rng.choice(("1b1b1c", "1b1b1c", "1b1b1c", "d8d0bc", "6b4a2c")))
    hide = leather(rng, "1f1c1a", "6b4028")
    fat, thick = TIRE[kind] * rng(0.9, 1.1), TUBE[kind] * rng(0.9, 1.2)
    rear, front = -0.42 * base, 0.58 * base
    crank = (-0.03 * base, R - rng(0.02, 0.06))
    tall = rng(0.16, 0.24) if small else rng(0.42, 0.56)
    seat = (crank[0] - 0.3 * tall, crank[1] + tall)
    head_low = (front - rng(0.11, 0.16), R + R * 0.9 + rng(0.02, 0.06))
    rise = rng(0.1, 0.18)
    head = (head_low[0] - 0.3 * rise, head_low[1] + rise)
    n_spokes = rng.choice((10, 14, 18)) if not small or rng.chance(0.6) else 5
    rim = plastic(rng, *FRAMES, gloss=60) if rng.chance(0.25) else steel
    solid = rng.chance(0.06)
    far = R - 2.2 * fat
    for x in (rear, front):
        hub: Point = (x, 0, R)
        m.ring(hub, R - fat, fat, tire, TO_FRONT, 32)
        m.ring(hub, far, 0.011, rim, TO_FRONT, 32)
        m.cylinder(0.022, -0.045, 0.045, steel, hub, TO_FRONT, sides=8)
        if solid:
            m.lathe([(R - 2.4 * fat, 0), (0.03, 0.02), (0, 0.02)], rim, hub, TO_FRONT)
            continue
        for k in range(n_spokes):
            a, s = 2 * math.pi * k / n_spokes, 0.03 * (-1) ** k
            inner = (x + 0.02 * math.cos(a + 1), s, R + 0.02 * math.sin(a + 1))
            outer = (x + far * math.cos(a), 0, R + far * math.sin(a))
            m.tube((inner, outer), 0.0032 if n_spokes > 5 else 0.014, rim if n_spokes == 5 else steel, sides=3)
    step_through = kind == "city" and rng.chance(0.55)
    sag = rng(0.0, 0.12) if kind == "cruiser" else 0.0
    m.tube((crank, seat), thick, paint)
    low = (0.5 * (crank[0] + head_low[0]), 0.5 * (crank[1] + head_low[1]) - sag * 0.4)
    m.tube(spline(crank, low, head_low, n=7), thick * 1.15, paint)
    start = (crank[0] - 0.06 * tall, crank[1] + 0.25 * tall) if step_through else (seat[0] + 0.02, seat[1] - rng(0.03, 0.12))
    bend = (0.5 * (start[0] + head[0]), 0.5 * (start[1] + head[1]) + (-0.1 if step_through else sag))
    m.tube(spline(start, bend, (head[0], head[1] - 0.03), n=8), thick, paint)
    m.tube((head_low, head), thick * 1.3, paint)
    for s in (-1, 1):
        axle = (rear, 0.04 * s, R)
        m.tube(((crank[0], 0, crank[1]), axle), 0.6 * thick, paint, sides=6)
        m.tube(((seat[0] + 0.01, 0.01 * s, seat[1] - 0.05), axle), 0.55 * thick, paint, sides=6)
        knee = (head_low[0] + 0.04, 0.045 * s, 0.6 * (head_low[1] + R))
        fork = spline((head_low[0], 0.03 * s, head_low[1]), knee, (front, 0.045 * s, R), n=6)
        m.tube(fork, 0.8 * thick, steel if kind == "road" else paint, sides=6)
    post = rng(0.06, 0.2)
    top = (seat[0] - 0.3 * post, seat[1] + post)
    m.tube((seat, top), 0.6 * thick, steel)
    half, broad = (0.13, 0.12) if kind in ("road", "bmx", "mountain") else (0.125, 0.2)
    side = [(-half, broad / 2), (0, broad / 2.4), (0.1, 0.025), (half, 0.018)]
    saddle = [(x, -y) for x, y in side] + side[::-1]
    m.extrude(saddle, 0.05, hide, (top[0] + 0.02, 0, top[1] + 0.02), rotation("x", -math.pi / 2), 0.015)
    _handlebar(m, rng, kind, head, steel, black)
    ring = rng(0.07, 0.1)
    m.ring((crank[0], -0.05, crank[1]), ring, 0.008, steel, TO_FRONT, 20)
    m.cylinder(0.03, 0, 0.02, steel, (crank[0], -0.04, crank[1]), TO_FRONT, sides=10)
    a = rng(0, 6)
    for s, angle in ((-1, a), (1, a + math.pi)):
        x, z = crank[0] + 0.15 * math.cos(angle), crank[1] + 0.15 * math.sin(angle)
        m.tube(((crank[0], 0.06 * s, crank[1]), (x, 0.07 * s, z)), 0.01, steel, sides=5)
        m.box((x, 0.11 * s, z), (0.08, 0.08, 0.02), black)
    for s in (-1, 1):
        m.tube(((crank[0], -0.05, crank[1] + s * ring), (rear, -0.05, R + s * 0.035)), 0.005, black, sides=3)
    touring = kind in ("city", "cruiser")
    if rng.chance(0.7 if touring else 0.08):
        _mudguards(m, R, fat, rear, front, paint if rng.chance(0.5) else steel)
    if rng.chance(0.45 if touring else 0.05):
        _carrier(m, rear, R, steel)
    if rng.chance(0.35 if touring else 0.03):
        wicker = Material(linear(rng.choice(("b08850", "6b4a2c", "2a2a2c"))), texture="wicker", gloss=5)
        basket = [(0, 0), (0.12, 0), (0.16, 0.2), (0.165, 0.21), (0.15, 0.2), (0.11, 0.01)]
        m.lathe(basket, wicker, (front + 0.02, 0, 2 * R + 0.06), sides=16, flat=1.1)
    if rng.chance(0.5 if touring else 0.0):  # chain guard
        guard = [[(crank[0] + 0.1, -0.07, crank[1] + s * 0.06), (rear + 0.05, -0.07, R + s * 0.03)] for s in (-1, 1)]
        m.sheet(np.array(guard), paint if rng.chance(0.5) else black)
    if rng.chance(0.35 if kind in ("road", "mountain") else 0.05):  # bottle
        bottle = ((crank[0] + 0.14, crank[1] + 0.19), (crank[0] + 0.24, crank[1] + 0.31))
        m.tube(bottle, 0.035, plastic(rng, *FRAMES), sides=10)


def _handlebar(m: Mesh, rng: RandomStream, kind: str, head: tuple[float, float], steel: Material, grip: Material) -> None:
    """Add stem, handlebar and grips."""
    x, z = head[0] + 0.05, head[1] + STEM[kind] * rng(0.8, 1.2)
    sweep = rng(0.1, 0.24)
    m.tube(((head[0], head[1] - 0.02), (x - 0.04, z), (x, z)), 0.014, steel, sides=6)
    for s in (-1, 1):
        if kind == "road":
            drop = ((x + 0.1, 0.22 * s, z - 0.02), (x + 0.1, 0.22 * s, z - 0.12), (x, 0.22 * s, z - 0.14))
            path = spline((x, 0, z), (x + 0.02, 0.2 * s, z), *drop, n=14)
        elif kind == "mountain":
            path = spline((x, 0, z), (x + 0.01, 0.15 * s, z + 0.02), (x - 0.03, 0.32 * s, z + 0.03), n=9)
        elif kind == "bmx":
            path = spline((x, 0, z - 0.16), (x, 0.1 * s, z - 0.14), (x, 0.16 * s, z), (x - 0.03, 0.34 * s, z + 0.02), n=10)
        else:
            end = ((x - 0.04, 0.27 * s, z + 0.02), (x - sweep, 0.29 * s, z - 0.01))
            path = spline((x, 0, z), (x + 0.06, 0.16 * s, z + 0.02), *end, n=12)
        m.tube(path, 0.011, steel, sides=6)
        m.tube(path[-4:], 0.017, grip, sides=7)
    if kind == "bmx":
        m.tube(((x, -0.13, z - 0.04), (x, 0.13, z - 0.04)), 0.009, steel, sides=6)


def _mudguards(m: Mesh, R: float, fat: float, rear: float, front: float, material: Material) -> None:
    for x, first, last in ((rear, 0.2, 2.9), (front, 0.9, 2.8)):
        grid = np.empty((12, 3, 3))
        for i, a in enumerate(np.linspace(first, last, 12)):
            for j, s in enumerate((-1, 0, 1)):
                r = R + 0.025 - 0.012 * abs(s)
                grid[i, j] = (x + r * math.cos(a), s * 1.4 * fat, R + r * math.sin(a))
        m.sheet(grid, material)


def _carrier(m: Mesh, x: float, R: float, steel: Material) -> None:
    z = 2 * R + 0.07
    for y in (-0.06, 0, 0.06):
        m.tube(((x - 0.2, y, z), (x + 0.18, y, z)), 0.007, steel, sides=4)
    for s in (-1, 1):
        m.tube(((x, 0.05 * s, R), (x - 0.1, 0.06 * s, z)), 0.006, steel, sides=4)
        m.box((x + 0.19 * s - 0.01, 0, z), (0.015, 0.13, 0.012), steel, 0)

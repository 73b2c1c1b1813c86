"""Kettles."""

import numpy as np

from liftedstruct.data.products.materials import DARK, ceramic, glass, metal, plastic, wood
from liftedstruct.data.products.meshes import Mesh, spline
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes.parts import CASES

__all__ = ["kettle"]

KNOBS = {
    "ball": [(0.012, 0), (0.015, 0.02), (0.04, 0.035), (0.045, 0.055), (0.03, 0.08), (0, 0.085)],
    "disc": [(0.015, 0), (0.015, 0.03), (0.05, 0.035), (0.05, 0.05), (0, 0.055)],
    "cone": [(0.015, 0), (0.04, 0.06), (0, 0.065)],
}


def kettle(m: Mesh, rng: RandomStream) -> None:
    """Build an electric kettle on its base or a stovetop kettle."""
    electric = rng.chance(0.55)
    if rng.chance(0.5):
        skin = metal(rng, "steel", "chrome", "copper", "steel")
    else:
        skin = plastic(rng, *CASES) if electric else ceramic(rng, *CASES)
    skin = skin.with_pattern(rng, rng.choice(("efece4", DARK, "a8261e")), rng(0.06, 0.14), 0.75)
    if rng.chance(0.3) and skin.pattern == "plain":
        skin = skin.with_logo(rng, 0.1, 0.0 if electric else -0.4, 0.35)
    see_through = electric and rng.chance(0.2)
    body = glass(rng, "b8c8cc") if see_through else skin
    dark = wood(rng, "walnut", "oak") if rng.chance(0.2) else plastic(rng, DARK, DARK, "efece4", "7c8186")
    trim = metal(rng, "chrome", "steel", "brass")
    r = rng(0.24, 0.34)
    h = rng(0.5, 0.72) if electric else rng(0.32, 0.5)
    top, belly, at = rng(0.5, 0.85), rng(0.95, 1.12), rng(0.15, 0.45)
    z0 = 0.06 if electric else 0.0
    z, neck = z0 + h, r * top
    shoulder = (r * (0.35 * belly + 0.65 * top), z0 + 0.78 * h)
    wall = spline((r * rng(0.85, 1.0), z0), (r * belly, z0 + at * h), shoulder, (neck, z), n=10)
    m.lathe([(0.0, z0), *wall], body, sides=36)
    if electric:
        m.lathe([(0, 0), (r * 1.05, 0), (r * 1.08, 0.02), (r * 0.98, 0.05), (0, 0.055)], dark, sides=36)
        m.lathe([(r * 0.99, z0), (r * 1.02, z0 + 0.03), (r * 0.98, z0 + 0.05)], trim if rng.chance(0.5) else dark, sides=36)
    if see_through:
        m.cylinder(r * 0.9, z0 + 0.04, z0 + 0.5 * h, glass(rng, "90b4c4", 2), (0, 0, 0), sides=24)
    lid = rng.choice(("dome", "flat", "step"))
    rise = {"dome": rng(0.06, 0.12), "flat": 0.03, "step": 0.06}[lid]
    cap = trim if rng.chance(0.3) else dark if rng.chance(0.5) else skin
    lids = {
        "dome": [(neck, z), (neck * 0.9, z + 0.5 * rise), (neck * 0.5, z + 0.9 * rise), (0, z + rise)],
        "flat": [(neck, z), (neck * 0.98, z + rise), (0, z + rise)],
        "step": [(neck, z), (neck * 0.8, z + 0.02), (neck * 0.75, z + rise), (0, z + rise)],
    }
    m.lathe(lids[lid], cap, sides=32)
    knob = rng.choice(tuple(KNOBS))
    if not electric or rng.chance(0.5):
        m.lathe(KNOBS[knob], dark, (0, 0, z + rise - 0.005), sides=14)
    # spout on the left (-x), handle on the right or above
    low, reach = z0 + rng(0.35, 0.65) * h, r * rng(1.4, 1.8)
    spout = rng.choice(("goose", "beak", "straight")) if not electric or rng.chance(0.3) else "beak"
    if spout == "goose":
        neck_of_goose = ((-r * 1.25, z0 + 0.3 * h), (-r * 1.4, z0 + 0.75 * h), (-reach - 0.04, z0 + 0.98 * h))
        m.tube(spline((-r * 0.7, z0 + 0.25 * h), *neck_of_goose, n=12), np.linspace(0.055, 0.024, 12), skin, sides=10)
    elif spout == "straight":
        m.tube(((-r * 0.75, low), (-reach, z0 + 0.95 * h)), (0.08, 0.03), skin, sides=12)
    else:
        beak = spline((-r * 0.4, z0 + 0.72 * h), (-r * 0.95, z0 + 0.88 * h), (-r * rng(1.15, 1.4), z), n=6)
        m.tube(beak, (0.15, 0.14, 0.115, 0.085, 0.06, 0.035), skin, sides=12, flat=0.75)
    t = rng(0.022, 0.04)
    if electric or rng.chance(0.3):
        out = r * rng(1.5, 1.9)
        shape = rng.choice(("open", "closed", "angular"))
        up, down = z0 + 0.95 * h, z0 + rng(0.12, 0.4) * h
        start = (neck * 0.8, up)
        if shape == "open":
            path = spline(start, (out * 0.95, up + 0.04), (out, z0 + 0.6 * h), (out * 0.95, down), n=14)
        elif shape == "closed":
            path = spline(start, (out * 0.9, up), (out, z0 + 0.55 * h), (r * 0.9, down), n=14)
        else:
            lower = ((out * 0.97, down + 0.02), (out * 0.95, down), (r * 0.85, down))
            path = np.array((start, (out * 0.98, up + 0.02), (out, up), *lower))
        m.tube(path, t, dark, sides=10, flat=rng(0.6, 1.2))
    else:
        peak, foot = z + rng(0.16, 0.3), r * rng(0.75, 1.0)
        if rng.chance(0.6):
            left = [(-foot, z - 0.12 * h), (-foot * 0.95, peak - 0.05)]
            path = spline(*left, (0, peak), *((-x, y) for x, y in reversed(left)), n=20)
            grip = path[5:-5]
        else:
            left = [(-foot, z - 0.1 * h), (-foot, peak - 0.03), (-foot + 0.03, peak)]
            path = np.array([*left, *((-x, y) for x, y in reversed(left))])
            grip = path[2:4]
        m.tube(path, 0.4 * t, trim, sides=8)
        m.tube(grip, t, dark, sides=10)
    if electric and rng.chance(0.5):
        m.box((0, -r * belly * 0.97, z0 + at * h), (0.05, 0.02, rng(0.2, 0.34)), glass(rng, "6a7880", 3), 0.01)

"""Staplers, modeled along x."""

import math

import numpy as np

from liftedstruct.data.products.materials import metal, plastic, rubber
from liftedstruct.data.products.meshes import Mesh, Point, rotation, spline
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes.parts import FRAMES

__all__ = ["stapler"]


def stapler(m: Mesh, rng: RandomStream) -> None:
    """Build a stapler with base, magazine and arm on a hinge, its long side facing the front."""
    L, w, gape = rng(0.9, 1.25), rng(0.17, 0.28), math.radians(rng(3, 15))
    body = plastic(rng, *FRAMES) if rng.chance(0.75) else metal(rng, "chrome", "steel", "black")
    if rng.chance(0.6):
        body = body.with_logo(rng, rng(0.07, 0.12), rng(-0.2, 0.2) * L, 0.0)
    dark = plastic(rng, "222224", "222224", "4a4c50", "e8e6e0")
    steel = metal(rng, "chrome", "steel")
    t = rng(0.04, 0.09)
    base = rng.choice(("bar", "wedge", "wide", "boat"))
    lower = dark if rng.chance(0.55) else body
    if base == "bar":
        m.box((0, 0, t / 2), (L, w, t), lower, 0.018)
    elif base == "wide":
        m.box((0.02, 0, 0.3 * t), (L * 1.04, w * 1.35, 0.6 * t), lower, 0.014)
        m.box((0, 0, 0.6 * t), (L * 0.9, w * 0.8, 0.8 * t), lower, 0.014)
    elif base == "wedge":
        m.extrude([(-L / 2, 0), (L / 2, 0), (L / 2, 0.5 * t), (-0.3 * L, t), (-L / 2, 1.8 * t)], w, lower, bevel=0.015)
    else:
        m.cushion((0, 0, t / 2), (L * 1.05, w * 1.2, t), lower, 0.35)
    m.box((0.42 * L, 0, t + 0.004), (0.09 * L, 0.6 * w, 0.016), steel, 0.004)
    hinge: Point = (-0.42 * L, 0, t + rng(0.06, 0.12))
    swing = rotation("y", -gape)

    def lift(x: float, z: float) -> Point:
        p = swing @ np.array((x, 0.0, z))
        return (float(p[0]) + hinge[0], 0.0, float(p[2]) + hinge[2])

    mag_l, mag_h = 0.9 * L, rng(0.05, 0.08)
    m.box(lift(mag_l / 2 - 0.02, 0.02), (mag_l, 0.55 * w, mag_h), steel, 0.006, swing)
    high = rng(0.1, 0.19)
    nose, hump = rng(0.5, 1.0), rng(0.7, 1.5)
    kind = rng.choice(("smooth", "angular", "flat", "swan", "round"))
    z0 = 0.02 + mag_h / 2
    reach = rng(0.88, 1.0) * L
    up_nose, up_hump = nose * high, hump * high
    points = {  # outline of the arm, from the front to the hinge; heights above z0
        "smooth": [(reach, 0.1 * high), (0.97 * reach, up_nose), (0.5 * reach, high), (0.1 * reach, up_hump), (-0.08, 0)],
        "swan": [(reach, 0.2 * high), (0.96 * reach, high), (0.7 * reach, 0.75 * high), (0.35 * reach, 0.6 * high),
                 (0.05 * reach, up_hump), (-0.09, -0.02)],
        "round": [(reach, 0), (0.9 * reach, 0.8 * high), (0.45 * reach, 1.5 * high), (0.05 * reach, 0.9 * high), (-0.06, 0)],
        "angular": [(reach, 0), (reach, 0.6 * nose * high), (0.9 * reach, up_nose), (0.2 * reach, up_hump),
                    (-0.05, 0.8 * high), (-0.1, -0.04)],
        "flat": [(reach, 0), (reach - 0.01, 0.7 * high), (reach - 0.06, 0.8 * high), (-0.02, 0.8 * high),
                 (-0.06, 0.7 * high), (-0.07, -0.02)],
    }[kind]  # fmt: skip
    outline = np.array([(x, z0 + z) for x, z in points])
    if kind not in ("angular", "flat"):
        outline = spline(*outline, n=14 if kind == "swan" else 12)
    m.extrude(outline, w * rng(0.75, 1.0), body, hinge, swing, rng(0.012, 0.05))
    if rng.chance(0.45):
        m.cushion(lift(0.82 * reach, z0 + 0.85 * nose * high), (0.3 * L, 0.7 * w, 0.05), dark, 0.5, swing)
    if rng.chance(0.5):
        at = lift(0.5 * reach, z0 + 0.3 * high)
        m.box(at, (0.75 * reach, w * 1.02, 0.02), dark if rng.chance(0.5) else steel, 0.004, swing)
    m.tube(((hinge[0], -0.56 * w, hinge[2]), (hinge[0], 0.56 * w, hinge[2])), rng(0.025, 0.045), steel, sides=14)
    cheek = [(-0.07, -0.1), (0.1, -0.1), (0.05, 0.04), (-0.05, 0.05)]
    for s in (-1, 1):
        m.extrude(cheek, 0.02, dark if rng.chance(0.5) else steel, (hinge[0], s * 0.48 * w, hinge[2]), bevel=0.004)
    m.box((0.0, 0, 0.004), (L * 0.98, w * 0.9, 0.012), rubber(), 0)

"""Toasters."""

import math

import numpy as np

from liftedstruct.data.products.materials import DARK, Material, linear, metal, plastic, rubber
from liftedstruct.data.products.meshes import Mesh, rotation, spline
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes.parts import button, case_materials, knob

__all__ = ["toaster"]


def toaster(m: Mesh, rng: RandomStream) -> None:
    """Build a toaster with slots, lever, knob and feet; some have toast or trim strips."""
    body, dark, trim = case_materials(rng)
    slots = rng.choice((1, 2, 2, 2, 4))
    four = slots == 4
    w, d, h = (rng(0.95, 1.15) if four else rng(0.72, 0.95)), rng(0.42, 0.6), rng(0.48, 0.64)
    lift = 0.035
    kind = rng.choice(("round", "box", "arch", "trapeze"))
    z = lift + h
    if kind == "box":
        m.box((0, 0, lift + h / 2), (w, d, h), body, rng(0.02, 0.07))
    else:
        outline = _outline(rng, kind, d / 2, lift, h)
        m.extrude(outline, w, body, rotation=rotation("z", math.pi / 2), bevel=rng(0.02, 0.06))
    if rng.chance(0.6):  # end caps in another material
        for sx in (-1.0, 1.0):
            m.box((sx * (w / 2), 0, lift + 0.47 * h), (rng(0.03, 0.07), d * 0.94, 0.9 * h), dark, 0.014)
    if rng.chance(0.5):
        m.box((0, 0, lift + 0.04), (w + 0.015, d + 0.015, 0.09), dark, 0.012)
    for sx in (-1.0, 1.0):
        for sy in (-1.0, 1.0):
            m.lathe([(0.04, 0), (0.04, lift + 0.02), (0, lift + 0.02)], dark, (sx * 0.4 * w, sy * 0.34 * d, 0), sides=12)
    black = Material((0.015, 0.013, 0.012), gloss=4, shine=0.01)
    m.box((0, 0, z), (w * 0.86, d * (0.66 if slots > 1 else 0.4), 0.02), trim, 0.006)
    toast = rng.chance(0.25)
    crumb = Material(linear("b07838"), texture="leather", scale=2, gloss=4, shine=0.01)
    for sy in (0.0,) if slots == 1 else (-1.0, 1.0):
        for sx in (-1.0, 1.0) if four else (0.0,):
            x, y, length = sx * 0.22 * w, sy * 0.16 * d, (0.38 if four else 0.76) * w
            m.box((x, y, z + 0.006), (length, 0.11 * d + 0.015, 0.014), black, 0)
            if toast:
                m.box((x, y, z + 0.03), (length * 0.8, 0.05, 0.22), crumb, 0.022)
    front = rng.chance(0.5)  # controls on the long side or on the right end
    mark = plastic(rng, "e8e8e6")
    for off in (-0.25, 0.25) if four else (0.0,):
        rise = lift + rng(0.55, 0.8) * h
        if front:
            x, left = (off * w, 0.12) if four else (0.32 * w, 0.17)
            m.box((x, -d / 2 - 0.002, lift + 0.55 * h), (0.03, 0.01, 0.55 * h), black, 0)
            m.box((x, -d / 2 - 0.035, rise), (rng(0.08, 0.13), 0.06, 0.045), dark, 0.014)
            at = (x - left, -d / 2, lift + rng(0.25, 0.4) * h)
            knob(m, at, rng(0.035, 0.055), 0.045, trim if rng.chance(0.5) else dark, mark)
        else:
            m.box((w / 2 + 0.022, off * d, lift + 0.5 * h), (0.01, 0.03, 0.6 * h), black, 0)
            m.box((w / 2 + 0.06, off * d, rise), (0.07, rng(0.09, 0.15), 0.045), dark, 0.014)
            at = (w / 2 + 0.02, off * d + 0.11, lift + 0.22 * h)
            m.lathe([(0.06, 0), (0.05, 0.04), (0, 0.04)], trim, at, rotation("y", math.pi / 2), sides=16)
    n = rng.integer(0, 4)
    for k in range(n if front else 0):
        button(m, (-0.34 * w + 0.06 * k, -d / 2 + 0.002, lift + 0.2 * h), 0.018, 0.014, trim)
    if rng.chance(0.5):
        at = (-0.1 * w, -d / 2 - (0.0 if kind in ("box", "round") else 0.004), lift + rng(0.45, 0.6) * h)
        m.box(at, (0.2, 0.012, 0.13), metal(rng, "steel", brushed=True).with_logo(rng, 0.1, 0, 0, DARK), 0.004)
    if rng.chance(0.3):
        for k in range(rng.integer(2, 5)):
            m.box((0, -d / 2 + 0.001, lift + 0.12 + 0.05 * k), (0.7 * w, 0.012, 0.012), trim, 0)
    cable = spline((-w / 2, 0.1 * d, 0.08), (-w / 2 - 0.12, 0.2 * d, 0.02), (-w / 2 - 0.05, 0.6 * d, 0.015), n=8)
    m.tube(cable, 0.012, rubber(), sides=5)


def _outline(rng: RandomStream, kind: str, half: float, low: float, h: float) -> list[tuple[float, float]]:
    """Return the cross section of a case of height `h`."""
    high = low + h
    if kind == "round":
        c, quarter = rng(0.08, 0.18), np.linspace(0, math.pi / 2, 6)
        outline = [(-half + 0.02, low), (half - 0.02, low), (half, low + 0.04)]
        outline += [(half - c + c * math.cos(a), high - c + c * math.sin(a)) for a in quarter]
        outline += [(-half + c - c * math.sin(a), high - c + c * math.cos(a)) for a in quarter]
        return [*outline, (-half, low + 0.04)]
    if kind == "arch":
        rise = 0.45 * h
        arch = [(half * math.cos(a), high - rise + rise * math.sin(a) ** 0.7) for a in np.linspace(0.0, math.pi, 13)]
        return [(-half, low), (half, low), *arch]
    top = half * rng(0.7, 0.9)
    right = [(half, low), (top + 0.02, high - 0.04), (top - 0.03, high)]
    return [(-half, low), *right, (-top + 0.03, high), (-top - 0.02, high - 0.04)]

"""Coffee makers."""

import math

from liftedstruct.data.products.materials import DARK, Material, glass, plastic
from liftedstruct.data.products.meshes import TO_FRONT, Mesh, Point, rotation, spline
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes.parts import button, case_materials, knob

__all__ = ["coffee_maker"]

LIGHT = Material((0.9, 0.25, 0.1), glow=0.6)
POD_SIDE = (
    (0.1, 0), (0.5, 0), (0.5, 0.75), (0.35, 1), (-0.3, 1), (-0.5, 0.85), (-0.42, 0.66), (0.02, 0.58), (0.12, 0.3),
)  # fmt: skip


def coffee_maker(m: Mesh, rng: RandomStream) -> None:
    """Build a drip coffee maker with a carafe, an espresso machine or a pod machine."""
    materials = case_materials(rng)
    build = rng.choice((_drip, _drip, _espresso, _pod))
    build(m, rng, *materials)


def _drip(m: Mesh, rng: RandomStream, body: Material, dark: Material, trim: Material) -> None:
    w, d, h = rng(0.42, 0.6), rng(0.5, 0.66), rng(0.8, 1.0)
    base, head, bevel = rng(0.07, 0.13), rng(0.2, 0.34), rng(0.015, 0.06)
    cy = -0.12 * d
    m.box((0, 0, base / 2), (w, d, base), dark if rng.chance(0.4) else body, bevel)
    back = rng(0.28, 0.4) * d
    m.box((0, d / 2 - back / 2, h / 2), (w * rng(0.8, 1.0), back, h), body, bevel)
    if rng.chance(0.5):
        m.box((0, 0, h - head / 2), (w, d, head), body, bevel)
    else:
        funnel = [(0, 0), (0.42 * w, 0), (0.5 * w, head * 0.9), (0.47 * w, head), (0, head)]
        m.lathe(funnel, body, (0, cy, h - head), flat=min(1.1, d / w * 0.75))
        m.box((0, 0.1 * d, h - head / 2), (w * 0.92, 0.8 * d, head), body, bevel)
    m.box((0, 0, h + 0.01), (w * 0.8, d * 0.7, 0.03), dark, 0.012)
    r, tall = rng(0.36, 0.43) * w, h - head - base - 0.05  # of the carafe
    m.lathe([(0, 0), (r * 1.02, 0), (r * 1.02, 0.012), (0, 0.015)], trim, (0, cy, base))
    belly, neck = rng(0.9, 1.05), rng(0.55, 0.85)
    thermos = rng.chance(0.3)
    wall = trim if thermos else glass(rng, "c4cccc")
    at: Point = (0, cy, base + 0.015)
    if not thermos:
        level = rng(0.3, 0.65) * tall
        coffee = [(0, 0.01), (r * 0.86, 0.01), (r * belly * 0.95, 0.3 * tall), (r * (belly - 0.1), level), (0, level)]
        m.lathe(coffee, Material((0.03, 0.014, 0.008), gloss=90, shine=0.05), at)
    m.lathe([(0, 0), (r * 0.9, 0), (r * belly, 0.3 * tall), (r * 0.85, 0.65 * tall), (r * neck, 0.88 * tall)], wall, at)
    m.lathe([(r * neck, 0.86 * tall), (r * neck * 1.03, 0.93 * tall), (0.3 * r, tall), (0, tall)], dark, at)
    side = rng.choice((0.0, 0.0, 0.8, -0.8))
    ox, oy = math.sin(side), -math.cos(side)
    reach = rng(1.45, 1.7) * r
    handle = ((r * neck, 0.88), (reach, 0.75), (reach, 0.35), (r, 0.2))
    m.tube(spline(*((far * ox, cy + far * oy, base + z * tall) for far, z in handle)), 0.024, dark, flat=0.7)
    x0, n = rng(-0.3, 0.1) * w, rng.integer(1, 4)
    for k in range(n):
        button(m, (x0 + 0.07 * k, -d / 2, base / 2), 0.02, 0.015, trim if k else LIGHT)
    if rng.chance(0.5):
        at = (rng(-0.1, 0.1) * w, -d / 2 + 0.01, h - head / 2)
        m.box(at, (0.4 * w, 0.03, 0.35 * head), plastic(rng, DARK).with_logo(rng, 0.3 * head, 0, 0), 0.01)


def _espresso(m: Mesh, rng: RandomStream, body: Material, dark: Material, trim: Material) -> None:
    w, d, h = rng(0.6, 0.85), rng(0.5, 0.62), rng(0.7, 0.85)
    m.box((0, 0, 0.07), (w, d, 0.13), dark if rng.chance(0.3) else body, 0.03)
    m.box((0, -0.02, 0.14), (w * 0.86, d * 0.8, 0.02), trim, 0.004)
    m.box((0, d * 0.22, h / 2), (w, d * 0.55, h), body, 0.035)
    m.box((0, 0, h * 0.82), (w, d, h * 0.34), body, rng(0.02, 0.07))
    for sx in rng.choice(((0.0,), (0.0,), (-0.22, 0.22), (-0.15,))):
        x, y, z = sx * w, -0.22 * d, h * 0.65
        m.lathe([(0, 0.02), (0.1, 0.02), (0.1, -0.05), (0.085, -0.09), (0.03, -0.1), (0, -0.14)], trim, (x, y, z), sides=20)
        m.tube(((x, y - 0.08, z - 0.05), (x + 0.02, y - 0.34, z - 0.07)), (0.022, 0.032), dark, sides=8)
    s = rng.choice((-1, 1)) * w
    wand = spline((s * 0.4, -0.4 * d, h * 0.68), (s * 0.46, -0.5 * d, h * 0.4), (s * 0.42, -0.5 * d, 0.26), n=8)
    m.tube(wand, 0.012, trim, sides=6)
    for k in range(rng.integer(1, 4)):
        knob(m, ((k - 1) * 0.17, -d / 2, h * 0.84), rng(0.03, 0.06), 0.04, dark, trim)
    if rng.chance(0.5):
        gauge = [(0.07, 0), (0.075, 0.015), (0.06, 0.02), (0, 0.02)]
        m.lathe(gauge, plastic(rng, "f0f0ea"), (0.34 * w, -d / 2, h * 0.84), TO_FRONT, sides=18)
    if rng.chance(0.4):
        m.lathe([(0.08, 0), (0.13, 0.2), (0.13, 0.22), (0, 0.23)], glass(rng, "8a8480"), (-0.2 * w, 0.1 * d, h))


def _pod(m: Mesh, rng: RandomStream, body: Material, dark: Material, trim: Material) -> None:
    w, d, h = rng(0.3, 0.42), rng(0.55, 0.75), rng(0.6, 0.8)
    m.lathe([(0, 0), (0.9 * w / 2, 0), (w / 2, 0.02), (w / 2, rng(0.06, 0.1)), (0, 0.1)], dark, (0, -0.22 * d, 0))
    side = [(x * d, z * h) for x, z in POD_SIDE]
    m.extrude(side, w, body, rotation=rotation("z", math.pi / 2), bevel=rng(0.02, 0.06))
    m.lathe([(0.05, 0), (0.045, -0.07), (0, -0.07)], trim, (0, -0.3 * d, 0.66 * h), sides=14)
    handle = ((-w / 2, -0.1, h * 0.95), (-w / 2, -0.3, h + 0.06), (w / 2, -0.3, h + 0.06), (w / 2, -0.1, h * 0.95))
    m.tube(spline(*((x, y * d, z) for x, y, z in handle), n=14), rng(0.015, 0.03), trim)
    m.cushion((0, 0.45 * d, 0.4 * h), (0.8 * w, 0.26 * d, 0.7 * h), glass(rng, "7a8890", 2), 0.3)
    m.lathe([(0.035, 0), (0.04, 0.012), (0, 0.014)], LIGHT if rng.chance(0.5) else trim, (0, 0.05 * d, h), sides=14)

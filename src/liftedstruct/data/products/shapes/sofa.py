"""Sofas."""

from liftedstruct.data.products.materials import fabric, leather, metal, wood
from liftedstruct.data.products.meshes import Mesh, rotation
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes.parts import HIDES, SEATS, legs

__all__ = ["sofa"]

COVERS = (*("plain",) * 5, "pinstripes", "tartan", "checks", "petals")
PILLOWS = ("plain", "pinstripes", "dots", "checks", "chevron", "petals")


def sofa(m: Mesh, rng: RandomStream) -> None:
    """Build a sofa with seats, arms, back and cushions; some have a chaise."""
    seats, each = rng.choice((2, 2, 3, 3, 4)), rng(0.5, 0.66)
    w, d, seat, back = seats * each, rng(0.75, 0.95), rng(0.36, 0.46), rng(0.34, 0.55)
    soft_cover = rng.chance(0.65)
    code = rng.choice(SEATS)
    cover = fabric(rng, code, rng.choice(SEATS), rng.choice(COVERS), rng(0.05, 0.14)) if soft_cover else leather(rng, *HIDES)
    foot = wood(rng, "oak", "walnut", "black") if rng.chance(0.6) else metal(rng, "chrome", "black", "brass")
    lift, arm_w, arm_h = rng.choice((0.04, 0.1, 0.16)), rng(0.09, 0.24), rng(0.08, 0.28)
    puff, arm, square = rng(0.2, 0.5), rng.choice(("round", "box", "scroll", "slim", "none")), rng(0.12, 0.3)
    side = w / 2 + (arm_w * 0.4 if arm in ("round", "box", "scroll") else -0.08)
    style = rng.choice(("square", "tapered", "tapered"))
    legs(m, side, d / 2 - 0.1, lift + 0.04, foot, style, rng(0.05, 0.08), rng(0, 0.03))
    m.box((0, 0, (lift + seat - 0.08) / 2), (w + 0.02, d, seat - 0.08 - lift), cover, 0.03)
    size = (w + (2 * arm_w if arm != "none" else 0), 0.2, seat + back - lift)
    m.cushion((0, d / 2 - 0.09, (lift + seat + back) / 2), size, cover, square, rotation("x", -0.06))
    for sx in (-1, 1):
        x, top = sx * (w / 2 + arm_w / 2), seat + arm_h
        if arm == "round":
            m.cushion((x, -0.01, (lift + top) / 2), (arm_w, d - 0.02, top - lift), cover, puff)
        elif arm in ("box", "slim"):
            m.box((x, 0, (lift + top) / 2), (arm_w if arm == "box" else 0.07, d, top - lift), cover, 0.03)
        elif arm == "scroll":
            m.box((x, 0, (lift + top - 0.05) / 2), (arm_w * 0.6, d - 0.04, top - lift - 0.05), cover, 0.03)
            m.tube(((x, -d / 2 + 0.02, top - 0.05), (x, d / 2 - 0.05, top - 0.05)), 0.09, cover, sides=14)
    chaise = rng.choice((-1, 1)) if rng.chance(0.22) else 0
    rows = 1 if rng.chance(0.15) else seats
    wide = w / rows
    middles = [((k + 0.5) / rows - 0.5) * w for k in range(rows)]
    for k, x in enumerate(middles):
        long = 0.55 if chaise and k == (0 if chaise < 0 else rows - 1) else 0.0
        m.cushion((x, -0.08 - long / 2, seat - 0.03), (wide - 0.008, d - 0.2 + long, rng(0.13, 0.17)), cover, puff, n=10)
        if long:
            at = (x, -d / 2 - long / 2 + 0.03, (lift + seat - 0.08) / 2)
            m.box(at, (wide, long + 0.06, seat - 0.08 - lift), cover, 0.03)
            for s in (-1, 1):
                m.tube(((x + s * 0.18, -d / 2 - long + 0.1, 0), (x + s * 0.18, -d / 2 - long + 0.1, lift + 0.04)), 0.03, foot)
    if rng.chance(0.8):
        tall, lean = rng(0.9, 1.25) * back, rotation("x", rng(-0.3, -0.12))
        for x in middles:
            m.cushion((x, d / 2 - 0.25, seat + 0.02 + tall / 2), (wide - 0.01, 0.18, tall), cover, puff, lean, n=10)
    else:  # buttons instead
        for k in range(seats * 3):
            x = ((k + 0.5) / (seats * 3) - 0.5) * w
            for z in (0.35, 0.7):
                m.cushion((x, d / 2 - 0.19 + 0.02 * z, seat + z * back), (0.03, 0.02, 0.03), cover, 1.0, n=4)
    pillows = rng.integer(0, 3)
    if pillows:
        colors = rng.choice(SEATS), rng.choice(("e8e0d0", "2c3038", "b5742e"))
        throw = fabric(rng, *colors, rng.choice(PILLOWS), rng(0.06, 0.12))
        for k in range(pillows):
            x = (-1 if k % 2 else 1) * (w / 2 - 0.2 - 0.3 * (k // 2))
            tilt = rotation("y", 0.15 * (1 - 2 * (k % 2))) @ rotation("x", -0.35)
            m.cushion((x, d / 2 - 0.4, seat + 0.2), (0.34, 0.12, 0.34), throw, 0.6, tilt, n=10)

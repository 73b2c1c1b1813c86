"""Sofas. Front is towards -y, up is z."""

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.meshes import Model, turn
from liftedstruct.data.products.shapes.parts import SEATS, legs
from liftedstruct.data.products.stuff import fabric, leather, metal, wood

__all__ = ["sofa"]


def sofa(m: Model, dice: Dice) -> None:
    """Seats, arms, back and cushions; some with a chaise."""
    seats, each = dice.pick((2, 2, 3, 3, 4)), dice(0.5, 0.66)
    w, d, seat, back = seats * each, dice(0.75, 0.95), dice(0.36, 0.46), dice(0.34, 0.55)
    soft_cover = dice.chance(0.65)
    code = dice.pick(SEATS)
    cover = m.paint(
        fabric(
            dice,
            code,
            dice.pick(SEATS),
            dice.pick(("plain",) * 5 + ("pinstripes", "tartan", "checks", "petals")),
            dice(0.05, 0.14),
        )
        if soft_cover
        else leather(dice, dice.pick(("2a2624", "6b4028", "d8d0c2", "7a2620")))
    )
    foot = (
        m.paint(wood(dice, dice.pick(("oak", "walnut", "black"))))
        if dice.chance(0.6)
        else m.paint(metal(dice, dice.pick(("chrome", "black", "brass"))))
    )
    lift, arm_w, arm_h = dice.pick((0.04, 0.1, 0.16)), dice(0.09, 0.24), dice(0.08, 0.28)
    puff, round_arm, square = dice(0.2, 0.5), dice.pick(("round", "box", "scroll", "slim", "none")), dice(0.12, 0.3)
    side = w / 2 + (arm_w * 0.4 if round_arm in ("round", "box", "scroll") else -0.08)
    legs(
        m,
        dice,
        side,
        d / 2 - 0.1,
        lift + 0.04,
        foot,
        dice.pick(("square", "tapered", "tapered")),
        dice(0.05, 0.08),
        dice(0, 0.03),
    )
    m.box((0, 0, (lift + seat - 0.08) / 2), (w + 0.02, d, seat - 0.08 - lift), cover, 0.03)
    m.cushion(
        (0, d / 2 - 0.09, (lift + seat + back) / 2),
        (w + (2 * arm_w if round_arm != "none" else 0), 0.2, seat + back - lift),
        cover,
        square,
        turn("x", -0.06),
    )
    for sx in (-1, 1):
        x, top = sx * (w / 2 + arm_w / 2), seat + arm_h
        if round_arm == "round":
            m.cushion((x, -0.01, (lift + top) / 2), (arm_w, d - 0.02, top - lift), cover, puff)
        elif round_arm in ("box", "slim"):
            m.box((x, 0, (lift + top) / 2), (arm_w if round_arm == "box" else 0.07, d, top - lift), cover, 0.03)
        elif round_arm == "scroll":
            m.box((x, 0, (lift + top - 0.05) / 2), (arm_w * 0.6, d - 0.04, top - lift - 0.05), cover, 0.03)
            m.tube(((x, -d / 2 + 0.02, top - 0.05), (x, d / 2 - 0.05, top - 0.05)), 0.09, cover, sides=14)
    chaise = dice.pick((-1, 1)) if dice.chance(0.22) else 0
    one = dice.chance(0.15)
    rows = 1 if one else seats
    for k in range(rows):
        x = ((k + 0.5) / rows - 0.5) * w
        long = 0.55 if chaise and k == (0 if chaise < 0 else rows - 1) else 0.0
        m.cushion((x, -0.08 - long / 2, seat - 0.03), (w / rows - 0.008, d - 0.2 + long, dice(0.13, 0.17)), cover, puff, n=10)
        if long:
            m.box(
                (x, -d / 2 - long / 2 + 0.03, (lift + seat - 0.08) / 2),
                (w / rows, long + 0.06, seat - 0.08 - lift),
                cover,
                0.03,
            )
            for s in (-1, 1):
                m.tube(((x + s * 0.18, -d / 2 - long + 0.1, 0), (x + s * 0.18, -d / 2 - long + 0.1, lift + 0.04)), 0.03, foot)
    if dice.chance(0.8):
        tall, tilt = dice(0.9, 1.25) * back, dice(-0.3, -0.12)
        for k in range(rows):
            x = ((k + 0.5) / rows - 0.5) * w
            m.cushion(
                (x, d / 2 - 0.25, seat + 0.02 + tall / 2), (w / rows - 0.01, 0.18, tall), cover, puff, turn("x", tilt), n=10
            )
    else:  # buttons instead
        for k in range(seats * 3):
            for z in (0.35, 0.7):
                m.cushion(
                    (((k + 0.5) / (seats * 3) - 0.5) * w, d / 2 - 0.19 + 0.02 * z, seat + z * back),
                    (0.03, 0.02, 0.03),
                    cover,
                    1.0,
                    n=4,
                )
    pillow = dice.whole(0, 3)
    if pillow:
        throw = m.paint(
            fabric(
                dice,
                dice.pick(SEATS),
                dice.pick(("e8e0d0", "2c3038", "b5742e")),
                dice.pick(("plain", "pinstripes", "dots", "checks", "chevron", "petals")),
                dice(0.06, 0.12),
            )
        )
        for k in range(pillow):
            x = (-1 if k % 2 else 1) * (w / 2 - 0.2 - 0.3 * (k // 2))
            m.cushion(
                (x, d / 2 - 0.4, seat + 0.2),
                (0.34, 0.12, 0.34),
                throw,
                0.6,
                turn("y", 0.15 * (1 - 2 * (k % 2))) @ turn("x", -0.35),
                n=10,
            )

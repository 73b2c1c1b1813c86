"""Cabinets. Front is towards -y, up is z."""

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.materials import material
from liftedstruct.data.products.meshes import Model, Point
from liftedstruct.data.products.shapes.parts import PLAINS, legs
from liftedstruct.data.products.stuff import glass, metal, plastic, wood

__all__ = ["cabinet"]


def cabinet(m: Model, dice: Dice) -> None:
    """A carcass on a plinth or legs, its front divided into doors, drawers and open shelves."""
    w, d, h = dice.pick((0.7, 0.95, 1.3, 1.7)) * dice(0.85, 1.15), dice(0.36, 0.55), dice(0.7, 1.5)
    lacquer = dice.chance(0.4)
    body = m.paint(
        plastic(dice, dice.pick(PLAINS), 18) if lacquer else wood(dice, dice.pick(("oak", "pine", "walnut", "cherry", "white")))
    )
    front = m.paint(wood(dice, dice.pick(("oak", "walnut", "white", "black")))) if dice.chance(0.35) else body
    dark = m.paint(material((0.05, 0.045, 0.04), gloss=5))
    handle = m.paint(metal(dice, dice.pick(("steel", "brass", "black", "iron"))))
    lift = dice.pick((0.05, 0.1, 0.22, 0.32))
    if lift < 0.15:
        m.box((0, 0.02, lift / 2), (w - 0.06, d - 0.08, lift), body if dice.chance(0.5) else dark)
    else:
        style = dice.pick(("square", "tapered", "hairpin", "turned", "cabriole"))
        legs(
            m,
            dice,
            w / 2 - 0.07,
            d / 2 - 0.06,
            lift,
            handle if style == "hairpin" else body,
            style,
            dice(0.04, 0.07),
            dice(0, 0.05),
        )
    t = 0.025
    m.box((0, d / 2 - t / 2, lift + h / 2), (w, t, h), body)
    for sx in (-1, 1):
        m.box((sx * (w / 2 - t / 2), 0, lift + h / 2), (t, d, h), body, 0.004)
    over = dice.pick((0.0, 0.03, 0.06))
    for z, e in ((lift + t / 2, 0.0), (lift + h + t / 2, over)):
        m.box((0, -e / 4, z), (w + e, d + e / 2, t + e * 0.4), body, 0.008)
    columns = max(1, min(4, round(w / dice(0.32, 0.6))))
    kinds = [dice.pick(("door", "drawers", "door", "open", "glass")) for _ in range(columns)]
    drawer_row = dice.chance(0.4)
    n_drawers, n_shelves = dice.whole(2, 5), dice.whole(1, 4)
    panel, knob, gap = dice.chance(0.5), dice.pick(("knob", "bar", "cup", "none", "long")), dice(0.006, 0.014)
    cw = (w - 2 * t) / columns
    for i, kind in enumerate(kinds):
        x = -w / 2 + t + (i + 0.5) * cw
        low, high = lift + t, lift + h
        if i:
            m.box((x - cw / 2, 0.01, lift + h / 2), (t * 0.8, d - 0.04, h), body, 0)
        if drawer_row:
            high -= 0.18 * h
            _front(m, (x, -d / 2, high + 0.09 * h), cw - gap, 0.18 * h - gap, front, handle, knob, panel, "middle")
        if kind == "drawers":
            step = (high - low) / n_drawers
            for k in range(n_drawers):
                _front(m, (x, -d / 2, low + (k + 0.5) * step), cw - gap, step - gap, front, handle, knob, panel, "middle")
        elif kind == "door":
            side = "right" if i % 2 == 0 else "left"
            _front(m, (x, -d / 2, (low + high) / 2), cw - gap, high - low - gap, front, handle, knob, panel, side)
        else:
            m.box((x, d / 2 - 2 * t, (low + high) / 2), (cw, 0.01, high - low), dark if kind == "glass" else body, 0)
            for k in range(1, n_shelves + 1):
                m.box((x, 0.02, low + k * (high - low) / (n_shelves + 1)), (cw, d - 0.08, 0.018), body, 0)
            if kind == "glass":
                f = 0.035
                for z, ch in ((low + f, 2 * f), (high - f, 2 * f)):
                    m.box((x, -d / 2, z), (cw - gap, 0.022, ch), front, 0.004)
                for s in (-1, 1):
                    m.box(
                        (x + s * (cw / 2 - f), -d / 2, (low + high) / 2), (2 * f - gap, 0.022, high - low - gap), front, 0.004
                    )
                m.box((x, -d / 2, (low + high) / 2), (cw - 2 * f, 0.006, high - low - 2 * f), m.paint(glass(dice)), 0)


def _front(m: Model, at: Point, w: float, h: float, paint: int, handle: int, knob: str, panel: bool, side: str) -> None:
    """A door or drawer front with its handle."""
    x, y, z = at
    m.box((x, y - 0.008, z), (w, 0.022, h), paint, 0.005)
    if panel and min(w, h) > 0.16:
        m.box((x, y - 0.02, z), (w - 0.11, 0.016, h - 0.11), paint, 0.007)
    out = y - 0.035
    hx = {"right": x + w / 2 - 0.04, "left": x - w / 2 + 0.04, "middle": x}[side]
    if knob == "knob":
        m.cushion((hx, out, z), (0.034, 0.034, 0.034), handle, 1.0, n=5)
    elif knob in ("bar", "long"):
        reach = min(0.42 * (w if side == "middle" else h), 0.07 if knob == "bar" else 0.3)
        shift: Point = (reach, 0, 0) if side == "middle" else (0, 0, reach)
        ends = ((hx - shift[0], out, z - shift[2]), (hx + shift[0], out, z + shift[2]))
        m.tube(ends, 0.008, handle, sides=6)
    elif knob == "cup":
        m.cushion((hx, out, z), (0.1, 0.03, 0.035), handle, 0.6, n=5)

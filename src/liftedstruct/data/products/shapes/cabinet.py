"""Cabinets."""

from liftedstruct.data.products.materials import Material, glass, metal, plastic, wood
from liftedstruct.data.products.meshes import Mesh
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.shapes.parts import PLAINS, legs

__all__ = ["cabinet"]


def cabinet(m: Mesh, rng: RandomStream) -> None:
    """Build a cabinet on a plinth or legs, with doors, drawers, glass and open shelves."""
    w, d, h = rng.choice((0.7, 0.95, 1.3, 1.7)) * rng(0.85, 1.15), rng(0.36, 0.55), rng(0.7, 1.5)
    lacquer = rng.chance(0.4)
    body = plastic(rng, *PLAINS, gloss=18) if lacquer else wood(rng, "oak", "pine", "walnut", "cherry", "white")
    front = wood(rng, "oak", "walnut", "white", "black") if rng.chance(0.35) else body
    dark = Material((0.05, 0.045, 0.04), gloss=5)
    handle = metal(rng, "steel", "brass", "black", "iron")
    lift = rng.choice((0.05, 0.1, 0.22, 0.32))
    if lift < 0.15:
        m.box((0, 0.02, lift / 2), (w - 0.06, d - 0.08, lift), body if rng.chance(0.5) else dark)
    else:
        style = rng.choice(("square", "tapered", "hairpin", "turned", "cabriole"))
        leg = handle if style == "hairpin" else body
        legs(m, w / 2 - 0.07, d / 2 - 0.06, lift, leg, style, rng(0.04, 0.07), rng(0, 0.05))
    t = 0.025
    m.box((0, d / 2 - t / 2, lift + h / 2), (w, t, h), body)
    for sx in (-1, 1):
        m.box((sx * (w / 2 - t / 2), 0, lift + h / 2), (t, d, h), body, 0.004)
    over = rng.choice((0.0, 0.03, 0.06))
    for z, e in ((lift + t / 2, 0.0), (lift + h + t / 2, over)):
        m.box((0, -e / 4, z), (w + e, d + e / 2, t + e * 0.4), body, 0.008)
    columns = max(1, min(4, round(w / rng(0.32, 0.6))))
    kinds = [rng.choice(("door", "drawers", "door", "open", "glass")) for _ in range(columns)]
    drawer_row = rng.chance(0.4)
    n_drawers, n_shelves = rng.integer(2, 5), rng.integer(1, 4)
    panel, knob, gap = rng.chance(0.5), rng.choice(("knob", "bar", "cup", "none", "long")), rng(0.006, 0.014)
    cw = (w - 2 * t) / columns

    def add_front(x: float, z: float, tall: float, side: str) -> None:
        """Add a door or drawer front with its handle."""
        w, h, out = cw - gap, tall - gap, -d / 2 - 0.035
        m.box((x, -d / 2 - 0.008, z), (w, 0.022, h), front, 0.005)
        if panel and min(w, h) > 0.16:
            m.box((x, -d / 2 - 0.02, z), (w - 0.11, 0.016, h - 0.11), front, 0.007)
        hx = {"right": x + w / 2 - 0.04, "left": x - w / 2 + 0.04, "middle": x}[side]
        if knob == "knob":
            m.cushion((hx, out, z), (0.034, 0.034, 0.034), handle, 1.0, n=5)
        elif knob in ("bar", "long"):
            reach = min(0.42 * (w if side == "middle" else h), 0.07 if knob == "bar" else 0.3)
            dx, dz = (reach, 0.0) if side == "middle" else (0.0, reach)
            m.tube(((hx - dx, out, z - dz), (hx + dx, out, z + dz)), 0.008, handle, sides=6)
        elif knob == "cup":
            m.cushion((hx, out, z), (0.1, 0.03, 0.035), handle, 0.6, n=5)

    for i, kind in enumerate(kinds):
        x = -w / 2 + t + (i + 0.5) * cw
        low, high = lift + t, lift + h
        if i:
            m.box((x - cw / 2, 0.01, lift + h / 2), (t * 0.8, d - 0.04, h), body, 0)
        if drawer_row:
            high -= 0.18 * h
            add_front(x, high + 0.09 * h, 0.18 * h, "middle")
        middle, tall = (low + high) / 2, high - low
        if kind == "drawers":
            step = tall / n_drawers
            for k in range(n_drawers):
                add_front(x, low + (k + 0.5) * step, step, "middle")
        elif kind == "door":
            add_front(x, middle, tall, "left" if i % 2 else "right")
        else:
            m.box((x, d / 2 - 2 * t, middle), (cw, 0.01, tall), dark if kind == "glass" else body, 0)
            for k in range(1, n_shelves + 1):
                m.box((x, 0.02, low + k * tall / (n_shelves + 1)), (cw, d - 0.08, 0.018), body, 0)
        if kind == "glass":
            f = 0.035  # half the width of the frame
            for z in (low + f, high - f):
                m.box((x, -d / 2, z), (cw - gap, 0.022, 2 * f), front, 0.004)
            for s in (-1, 1):
                m.box((x + s * (cw / 2 - f), -d / 2, middle), (2 * f - gap, 0.022, tall - gap), front, 0.004)
            m.box((x, -d / 2, middle), (cw - 2 * f, 0.006, tall - 2 * f), glass(rng), 0)

"""Named materials with a little chance in them: plastic, metal, wood, fabric, leather, ceramic, glass.

Colours come from short lists, so that many products of a category share one and only shape and detail tell them apart.
"""

from liftedstruct.data.products.dice import Dice
from liftedstruct.data.products.materials import linear, material

__all__ = ["Colour", "ceramic", "colour", "decor", "fabric", "glass", "leather", "metal", "plastic", "rubber", "wood"]

Colour = tuple[float, float, float]
METALS = {
    "chrome": "dcdcde",
    "steel": "b4b5b8",
    "brass": "c8a050",
    "copper": "c07850",
    "iron": "55565a",
    "gold": "d8b868",
    "black": "1f1f21",
}
WOODS = {
    "oak": "b98a55",
    "pine": "dab981",
    "walnut": "6a452b",
    "cherry": "8e4f30",
    "white": "e6e2da",
    "black": "2b2725",
    "teak": "9a6438",
}
DECORS = ("plain", "bands", "pinstripes", "checks", "dots", "two-tone", "diagonal", "chevron", "tartan", "petals")


def colour(dice: Dice, code: str, spread: float = 0.05) -> Colour:
    """A colour by its code, moved a little: no two batches of paint are equal; never so white that it is lost on white."""
    k = 1 + dice.near(spread)
    r, g, b = linear(code)
    return (
        min(0.78, r * k * (1 + dice.near(0.03))),
        min(0.78, g * k * (1 + dice.near(0.02))),
        min(0.78, b * k * (1 + dice.near(0.03))),
    )


def plastic(dice: Dice, code: str, glossy: float | None = None) -> list[float]:
    """Moulded plastic or paint, from matt to piano black."""
    gloss = dice.pick((14, 40, 110)) if glossy is None else glossy
    return material(colour(dice, code), gloss=gloss, shine=0.03 + 0.0002 * gloss, seed=dice.whole(0, 999))


def metal(dice: Dice, kind: str, brushed: bool | None = None) -> list[float]:
    """Chrome to iron, polished or brushed."""
    rough = dice.chance(0.4) if brushed is None else brushed
    if kind == "black":
        return material(colour(dice, METALS[kind]), gloss=45, shine=0.06)
    return material(
        colour(dice, METALS[kind], 0.03),
        texture="brushed" if rough else "smooth",
        scale=dice(0.7, 1.4),
        gloss=26 if rough else 160,
        metal=0.85,
        seed=dice.whole(0, 999),
    )


def wood(dice: Dice, kind: str) -> list[float]:
    """Timber, oiled or lacquered; two of them painted."""
    painted = kind in ("white", "black")
    return material(
        colour(dice, WOODS[kind]),
        texture="smooth" if painted else "wood",
        scale=dice(0.7, 1.6),
        gloss=dice.pick((18, 50)),
        shine=0.04,
        seed=dice.whole(0, 999),
    )


def fabric(dice: Dice, code: str, second: str | None = None, pattern: str = "plain", period: float = 0.1) -> list[float]:
    """Upholstery, plain or patterned."""
    return material(
        colour(dice, code),
        colour(dice, second or code),
        texture="woven",
        scale=dice(0.7, 1.5),
        pattern=pattern,
        places=(period, dice(0.25, 0.6), dice(), dice()),
        gloss=4,
        shine=0.012,
        seed=dice.whole(0, 999),
    )


def leather(dice: Dice, code: str) -> list[float]:
    """Leather with a dull shine."""
    return material(colour(dice, code), texture="leather", scale=dice(0.8, 1.6), gloss=22, shine=0.05, seed=dice.whole(0, 999))


def ceramic(dice: Dice, code: str, second: str | None = None, pattern: str = "plain", period: float = 0.1) -> list[float]:
    """Glazed stoneware."""
    speckled = pattern == "plain" and dice.chance(0.2)
    return material(
        colour(dice, code),
        colour(dice, second or code),
        texture="speckled" if speckled else "smooth",
        pattern=pattern,
        places=(period, dice(0.25, 0.6), 0.0, dice(0, period)),
        gloss=dice.pick((40, 120, 160)),
        shine=0.05,
        seed=dice.whole(0, 999),
    )


def glass(dice: Dice, code: str = "c8d4d4", alpha: int = 1) -> list[float]:
    """Glass: some of its samples are not there."""
    return material(colour(dice, code), gloss=200, shine=0.12, alpha=alpha)


def rubber(code: str = "1b1b1c") -> list[float]:
    """Tyres, feet, cables."""
    return material(linear(code), gloss=8, shine=0.02)


def decor(dice: Dice, row: list[float], second: str, period: float, plain: float = 0.5) -> list[float]:
    """The same material, at times with a pattern in a second colour."""
    if dice.chance(plain):
        return row
    out = list(row)
    out[3:6] = colour(dice, second)
    out[8] = float(dice.whole(1, len(DECORS) - 1))
    if out[8] == 5:  # two-tone: the height of the change
        out[9] = dice(0.3, 0.7)
    else:
        out[8] += out[8] >= 7  # the glyph has a place of its own
        out[9], out[10], out[11], out[12] = period, dice(0.2, 0.6), 0.0, dice(0, period)
    return out

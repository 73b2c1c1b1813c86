"""What products are made of: plastic, metal, wood, fabric, leather, ceramic, glass, with a little randomness in each.

Colors come from short lists, so that many products of a category share one and only shape and detail tell them apart.
"""

from typing import NamedTuple, Self

from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.textures import PATTERNS, TEXTURES

__all__ = ["Material", "ceramic", "fabric", "glass", "leather", "linear", "metal", "plastic", "rubber", "wood"]

Color = tuple[float, float, float]
METALS = {"chrome": "dcdcde", "steel": "b4b5b8", "brass": "c8a050", "copper": "c07850", "iron": "55565a", "black": "1f1f21"}
WOODS = {
    "oak": "b98a55",
    "pine": "dab981",
    "walnut": "6a452b",
    "cherry": "8e4f30",
    "white": "e6e2da",
    "black": "2b2725",
    "teak": "9a6438",
}
DARK = "222224"
DECORATIVE = tuple(pattern for pattern in PATTERNS if pattern not in ("plain", "logo"))


class Material(NamedTuple):
    """Two colors in linear light, the texture and pattern between them, and how light leaves the surface.

    ``places`` are the pattern's period, its share of the second color, and its origin (u, v); of a two-tone the first is the
    height of the change; of a logo the width, the bits, and the middle. ``gloss`` is the Blinn-Phong exponent, ``shine`` the
    reflectance face on, ``alpha`` how many of four samples the surface covers.
    """

    color: Color
    second: Color | None = None
    texture: str = "smooth"
    scale: float = 1.0
    pattern: str = "plain"
    places: tuple[float, float, float, float] = (0.1, 0.5, 0, 0)
    gloss: float = 40
    shine: float = 0.04
    metal: float = 0.0
    alpha: int = 4
    glow: float = 0.0
    seed: int = 0

    def row(self) -> list[float]:
        """The numbers that :mod:`~liftedstruct.data.products.textures` and the rasterizer read."""
        texture, pattern = TEXTURES.index(self.texture), PATTERNS.index(self.pattern)
        return [*self.color, *(self.second or self.color), texture, self.scale, pattern, *self.places, *self[6:]]

    def with_pattern(self, rng: RandomStream, second: str, period: float, plain: float) -> Self:
        """The same material, with probability 1 - ``plain`` with a pattern in a second color."""
        if rng.chance(plain):
            return self
        color, pattern = varied(rng, second), rng.choice(DECORATIVE)
        two_tone = pattern == "two-tone"
        places = (rng(0.3, 0.7), 0, 0, 0) if two_tone else (period, rng(0.2, 0.6), 0, rng(0, period))
        return self._replace(second=color, pattern=pattern, places=places)

    def with_logo(self, rng: RandomStream, width: float, u: float, v: float, code: str | None = None) -> Self:
        """The material with a maker's logo at (u, v), dark on light or light on dark unless a color is given."""
        code = code or (DARK if sum(self.color) > 0.6 else "e8e8e6")
        return self._replace(second=linear(code), pattern="logo", places=(width, float(rng.integer(1000, 32767)), u, v))


def linear(code: str) -> Color:
    """Linear light of a color written as six hexadecimal digits."""
    r, g, b = (((int(code[i : i + 2], 16) / 255 + 0.055) / 1.055) ** 2.4 for i in (0, 2, 4))
    return r, g, b


def varied(rng: RandomStream, code: str, spread: float = 0.05) -> Color:
    """A color moved a little: no two batches of paint are equal; never so white that it is lost on white."""
    k = 1 + rng.normal(spread)
    r, g, b = (min(0.78, c * k * (1 + rng.normal(std))) for c, std in zip(linear(code), (0.03, 0.02, 0.03), strict=True))
    return r, g, b


def plastic(rng: RandomStream, *codes: str, gloss: float | None = None) -> Material:
    """Molded plastic or paint in one of the colors, from matte to piano black."""
    code = rng.choice(codes)
    gloss = rng.choice((14, 40, 110)) if gloss is None else gloss
    return Material(varied(rng, code), gloss=gloss, shine=0.03 + 0.0002 * gloss, seed=rng.integer(0, 999))


def metal(rng: RandomStream, *kinds: str, brushed: bool | None = None) -> Material:
    """One of the metals, chrome to iron, polished or brushed."""
    kind = rng.choice(kinds)
    brushed = rng.chance(0.4) if brushed is None else brushed
    if kind == "black":
        return Material(varied(rng, METALS[kind]), gloss=45, shine=0.06)
    texture, gloss = ("brushed", 26) if brushed else ("smooth", 160)
    color, scale = varied(rng, METALS[kind], 0.03), rng(0.7, 1.4)
    return Material(color, texture=texture, scale=scale, gloss=gloss, metal=0.85, seed=rng.integer(0, 999))


def wood(rng: RandomStream, *kinds: str) -> Material:
    """One of the timbers, oiled or lacquered; two of them painted."""
    kind = rng.choice(kinds)
    texture = "smooth" if kind in ("white", "black") else "wood"
    color, scale, gloss = varied(rng, WOODS[kind]), rng(0.7, 1.6), rng.choice((18, 50))
    return Material(color, texture=texture, scale=scale, gloss=gloss, seed=rng.integer(0, 999))


def fabric(rng: RandomStream, code: str, second: str | None = None, pattern: str = "plain", period: float = 0.1) -> Material:
    """Upholstery, plain or patterned."""
    color, second_color, scale = varied(rng, code), varied(rng, second or code), rng(0.7, 1.5)
    places = (period, rng(0.25, 0.6), rng(), rng())
    return Material(color, second_color, "woven", scale, pattern, places, gloss=4, shine=0.012, seed=rng.integer(0, 999))


def leather(rng: RandomStream, *codes: str) -> Material:
    """Leather of one of the colors, with a dull shine."""
    color, scale = varied(rng, rng.choice(codes)), rng(0.8, 1.6)
    return Material(color, texture="leather", scale=scale, gloss=22, shine=0.05, seed=rng.integer(0, 999))


def ceramic(rng: RandomStream, *codes: str) -> Material:
    """Glazed stoneware of one of the colors, at times speckled."""
    code = rng.choice(codes)
    texture = "speckled" if rng.chance(0.2) else "smooth"
    color, second, places = varied(rng, code), varied(rng, code), (0.1, rng(0.25, 0.6), 0.0, rng(0, 0.1))
    gloss = rng.choice((40, 120, 160))
    return Material(color, second, texture, places=places, gloss=gloss, shine=0.05, seed=rng.integer(0, 999))


def glass(rng: RandomStream, code: str = "c8d4d4", alpha: int = 1) -> Material:
    """Glass: some of its samples are not there."""
    return Material(varied(rng, code), gloss=200, shine=0.12, alpha=alpha)


def rubber(code: str = "1b1b1c") -> Material:
    """Tires, feet, cables."""
    return Material(linear(code), gloss=8, shine=0.02)

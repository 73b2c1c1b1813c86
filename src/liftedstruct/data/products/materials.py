"""Materials: plastic, metal, wood, fabric, leather, ceramic, glass and rubber, most with a little randomness.

Colors come from short lists, so many products of a category share a color and differ only in shape and detail.
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
    """Surface material: two colors in linear light, texture, pattern and reflectance.

    `places` holds the pattern's period, the fraction of the second color, and the origin (u, v). For "two-tone", the first
    value is the height of the color change; for "logo", the values are width, bits and center. `gloss` is the Blinn-Phong
    exponent, `shine` the reflectance at normal incidence, and `alpha` the number of samples covered out of four.
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
        """Return the material as a table row for `textures` and `rasterizer`."""
        texture, pattern = TEXTURES.index(self.texture), PATTERNS.index(self.pattern)
        return [*self.color, *(self.second or self.color), texture, self.scale, pattern, *self.places, *self[6:]]

    def with_pattern(self, rng: RandomStream, second: str, period: float, plain: float) -> Self:
        """Add a pattern in a second color with probability 1 - `plain`."""
        if rng.chance(plain):
            return self
        color, pattern = varied(rng, second), rng.choice(DECORATIVE)
        two_tone = pattern == "two-tone"
        places = (rng(0.3, 0.7), 0, 0, 0) if two_tone else (period, rng(0.2, 0.6), 0, rng(0, period))
        return self._replace(second=color, pattern=pattern, places=places)

    def with_logo(self, rng: RandomStream, width: float, u: float, v: float, code: str | None = None) -> Self:
        """Add a logo at (u, v) in the color `code`; by default dark on light and light on dark."""
        code = code or (DARK if sum(self.color) > 0.6 else "e8e8e6")
        return self._replace(second=linear(code), pattern="logo", places=(width, float(rng.integer(1000, 32767)), u, v))


def linear(code: str) -> Color:
    """Convert a color from six hexadecimal digits to linear light."""
    r, g, b = (((int(code[i : i + 2], 16) / 255 + 0.055) / 1.055) ** 2.4 for i in (0, 2, 4))
    return r, g, b


def varied(rng: RandomStream, code: str, spread: float = 0.05) -> Color:
    """Vary a color slightly, as between batches of paint, and limit its brightness so that it stays visible on white."""
    k = 1 + rng.normal(spread)
    r, g, b = (min(0.78, c * k * (1 + rng.normal(std))) for c, std in zip(linear(code), (0.03, 0.02, 0.03), strict=True))
    return r, g, b


def plastic(rng: RandomStream, *codes: str, gloss: float | None = None) -> Material:
    """Return molded plastic or paint in one of the colors, from matte to high gloss."""
    code = rng.choice(codes)
    gloss = rng.choice((14, 40, 110)) if gloss is None else gloss
    return Material(varied(rng, code), gloss=gloss, shine=0.03 + 0.0002 * gloss, seed=rng.integer(0, 999))


def metal(rng: RandomStream, *kinds: str, brushed: bool | None = None) -> Material:
    """Return one of the metals, polished or brushed."""
    kind = rng.choice(kinds)
    brushed = rng.chance(0.4) if brushed is None else brushed
    if kind == "black":
        return Material(varied(rng, METALS[kind]), gloss=45, shine=0.06)
    texture, gloss = ("brushed", 26) if brushed else ("smooth", 160)
    color, scale = varied(rng, METALS[kind], 0.03), rng(0.7, 1.4)
    return Material(color, texture=texture, scale=scale, gloss=gloss, metal=0.85, seed=rng.integer(0, 999))


def wood(rng: RandomStream, *kinds: str) -> Material:
    """Return one of the woods, oiled or lacquered; white and black are painted."""
    kind = rng.choice(kinds)
    texture = "smooth" if kind in ("white", "black") else "wood"
    color, scale, gloss = varied(rng, WOODS[kind]), rng(0.7, 1.6), rng.choice((18, 50))
    return Material(color, texture=texture, scale=scale, gloss=gloss, seed=rng.integer(0, 999))


def fabric(rng: RandomStream, code: str, second: str | None = None, pattern: str = "plain", period: float = 0.1) -> Material:
    """Return upholstery fabric, plain or patterned."""
    color, second_color, scale = varied(rng, code), varied(rng, second or code), rng(0.7, 1.5)
    places = (period, rng(0.25, 0.6), rng(), rng())
    return Material(color, second_color, "woven", scale, pattern, places, gloss=4, shine=0.012, seed=rng.integer(0, 999))


def leather(rng: RandomStream, *codes: str) -> Material:
    """Return leather in one of the colors, with a dull shine."""
    color, scale = varied(rng, rng.choice(codes)), rng(0.8, 1.6)
    return Material(color, texture="leather", scale=scale, gloss=22, shine=0.05, seed=rng.integer(0, 999))


def ceramic(rng: RandomStream, *codes: str) -> Material:
    """Return glazed stoneware in one of the colors, sometimes speckled."""
    code = rng.choice(codes)
    texture = "speckled" if rng.chance(0.2) else "smooth"
    color, second, places = varied(rng, code), varied(rng, code), (0.1, rng(0.25, 0.6), 0.0, rng(0, 0.1))
    gloss = rng.choice((40, 120, 160))
    return Material(color, second, texture, places=places, gloss=gloss, shine=0.05, seed=rng.integer(0, 999))


def glass(rng: RandomStream, code: str = "c8d4d4", alpha: int = 1) -> Material:
    """Return glass, which covers only `alpha` of every four samples."""
    return Material(varied(rng, code), gloss=200, shine=0.12, alpha=alpha)


def rubber(code: str = "1b1b1c") -> Material:
    """Return rubber for tires, feet and cables."""
    return Material(linear(code), gloss=8, shine=0.02)

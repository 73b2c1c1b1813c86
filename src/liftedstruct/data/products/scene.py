"""One image of one product: mesh, camera, lights, room and post-processing."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from liftedstruct.data.products.kernels import Floats, Singles, cross, kernel
from liftedstruct.data.products.lighting import Lights
from liftedstruct.data.products.materials import linear
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.rasterizer import Camera, Product, Room, rasterize
from liftedstruct.data.products.shapes import build, category_of
from liftedstruct.data.products.textures import chance
from liftedstruct.runtime.checks import check_count

__all__ = ["RENDERER_VERSION", "render"]

RENDERER_VERSION = 1  # increment whenever any image changes
WHITES = ("ffffff", "fbfbfa", "f4f4f2", "eeeeee", "f7f3ec", "e6e8ea")
TINTS = ("c9d6df", "dfd3c3", "b8c4b0", "d9b8a8", "9fb3c8", "cfc4d8", "8a8f94", "e3cf9f", "5c6670", "b7a58c")
WOODS = (("c8a06e", "8a5c30"), ("7a4e2c", "4a2c18"), ("e0c79c", "b8935e"), ("5a4030", "33231a"), ("b07a48", "7c4f2a"))
CARPETS = (("a89c8c", "7d7264"), ("6d7580", "4b525c"), ("c9c0b0", "9d9484"), ("7c4a42", "57302b"), ("4f5b4a", "374033"))
STONES = (("dcdad4", "a9a6a0"), ("f0ede6", "c8beb0"), ("6e6c6a", "4a4846"), ("c7b299", "9b8468"))
WALLS = ("f1eee6", "e4e0d4", "d3dbe0", "e8d9c8", "c7d0c0", "dcd0d4", "b9b2a8", "f6f6f4", "a8b5bd")
THINGS = ("a03a2c", "2c4a78", "d9c27a", "3d6b4a", "eeeeee", "2a2a2c", "c88a4a", "7d5a8a", "88a8b8")


def render(product: int, image: int, size: int = 128, seed: int = 0) -> NDArray[np.uint8]:
    """Render image number `image` of class number `product` as RGB, (size, size, 3).

    The result depends only on the arguments: the same bytes in any order, thread or process on one machine.
    """
    product, image = check_count("product", product, 0), check_count("image", image, 0)
    size, seed = check_count("size", size, 16), check_count("seed", seed, 0)
    mesh, box = model(product, seed)
    rng = RandomStream("image", seed, product, image)
    camera = draw_camera(rng, box, mesh.radius, sideways=category_of(product, seed) in ("bicycle", "stapler"))
    room, lights = draw_room(rng, camera)
    samples = 2 if size >= 96 else 2 * -(-96 // size)
    light, _ = rasterize(mesh, camera, lights, room, size, samples)
    develop(light, rng)
    return with_margin(light, rng)


@lru_cache(maxsize=64)
def model(product: int, seed: int) -> tuple[Product, Floats]:
    """Return a product that stands on z = 0, centered at the origin, and its half width, half depth and height."""
    vertices, triangles, material_of, materials = build(product, seed).arrays()
    low, high = vertices[:, :3].min(axis=0), vertices[:, :3].max(axis=0)
    vertices[:, :3] -= np.array(((low[0] + high[0]) / 2, (low[1] + high[1]) / 2, low[2]), dtype=np.float32)
    box = (high - low) * np.array((0.5, 0.5, 1.0))
    radius = math.sqrt(box[0] ** 2 + box[1] ** 2 + box[2] ** 2 / 4)
    return Product(vertices, triangles, material_of, materials, radius), box


def draw_camera(rng: RandomStream, box: Floats, radius: float, sideways: bool) -> Camera:
    """Draw a camera position, mostly in front and slightly above, sometimes so close that the product is cropped.

    `box` holds half width, half depth and height. Products modeled `sideways` are also seen from behind.
    """
    side = rng()
    yaw = rng.normal(0.55) if side < 0.58 else rng(-1.9, 1.9) if side < 0.92 else rng(-math.pi, math.pi)
    if sideways and rng.chance(0.4):
        yaw += math.pi
    pitch = math.radians(rng(4, 32) if rng.chance(0.8) else rng(-1, 62))
    roll = math.radians(rng.normal(1.5) if rng.chance(0.8) else rng.normal(7))
    away = radius * rng(2.1, 5.5)
    target = np.array((0.0, 0.0, 0.5 * box[2]))
    forward = np.array((-math.sin(yaw) * math.cos(pitch), math.cos(yaw) * math.cos(pitch), -math.sin(pitch)))
    at = target - away * forward
    at[2] = max(at[2], 0.03 * radius)
    forward = target - at
    forward /= np.sqrt(forward @ forward)
    right = np.array((forward[1], -forward[0], 0.0))
    right /= np.sqrt(right @ right)
    up = np.array(cross(right, forward))
    c, s = math.cos(roll), math.sin(roll)
    axes = np.stack((c * right + s * up, c * up - s * right, forward))
    seen = (CORNERS * box - at) @ axes.T  # (8, 3)
    xy = seen[:, :2] / seen[:, 2:]
    low, high = xy.min(axis=0), xy.max(axis=0)
    share = rng(0.68, 1.0) if rng.chance(0.72) else rng(1.0, 1.6)  # fraction of the image that the product fills
    focal = share / float((high - low).max())
    drift = 0.12 * max(0.1, 1 - share) if share < 1 else 0.14
    x, y = (0.5 * (high + low)).tolist()
    return Camera(at, axes, focal, 0.5 - focal * x + rng.normal(drift), 0.5 + focal * y + rng.normal(drift))


def draw_room(rng: RandomStream, camera: Camera) -> tuple[Room, Lights]:
    """Draw a room, from a white studio to a home, and its lights."""
    forward = camera.frame[2]
    heading = forward[:2] / math.hypot(forward[0], forward[1])
    kind = rng()
    blobs = np.empty((0, 6))
    floor = wall = 0
    seamless, shadow, distance = 1.0, rng(0.5, 1.0), rng(1.2, 3.5)
    if kind < 0.34:  # white background
        colors = np.array([linear(rng.choice(WHITES[:3]))] * 4)
        shadow = rng(0.2, 0.9) if rng.chance(0.7) else 0.0
    elif kind < 0.56:  # gray studio
        low, high = linear(rng.choice(WHITES)), linear(rng.choice((*WHITES, "b9bcc0", "d4d4d2")))
        colors = np.array((low, low, high, high))
    elif kind < 0.66:  # colored paper
        colors = np.array([linear(rng.choice(TINTS))] * 4)
        colors[2] *= rng(0.6, 1.1)
    else:  # a home
        seamless = 0.0
        floor = rng.choice((1, 1, 2, 2, 3, 4, 5))
        a, b = rng.choice({1: WOODS, 2: CARPETS, 3: STONES, 4: STONES, 5: CARPETS}[floor])
        plain = rng.choice(WALLS)
        wall = rng.choice((0, 0, 4, 4, 5, 3))
        colors = np.array([linear(code) for code in (a, b, plain, rng.choice(WALLS))])
        distance = rng(0.5, 3.0)
        if rng.chance(0.45):
            n = rng.integer(2, 7)
            things = [(rng(-0.1, 1.1), rng(-0.1, 0.7), rng(0.06, 0.3), *linear(rng.choice(THINGS))) for _ in range(n)]
            blobs = np.array(things)
    room = Room(floor, wall, colors, heading, distance, seamless, shadow, rng(0.6, 2.2), blobs, rng.integer(0, 9999))
    side = math.atan2(heading[1], heading[0]) + math.pi + rng(-1.9, 1.9)  # behind the camera or beside the product
    key = _direction(side, math.radians(rng(22, 72)))
    across = np.array((-math.sin(side), math.cos(side), 0.0))
    fill = _direction(side + math.pi + rng(-1.2, 1.2), math.radians(rng(5, 45)))
    warm, hard = rng.normal(0.07), rng(0.15, 0.75)
    tint = np.array((1 + warm, 1.0, 1 - warm))
    bounce = (0.25 * colors[0] + 0.15) * (1.1 - hard)
    lit = np.stack((tint * (0.35 + 0.75 * hard), (2 - tint) * rng(0.08, 0.3), np.full(3, 0.75 - 0.4 * hard), bounce))
    return room, Lights(key, np.stack((across, cross(key, across))), fill, lit, rng(0.008, 0.06))


def _direction(angle: float, rise: float) -> Floats:
    """Return the unit vector at an angle about z and an elevation above the floor."""
    return np.array((math.cos(angle) * math.cos(rise), math.sin(angle) * math.cos(rise), math.sin(rise)))


def develop(light: Singles, rng: RandomStream) -> None:
    """Convert linear light to display values, in place: white balance, exposure, contrast, vignette, grain and blur."""
    warm, tint = rng.normal(0.05), rng.normal(0.02)
    gain = 1.06 * 2 ** rng.normal(0.18)
    blur = rng(0.1, 0.45) if rng.chance(0.35) else 0.0
    grain = rng(0.0, 0.012) if rng.chance(0.8) else rng(0.012, 0.04)
    vignette = rng(0.0, 0.35) if rng.chance(0.4) else 0.0
    gains = np.array((gain * (1 + warm), gain * (1 + tint), gain * (1 - warm)))
    tone_map(light, gains, rng(0.9, 1.12), vignette, grain, rng.integer(0, 99999), LEVELS)
    if blur:
        soften(light.swapaxes(0, 1), blur)
        soften(light, blur)


def soften(image: Singles, strength: float) -> None:
    """Blur along the first axis, in place, by mixing each row with its neighbors."""
    rows = np.concatenate((image[:1], image, image[-1:]))
    image += strength * 0.5 * (rows[:-2] + rows[2:] - 2 * image.astype(float))


@kernel
def tone_map(image: Singles, gains: Floats, contrast: float, vignette: float, grain: float, seed: int, levels: Singles) -> None:
    """Apply gain, vignette, highlight roll-off, gamma, contrast and grain, in place."""
    size = len(image)
    for y in range(size):
        for x in range(size):
            far = ((x + 0.5) / size - 0.5) ** 2 + ((y + 0.5) / size - 0.5) ** 2
            corner = 1 - vignette * 2 * far
            gray = grain * (chance(x, y, seed) + chance(x, y, seed + 1) - 1)
            tint = 0.3 * grain * (chance(x, y, seed + 2) - 0.5)
            for c in range(3):
                v = max(0.0, image[y, x, c] * gains[c] * corner)
                if v > 0.8:  # a soft shoulder, as in film, so that highlights keep some color
                    v = 1 - 0.04 / (v - 0.6)
                g = levels[int(v * (len(levels) - 1))]
                image[y, x, c] = 0.5 + (g - 0.5) * contrast + gray + (c - 1) * tint


def with_margin(image: Singles, rng: RandomStream) -> NDArray[np.uint8]:
    """Convert to uint8 and add a white margin to some images, as in sellers' uploads."""
    out: NDArray[np.uint8] = (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)
    if rng.chance(0.12):
        margin = int(rng(0.03, 0.13) * len(out))
        sides = out if rng.chance(0.5) else out.swapaxes(0, 1)
        sides[:margin] = sides[len(out) - margin :] = 255
    return out


CORNERS = np.array([(x, y, z) for x in (-1.0, 1.0) for y in (-1.0, 1.0) for z in (0.0, 1.0)])
TONES = np.linspace(0, 1, 4096)  # linear light; LEVELS holds the display value of each
LEVELS = np.where(TONES < 0.0031308, 12.92 * TONES, 1.055 * TONES ** (1 / 2.4) - 0.055).astype(np.float32)

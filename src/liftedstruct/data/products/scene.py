"""One photograph of one product: the product's model, then camera, lights, room and what the camera does to the picture."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from liftedstruct.data.products.categories import build, category_of
from liftedstruct.data.products.kernels import Floats, kernel
from liftedstruct.data.products.lighting import Lights
from liftedstruct.data.products.materials import linear
from liftedstruct.data.products.random_stream import RandomStream
from liftedstruct.data.products.rasterizer import Camera, Room, draw
from liftedstruct.data.products.textures import chance
from liftedstruct.runtime.checks import check_count

__all__ = ["RENDERER_VERSION", "render"]

RENDERER_VERSION = 1  # another number whenever any picture changes
WHITES = ("ffffff", "fbfbfa", "f4f4f2", "eeeeee", "f7f3ec", "e6e8ea")
TINTS = ("c9d6df", "dfd3c3", "b8c4b0", "d9b8a8", "9fb3c8", "cfc4d8", "8a8f94", "e3cf9f", "5c6670", "b7a58c")
WOODS = (("c8a06e", "8a5c30"), ("7a4e2c", "4a2c18"), ("e0c79c", "b8935e"), ("5a4030", "33231a"), ("b07a48", "7c4f2a"))
CARPETS = (("a89c8c", "7d7264"), ("6d7580", "4b525c"), ("c9c0b0", "9d9484"), ("7c4a42", "57302b"), ("4f5b4a", "374033"))
STONES = (("dcdad4", "a9a6a0"), ("f0ede6", "c8beb0"), ("6e6c6a", "4a4846"), ("c7b299", "9b8468"))
WALLS = ("f1eee6", "e4e0d4", "d3dbe0", "e8d9c8", "c7d0c0", "dcd0d4", "b9b2a8", "f6f6f4", "a8b5bd")
THINGS = ("a03a2c", "2c4a78", "d9c27a", "3d6b4a", "eeeeee", "2a2a2c", "c88a4a", "7d5a8a", "88a8b8")


def render(product: int, image: int, size: int = 128, seed: int = 0) -> NDArray[np.uint8]:
    """Image number ``image`` of class number ``product``, (size, size, 3), RGB.

    A pure function of its arguments: the same bytes in any order, thread or process of one machine.
    """
    product, image = check_count("product", product, 0), check_count("image", image, 0)
    size, seed = check_count("size", size, 16), check_count("seed", seed, 0)
    vertices, triangles, paint, paints, box = model(product, seed)
    rng = RandomStream("image", seed, product, image)
    sideways = category_of(product, seed) in ("bicycle", "stapler")
    camera = aim(rng, box, sideways)
    radius = math.sqrt(box[0] ** 2 + box[1] ** 2 + box[2] ** 2 / 4)
    room, lights = furnish(rng, camera)
    samples = 2 if size >= 96 else 2 * -(-96 // size)
    linear_image, _ = draw(vertices, triangles, paint, paints, radius, camera, lights, room, size, samples)
    develop(linear_image, exposure(rng), LEVELS)
    out: NDArray[np.uint8] = frame(linear_image, rng, size)
    return out


@lru_cache(maxsize=64)
def model(product: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32], Floats, Floats]:
    """Mesh and paints of a product, standing on z = 0 about the origin, and its half width, half depth and height."""
    vertices, triangles, paint, paints = build(product, seed).arrays()
    low, high = vertices[:, :3].min(axis=0), vertices[:, :3].max(axis=0)
    vertices[:, :3] -= np.array(((low[0] + high[0]) / 2, (low[1] + high[1]) / 2, low[2]), dtype=np.float32)
    return vertices, triangles, paint, paints, (high - low) * np.array((0.5, 0.5, 1.0))


def aim(rng: RandomStream, box: Floats, sideways: bool) -> Camera:
    """A camera around the product, mostly from the front and a little above, at times close enough to cut it off.

    ``box`` has the half width and half depth, and the height.
    """
    side = rng()
    yaw = rng.normal(0.55) if side < 0.58 else rng(-1.9, 1.9) if side < 0.92 else rng(-math.pi, math.pi)
    if sideways and rng.chance(0.4):
        yaw += math.pi
    pitch = math.radians(rng(4, 32) if rng.chance(0.8) else rng(-1, 62))
    roll = math.radians(rng.normal(1.5) if rng.chance(0.8) else rng.normal(7))
    radius = math.sqrt(box[0] ** 2 + box[1] ** 2 + box[2] ** 2 / 4)
    away = radius * rng(2.1, 5.5)
    target = np.array((0.0, 0.0, 0.5 * box[2]))
    forward = np.array((-math.sin(yaw) * math.cos(pitch), math.cos(yaw) * math.cos(pitch), -math.sin(pitch)))
    at = target - away * forward
    at[2] = max(at[2], 0.03 * radius)
    forward = target - at
    forward /= np.sqrt(forward @ forward)
    right = np.array((forward[1], -forward[0], 0.0))
    right /= np.sqrt(right @ right)
    up = np.array((right[1] * forward[2], -right[0] * forward[2], right[0] * forward[1] - right[1] * forward[0]))
    c, s = math.cos(roll), math.sin(roll)
    axes = np.stack((c * right + s * up, c * up - s * right, forward))
    seen = (CORNERS * box - at) @ axes.T  # (8, 3)
    x, y = seen[:, 0] / seen[:, 2], seen[:, 1] / seen[:, 2]
    wide = float(max(x.max() - x.min(), y.max() - y.min()))
    share = rng(0.68, 1.0) if rng.chance(0.72) else rng(1.0, 1.6)  # of the picture that the product takes
    focal = share / wide
    drift = 0.12 * max(0.1, 1 - share) if share < 1 else 0.14
    middle_x, middle_y = 0.5 * float(x.max() + x.min()), 0.5 * float(y.max() + y.min())
    return Camera(at, axes, focal, 0.5 - focal * middle_x + rng.normal(drift), 0.5 + focal * middle_y + rng.normal(drift))


def furnish(rng: RandomStream, camera: Camera) -> tuple[Room, Lights]:
    """The room, from a white studio to somebody's carpet, and its lights."""
    forward = camera.frame[2]
    heading = forward[:2] / math.hypot(forward[0], forward[1])
    facing = math.atan2(heading[1], heading[0])
    kind = rng()
    blobs = np.empty((0, 6))
    floor = wall = 0
    seamless, shadow, distance = 1.0, rng(0.5, 1.0), rng(1.2, 3.5)
    if kind < 0.34:  # cut out on white
        tone = linear(rng.choice(WHITES[:3]))
        colors = (tone, tone, tone, tone)
        shadow = rng(0.2, 0.9) if rng.chance(0.7) else 0.0
    elif kind < 0.56:  # grey studio
        low, high = linear(rng.choice(WHITES)), linear(rng.choice((*WHITES, "b9bcc0", "d4d4d2")))
        colors = (low, low, high, high)
    elif kind < 0.66:  # colored paper
        tone = linear(rng.choice(TINTS))
        k = rng(0.6, 1.1)
        colors = (tone, tone, (k * tone[0], k * tone[1], k * tone[2]), tone)
    else:  # a home
        seamless = 0.0
        floor = rng.choice((1, 1, 2, 2, 3, 4, 5))
        a, b = rng.choice({1: WOODS, 2: CARPETS, 3: STONES, 4: STONES, 5: CARPETS}[floor])
        plain = rng.choice(WALLS)
        wall = rng.choice((0, 0, 4, 4, 5, 3))
        second = linear(rng.choice(WALLS))
        colors = (linear(a), linear(b), linear(plain), second)
        distance = rng(0.5, 3.0)
        if rng.chance(0.45):
            blobs = np.array(
                [
                    (rng(-0.1, 1.1), rng(-0.1, 0.7), rng(0.06, 0.3), *linear(rng.choice(THINGS)))
                    for _ in range(rng.integer(2, 7))
                ]
            )
    room = Room(floor, wall, np.array(colors), heading, distance, seamless, shadow, rng(0.6, 2.2), blobs, rng.integer(0, 9999))
    side = facing + math.pi + rng(-1.9, 1.9)  # lights stand behind the camera or beside the product
    rise = math.radians(rng(22, 72))
    key = np.array((math.cos(side) * math.cos(rise), math.sin(side) * math.cos(rise), math.sin(rise)))
    across = np.array((-math.sin(side), math.cos(side), 0.0))
    other = np.array(
        (
            key[1] * across[2] - key[2] * across[1],
            key[2] * across[0] - key[0] * across[2],
            key[0] * across[1] - key[1] * across[0],
        )
    )
    back = side + math.pi + rng(-1.2, 1.2)
    rise = math.radians(rng(5, 45))
    fill = np.array((math.cos(back) * math.cos(rise), math.sin(back) * math.cos(rise), math.sin(rise)))
    warm = rng.normal(0.07)
    hard = rng(0.15, 0.75)
    tint = np.array((1 + warm, 1.0, 1 - warm))
    bounce = 0.25 * np.array(colors[0]) + 0.15
    lit = np.stack(
        (tint * (0.35 + 0.75 * hard), (2 - tint) * rng(0.08, 0.3), np.full(3, 0.75 - 0.4 * hard), bounce * (1.1 - hard))
    )
    return room, Lights(key, np.stack((across, other)), fill, lit, rng(0.008, 0.06))


def exposure(rng: RandomStream) -> Floats:
    """Gains of red, green and blue, contrast, darkening of the corners, noise, blur, and the noise's seed."""
    warm, tint = rng.normal(0.05), rng.normal(0.02)
    gain = 1.06 * 2 ** rng.normal(0.18)
    blur = rng(0.1, 0.45) if rng.chance(0.35) else 0.0
    grain = rng(0.0, 0.012) if rng.chance(0.8) else rng(0.012, 0.04)
    corners = rng(0.0, 0.35) if rng.chance(0.4) else 0.0
    return np.array(
        (gain * (1 + warm), gain * (1 + tint), gain * (1 - warm), rng(0.9, 1.12), corners, grain, blur, rng.integer(0, 99999))
    )


@kernel
def develop(image: NDArray[np.float32], e: Floats, levels: NDArray[np.float32]) -> None:
    """From linear light to display values in [0, 1], in place: gain, shoulder, gamma, contrast, grain."""
    size = len(image)
    seed = int(e[7])
    for y in range(size):
        for x in range(size):
            far = ((x + 0.5) / size - 0.5) ** 2 + ((y + 0.5) / size - 0.5) ** 2
            corner = 1 - e[4] * 2 * far
            grain = e[5] * (chance(x, y, seed) + chance(x, y, seed + 1) - 1)
            tint = 0.3 * e[5] * (chance(x, y, seed + 2) - 0.5)
            for c in range(3):
                v = max(0.0, image[y, x, c] * e[c] * corner)
                if v > 0.8:  # a soft shoulder, as film has, so that highlights keep some color
                    v = 1 - 0.04 / (v - 0.6)
                g = levels[int(v * (len(levels) - 1))]
                image[y, x, c] = 0.5 + (g - 0.5) * e[3] + grain + (c - 1) * tint
    if e[6] > 0:
        for axis in range(2):
            for i in range(size):
                for c in range(3):
                    before = image[i, 0, c] if axis == 0 else image[0, i, c]
                    for j in range(size):
                        y, x = (i, j) if axis == 0 else (j, i)
                        ny, nx = (i, min(j + 1, size - 1)) if axis == 0 else (min(j + 1, size - 1), i)
                        here = image[y, x, c]
                        image[y, x, c] = here + e[6] * 0.5 * (before + image[ny, nx, c] - 2 * here)
                        before = here


def frame(image: NDArray[np.float32], rng: RandomStream, size: int) -> NDArray[np.uint8]:
    """Bytes; some pictures come with a white margin, as sellers upload them."""
    out = (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)
    if rng.chance(0.12):
        margin = int(rng(0.03, 0.13) * size)
        if rng.chance(0.5):
            out[:margin] = out[size - margin :] = 255
        else:
            out[:, :margin] = out[:, size - margin :] = 255
    return out


CORNERS = np.array([(x, y, z) for x in (-1.0, 1.0) for y in (-1.0, 1.0) for z in (0.0, 1.0)])
TONES = np.linspace(0, 1, 4096)  # of linear light, and the display's value for each
LEVELS = np.where(TONES < 0.0031308, 12.92 * TONES, 1.055 * TONES ** (1 / 2.4) - 0.055).astype(np.float32)

"""The rasterizer: triangles, a camera, lights and a room in; an image in linear light out.

Deferred: first every sample (a square of them per pixel) finds its nearest triangle, then each cell of a mesh (two triangles)
that a pixel sees is shaded there once, at the middle of its samples, and weighted by their number. A depth map from the key
light gives the shadows; a map of how low the product hangs over the floor gives the dark of contact under it.
"""

import math
from typing import NamedTuple

import numpy as np

from liftedstruct.data.products.kernels import Floats, Integers, Singles, inlined, kernel
from liftedstruct.data.products.lighting import (
    FLOOR_CELLS,
    SHADOW_CELLS,
    Lights,
    contact_map,
    lit,
    surroundings,
    to_light,
)
from liftedstruct.data.products.textures import ALPHA, GLOSS, GLOW, METAL, PATTERN, SHINE, chance, noise, surface_color

__all__ = ["Camera", "Room", "draw"]


class Camera(NamedTuple):
    """A pinhole camera: rows of ``frame`` are right, up and forward; the image centre is at (x, y) of the picture."""

    at: Floats  # (3,)
    frame: Floats  # (3, 3)
    focal: float  # in widths of the image
    x: float
    y: float


class Room(NamedTuple):
    """Floor z = 0 and a wall behind the product, each with a texture: plain, wood, carpet, tiles or blurred things."""

    floor: int
    wall: int
    colors: Floats  # (4, 3): floor and its second color, wall and its second color
    heading: Floats  # (2,), horizontal direction into the picture
    distance: float  # of the wall from the product
    seamless: float  # 1: floor runs into the wall without a line
    shadow: float  # strength of shadows on the floor
    scale: float  # of the floor's texture
    blobs: Floats  # (k, 6): x, y, radius, r, g, b of blurred things on the wall
    seed: int


@kernel
def draw(
    vertices: Singles,
    triangles: Integers,
    paint: Integers,
    paints: Floats,
    radius: float,
    camera: Camera,
    lights: Lights,
    room: Room,
    size: int,
    samples: int,
) -> tuple[Singles, float]:
    """The image (size, size, 3) in linear light, and the share of its samples that show the product."""
    wide = size * samples
    n = len(vertices)
    screen = np.empty((n, 3), np.float32)  # x, y in samples, 1 / depth
    shade_at = np.empty((n, 3), np.float32)  # x, y in cells of the shadow map, height towards the light
    below = np.empty((n, 3), np.float32)  # x, y in cells of the floor map, minus the height over the floor
    to_cells = SHADOW_CELLS / (2.1 * radius)
    to_floor = FLOOR_CELLS / (2.6 * radius)
    middle = 0.5 * radius  # heights are measured from here
    for i in range(n):
        x, y, z = vertices[i, 0], vertices[i, 1], vertices[i, 2]
        dx, dy, dz = x - camera.at[0], y - camera.at[1], z - camera.at[2]
        inverse = 1.0 / (camera.frame[2, 0] * dx + camera.frame[2, 1] * dy + camera.frame[2, 2] * dz)
        right = camera.frame[0, 0] * dx + camera.frame[0, 1] * dy + camera.frame[0, 2] * dz
        up = camera.frame[1, 0] * dx + camera.frame[1, 1] * dy + camera.frame[1, 2] * dz
        screen[i, 0] = (camera.x + camera.focal * right * inverse) * wide
        screen[i, 1] = (camera.y - camera.focal * up * inverse) * wide
        screen[i, 2] = inverse
        a, b, c = to_light(lights, x, y, z - middle)
        shade_at[i, 0], shade_at[i, 1], shade_at[i, 2] = a * to_cells + SHADOW_CELLS / 2, b * to_cells + SHADOW_CELLS / 2, c
        below[i, 0], below[i, 1], below[i, 2] = x * to_floor + FLOOR_CELLS / 2, y * to_floor + FLOOR_CELLS / 2, -z
    seen, _ = nearest(screen, triangles, paint, paints, wide, True, 0.0)
    _, shadows = nearest(shade_at, triangles, paint, paints, SHADOW_CELLS, False, -1e9)
    _, heights = nearest(below, triangles, paint, paints, FLOOR_CELLS, False, -1e9)
    contact = contact_map(heights, radius)
    image = np.zeros((size, size, 3), np.float32)
    covered = 0
    weight = 1.0 / (samples * samples)
    for py in range(size):
        for px in range(size):
            empty = 0
            for sy in range(samples):
                for sx in range(samples):
                    t = seen[py * samples + sy, px * samples + sx]
                    if t == -1:
                        empty += 1
                        continue
                    if t < -1:
                        continue  # shaded with an earlier sample of this pixel
                    x, y, count = px * samples + sx + 0.5, py * samples + sy + 0.5, 1
                    if paints[paint[t], PATTERN] == 0:  # patterns have edges that only single samples resolve
                        for k in range(sy * samples + sx + 1, samples * samples):
                            qy, qx = py * samples + k // samples, px * samples + k % samples
                            if seen[qy, qx] >> 1 == t >> 1:  # the two triangles of a cell follow each other
                                seen[qy, qx] = -2
                                x, y, count = x + qx + 0.5, y + qy + 0.5, count + 1
                    r, g, b = shade(
                        x / count, y / count, t, vertices, triangles, paints, paint[t], screen, camera, lights, shadows, radius
                    )
                    image[py, px, 0] += r * count * weight
                    image[py, px, 1] += g * count * weight
                    image[py, px, 2] += b * count * weight
            covered += samples * samples - empty
            if empty > 0:
                r, g, b = background((px + 0.5) / size, (py + 0.5) / size, camera, lights, room, shadows, contact, radius)
                image[py, px, 0] += r * empty * weight
                image[py, px, 1] += g * empty * weight
                image[py, px, 2] += b * empty * weight
    return image, covered * weight / (size * size)


@kernel
def nearest(
    points: Singles, triangles: Integers, paint: Integers, paints: Floats, wide: int, sieve: bool, far: float
) -> tuple[Integers, Singles]:
    """Of every sample the triangle with the greatest third coordinate, or -1, and that coordinate.

    With ``sieve``, a transparent triangle takes only some samples of every 2 x 2; without, it is not there at all.
    """
    seen = np.full((wide, wide), -1, np.int32)
    depth = np.full((wide, wide), far, np.float32)
    for t in range(len(triangles)):
        alpha = int(paints[paint[t], ALPHA])
        if alpha < 4 and not sieve:
            continue
        i, j, k = triangles[t, 0], triangles[t, 1], triangles[t, 2]
        ax, ay, bx, by, cx, cy = points[i, 0], points[i, 1], points[j, 0], points[j, 1], points[k, 0], points[k, 1]
        area = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
        if abs(area) < 1e-6:
            continue
        left, right = max(0, math.ceil(min(ax, bx, cx) - 0.5)), min(wide - 1, math.floor(max(ax, bx, cx) - 0.5))
        top, bottom = max(0, math.ceil(min(ay, by, cy) - 0.5)), min(wide - 1, math.floor(max(ay, by, cy) - 0.5))
        if left > right or top > bottom:
            continue
        # weights of corners b and c, linear in x and y
        b_dx, b_dy = (cy - ay) / area, -(cx - ax) / area
        c_dx, c_dy = -(by - ay) / area, (bx - ax) / area
        az, bz, cz = points[i, 2], points[j, 2] - points[i, 2], points[k, 2] - points[i, 2]
        for y in range(int(top), int(bottom) + 1):
            b = (left + 0.5 - ax) * b_dx + (y + 0.5 - ay) * b_dy
            c = (left + 0.5 - ax) * c_dx + (y + 0.5 - ay) * c_dy
            first, last = 0.0, float(right - left)  # the row's samples inside: thin triangles have wide boxes
            for value, slope in ((b, b_dx), (c, c_dx), (1 - b - c, -b_dx - c_dx)):
                if slope > 0:
                    first = max(first, -value / slope - 1e-4)
                elif slope < 0:
                    last = min(last, -value / slope + 1e-4)
                elif value < 0:
                    last = -1.0
            for step in range(math.ceil(first), math.floor(last) + 1):
                x = left + step
                z = az + (b + step * b_dx) * bz + (c + step * c_dx) * cz
                if z > depth[y, x] and (alpha == 4 or (2 * (x & 1) + 3 * (y & 1)) % 4 < alpha):
                    depth[y, x] = z
                    seen[y, x] = t
    return seen, depth


@inlined
def shade(
    x: float,
    y: float,
    t: int,
    vertices: Singles,
    triangles: Integers,
    m: Floats,
    row: int,
    screen: Singles,
    camera: Camera,
    lights: Lights,
    shadows: Singles,
    radius: float,
) -> tuple[float, float, float]:
    """Light that leaves triangle ``t`` towards the camera at sample (x, y)."""
    i, j, k = triangles[t, 0], triangles[t, 1], triangles[t, 2]
    ax, ay = screen[i, 0], screen[i, 1]
    bx, by, cx, cy = screen[j, 0] - ax, screen[j, 1] - ay, screen[k, 0] - ax, screen[k, 1] - ay
    area = bx * cy - by * cx
    b = ((x - ax) * cy - (y - ay) * cx) / area
    c = ((y - ay) * bx - (x - ax) * by) / area
    b, c = min(max(b, 0.0), 1.0), min(max(c, 0.0), 1.0)
    a = max(1 - b - c, 0.0) * screen[i, 2]
    b, c = b * screen[j, 2], c * screen[k, 2]
    total = a + b + c
    a, b, c = a / total, b / total, c / total
    wx, wy, wz = (
        a * vertices[i, 0] + b * vertices[j, 0] + c * vertices[k, 0],
        a * vertices[i, 1] + b * vertices[j, 1] + c * vertices[k, 1],
        a * vertices[i, 2] + b * vertices[j, 2] + c * vertices[k, 2],
    )
    nx, ny, nz = (
        a * vertices[i, 3] + b * vertices[j, 3] + c * vertices[k, 3],
        a * vertices[i, 4] + b * vertices[j, 4] + c * vertices[k, 4],
        a * vertices[i, 5] + b * vertices[j, 5] + c * vertices[k, 5],
    )
    red, green, blue = surface_color(
        m,
        row,
        a * vertices[i, 6] + b * vertices[j, 6] + c * vertices[k, 6],
        a * vertices[i, 7] + b * vertices[j, 7] + c * vertices[k, 7],
    )
    vx, vy, vz = camera.at[0] - wx, camera.at[1] - wy, camera.at[2] - wz
    length = math.sqrt(vx * vx + vy * vy + vz * vz)
    vx, vy, vz = vx / length, vy / length, vz / length
    length = math.sqrt(nx * nx + ny * ny + nz * nz) + 1e-9
    facing = (nx * vx + ny * vy + nz * vz) / length
    if facing < 0:
        length, facing = -length, -facing
    nx, ny, nz = nx / length, ny / length, nz / length
    L, fill, colors = lights.key, lights.fill, lights.colors
    key = nx * L[0] + ny * L[1] + nz * L[2]
    seen = 0.0
    if key > 0:
        seen = lit(lights, shadows, radius, wx + 0.012 * nx, wy + 0.012 * ny, wz + 0.012 * nz, 0.012 * radius, 0.012)
    second = max(0.0, nx * fill[0] + ny * fill[1] + nz * fill[2])
    direct = max(key, 0.0) * seen
    near_floor = 0.45 + 0.55 * min(1.0, wz / (0.35 * radius) + 0.3 * max(nz, 0.0))
    sky = (0.5 + 0.5 * nz) * (0.55 + 0.45 * near_floor)
    bounce = (0.5 - 0.5 * nz) * near_floor
    # specular: the key light's highlight, and the room, stronger at a grazing view
    grazing = (1 - facing) ** 5
    shine, metal, gloss = m[row, SHINE], m[row, METAL], m[row, GLOSS]
    ex = ey = ez = 0.0
    if shine > 0.02 or metal > 0:  # cloth and rubber mirror nothing
        reflect = 2 * facing
        ex, ey, ez = surroundings(reflect * nx - vx, reflect * ny - vy, reflect * nz - vz, lights, 4.0 / gloss)
    hx, hy, hz = L[0] + vx, L[1] + vy, L[2] + vz
    half = (nx * hx + ny * hy + nz * hz) / (math.sqrt(hx * hx + hy * hy + hz * hz) + 1e-9)
    spot = seen * (gloss + 8) / 26 * half**gloss if half > 0 and key > 0 else 0.0
    smooth = min(1.0, gloss / 60)  # rough surfaces mirror little, also at a grazing view
    front = (1 - metal) * (shine + (1 - shine) * 0.6 * grazing * smooth)
    glow = m[row, GLOW]
    out_r = red * (
        (1 - metal) * (direct * colors[0, 0] + second * colors[1, 0] + sky * colors[2, 0] + bounce * colors[3, 0]) + glow
    )
    out_g = green * (
        (1 - metal) * (direct * colors[0, 1] + second * colors[1, 1] + sky * colors[2, 1] + bounce * colors[3, 1]) + glow
    )
    out_b = blue * (
        (1 - metal) * (direct * colors[0, 2] + second * colors[1, 2] + sky * colors[2, 2] + bounce * colors[3, 2]) + glow
    )
    out_r += (front + metal * (red + (1 - red) * grazing)) * (ex * near_floor + spot * colors[0, 0])
    out_g += (front + metal * (green + (1 - green) * grazing)) * (ey * near_floor + spot * colors[0, 1])
    out_b += (front + metal * (blue + (1 - blue) * grazing)) * (ez * near_floor + spot * colors[0, 2])
    return out_r, out_g, out_b


@inlined
def background(
    x: float, y: float, camera: Camera, lights: Lights, room: Room, shadows: Singles, contact: Singles, radius: float
) -> tuple[float, float, float]:
    """Light from the floor or the wall at (x, y) of the picture."""
    f = camera.frame
    right, up = (x - camera.x) / camera.focal, (camera.y - y) / camera.focal
    dx, dy, dz = (
        f[2, 0] + right * f[0, 0] + up * f[1, 0],
        f[2, 1] + right * f[0, 1] + up * f[1, 1],
        f[2, 2] + right * f[0, 2] + up * f[1, 2],
    )
    ahead = dx * room.heading[0] + dy * room.heading[1]
    gone = camera.at[0] * room.heading[0] + camera.at[1] * room.heading[1]
    to_wall = (room.distance - gone) / ahead if ahead > 1e-6 else 1e9
    to_floor = camera.at[2] / -dz if dz < -1e-6 else 1e9
    reach = min(to_wall, to_floor)
    gx, gy, gz = camera.at[0] + reach * dx, camera.at[1] + reach * dy, camera.at[2] + reach * dz
    deep, side = gx * room.heading[0] + gy * room.heading[1], gx * room.heading[1] - gy * room.heading[0]
    c = room.colors
    wall_share = 1.0 if to_wall < to_floor else 0.0
    if room.seamless > 0:
        t = min(1.0, max(0.0, deep / room.distance))
        wall_share = max(wall_share, t * t * (3 - 2 * t))
    k = room_texture(room.floor, side * room.scale, deep * room.scale, room.seed)
    w = room_texture(room.wall, side, gz, room.seed + 7)
    red = (1 - wall_share) * (c[0, 0] + k * (c[1, 0] - c[0, 0])) + wall_share * (c[2, 0] + w * (c[3, 0] - c[2, 0]))
    green = (1 - wall_share) * (c[0, 1] + k * (c[1, 1] - c[0, 1])) + wall_share * (c[2, 1] + w * (c[3, 1] - c[2, 1]))
    blue = (1 - wall_share) * (c[0, 2] + k * (c[1, 2] - c[0, 2])) + wall_share * (c[2, 2] + w * (c[3, 2] - c[2, 2]))
    if wall_share > 0:
        for n in range(len(room.blobs)):
            blob = room.blobs[n]
            d = ((x - blob[0]) ** 2 + (y - blob[1]) ** 2) / (blob[2] * blob[2])
            t = wall_share * 0.85 / (1 + d * d * d)
            red, green, blue = red + t * (blob[3] - red), green + t * (blob[4] - green), blue + t * (blob[5] - blue)
    if to_floor < to_wall and room.shadow > 0:
        open_sky, direct = 1.0, 1.0
        if gx * gx + gy * gy < 40 * radius * radius:
            direct = lit(lights, shadows, radius, gx, gy, 0.0, 0.004 * radius, lights.softness)
            p, q = (
                gx * FLOOR_CELLS / (2.6 * radius) + FLOOR_CELLS / 2 - 0.5,
                gy * FLOOR_CELLS / (2.6 * radius) + FLOOR_CELLS / 2 - 0.5,
            )
            i, j = math.floor(q), math.floor(p)
            if 0 <= i < FLOOR_CELLS - 1 and 0 <= j < FLOOR_CELLS - 1:
                a, b = q - i, p - j
                low = contact[i, j] * (1 - b) + contact[i, j + 1] * b
                high = contact[i + 1, j] * (1 - b) + contact[i + 1, j + 1] * b
                open_sky = 1 - min(0.85, 1.1 * (low * (1 - a) + high * a))
        dim = 1 - room.shadow * (1 - (0.42 + 0.58 * direct) * open_sky)
        red, green, blue = red * dim, green * dim, blue * dim
    return red, green, blue


@inlined
def room_texture(kind: int, u: float, v: float, seed: int) -> float:
    """The share of the second color on a floor or wall."""
    if kind == 1:  # planks
        plank = math.floor(3 * v)
        tone = chance(plank, 3, seed)
        seam = 0.5 if 3 * v - plank < 0.04 else 0.0
        return min(
            1.0, 0.45 * tone + 0.45 * noise(1.5 * u + 9 * tone, 22 * v, seed) + 0.25 * noise(5 * u, 60 * v, seed + 1) + seam
        )
    if kind == 2:  # carpet
        return 0.5 * noise(40 * u, 40 * v, seed) + 0.5 * noise(11 * u, 11 * v, seed + 1)
    if kind == 3:  # tiles
        a, b = 1.4 * u - math.floor(1.4 * u), 1.4 * v - math.floor(1.4 * v)
        return 1.0 if min(a, b) < 0.04 else 0.25 * chance(math.floor(1.4 * u), math.floor(1.4 * v), seed)
    if kind == 4:  # stained plaster, marble
        return noise(1.3 * u + 2 * noise(1.5 * u, 1.5 * v, seed), 1.7 * v, seed + 2) * (
            0.6 + 0.4 * noise(9 * u, 9 * v, seed + 1)
        )
    if kind == 5:  # cloth in folds
        return 0.5 + 0.5 * math.sin(5 * u + 4 * noise(0.8 * u, 1.2 * v, seed))
    return 0.0

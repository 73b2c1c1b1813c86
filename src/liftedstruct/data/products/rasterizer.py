"""Rasterizer: render triangles, a camera, lights and a room to an image in linear light.

Shading is deferred. First, the nearest triangle is found for every sample (a square grid per pixel). Then each mesh cell (two
triangles) visible in a pixel is shaded once, at the mean position of its samples, and weighted by their number. A depth map
from the key light gives the shadows; a map of the product's height above the floor gives the contact shadow.
"""

import math
from typing import NamedTuple

import numpy as np

from liftedstruct.data.products import lighting
from liftedstruct.data.products.kernels import Floats, Integers, Singles, dot, inlined, kernel
from liftedstruct.data.products.lighting import FLOOR_CELLS, SHADOW_CELLS, Lights
from liftedstruct.data.products.textures import ALPHA, GLOSS, GLOW, METAL, PATTERN, SHINE, chance, noise, surface_color

__all__ = ["Camera", "Product", "Room", "rasterize"]


class Product(NamedTuple):
    """Mesh of a product that stands on z = 0, centered at the origin."""

    vertices: Singles  # (n, 8): position, normal, surface coordinates
    triangles: Integers  # (m, 3)
    material_of: Integers  # (m,)
    materials: Floats  # (k, 19), see Material.row
    radius: float  # of the bounding sphere


class Camera(NamedTuple):
    """Pinhole camera; the rows of `frame` are right, up and forward, and its axis meets the image at (x, y)."""

    at: Floats  # (3,)
    frame: Floats  # (3, 3)
    focal: float  # in image widths
    x: float
    y: float


class Room(NamedTuple):
    """Floor at z = 0 and a wall behind the product, each with a texture (see `room_texture`)."""

    floor: int
    wall: int
    colors: Floats  # (4, 3): floor and its second color, wall and its second color
    heading: Floats  # (2,), horizontal viewing direction
    distance: float  # from the product to the wall
    seamless: float  # 1: the floor blends into the wall without a line
    shadow: float  # strength of shadows on the floor
    scale: float  # of the floor's texture
    blobs: Floats  # (k, 6): x, y, radius, r, g, b of blurred objects on the wall
    seed: int


@kernel
def rasterize(product: Product, camera: Camera, lights: Lights, room: Room, size: int, samples: int) -> tuple[Singles, float]:
    """Return the image (size, size, 3) in linear light and the fraction of its samples that show the product."""
    wide = size * samples
    vertices, radius = product.vertices, product.radius
    n = len(vertices)
    screen = np.empty((n, 3), np.float32)  # x, y in samples, 1 / depth
    shade_at = np.empty((n, 3), np.float32)  # x, y in shadow-map cells, height toward the light
    below = np.empty((n, 3), np.float32)  # x, y in floor-map cells, negative height above the floor
    to_floor = FLOOR_CELLS / (2.6 * radius)
    for i in range(n):
        x, y, z = vertices[i, 0], vertices[i, 1], vertices[i, 2]
        dx, dy, dz = x - camera.at[0], y - camera.at[1], z - camera.at[2]
        inverse = 1.0 / dot(camera.frame[2], dx, dy, dz)
        screen[i, 0] = (camera.x + camera.focal * dot(camera.frame[0], dx, dy, dz) * inverse) * wide
        screen[i, 1] = (camera.y - camera.focal * dot(camera.frame[1], dx, dy, dz) * inverse) * wide
        screen[i, 2] = inverse
        shade_at[i, 0], shade_at[i, 1], shade_at[i, 2] = lighting.shadow_cell(lights, radius, x, y, z)
        below[i, 0], below[i, 1], below[i, 2] = x * to_floor + FLOOR_CELLS / 2, y * to_floor + FLOOR_CELLS / 2, -z
    seen, _ = nearest(screen, product, wide, True, 0.0)
    _, shadows = nearest(shade_at, product, SHADOW_CELLS, False, -1e9)
    _, heights = nearest(below, product, FLOOR_CELLS, False, -1e9)
    contact = lighting.contact_map(heights, radius)
    image = np.zeros((size, size, 3), np.float32)
    light = np.empty(3)
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
                    if t < 0:
                        continue  # -2: shaded with an earlier sample of this pixel
                    x, y, count = px * samples + sx + 0.5, py * samples + sy + 0.5, 1
                    # materials with a pattern are shaded per sample, to resolve the pattern's edges
                    if product.materials[product.material_of[t], PATTERN] == 0:
                        for k in range(sy * samples + sx + 1, samples * samples):
                            qy, qx = py * samples + k // samples, px * samples + k % samples
                            if seen[qy, qx] >> 1 == t >> 1:  # the two triangles of a cell are consecutive
                                seen[qy, qx] = -2
                                x, y, count = x + qx + 0.5, y + qy + 0.5, count + 1
                    shade(x / count, y / count, t, product, screen, camera.at, lights, shadows, light)
                    for c in range(3):
                        image[py, px, c] += light[c] * count * weight
            covered += samples * samples - empty
            if empty > 0:
                background((px + 0.5) / size, (py + 0.5) / size, camera, lights, room, shadows, contact, radius, light)
                for c in range(3):
                    image[py, px, c] += light[c] * empty * weight
    return image, covered * weight / (size * size)


@kernel
def nearest(points: Singles, product: Product, wide: int, transparent: bool, far: float) -> tuple[Integers, Singles]:
    """Return the triangle with the largest third coordinate at each sample (-1 if none), and that coordinate.

    With `transparent`, a triangle with alpha < 4 covers only some samples of each 2 x 2 block; without, it is skipped.
    """
    seen = np.full((wide, wide), -1, np.int32)
    depth = np.full((wide, wide), far, np.float32)
    triangles = product.triangles
    for t in range(len(triangles)):
        alpha = int(product.materials[product.material_of[t], ALPHA])
        if alpha < 4 and not transparent:
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
        # barycentric weights of corners b and c, linear in x and y
        b_dx, b_dy = (cy - ay) / area, -(cx - ax) / area
        c_dx, c_dy = -(by - ay) / area, (bx - ax) / area
        az, bz, cz = points[i, 2], points[j, 2] - points[i, 2], points[k, 2] - points[i, 2]
        for y in range(int(top), int(bottom) + 1):
            b = (left + 0.5 - ax) * b_dx + (y + 0.5 - ay) * b_dy
            c = (left + 0.5 - ax) * c_dx + (y + 0.5 - ay) * c_dy
            first, last = 0.0, float(right - left)  # range inside the triangle: thin triangles have wide bounding boxes
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
def blend(rows: Singles, i: int, j: int, k: int, a: float, b: float, c: float, column: int) -> float:
    """Return the mean of three rows in one column, weighted by a, b and c."""
    mean: float = a * rows[i, column] + b * rows[j, column] + c * rows[k, column]
    return mean


@inlined
def shade(
    x: float, y: float, t: int, product: Product, screen: Singles, eye: Floats, lights: Lights, shadows: Singles, out: Floats
) -> None:
    """Write to `out` (3,) the light from triangle `t` toward the camera at sample (x, y)."""
    rows, radius, m, row = product.vertices, product.radius, product.materials, product.material_of[t]
    i, j, k = product.triangles[t, 0], product.triangles[t, 1], product.triangles[t, 2]
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
    wx, wy, wz = blend(rows, i, j, k, a, b, c, 0), blend(rows, i, j, k, a, b, c, 1), blend(rows, i, j, k, a, b, c, 2)
    nx, ny, nz = blend(rows, i, j, k, a, b, c, 3), blend(rows, i, j, k, a, b, c, 4), blend(rows, i, j, k, a, b, c, 5)
    color = surface_color(m, row, blend(rows, i, j, k, a, b, c, 6), blend(rows, i, j, k, a, b, c, 7))
    vx, vy, vz = eye[0] - wx, eye[1] - wy, eye[2] - wz
    length = math.sqrt(vx * vx + vy * vy + vz * vz)
    vx, vy, vz = vx / length, vy / length, vz / length
    length = math.sqrt(nx * nx + ny * ny + nz * nz) + 1e-9
    facing = (nx * vx + ny * vy + nz * vz) / length
    if facing < 0:
        length, facing = -length, -facing
    nx, ny, nz = nx / length, ny / length, nz / length
    L, colors = lights.key, lights.colors
    key = dot(L, nx, ny, nz)
    seen = 0.0
    if key > 0:
        e = 0.012  # offset from the surface
        seen = lighting.key_light_share(lights, shadows, radius, wx + e * nx, wy + e * ny, wz + e * nz, 0.012 * radius, 0.012)
    second = max(0.0, dot(lights.fill, nx, ny, nz))
    direct = max(key, 0.0) * seen
    near_floor = 0.45 + 0.55 * min(1.0, wz / (0.35 * radius) + 0.3 * max(nz, 0.0))
    sky = (0.5 + 0.5 * nz) * (0.55 + 0.45 * near_floor)
    bounce = (0.5 - 0.5 * nz) * near_floor
    # specular: the key light's highlight and the room, stronger at grazing angles
    grazing = (1 - facing) ** 5
    shine, metal, gloss = m[row, SHINE], m[row, METAL], m[row, GLOSS]
    mirrored = (0.0, 0.0, 0.0)
    if shine > 0.02 or metal > 0:  # cloth and rubber reflect nothing
        reflect = 2 * facing
        mirrored = lighting.surroundings(reflect * nx - vx, reflect * ny - vy, reflect * nz - vz, lights, 4.0 / gloss)
    hx, hy, hz = L[0] + vx, L[1] + vy, L[2] + vz
    half = (nx * hx + ny * hy + nz * hz) / (math.sqrt(hx * hx + hy * hy + hz * hz) + 1e-9)
    spot = seen * (gloss + 8) / 26 * half**gloss if half > 0 and key > 0 else 0.0
    smooth = min(1.0, gloss / 60)  # rough surfaces reflect little, even at grazing angles
    front = (1 - metal) * (shine + (1 - shine) * 0.6 * grazing * smooth)
    for q in range(3):
        diffuse = direct * colors[0, q] + second * colors[1, q] + sky * colors[2, q] + bounce * colors[3, q]
        specular = front + metal * (color[q] + (1 - color[q]) * grazing)
        out[q] = color[q] * ((1 - metal) * diffuse + m[row, GLOW])
        out[q] += specular * (mirrored[q] * near_floor + spot * colors[0, q])


@inlined
def background(
    x: float, y: float, camera: Camera, lights: Lights, room: Room, shadows: Singles, dark: Singles, radius: float, out: Floats
) -> None:
    """Write to `out` (3,) the light from the floor or wall at image position (x, y)."""
    f, at, heading = camera.frame, camera.at, room.heading
    right, up = (x - camera.x) / camera.focal, (camera.y - y) / camera.focal
    dx = f[2, 0] + right * f[0, 0] + up * f[1, 0]
    dy = f[2, 1] + right * f[0, 1] + up * f[1, 1]
    dz = f[2, 2] + right * f[0, 2] + up * f[1, 2]
    ahead = dx * heading[0] + dy * heading[1]
    gone = at[0] * heading[0] + at[1] * heading[1]
    to_wall = (room.distance - gone) / ahead if ahead > 1e-6 else 1e9
    to_floor = at[2] / -dz if dz < -1e-6 else 1e9
    reach = min(to_wall, to_floor)
    gx, gy, gz = at[0] + reach * dx, at[1] + reach * dy, at[2] + reach * dz
    deep, side = gx * heading[0] + gy * heading[1], gx * heading[1] - gy * heading[0]
    wall_share = 1.0 if to_wall < to_floor else 0.0
    if room.seamless > 0:
        t = min(1.0, max(0.0, deep / room.distance))
        wall_share = max(wall_share, t * t * (3 - 2 * t))
    k = room_texture(room.floor, side * room.scale, deep * room.scale, room.seed)
    w = room_texture(room.wall, side, gz, room.seed + 7)
    dim = 1.0
    if to_floor < to_wall and room.shadow > 0:
        open_sky, direct = 1.0, 1.0
        if gx * gx + gy * gy < 40 * radius * radius:
            direct = lighting.key_light_share(lights, shadows, radius, gx, gy, 0.0, 0.004 * radius, lights.softness)
            p = gx * FLOOR_CELLS / (2.6 * radius) + FLOOR_CELLS / 2 - 0.5
            q = gy * FLOOR_CELLS / (2.6 * radius) + FLOOR_CELLS / 2 - 0.5
            i, j = math.floor(q), math.floor(p)
            if 0 <= i < FLOOR_CELLS - 1 and 0 <= j < FLOOR_CELLS - 1:
                a, b = q - i, p - j
                low = dark[i, j] * (1 - b) + dark[i, j + 1] * b
                high = dark[i + 1, j] * (1 - b) + dark[i + 1, j + 1] * b
                open_sky = 1 - min(0.85, 1.1 * (low * (1 - a) + high * a))
        dim = 1 - room.shadow * (1 - (0.42 + 0.58 * direct) * open_sky)
    c = room.colors
    for n in range(3):
        floor, wall = c[0, n] + k * (c[1, n] - c[0, n]), c[2, n] + w * (c[3, n] - c[2, n])
        out[n] = (1 - wall_share) * floor + wall_share * wall
    if wall_share > 0:
        for i in range(len(room.blobs)):  # iterating over the rows would add reference counting
            blob = room.blobs[i]
            d = ((x - blob[0]) ** 2 + (y - blob[1]) ** 2) / (blob[2] * blob[2])
            t = wall_share * 0.85 / (1 + d * d * d)
            for n in range(3):
                out[n] += t * (blob[3 + n] - out[n])
    for n in range(3):
        out[n] *= dim


@inlined
def room_texture(kind: int, u: float, v: float, seed: int) -> float:
    """Return the fraction of the second color on a floor or wall."""
    if kind == 1:  # planks
        plank = math.floor(3 * v)
        tone = chance(plank, 3, seed)
        seam = 0.5 if 3 * v - plank < 0.04 else 0.0
        grain = 0.45 * tone + 0.45 * noise(1.5 * u + 9 * tone, 22 * v, seed) + 0.25 * noise(5 * u, 60 * v, seed + 1)
        return min(1.0, grain + seam)
    if kind == 2:  # carpet
        return 0.5 * noise(40 * u, 40 * v, seed) + 0.5 * noise(11 * u, 11 * v, seed + 1)
    if kind == 3:  # tiles
        a, b = 1.4 * u - math.floor(1.4 * u), 1.4 * v - math.floor(1.4 * v)
        return 1.0 if min(a, b) < 0.04 else 0.25 * chance(math.floor(1.4 * u), math.floor(1.4 * v), seed)
    if kind == 4:  # stained plaster, marble
        cloud = noise(1.3 * u + 2 * noise(1.5 * u, 1.5 * v, seed), 1.7 * v, seed + 2)
        return cloud * (0.6 + 0.4 * noise(9 * u, 9 * v, seed + 1))
    if kind == 5:  # cloth in folds
        return 0.5 + 0.5 * math.sin(5 * u + 4 * noise(0.8 * u, 1.2 * v, seed))
    return 0.0

"""Vertices and triangles of primitives: boxes, lathed, swept and extruded surfaces, cushions and sheets.

A vertex is a row of eight numbers: position, normal, and surface coordinates (u, v) in object units for patterns and grain.
Vertices on a sharp edge are duplicated, with one normal each.
"""

import math

import numpy as np

from liftedstruct.data.products.kernels import Floats, Integers, Singles, cross, kernel

__all__ = ["Part", "box", "cushion", "extrude", "lathe", "sheet", "transform", "tube"]

Part = tuple[Singles, Integers]
Vector = Floats | Singles | tuple[float, float, float]
CREASE = math.cos(math.radians(40))  # adjacent faces at a larger angle form a sharp edge


@kernel
def transform(vertices: Singles, R: Floats, x: float, y: float, z: float) -> None:
    """Rotate and translate positions and rotate normals, in place."""
    for i in range(len(vertices)):
        for o in (0, 3):
            a, b, c = vertices[i, o], vertices[i, o + 1], vertices[i, o + 2]
            for k in range(3):
                vertices[i, o + k] = R[k, 0] * a + R[k, 1] * b + R[k, 2] * c
        vertices[i, 0] += x
        vertices[i, 1] += y
        vertices[i, 2] += z


@kernel
def set_vertex(vertices: Singles, i: int, p: Vector, n: Vector, u: float, v: float) -> None:
    """Write one vertex with a normalized normal."""
    length = math.sqrt(n[0] * n[0] + n[1] * n[1] + n[2] * n[2]) + 1e-12
    for k in range(3):
        vertices[i, k] = p[k]
        vertices[i, 3 + k] = n[k] / length
    vertices[i, 6] = u
    vertices[i, 7] = v


@kernel
def set_triangle(triangles: Integers, t: int, a: int, b: int, c: int) -> None:
    """Write one triangle, element by element: numba takes seconds to compile the assignment of a tuple to a row."""
    triangles[t, 0], triangles[t, 1], triangles[t, 2] = a, b, c


@kernel
def set_grid(triangles: Integers, first: int, base: int, rows: int, columns: int) -> int:
    """Write two triangles per cell of a vertex grid and return the index of the next triangle."""
    for i in range(rows - 1):
        for j in range(columns - 1):
            a = base + i * columns + j
            set_triangle(triangles, first, a, a + 1, a + columns)
            set_triangle(triangles, first + 1, a + 1, a + columns + 1, a + columns)
            first += 2
    return first


@kernel
def box(w: float, d: float, h: float, bevel: float) -> Part:
    """Return a box of given half sizes and edge radius; each face is a grid whose outer cells bend around the edges."""
    k = 4 if bevel > 0 else 2
    half = np.array((w, d, h))
    vertices = np.empty((6 * k * k, 8), np.float32)
    triangles = np.empty((12 * (k - 1) ** 2, 3), np.int32)
    normal, p = np.zeros(3), np.zeros(3)
    n = t = 0
    for face in range(6):
        axis, sign = face // 2, 1.0 - 2 * (face % 2)
        a, b = (axis + 1) % 3, (axis + 2) % 3
        t = set_grid(triangles, t, n, k, k)
        for i in range(k):
            for j in range(k):
                normal[axis], p[axis] = sign, sign * (half[axis] - bevel)
                for across, cell in ((a, i), (b, j)):
                    side = -1.0 if 2 * cell < k else 1.0
                    p[across] = side * (half[across] - bevel)
                    normal[across] = side if bevel > 0 and cell in (0, 3) else 0.0
                length = math.sqrt(normal[0] ** 2 + normal[1] ** 2 + normal[2] ** 2)
                for c in range(3):
                    p[c] += bevel * normal[c] / length
                set_vertex(vertices, n, p, normal, p[a], p[b])
                n += 1
    return vertices, triangles


@kernel
def directions(points: Floats) -> Floats:
    """Return the unit vector from each 2-d point to the next, and from the last to the first."""
    out = np.empty(points.shape)
    for i in range(len(points)):
        dx, dy = points[(i + 1) % len(points)] - points[i]
        length = math.sqrt(dx * dx + dy * dy) + 1e-12
        out[i, 0], out[i, 1] = dx / length, dy / length
    return out


@kernel
def smoothed(steps: Floats, i: int, other: int) -> tuple[float, float]:
    """Return the direction of segment `i` where it meets `other`: the sum of both, or its own at a sharp edge."""
    x, y = steps[i]
    if x * steps[other, 0] + y * steps[other, 1] > CREASE:
        return x + steps[other, 0], y + steps[other, 1]
    return x, y


@kernel
def lathe(profile: Floats, sides: int, flat: float) -> Part:
    """Return a surface of revolution; each profile segment has two rows, which share normals where the profile is smooth."""
    k, columns = len(profile), sides + 1
    steps, widest = directions(profile), profile[:, 0].max()
    steps[-1] = 0.0  # the profile is open: no segment joins its last and first points
    vertices = np.empty((2 * (k - 1) * columns, 8), np.float32)
    triangles = np.empty((2 * (k - 1) * sides, 3), np.int32)
    t = 0
    for i in range(k - 1):
        base = 2 * i * columns
        t = set_grid(triangles, t, base, 2, columns)
        level = abs(steps[i, 1]) < 0.3
        for end in range(2):
            dr, dz = smoothed(steps, i, i + 2 * end - 1)
            r, z = profile[i + end]
            for j in range(columns):
                a = 2 * math.pi * j / sides
                c, s = math.cos(a), math.sin(a)
                u, v = (r * c, r * s) if level else ((a - math.pi) * widest, z)
                set_vertex(vertices, base + end * columns + j, (r * c, r * s * flat, z), (dz * c, dz * s / flat, -dr), u, v)
    return vertices, triangles


@kernel
def tube(path: Floats, radius: Floats, sides: int, closed: bool, flat: float) -> Part:
    """Return a tube along a path, without twist; open ends are capped by a fan."""
    k, columns = len(path), sides + 1
    rows = k + 1 if closed else k
    caps = 0 if closed else 2
    vertices = np.empty((rows * columns + caps * (columns + 1), 8), np.float32)
    triangles = np.empty((2 * (rows - 1) * sides + caps * sides, 3), np.int32)
    t = set_grid(triangles, 0, 0, rows, columns)
    a = np.zeros(3)
    along = 0.0
    for i in range(rows):
        here = path[i % k]
        tangent = path[(i + 1) % k] - path[(i - 1) % k] if closed else path[min(i + 1, k - 1)] - path[max(i - 1, 0)]
        tangent = tangent / (math.sqrt((tangent * tangent).sum()) + 1e-12)
        if i == 0:
            a[2 if abs(tangent[2]) < 0.8 else 1] = 1.0
        else:
            step = here - path[(i - 1) % k]
            along += math.sqrt((step * step).sum())
        a -= tangent * (a * tangent).sum()
        a /= math.sqrt((a * a).sum()) + 1e-12
        b = np.array(cross(tangent, a))
        r = radius[i % k]
        for j in range(columns):
            w = 2 * math.pi * j / sides
            n = a * math.cos(w) + b * math.sin(w) / flat
            p = here + r * (a * math.cos(w) + b * math.sin(w) * flat)
            set_vertex(vertices, i * columns + j, p, n, r * w, along)
        if not closed and i in (0, rows - 1):
            base = rows * columns + (0 if i == 0 else columns + 1)
            sign = -1.0 if i == 0 else 1.0
            n = sign * tangent
            set_vertex(vertices, base, here, n, 0.0, 0.0)
            for j in range(columns):
                q = vertices[i * columns + j]
                set_vertex(vertices, base + 1 + j, q, n, r * math.cos(j), 0.0)
                if j < sides:
                    set_triangle(triangles, t, base, base + 1 + j, base + 2 + j)
                    t += 1
    return vertices, triangles


@kernel
def power(x: float, e: float) -> float:
    """Return |x| ** e with the sign of x."""
    return math.copysign(abs(x) ** e, x)


@kernel
def cushion(w: float, d: float, h: float, soft: float, n: int) -> Part:
    """Return a superellipsoid of half sizes (w, d, h) on a latitude-longitude grid that is denser where it bends."""
    columns = 2 * n + 1
    vertices = np.empty(((n + 1) * columns, 8), np.float32)
    triangles = np.empty((4 * n * n, 3), np.int32)
    set_grid(triangles, 0, 0, n + 1, columns)
    for i in range(n + 1):
        a = math.pi * (i / n - 0.5)
        ca, sa = max(math.cos(a), 0.0), math.sin(a)
        for j in range(columns):
            b = 2 * math.pi * j / (2 * n) + math.pi / 4
            cb, sb = math.cos(b), math.sin(b)
            x, y, z = w * power(ca, soft) * power(cb, soft), d * power(ca, soft) * power(sb, soft), h * power(sa, soft)
            e = 2.0 - soft
            nx, ny, nz = power(ca, e) * power(cb, e) / w, power(ca, e) * power(sb, e) / d, power(sa, e) / h
            u, v = (x, y) if abs(nz) > abs(nx) and abs(nz) > abs(ny) else (x if abs(ny) > abs(nx) else y, z)
            set_vertex(vertices, i * columns + j, (x, y, z), (nx, ny, nz), u, v)
    return vertices, triangles


@kernel
def extrude(outline: Floats, half: float, bevel: float) -> Part:
    """Return an extruded outline: sides with sharp edges at sharp turns, a rounded rim, and two fans as caps."""
    k = len(outline)
    cx, cz = outline[:, 0].mean(), outline[:, 1].mean()
    steps = directions(outline)
    vertices = np.empty((8 * k + 2 * (k + 1), 8), np.float32)
    triangles = np.empty((6 * k + 2 * k, 3), np.int32)
    n = t = 0
    along = 0.0
    for i in range(k):
        first = n
        step = outline[(i + 1) % k] - outline[i]
        for end in range(2):
            x, z = outline[(i + end) % k]
            dx, dz = smoothed(steps, i, (i + 2 * end - 1) % k)
            length = math.sqrt(dx * dx + dz * dz) + 1e-12
            nx, nz = dz / length, -dx / length
            shrink = 1 - bevel / (math.sqrt((x - cx) ** 2 + (z - cz) ** 2) + 1e-9)
            ix, iz = cx + (x - cx) * shrink, cz + (z - cz) * shrink
            u = along + end * math.sqrt((step * step).sum())
            set_vertex(vertices, n, (ix, -half, iz), (0.3 * nx, -1.0, 0.3 * nz), u, -half)
            set_vertex(vertices, n + 1, (x, bevel - half, z), (nx, -0.2, nz), u, bevel - half)
            set_vertex(vertices, n + 2, (x, half - bevel, z), (nx, 0.2, nz), u, half - bevel)
            set_vertex(vertices, n + 3, (ix, half, iz), (0.3 * nx, 1.0, 0.3 * nz), u, half)
            n += 4
        along += math.sqrt((step * step).sum())
        t = set_grid(triangles, t, first, 2, 4)
    for side in range(2):
        sign = 2.0 * side - 1
        base = n
        set_vertex(vertices, n, (cx, sign * half, cz), (0.0, sign, 0.0), cx, cz)
        n += 1
        for i in range(k):
            q = vertices[8 * i + 3 * side]
            set_vertex(vertices, n, q, (0.0, sign, 0.0), q[0], q[2])
            set_triangle(triangles, t, base, base + 1 + i, base + 1 + (i + 1) % k)
            n += 1
            t += 1
    return vertices, triangles


@kernel
def sheet(grid: Floats) -> Part:
    """Return a surface through a grid of points, with normals from finite differences."""
    rows, columns = grid.shape[0], grid.shape[1]
    vertices = np.empty((rows * columns, 8), np.float32)
    triangles = np.empty((2 * (rows - 1) * (columns - 1), 3), np.int32)
    set_grid(triangles, 0, 0, rows, columns)
    for i in range(rows):
        for j in range(columns):
            a = grid[min(i + 1, rows - 1), j] - grid[max(i - 1, 0), j]
            b = grid[i, min(j + 1, columns - 1)] - grid[i, max(j - 1, 0)]
            set_vertex(vertices, i * columns + j, grid[i, j], cross(a, b), j * 0.1, i * 0.1)
    return vertices, triangles

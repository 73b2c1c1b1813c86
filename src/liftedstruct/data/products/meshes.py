"""Triangle meshes of the parts that products are made of: boxes, lathed and swept surfaces, cushions, extrusions, sheets.

A vertex is a row of eight numbers: position, normal, and a place (u, v) on the surface in the units of the object, which
patterns and grains are drawn by. Where a surface has a sharp edge, its vertices are there twice, with a normal each.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from liftedstruct.runtime.compiled import Decorator, compiled

__all__ = ["Model", "arc", "inlined", "kernel", "turn"]

Floats = NDArray[np.float64]
Part = tuple[NDArray[np.float32], NDArray[np.int32]]
Point = tuple[float, float, float]

kernel: Decorator = compiled(nogil=True, error_model="numpy")
inlined: Decorator = compiled(nogil=True, error_model="numpy", forceinline=True)
CREASE = math.cos(math.radians(40))  # neighbouring faces that turn by more than this meet in an edge


class Model:
    """A product under construction: parts that have been placed, each with the number of its paint."""

    def __init__(self) -> None:
        self.paints: list[list[float]] = []
        self.parts: list[tuple[NDArray[np.float32], NDArray[np.int32], int]] = []

    def paint(self, row: list[float]) -> int:
        """Register a material; its number goes to the parts."""
        self.paints.append(row)
        return len(self.paints) - 1

    def add(self, part: Part, paint: int, at: Point = (0, 0, 0), rotation: Floats | None = None) -> None:
        """Place a part: first turned, then moved."""
        vertices, triangles = part
        place(vertices, IDENTITY if rotation is None else rotation, *map(float, at))
        self.parts.append((vertices, triangles, paint))

    def box(self, at: Point, size: Point, paint: int, bevel: float = 0.012, rotation: Floats | None = None) -> None:
        """A box around ``at`` with rounded edges."""
        w, d, h = size
        self.add(box(w / 2, d / 2, h / 2, float(min(bevel, 0.49 * min(size)))), paint, at, rotation)

    def beam(self, a: Point, b: Point, w: float, h: float, paint: int, bevel: float = 0.006) -> None:
        """A box from ``a`` to ``b``, ``w`` wide and ``h`` thick."""
        step = np.subtract(b, a, dtype=float)
        length = float(np.sqrt(step @ step))
        z = step / length
        x = np.cross((0.0, 1.0, 0.0) if abs(z[1]) < 0.9 else (1.0, 0.0, 0.0), z)
        x /= np.sqrt(x @ x)
        middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2, (a[2] + b[2]) / 2)
        self.box(middle, (w, h, length), paint, bevel, np.column_stack((x, np.cross(z, x), z)))

    def lathe(
        self,
        profile: Sequence[tuple[float, float]],
        paint: int,
        at: Point = (0, 0, 0),
        rotation: Floats | None = None,
        sides: int = 28,
        flat: float = 1.0,
    ) -> None:
        """A surface of revolution about z from (radius, height) points; ``flat`` scales it along y."""
        self.add(lathe(np.array(profile, dtype=float), sides, float(flat)), paint, at, rotation)

    def tube(
        self,
        path: Sequence[Point] | Floats,
        radius: float | Sequence[float] | Floats,
        paint: int,
        sides: int = 8,
        closed: bool = False,
        flat: float = 1.0,
    ) -> None:
        """A round tube along a path; ``flat`` squeezes its section."""
        points = np.array(path, dtype=float)
        self.add(
            tube(points, np.broadcast_to(np.array(radius, dtype=float), len(points)).copy(), sides, closed, float(flat)), paint
        )

    def ring(self, at: Point, radius: float, thick: float, paint: int, rotation: Floats | None = None, n: int = 28) -> None:
        """A torus in the plane z = 0 before it is turned."""
        a = np.arange(n) * (2 * math.pi / n)
        path = np.column_stack((radius * np.cos(a), radius * np.sin(a), np.zeros(n)))
        self.add(tube(path, np.full(n, thick), 6, True, 1.0), paint, at, rotation)

    def cushion(
        self, at: Point, size: Point, paint: int, soft: float = 0.35, rotation: Floats | None = None, n: int = 14
    ) -> None:
        """A superellipsoid: ``soft`` 1 is an ellipsoid, near 0 a box."""
        w, d, h = size
        self.add(cushion(w / 2, d / 2, h / 2, soft, n), paint, at, rotation)

    def extrude(
        self,
        outline: Sequence[tuple[float, float]],
        depth: float,
        paint: int,
        at: Point = (0, 0, 0),
        rotation: Floats | None = None,
        bevel: float = 0.01,
    ) -> None:
        """An (x, z) outline, counter-clockwise and star-shaped, drawn out along y."""
        self.add(extrude(np.array(outline, dtype=float), depth / 2, bevel), paint, at, rotation)

    def sheet(self, grid: Floats, paint: int, at: Point = (0, 0, 0), rotation: Floats | None = None) -> None:
        """A smooth surface through a (rows, columns, 3) grid of points."""
        self.add(sheet(np.ascontiguousarray(grid, dtype=float)), paint, at, rotation)

    def finish(self) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32], Floats]:
        """Vertices, triangles, the paint of each triangle, and the paints, as the rasteriser takes them."""
        starts = np.cumsum([0, *(len(v) for v, _, _ in self.parts)])
        vertices = np.concatenate([v for v, _, _ in self.parts])
        triangles = np.concatenate([t + np.int32(s) for (_, t, _), s in zip(self.parts, starts[:-1], strict=True)])
        paint = np.repeat(np.array([p for _, _, p in self.parts], dtype=np.int32), [len(t) for _, t, _ in self.parts])
        return vertices, triangles, paint, np.array(self.paints)


def turn(axis: str, angle: float) -> Floats:
    """The rotation matrix about ``x``, ``y`` or ``z``."""
    c, s = math.cos(angle), math.sin(angle)
    rows = {
        "x": ((1, 0, 0), (0, c, -s), (0, s, c)),
        "y": ((c, 0, s), (0, 1, 0), (-s, 0, c)),
        "z": ((c, -s, 0), (s, c, 0), (0, 0, 1)),
    }
    return np.array(rows[axis], dtype=float)


IDENTITY = np.eye(3)


def arc(*points: Point, n: int = 12) -> Floats:
    """A smooth path through the points (Catmull-Rom), with ``n`` points on it."""
    return spline(np.array(points, dtype=float), n)


@kernel
def spline(points: Floats, n: int) -> Floats:
    """Catmull-Rom through the points, its ends repeated."""
    k = len(points)
    out = np.empty((n, points.shape[1]))
    for i in range(n):
        t = i * (k - 1) / (n - 1)
        j = min(int(t), k - 2)
        t -= j
        for c in range(points.shape[1]):
            p1, p2 = points[j, c], points[j + 1, c]
            p0 = points[j - 1, c] if j > 0 else 2 * p1 - p2
            p3 = points[j + 2, c] if j + 2 < k else 2 * p2 - p1
            out[i, c] = p1 + 0.5 * t * (p2 - p0 + t * (2 * p0 - 5 * p1 + 4 * p2 - p3 + t * (3 * (p1 - p2) + p3 - p0)))
    return out


@kernel
def place(vertices: NDArray[np.float32], R: Floats, x: float, y: float, z: float) -> None:
    """Turn and move positions, turn normals."""
    for i in range(len(vertices)):
        for o in (0, 3):
            a, b, c = vertices[i, o], vertices[i, o + 1], vertices[i, o + 2]
            for k in range(3):
                vertices[i, o + k] = R[k, 0] * a + R[k, 1] * b + R[k, 2] * c
        vertices[i, 0] += x
        vertices[i, 1] += y
        vertices[i, 2] += z


@kernel
def put(vertices: NDArray[np.float32], i: int, p: Point, n: Point, u: float, v: float) -> None:
    """Write one vertex, its normal made of length one."""
    length = math.sqrt(n[0] * n[0] + n[1] * n[1] + n[2] * n[2]) + 1e-12
    for k in range(3):
        vertices[i, k] = p[k]
        vertices[i, 3 + k] = n[k] / length
    vertices[i, 6] = u
    vertices[i, 7] = v


@kernel
def corner(triangles: NDArray[np.int32], t: int, a: int, b: int, c: int) -> None:
    """Write one triangle; number by number, because a tuple into a row takes numba seconds to compile."""
    triangles[t, 0], triangles[t, 1], triangles[t, 2] = a, b, c


@kernel
def weave(triangles: NDArray[np.int32], first: int, base: int, rows: int, columns: int) -> int:
    """Two triangles for every cell of a grid of vertices."""
    for i in range(rows - 1):
        for j in range(columns - 1):
            a = base + i * columns + j
            corner(triangles, first, a, a + 1, a + columns)
            corner(triangles, first + 1, a + 1, a + columns + 1, a + columns)
            first += 2
    return first


@kernel
def box(w: float, d: float, h: float, bevel: float) -> Part:
    """Half sizes and the radius of the edges; a face is a grid whose outer cells are bent around the edge."""
    k = 4 if bevel > 0 else 2
    half = np.array((w, d, h))
    vertices = np.empty((6 * k * k, 8), np.float32)
    triangles = np.empty((12 * (k - 1) ** 2, 3), np.int32)
    normal, p = np.zeros(3), np.zeros(3)
    n = t = 0
    for face in range(6):
        axis, sign = face // 2, 1.0 - 2 * (face % 2)
        a, b = (axis + 1) % 3, (axis + 2) % 3
        t = weave(triangles, t, n, k, k)
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
                put(vertices, n, (p[0], p[1], p[2]), (normal[0], normal[1], normal[2]), p[a], p[b])
                n += 1
    return vertices, triangles


@kernel
def lathe(profile: Floats, sides: int, flat: float) -> Part:
    """Every piece of the profile has two rows of its own; rows share a normal where the profile is smooth."""
    k = len(profile)
    steps = np.empty((k - 1, 2))
    widest = 0.0
    for i in range(k - 1):
        dr, dz = profile[i + 1, 0] - profile[i, 0], profile[i + 1, 1] - profile[i, 1]
        length = math.sqrt(dr * dr + dz * dz) + 1e-12
        steps[i, 0], steps[i, 1] = dr / length, dz / length
        widest = max(widest, profile[i, 0], profile[i + 1, 0])
    columns = sides + 1
    vertices = np.empty((2 * (k - 1) * columns, 8), np.float32)
    triangles = np.empty((2 * (k - 1) * sides, 3), np.int32)
    t = 0
    for i in range(k - 1):
        base = 2 * i * columns
        t = weave(triangles, t, base, 2, columns)
        level = abs(steps[i, 1]) < 0.3
        for end in range(2):
            other = i - 1 if end == 0 else i + 1
            dr, dz = steps[i, 0], steps[i, 1]
            if 0 <= other < k - 1 and steps[i, 0] * steps[other, 0] + steps[i, 1] * steps[other, 1] > CREASE:
                dr, dz = dr + steps[other, 0], dz + steps[other, 1]
            r, z = profile[i + end, 0], profile[i + end, 1]
            for j in range(columns):
                a = 2 * math.pi * j / sides
                c, s = math.cos(a), math.sin(a)
                u, v = (r * c, r * s) if level else ((a - math.pi) * widest, z)
                put(vertices, base + end * columns + j, (r * c, r * s * flat, z), (dz * c, dz * s / flat, -dr), u, v)
    return vertices, triangles


@kernel
def tube(path: Floats, radius: Floats, sides: int, closed: bool, flat: float) -> Part:
    """A frame is carried along the path without twist; open ends are closed by a fan."""
    k, columns = len(path), sides + 1
    rows = k + 1 if closed else k
    caps = 0 if closed else 2
    vertices = np.empty((rows * columns + caps * (columns + 1), 8), np.float32)
    triangles = np.empty((2 * (rows - 1) * sides + caps * sides, 3), np.int32)
    t = weave(triangles, 0, 0, rows, columns)
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
        b = np.array(
            (
                tangent[1] * a[2] - tangent[2] * a[1],
                tangent[2] * a[0] - tangent[0] * a[2],
                tangent[0] * a[1] - tangent[1] * a[0],
            )
        )
        r = radius[i % k]
        for j in range(columns):
            w = 2 * math.pi * j / sides
            n = a * math.cos(w) + b * math.sin(w) / flat
            p = here + r * (a * math.cos(w) + b * math.sin(w) * flat)
            put(vertices, i * columns + j, (p[0], p[1], p[2]), (n[0], n[1], n[2]), r * w, along)
        if not closed and i in (0, rows - 1):
            base = rows * columns + (0 if i == 0 else columns + 1)
            sign = -1.0 if i == 0 else 1.0
            n = sign * tangent
            put(vertices, base, (here[0], here[1], here[2]), (n[0], n[1], n[2]), 0.0, 0.0)
            for j in range(columns):
                q = vertices[i * columns + j]
                put(vertices, base + 1 + j, (q[0], q[1], q[2]), (n[0], n[1], n[2]), r * math.cos(j), 0.0)
                if j < sides:
                    corner(triangles, t, base, base + 1 + j, base + 2 + j)
                    t += 1
    return vertices, triangles


@kernel
def power(x: float, e: float) -> float:
    """Signed power."""
    return math.copysign(abs(x) ** e, x)


@kernel
def cushion(w: float, d: float, h: float, soft: float, n: int) -> Part:
    """A superellipsoid of half sizes (w, d, h) on a grid of latitudes and longitudes, denser where it bends."""
    columns = 2 * n + 1
    vertices = np.empty(((n + 1) * columns, 8), np.float32)
    triangles = np.empty((4 * n * n, 3), np.int32)
    weave(triangles, 0, 0, n + 1, columns)
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
            put(vertices, i * columns + j, (x, y, z), (nx, ny, nz), u, v)
    return vertices, triangles


@kernel
def extrude(outline: Floats, half: float, bevel: float) -> Part:
    """Sides with an edge where the outline turns sharply, a rounded rim, and two fans about the middle as caps."""
    k = len(outline)
    cx, cz = outline[:, 0].mean(), outline[:, 1].mean()
    normals = np.empty((k, 2))
    for i in range(k):
        dx, dz = outline[(i + 1) % k, 0] - outline[i, 0], outline[(i + 1) % k, 1] - outline[i, 1]
        length = math.sqrt(dx * dx + dz * dz) + 1e-12
        normals[i, 0], normals[i, 1] = dz / length, -dx / length
    vertices = np.empty((8 * k + 2 * (k + 1), 8), np.float32)
    triangles = np.empty((6 * k + 2 * k, 3), np.int32)
    n = t = 0
    along = 0.0
    for i in range(k):
        first = n
        step = outline[(i + 1) % k] - outline[i]
        for end in range(2):
            x, z = outline[(i + end) % k, 0], outline[(i + end) % k, 1]
            other = normals[(i - 1) % k] if end == 0 else normals[(i + 1) % k]
            nx, nz = normals[i, 0], normals[i, 1]
            if nx * other[0] + nz * other[1] > CREASE:
                nx, nz = nx + other[0], nz + other[1]
            length = math.sqrt(nx * nx + nz * nz) + 1e-12
            nx, nz = nx / length, nz / length
            shrink = 1 - bevel / (math.sqrt((x - cx) ** 2 + (z - cz) ** 2) + 1e-9)
            ix, iz = cx + (x - cx) * shrink, cz + (z - cz) * shrink
            u = along + end * math.sqrt((step * step).sum())
            put(vertices, n, (ix, -half, iz), (0.3 * nx, -1.0, 0.3 * nz), u, -half)
            put(vertices, n + 1, (x, bevel - half, z), (nx, -0.2, nz), u, bevel - half)
            put(vertices, n + 2, (x, half - bevel, z), (nx, 0.2, nz), u, half - bevel)
            put(vertices, n + 3, (ix, half, iz), (0.3 * nx, 1.0, 0.3 * nz), u, half)
            n += 4
        along += math.sqrt((step * step).sum())
        t = weave(triangles, t, first, 2, 4)
    for side in range(2):
        sign = 2.0 * side - 1
        base = n
        put(vertices, n, (cx, sign * half, cz), (0.0, sign, 0.0), cx, cz)
        n += 1
        for i in range(k):
            q = vertices[8 * i + 3 * side]
            put(vertices, n, (q[0], q[1], q[2]), (0.0, sign, 0.0), q[0], q[2])
            corner(triangles, t, base, base + 1 + i, base + 1 + (i + 1) % k)
            n += 1
            t += 1
    return vertices, triangles


@kernel
def sheet(grid: Floats) -> Part:
    """Normals from differences across the grid."""
    rows, columns = grid.shape[0], grid.shape[1]
    vertices = np.empty((rows * columns, 8), np.float32)
    triangles = np.empty((2 * (rows - 1) * (columns - 1), 3), np.int32)
    weave(triangles, 0, 0, rows, columns)
    for i in range(rows):
        for j in range(columns):
            a = grid[min(i + 1, rows - 1), j] - grid[max(i - 1, 0), j]
            b = grid[i, min(j + 1, columns - 1)] - grid[i, max(j - 1, 0)]
            n = (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
            p = grid[i, j]
            put(vertices, i * columns + j, (p[0], p[1], p[2]), n, j * 0.1, i * 0.1)
    return vertices, triangles

"""Product meshes, built from placed primitives with one material each."""

import math
from collections.abc import Sequence

import numpy as np

from liftedstruct.data.products import primitives
from liftedstruct.data.products.kernels import Floats, Integers, Singles, cross
from liftedstruct.data.products.materials import Material

__all__ = ["TO_FRONT", "Mesh", "Point", "rotation", "spline"]

Point = tuple[float, float, float]
Points = Sequence[Sequence[float]] | Sequence[Floats] | Floats
ORIGIN: Point = (0, 0, 0)
EYE = np.eye(3)


class Mesh:
    """Mesh of placed parts: each part is rotated, then moved to `at`. The front faces -y; z points up."""

    def __init__(self) -> None:
        self.parts: list[tuple[Singles, Integers, Material]] = []

    def add(self, part: primitives.Part, material: Material, at: Point = ORIGIN, rotation: Floats = EYE) -> None:
        """Add a part, rotated and moved to `at`."""
        vertices, triangles = part
        primitives.transform(vertices, rotation, *map(float, at))
        self.parts.append((vertices, triangles, material))

    def box(self, at: Point, size: Point, material: Material, bevel: float = 0.012, rotation: Floats = EYE) -> None:
        """Add a box with rounded edges, centered at `at`."""
        w, d, h = size
        self.add(primitives.box(w / 2, d / 2, h / 2, float(min(bevel, 0.49 * min(size)))), material, at, rotation)

    def beam(self, a: Point, b: Point, w: float, h: float, material: Material, bevel: float = 0.006) -> None:
        """Add a box from `a` to `b`, `w` wide and `h` thick."""
        step = np.subtract(b, a, dtype=float)
        length = float(np.sqrt(step @ step))
        z = step / length
        x = np.array(cross(EYE[1] if abs(z[1]) < 0.9 else EYE[0], z))
        x /= np.sqrt(x @ x)
        middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2, (a[2] + b[2]) / 2)
        self.box(middle, (w, h, length), material, bevel, np.column_stack((x, cross(z, x), z)))

    def lathe(
        self, profile: Points, material: Material, at: Point = ORIGIN, rotation: Floats = EYE, sides: int = 28, flat: float = 1
    ) -> None:
        """Add a surface of revolution about z from (radius, height) points; `flat` scales it along y."""
        self.add(primitives.lathe(np.array(profile, dtype=float), sides, float(flat)), material, at, rotation)

    def cylinder(
        self, r: float, low: float, high: float, material: Material, at: Point, rotation: Floats = EYE, sides: int = 28
    ) -> None:
        """Add a closed cylinder about z."""
        self.lathe([(0, low), (r, low), (r, high), (0, high)], material, at, rotation, sides)

    def tube(
        self, path: Points, radius: float | Sequence[float] | Floats, material: Material, sides: int = 8, flat: float = 1.0
    ) -> None:
        """Add a round tube along (x, y, z) points, or (x, z) points with y = 0; `flat` squeezes its cross section."""
        points = np.array(path, dtype=float)
        if points.shape[1] == 2:
            points = np.column_stack((points[:, 0], np.zeros(len(points)), points[:, 1]))
        radii = np.broadcast_to(np.array(radius, dtype=float), len(points)).copy()
        self.add(primitives.tube(points, radii, sides, False, float(flat)), material)

    def ring(self, at: Point, radius: float, thick: float, material: Material, rotation: Floats = EYE, n: int = 28) -> None:
        """Add a torus that lies in the plane z = 0 before rotation."""
        a = np.arange(n) * (2 * math.pi / n)
        path = np.column_stack((radius * np.cos(a), radius * np.sin(a), np.zeros(n)))
        self.add(primitives.tube(path, np.full(n, thick), 6, True, 1.0), material, at, rotation)

    def cushion(
        self, at: Point, size: Point, material: Material, soft: float = 0.35, rotation: Floats = EYE, n: int = 14
    ) -> None:
        """Add a superellipsoid; `soft=1` gives an ellipsoid, values near 0 give a box."""
        w, d, h = size
        self.add(primitives.cushion(w / 2, d / 2, h / 2, soft, n), material, at, rotation)

    def extrude(
        self, outline: Points, depth: float, material: Material, at: Point = ORIGIN, rotation: Floats = EYE, bevel: float = 0.01
    ) -> None:
        """Extrude a counterclockwise, star-shaped (x, z) outline along y."""
        self.add(primitives.extrude(np.array(outline, dtype=float), depth / 2, bevel), material, at, rotation)

    def sheet(self, grid: Floats, material: Material, at: Point = ORIGIN, rotation: Floats = EYE) -> None:
        """Add a smooth surface through a (rows, columns, 3) grid of points."""
        self.add(primitives.sheet(np.ascontiguousarray(grid, dtype=float)), material, at, rotation)

    def arrays(self) -> tuple[Singles, Integers, Integers, Floats]:
        """Return vertices, triangles, the material index of each triangle, and the material rows, for the rasterizer."""
        vertices, triangles, materials = zip(*self.parts, strict=True)
        starts = np.cumsum([0, *map(len, vertices[:-1])], dtype=np.int32)
        rows = {material: i for i, material in enumerate(dict.fromkeys(materials))}
        material_of = np.repeat(np.array([rows[material] for material in materials], dtype=np.int32), [*map(len, triangles)])
        shifted = [t + start for t, start in zip(triangles, starts, strict=True)]
        return np.concatenate(vertices), np.concatenate(shifted), material_of, np.array([row.row() for row in rows])


def rotation(axis: str, angle: float) -> Floats:
    """Return the rotation matrix about `x`, `y` or `z`."""
    c, s = math.cos(angle), math.sin(angle)
    rows = {
        "x": ((1, 0, 0), (0, c, -s), (0, s, c)),
        "y": ((c, 0, s), (0, 1, 0), (-s, 0, c)),
        "z": ((c, -s, 0), (s, c, 0), (0, 0, 1)),
    }
    return np.array(rows[axis], dtype=float)


def spline(*points: Sequence[float], n: int = 12) -> Floats:
    """Return a smooth path of `n` points through the given points, which may have any dimension (Catmull-Rom)."""
    p = np.array(points, dtype=float)
    last = len(p) - 1
    p = np.vstack((2 * p[0] - p[1], p, 2 * p[-1] - p[-2]))
    t = np.arange(n) * last / (n - 1)
    j = np.minimum(t.astype(int), last - 1)
    t = (t - j)[:, None]
    p0, p1, p2, p3 = p[j], p[j + 1], p[j + 2], p[j + 3]
    path: Floats = p1 + 0.5 * t * (p2 - p0 + t * (2 * p0 - 5 * p1 + 4 * p2 - p3 + t * (3 * (p1 - p2) + p3 - p0)))
    return path


TO_FRONT = rotation("x", math.pi / 2)  # turns z, the axis of a lathe or ring, toward the front

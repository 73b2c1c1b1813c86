"""Tiles of the map: which items and densities they hold, and what is refused."""

import io
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from catalog.shop import make_embedder
from liftedstruct.catalog import Catalog, Item
from liftedstruct.service import tiles as module
from liftedstruct.service.layout import Layout
from liftedstruct.service.rows import Rows
from liftedstruct.service.tiles import CAPACITY, CELLS, DEPTH, NONE, Tiles
from service.running import client_of


class Tile(NamedTuple):
    """The content of a tile."""

    rows: NDArray[np.uint32]
    places: NDArray[np.float32]
    colors: NDArray[np.uint32]
    counts: NDArray[np.uint32]
    cell_colors: NDArray[np.uint32]
    cells: NDArray[np.uint16]
    rise: NDArray[np.uint8]
    total: int
    more: bool


def read(content: bytes) -> Tile:
    form, k, c, total, more = struct.unpack("<5I", content[:20])
    assert form == 1
    arrays, at = list[Any](), 20
    for kind, count in (("<u4", k), ("<f4", 2 * k), ("<u4", k), ("<u4", c), ("<u4", c), ("<u2", c), ("u1", k)):
        arrays.append(np.frombuffer(content, kind, count, at))
        at += np.dtype(kind).itemsize * count
    assert at == len(content)
    arrays[1] = arrays[1].reshape(k, 2)
    return Tile._make([*arrays, total, bool(more)])


def made(places: NDArray[np.floating], labels: NDArray[np.int32], **fields: list[Any]) -> Tiles:
    n = len(places)
    seqs, every = np.arange(n, dtype=np.int64), np.ones(n, bool)
    X = np.ascontiguousarray(places, np.float32)
    rows = Rows(1, "v", seqs, list(map(str, seqs)), [""] * n, labels, [f"c{i}" for i in range(labels.max() + 1)], X, fields)
    return Tiles(rows, Layout(1, seqs, np.zeros(n, np.uint32), X.clip(0, 1), every, every, n, n))


def every_tile(tiles: Tiles, color: str = "class") -> dict[tuple[int, int, int], Tile]:
    """Return all tiles, as a page finds them: from the root, and below those that have more."""
    found, todo = {}, [(0, 0, 0)]
    while todo:
        z, x, y = todo.pop()
        found[z, x, y] = tile = read(tiles.tile(z, x, y, color))
        todo += [(z + 1, 2 * x + i, 2 * y + j) for i in (0, 1) for j in (0, 1)] if tile.more else []
    return found


def test_a_full_tile_and_one_level_below_by_hand() -> None:
    rng = np.random.default_rng(0)
    left = rng.uniform((0.1, 0.1), (0.4, 0.4), (400, 2))
    tiles = made(np.vstack([left, [[0.9, 0.9]]]), np.zeros(401, np.int32))
    root = read(tiles.tile(0, 0, 0, "class"))
    assert (len(root.rows), root.total, root.more) == (CAPACITY, 401, True)
    child, other = read(tiles.tile(1, 0, 0, "class")), read(tiles.tile(1, 1, 0, "class"))
    below = [read(tiles.tile(1, x, y, "class")) for x in (0, 1) for y in (0, 1)]
    assert sum(len(tile.rows) for tile in below) == 401 - CAPACITY
    assert child.total == 400
    assert (len(other.rows), other.total, other.more) == (0, 0, False)
    assert root.counts.sum() == 401
    assert root.counts[root.cells == 57 * 64 + 57].tolist() == [1]  # 0.9 * 64 = 57.6
    assert len(child.counts) == 0  # all of it is shown


@settings(deadline=None, max_examples=25)
@given(n=st.integers(1, 3000), spots=st.sampled_from([1, 2, 50, 3000]), classes=st.integers(1, 9), seed=st.integers(0, 99))
def test_every_item_is_in_one_tile_and_every_density_is_right(n: int, spots: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    spread = rng.choice([0.001, 0.1, 1.0])
    places = (rng.random((spots, 2)) * spread)[rng.integers(0, spots, n)].clip(0, 1).astype(np.float32)
    labels = rng.integers(0, classes, n).astype(np.int32)
    tiles = made(places, labels)
    found = every_tile(tiles)
    assert sorted(np.concatenate([tile.rows for tile in found.values()])) == list(range(n))  # once each
    for (z, x, y), tile in found.items():
        square = np.minimum((places * 2.0**z).astype(int), 2**z - 1)
        inside = np.flatnonzero((square == (x, y)).all(axis=1))
        assert tile.total == len(inside)
        assert set(tile.rows) <= set(inside)
        assert len(tile.rows) <= CAPACITY or z == DEPTH
        np.testing.assert_array_equal(tile.places, places[tile.rows])
        np.testing.assert_array_equal(tile.colors, labels[tile.rows])
        assert tile.counts.sum() == (len(inside) if tile.more else 0)
        if tile.more and z + CELLS <= DEPTH:
            cells = np.minimum(places[inside].astype(np.float64) * 2.0 ** (z + CELLS), 2 ** (z + CELLS) - 1).astype(int) - (
                np.array([x, y]) << CELLS
            )
            for count, color, cell in zip(tile.counts[:5], tile.cell_colors[:5], tile.cells[:5], strict=True):
                there = labels[inside[(cells == (cell % 64, cell // 64)).all(axis=1)]]
                assert count == len(there)
                assert (there == color).sum() == np.bincount(there).max()
    for z in range(tiles.levels):
        whole = sum(tile.total for (level, _, _), tile in found.items() if level == z)
        leaves = sum(tile.total for (level, _, _), tile in found.items() if level < z and not tile.more)
        assert whole + leaves == n


def test_representatives_remain_when_the_map_comes_closer_and_when_items_are_added() -> None:
    rng = np.random.default_rng(0)
    places, labels = rng.random((5000, 2)), np.zeros(5000, np.int32)
    tiles, before = made(places, labels), made(places[:4990], labels[:4990])
    for z in range(8):
        squares = np.minimum((places * 2.0**z).astype(int), 2**z - 1) @ (1, 1 << 20)
        first = np.flatnonzero(tiles.rise <= z)
        assert len(np.unique(squares[first])) == len(first) == len(np.unique(squares))  # one in each square
    roots = [set(read(each.tile(0, 0, 0, "class")).rows) for each in (tiles, before)]
    assert len(roots[0] & roots[1]) >= CAPACITY - 10


def test_an_even_sample() -> None:
    places = np.vstack(
        [np.random.default_rng(0).random((9000, 2)) * (0.5, 1), np.random.default_rng(1).random((1000, 2)) * 0.4 + 0.55]
    )
    shown = read(made(places, np.zeros(10_000, np.int32)).tile(0, 0, 0, "class")).places
    assert 0.05 < (shown[:, 0] > 0.5).mean() < 0.16  # a tenth of them


def test_colors() -> None:
    places = np.array([[0.1, 0.1], [0.11, 0.1], [0.9, 0.9], [0.9, 0.91], [0.5, 0.1]])
    labels = np.array([0, 0, 1, 2, 2], np.int32)
    tiles = made(places, labels, price=[1.0, None, 3, 2, 1.5], kind=["a", "b", "a", None, "a"])
    codes, legend = tiles.colors("outcome")
    assert codes.tolist() == [0, 0, 2, 1, 1]
    assert legend == {"kind": "outcome", "counts": [2, 2, 1], "exact": True}
    codes, legend = tiles.colors("field:kind")
    assert codes.tolist() == [0, 1, 0, NONE, 0]
    assert legend == {"field": "kind", "missing": 1, "kind": "text", "values": [("a", 3), ("b", 1)], "others": 0}
    codes, legend = tiles.colors("field:price")
    assert codes.tolist()[1] == NONE
    assert codes[[0, 4, 3, 2]].tolist() == sorted(codes[[0, 4, 3, 2]].tolist())
    assert codes[0] == 0
    assert codes[2] == 254
    assert legend["kind"] == "number"
    many = made(np.random.default_rng(0).random((300, 2)), np.zeros(300, np.int32), kind=[str(i % 20) for i in range(300)])
    codes, legend = many.colors("field:kind")
    assert codes.max() == len(legend["values"]) == 12
    assert legend["others"] == (codes == 12).sum() == 8 * 15


def test_names_are_where_the_classes_are() -> None:
    rng = np.random.default_rng(0)
    gathered, apart, few = rng.normal((0.2, 0.7), 0.01, (40, 2)), rng.random((40, 2)), np.full((2, 2), 0.9)
    many = rng.uniform(0.5, 0.6, (2000, 2))
    labels = np.repeat([0, 1, 2, 3], [40, 40, 2, 2000]).astype(np.int32)
    [(largest, *_), (name, x, y, count, number)] = made(np.vstack([gathered, apart, few, many]), labels).names
    assert (largest, name, number, count) == ("c3", "c0", 0, 40)
    assert (x, y) == pytest.approx((0.2, 0.7), abs=0.01)


def test_lasso_and_neighbors_against_plain_loops() -> None:
    places = np.random.default_rng(0).random((2000, 2)).astype(np.float32)
    tiles = made(places, np.zeros(2000, np.int32))
    triangle = [(0.1, 0.1), (0.9, 0.2), (0.3, 0.8)]

    def side(p: Any, a: Any, b: Any) -> Any:
        return (b[0] - a[0]) * (p[:, 1] - a[1]) - (b[1] - a[1]) * (p[:, 0] - a[0])

    sides = np.stack([side(places, triangle[i], triangle[(i + 1) % 3]) for i in range(3)])
    wrong = set(tiles.inside(triangle)) ^ set(np.flatnonzero((sides > 0).all(axis=0)))
    assert all(abs(sides[:, i]).min() < 2e-3 for i in wrong)  # at an edge only
    near = tiles.nearest(7, 5)
    D = np.linalg.norm(places.astype(np.float64) - places[7], axis=1)
    assert [each["row"] for each in near] == np.argsort(D)[1:6].tolist()
    assert [each["distance"] for each in near] == pytest.approx(np.sort(D)[1:6].tolist())
    assert tiles.nearest(0, 5000)[-1]["row"] == int(np.argmax(np.linalg.norm(places - places[0], axis=1)))


# --- over HTTP -----------------------------------------------------------------------------------------------------------


def colored(i: int) -> tuple[int, int, int]:
    return (36 * (i % 7), 36 * (i // 7 % 7), 36 * (i // 49))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a catalog of 60 items, 50 of them with an image file."""
    folder = tmp_path_factory.mktemp("shop")
    X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    for i in range(50):
        Image.new("RGB", (40, 60), colored(i)).save(folder / f"{i}.png")
    items = [
        Item(f"a/{i}", f"p{i % 6}" if i < 54 else "", str(folder / f"{i}.png") if i < 55 else "", "", {"price": i})
        for i in range(60)
    ]
    with Catalog.open(folder / "store", make_embedder(dim=4)) as catalog, catalog.store.writing():
        catalog.store.put(catalog.begin(catalog._embedder, 4)["table"], items, X)
    return folder / "store"


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    with Catalog.open(folder) as catalog, client_of(catalog, explorer=True) as client:
        assert client.get("/map").json()["state"] == "none"
        assert client.get("/map/names").status_code == 404
        assert client.post("/map").status_code == 202
        wait(client)
        yield client


def wait(client: httpx.Client) -> dict[str, Any]:
    for _ in range(600):
        state: dict[str, Any] = client.get("/map").json()
        if state["state"] == "ready" and not state["busy"]:
            return state
        assert state["state"] != "failed", state["note"]
        time.sleep(0.1)
    raise TimeoutError


def test_state(client: httpx.Client, folder: Path) -> None:
    state = client.get("/map").json()
    assert state["items"] == 60
    assert state["classes"] == 7
    assert state["note"] == ""
    assert [field["name"] for field in state["fields"]] == ["price"]
    assert (folder / "map-1.safetensors").exists()


def test_a_tile_and_its_sheet(client: httpx.Client) -> None:
    version = client.get("/map").json()["version"]
    answer = client.get(f"/map/tiles/{version}/0/0/0")
    assert "immutable" in answer.headers["cache-control"]
    rows = read(answer.content).rows
    assert sorted(rows) == list(range(60))
    answer = client.get(f"/map/sheets/{version}/0/0/0.webp", params={"side": 16})  # the only part
    assert answer.headers["content-type"] == "image/webp"
    sheet = np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGBA"))
    assert sheet.shape == (128, 128, 4)
    for at, row in enumerate(rows):
        cell = sheet[16 * (at // 8) : 16 * (at // 8) + 16, 16 * (at % 8) : 16 * (at % 8) + 16]
        if row < 50:
            assert abs(cell[4:12, 4:12, :3].mean(axis=(0, 1)) - colored(int(row))).max() < 14
            assert cell[8, 8, 3] == 255
        else:
            assert cell[8, 8, 3] == 0  # no file


def test_items(client: httpx.Client) -> None:
    [first, last] = client.get("/map/rows", params={"rows": "0,59"}).json()
    assert (first["id"], first["product"], first["has_image"], first["metadata"]) == ("a/0", "p0", True, {"price": 0})
    assert (last["id"], last["product"], last["has_image"], last["path"]) == ("a/59", "", False, "")
    found = client.get("/map/find", params={"product": "p3"}).json()
    assert found["rows"] == list(range(3, 54, 6))
    assert found["total"] == 9
    assert client.get("/map/find", params={"id": "a/7"}).json()["places"][0] == pytest.approx(
        [client.get("/map/rows", params={"rows": "7"}).json()[0][c] for c in "xy"]
    )
    assert client.get("/map/find", params={"id": "nothing"}).json()["rows"] == []
    near = client.get("/map/near/3", params={"k": 5}).json()
    assert [each["id"] for each in near] == [
        each["id"] for each in client.get("/neighbors/a/3", params={"k": 5}).json()["matches"]
    ]


def test_lasso(client: httpx.Client) -> None:
    whole = client.post("/map/lasso", json={"polygon": [[-1, -1], [2, -1], [2, 2], [-1, 2]]}).json()
    assert whole["rows"] == list(range(60))
    assert whole["different"] == 7
    assert dict(map(tuple, whole["classes"]))["p0"] == 9
    assert whole["central"].startswith("a/")
    assert client.post("/map/lasso", json={"polygon": [[2, 2], [3, 2], [3, 3]]}).json() == {
        "rows": [],
        "classes": [],
        "different": 0,
    }


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("tiles/nothing/0/0/0", 404),
        ("tiles/{v}/0/0/1", 404),
        ("tiles/{v}/0/-1/0", 404),
        ("tiles/{v}/17/0/0", 404),
        ("tiles/{v}/99999999999999999999/0/0", 404),
        ("tiles/{v}/3/99999999999999999999999/0", 404),
        ("tiles/{v}/a/0/0", 422),
        ("tiles/{v}/0/0/0.5", 422),
        ("tiles/{v}/0/0/0?color=field:nothing", 404),
        ("tiles/{v}/0/0/0?color=price", 404),
        ("sheets/{v}/0/0/0.webp?side=4000", 422),
        ("sheets/{v}/5/40/0.webp", 404),
        ("sheets/{v}/0/0/0.png", 404),
        ("legend?color=nothing", 404),
        ("rows?rows=", 422),
        ("rows?rows=1,x", 422),
        ("rows?rows=60", 422),
        ("rows?rows=-1", 422),
        ("near/60", 404),
        ("near/-1", 404),
        ("near/1?k=0", 422),
    ],
)
def test_what_is_refused(client: httpx.Client, path: str, status: int) -> None:
    answer = client.get(f"/map/{path.format(v=client.get('/map').json()['version'])}")
    assert answer.status_code == status
    assert "\n" not in answer.json()["detail"]


@pytest.mark.parametrize(
    "polygon", [[], [[0, 0], [1, 1]], [[0, 0], [1, 1], [0, "x"]], [[0, 0]] * 6000, [[0, 0], [1, 1], [1e300, 0]]]
)
def test_a_wrong_lasso(client: httpx.Client, polygon: list[Any]) -> None:
    assert client.post("/map/lasso", json={"polygon": polygon}).status_code == 422


def test_the_map_follows_the_catalog(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with Catalog.open(tmp_path / "store", make_embedder()) as catalog:
        catalog.add_vectors([f"{i}" for i in range(40)], rng.normal(size=(40, 8)), ["p"] * 40)
        with client_of(catalog, explorer=True) as client:
            client.post("/map")
            before = wait(client)
            catalog.add_vectors(["new"], rng.normal(size=(1, 8)), ["p"])
            after = {}
            for _ in range(300):
                after = wait(client)
                if after["items"] == 41:
                    break
                time.sleep(0.1)
            assert after["items"] == 41
            assert after["version"] != before["version"]
            assert after["note"] == ""
            assert client.get(f"/map/tiles/{before['version']}/0/0/0").status_code == 404
            for path in ("near/0?", "rows?rows=0&", "find?id=new&", "legend?"):  # rows of the map before
                old, now = (client.get(f"/map/{path}version={each['version']}") for each in (before, after))
                assert (old.status_code, now.status_code) == (404, 200)
            catalog.add_vectors([f"more {i}" for i in range(20)], rng.normal(size=(20, 8)))
            for _ in range(300):
                after = wait(client)
                if after["items"] == 61:
                    break
                time.sleep(0.1)
            assert "out of date: 34% of the items" in after["note"]
            client.post("/map?again=true")
            for _ in range(300):
                after = wait(client)
                if not after["note"]:
                    break
                time.sleep(0.1)
            assert after["note"] == ""
        with client_of(catalog, explorer=True) as client:  # another process finds the layout
            assert client.get("/map").json()["state"] in ("building", "ready")
            assert wait(client)["items"] == 61


def test_an_empty_catalog_and_one_item(tmp_path: Path) -> None:
    with Catalog.open(tmp_path / "store", make_embedder()) as catalog:
        catalog.add_vectors(["a"], np.ones((1, 8)))
        with client_of(catalog, explorer=True) as client:
            client.post("/map")
            version = wait(client)["version"]
            assert read(client.get(f"/map/tiles/{version}/0/0/0").content).rows.tolist() == [0]
            assert client.get("/map/near/0").json() == []
            assert client.get("/map/legend?color=outcome").json()["counts"] == [0, 0, 1]
            catalog.remove(["a"])
            assert client.get("/map").json()["state"] == "none"
            assert client.post("/map").json()["state"] == "none"


def test_a_layout_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("openTSNE must be installed, but it is not.\nInstall it.")

    monkeypatch.setattr(module, "arrange", fail)
    with Catalog.open(tmp_path / "store", make_embedder()) as catalog:
        catalog.add_vectors(["a"], np.ones((1, 8)))
        with client_of(catalog, explorer=True) as client:
            client.post("/map")
            for _ in range(100):
                state = client.get("/map").json()
                if state["state"] == "failed":
                    break
                time.sleep(0.05)
            assert state["note"] == "openTSNE must be installed, but it is not. Install it."

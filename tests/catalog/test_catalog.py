"""A catalog keeps images with their embeddings, finds the nearest exactly, and is replaced at once by a new model."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import liftedstruct as ls
from catalog.servers import new_address
from catalog.shop import catalog_of, make_embedder, matches, planted, write_photo, write_photos
from liftedstruct.catalog import Added, Catalog, Item, parse_where
from liftedstruct.catalog.calibration import calibrate
from liftedstruct.catalog.store import STORES, Vectors
from liftedstruct.catalog.where import Condition
from liftedstruct.embedder import Embedder

IDS = ["top.png", "chair/1.png", "chair/2.png", "lamp/1.png", "lamp/2.png", "sofa/blue/1.png"]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return make_embedder()


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the images that were embedded."""
    paths: list[str] = []
    encode = Embedder.encode

    def counting(self: Embedder, images: Any, *args: Any, **further: Any) -> Any:
        paths.extend(map(str, images) if isinstance(images, list) else [str(images)])
        return encode(self, images, *args, **further)

    monkeypatch.setattr(Embedder, "encode", counting)
    return paths


@pytest.fixture
def shop(embedder: Embedder, tmp_path: Path) -> Iterator[Catalog]:
    """A catalog of six photos."""
    with Catalog.open(tmp_path / "catalog", embedder) as catalog:
        assert str(catalog.add(write_photos(tmp_path / "photos"))) == "6 added"
        yield catalog


def fails(message: str) -> Any:
    """Expect an error on one line that ends in a remedy."""
    return pytest.raises(ValueError, match=rf"\A[^\n]*{message}[^\n]*\. [A-Z][^\n]+\Z")


def test_adding_a_folder(shop: Catalog, embedder: Embedder, encoded: list[str], tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    items = list(shop.items())
    assert [item.id for item in items] == IDS == shop.ids()
    assert [item.product for item in items] == ["", "chair", "chair", "lamp", "lamp", "sofa/blue"]
    assert [item.path for item in items] == [str(photos / name) for name in IDS]
    X = embedder.encode([photos / name for name in IDS])
    np.testing.assert_allclose(shop.vectors(items), X, atol=1e-5)
    encoded.clear()
    assert shop.add(photos) == Added(0, 0, 6, 0)
    assert encoded == []

    write_photo(photos / "chair/1.png", 50)  # a changed file is embedded anew, and keeps its place
    write_photo(photos / "chair/0.png", 51)  # a new one comes last
    (photos / "lamp/1.png").unlink()
    assert shop.add(str(photos)) == Added(1, 1, 4, 0)
    assert encoded == [str(photos / "chair/0.png"), str(photos / "chair/1.png")]
    assert shop.ids() == [*IDS, "chair/0.png"]
    after = list(shop.items())
    changed, same = shop.vectors([after[1]]), shop.vectors([after[0], *after[2:6]])
    np.testing.assert_allclose(changed, embedder.encode([photos / "chair/1.png"]), atol=1e-5)
    assert np.array_equal(same, X[[0, 2, 3, 4, 5]]) or np.allclose(same, X[[0, 2, 3, 4, 5]], atol=1e-5)
    assert "1 image files are gone" in shop.status()
    assert shop.add([photos / "chair", photos / "top.png"], prune=True) == Added(3, 0, 1, 6)  # ids in this folder
    assert shop.ids() == ["top.png", "0.png", "1.png", "2.png"]
    assert shop.vectors([]).shape == (0, 8)


def test_unreadable_files(shop: Catalog, encoded: list[str], tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    before = shop.vectors(list(shop.items()))
    (photos / "lamp/2.png").write_bytes(b"half")
    (photos / "new.png").touch()
    table = tmp_path / "list.csv"
    table.write_text("path\nnowhere.png\n")
    added = shop.add([photos, table], prune=True)
    assert str(added) == "0 added, 5 unchanged, 3 unreadable"
    assert added.unreadable == {
        str(tmp_path / "nowhere.png"): "cannot be read: missing",
        str(photos / "lamp/2.png"): "not an image, or broken at its start",
        str(photos / "new.png"): "empty file",
    }
    assert shop.ids() == IDS
    assert np.array_equal(shop.vectors(list(shop.items())), before)  # the old item is kept
    write_photo(photos / "lamp/2.png", 3)  # as it was
    assert shop.add(photos).unchanged == 6
    assert shop.add(photos / "new.png").added == 0


def test_csv_files(embedder: Embedder, encoded: list[str], tmp_path: Path) -> None:
    write_photos(tmp_path / "photos")
    table = tmp_path / "shop.csv"
    head, rows = (
        "Path,ID,Product,Price,unit size,code\n",
        [
            "photos/chair/1.png,7,stool,79.5,XL,01",
            "photos/chair/2.png,8,stool,80,,2",
            "photos/top.png,,,,S,",
        ],
    )
    table.write_text(head + "\n".join(rows))
    with Catalog.open(tmp_path / "catalog", embedder) as shop:
        assert shop.add([table]).added == 3
        assert {item.id: (item.product, dict(item.metadata)) for item in shop.items()} == {
            "7": ("stool", {"price": 79.5, "unit_size": "XL", "code": "01"}),
            "8": ("stool", {"price": 80, "code": "2"}),
            "photos/top.png": ("", {"unit_size": "S"}),
        }
        before = shop.vectors(list(shop.items()))
        shop.search(before[0])
        encoded.clear()
        table.write_text(head + "\n".join(rows).replace("79.5", "60").replace("8,stool", "8,bench"))
        assert shop.add(table) == Added(0, 2, 1, 0)  # the images are not embedded again
        assert encoded == []
        assert np.array_equal(shop.vectors(list(shop.items())), before)
        assert (shop.ids("price < 70 and code = 01"), shop.ids("product = bench")) == (["7"], ["8"])
        assert shop.search(before, 1, where="price >= 60")[2].matches[0].id in ("7", "8")
        table.write_text(head + rows[0] + "\n" + rows[1].replace(",8,", ",7,"))
        with fails(r"images must have distinct ids, got '7' for .*1\.png and .*2\.png"):
            shop.add(table)
        assert shop.count() == 3


def test_an_interrupted_call_resumes(
    embedder: Embedder, encoded: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    photos = write_photos(tmp_path / "photos")
    monkeypatch.setattr("liftedstruct.catalog.adding.CHUNK", 2)
    with Catalog.open(tmp_path / "catalog", embedder) as shop:
        put, calls = shop.store.put, []

        def failing(*args: Any) -> None:
            calls.append(args)
            if len(calls) == 3:
                raise KeyboardInterrupt
            put(*args)

        monkeypatch.setattr(shop.store, "put", failing)
        with pytest.raises(KeyboardInterrupt):
            shop.add(photos)
    with Catalog.open(tmp_path / "catalog") as shop:
        assert shop.ids() == IDS[:4]
        encoded.clear()
        assert shop.add(photos) == Added(2, 0, 4, 0)
        assert [Path(path).name for path in encoded] == ["2.png", "1.png"]
        assert shop.ids() == IDS


def test_queries(shop: Catalog, embedder: Embedder, tmp_path: Path) -> None:
    file = tmp_path / "photos/lamp/2.png"
    with Image.open(file) as image:
        pixels = np.asarray(image.convert("RGB"))
        for single in (file, str(file), file.read_bytes(), image, pixels, torch.from_numpy(pixels.copy())):
            (answer,) = shop.search(single, k=2)
            assert (answer.matches[0].id, answer.product, answer.verdict) == ("lamp/2.png", "lamp", None)
            assert answer.matches[0].distance < 1e-4
    x = embedder.encode(file)[0]
    for vector in (x, torch.from_numpy(x), x.astype(np.float64), torch.from_numpy(x).double(), x[None]):
        assert [match.rank for match in shop.search(vector, k=3)[0].matches] == [1, 2, 3]
        assert shop.search(vector)[0].matches[0].id == "lamp/2.png"
    several = shop.search([tmp_path / "photos" / name for name in IDS], k=1)
    assert [answer.matches[0].id for answer in several] == IDS
    assert [len(answer.matches) for answer in shop.search(np.zeros((3, 8)), k=100)] == [6, 6, 6]
    assert shop.search([]) == []
    (match,) = shop.search(file, 1)[0].matches
    assert (match.path, match.metadata, match.rank) == (str(file), {}, 1)
    for wrong, message in (
        ({"queries": x[:7]}, "queries must have 8 dimensions like .*, got 7"),
        ({"queries": x[None, None]}, r"embeddings must have shape \(m, d\)"),
        ({"queries": x * np.nan}, "embeddings must be finite"),
        ({"queries": np.full(8, 1e200)}, "embeddings must have squares|vectors must fit float32"),
        ({"queries": tmp_path / "none.png"}, "images must be readable"),
        ({"queries": np.zeros((4, 4), np.int64)}, "images must be paths"),
        ({"k": 0}, "k must be a whole number >= 1, got 0"),
        ({"where": "price <"}, "got the end instead of a value"),
        ({"where": ""}, "a filter must be like"),
        ({"group_by": "a b"}, "a field must be a name"),
        ({"index": "fast"}, "index must be one of hnsw"),
    ):
        with fails(message):
            shop.search(**({"queries": x} | wrong))


def brute_force(items: list[Item], X: Vectors, q: Vectors) -> list[tuple[float, Item]]:
    distances = np.sqrt(((X.astype(np.float64) - q) ** 2).sum(axis=1))
    return sorted(zip(distances.tolist(), items, strict=True), key=lambda row: (row[0], row[1].seq))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Catalog, list[Item], Vectors]]:
    """A catalog of vectors with many ties; most items are of one product, and some of none."""
    rng = np.random.default_rng(0)
    X = rng.integers(-1, 2, (400, 6)).astype(np.float32)
    products = ["common" if i % 20 else f"p{i // 20 % 7}" if i % 40 else "" for i in range(len(X))]
    fields = [{"price": int(rng.integers(0, 5))} | ({"size": "SML"[i % 3]} if i % 2 else {}) for i in range(len(X))]
    catalog = catalog_of(tmp_path_factory.mktemp("many") / "catalog", X, products, metadata=fields)
    yield catalog, list(catalog.items()), catalog.vectors(list(catalog.items()))
    catalog.close()


@pytest.mark.parametrize("k", [1, 7, 50, 1000])
@pytest.mark.parametrize("where", [None, "price in (0, 1) and not size = S", "product = common", "price > 9"])
def test_search_equals_brute_force(many: tuple[Catalog, list[Item], Vectors], k: int, where: str | None) -> None:
    catalog, items, X = many
    Q = np.concatenate([X[:3], X[:2] + np.float32(0.25), np.zeros((1, 6), np.float32)])
    selected = parse_where(where) if where else None
    for q, answer in zip(Q, catalog.search(Q, k, where), strict=True):
        ranked = [row for row in brute_force(items, X, q) if matches(selected, row[1].fields)]
        assert [match.id for match in answer.matches] == [item.id for _, item in ranked[:k]]
        np.testing.assert_allclose([match.distance for match in answer.matches], [each for each, _ in ranked[:k]], rtol=1e-12)
        first = ranked[0][1] if ranked else Item("")
        others = [each for each, item in ranked[1:] if not item.product or item.product != first.product]
        margin = others[0] - ranked[0][0] if others else None
        assert answer.margin == (None if margin is None else pytest.approx(margin, abs=1e-12))
        assert answer.product == (first.product if ranked else None)
    assert catalog.search(Q, k, selected) == catalog.search(Q, k, where)


@pytest.mark.parametrize("field", ["product", "price", "size", "id"])
def test_groups(many: tuple[Catalog, list[Item], Vectors], field: str) -> None:
    """Each group is there once, with its nearest image; an item without the field is a group of its own."""
    catalog, items, X = many
    for q, answer in zip(X[:4], catalog.search(X[:4], 9, group_by=field), strict=True):
        expected: dict[Any, str] = {}
        for _, item in brute_force(items, X, q):
            value = item.fields.get(field, "")
            expected.setdefault(("alone", item.id) if value == "" else value, item.id)
        assert [match.id for match in answer.matches] == list(expected.values())[:9]
        assert [match.rank for match in answer.matches] == list(range(1, len(answer.matches) + 1))


@pytest.mark.parametrize("group_by", [None, "product"])
def test_a_search_without_an_item_is_one_where_it_is_removed(tmp_path: Path, group_by: str | None) -> None:
    X, products = planted(12, 5)
    X[3] = X[8] = X[4]  # ties
    rows, ids = [4, 4, 59, 3, 8], ["4", None, "59", "none", "3"]
    with catalog_of(tmp_path / "catalog", X, products) as catalog:
        answers = catalog.search(X[rows], 60, group_by=group_by, without=ids)
        with fails("without must be one id or None per query, 2, got 1"):
            catalog.search(X[:2], without=["1"])
    for i, (row, name, answer) in enumerate(zip(rows, ids, answers, strict=True)):
        with catalog_of(tmp_path / f"removed {i}", X, products) as catalog:
            catalog.remove([name] if name else [])
            assert catalog.search(X[row], 60, group_by=group_by) == [answer]


def test_verdict_and_status(tmp_path: Path) -> None:
    X, products = planted(20, 5, spread=0.1)
    with catalog_of(tmp_path / "catalog", X, products) as catalog:
        assert "calibration  none; run: liftedstruct catalog calibrate" in catalog.status()
        threshold = calibrate(catalog, 0.05).threshold
        near, far = catalog.search(np.stack([X[0], X[0] + 100]))
        assert (near.verdict, near.product, far.verdict, far.product) == ("match", products[0], "no match", None)
        assert near.margin is not None
        at = np.array([[0] + [64] * 7] * 2, np.float32)
        catalog.add_vectors(["a"], at[:1])
        at[:, 0] = np.nextafter(np.float32(threshold), np.array([0, 9], np.float32))  # just within, and just beyond
        assert [answer.verdict for answer in catalog.search(at)] == ["match", "no match"]
    with Catalog.open(tmp_path / "catalog") as again:
        status = again.status()
        assert f"threshold {threshold:.4g}" in status
        assert "101, 20 products" in status
        assert "vectors without a model, 8 dimensions\n" in status


def test_content(tmp_path: Path) -> None:
    X, products = planted(3, 2)
    with catalog_of(tmp_path / "catalog", X, products, metadata=[{"price": i, "new": True} for i in range(6)]) as catalog:
        assert (catalog.count(), catalog.count("price < 2"), catalog.ids("new = true")[-1]) == (6, 2, "5")
        for name in ("price", "product", "price"):
            catalog.index_field(name)
        assert "price, product" in catalog.status()
        assert (catalog.remove("0"), catalog.remove(["1", "1", "x"]), catalog.ids()) == (1, 1, ["2", "3", "4", "5"])
        assert catalog.search(X[0], 9)[0].matches[0].id != "0"
        catalog.add_vectors(["3", "new"], X[:2], np.array(["p", "q"]), [{}, {"price": 9}])  # type: ignore[arg-type]
        assert [(item.id, item.product) for item in catalog.items()][1::3] == [("3", "p"), ("new", "q")]
        assert np.array_equal(catalog.vectors(list(catalog.items()))[[1, 4]], X[:2])
        assert catalog.search(X[0], 1)[0].matches[0].id == "3"
        for wrong, message in (
            ((["a"], X[:2]), "ids must be one per vector, 2, got 1"),
            ((["a"], X[:1], []), "products must be one per vector, 1, got 0"),
            ((["a", "a"], X[:2]), "ids must be distinct, got 1 repeated"),
            (([""], X[:1]), "an id must be a text"),
            (([7], X[:1]), "an id must be a text"),
            ((["a"], X[:1], ["p\0"]), "a product must be valid text"),
            ((["a"], X[:1], None, [{"id": 1}]), "metadata must not have a field 'id'"),
            ((["a"], X[:1], None, [{"a b": 1}]), "a field must be a name"),
            ((["a"], X[:1], None, [{"a": None}]), "a must be text or a finite number"),
            ((["a"], X[:1] * np.nan), "embeddings must be finite"),
            ((["a"], np.full((1, 8), 1e60)), "vectors must fit float32"),
            ((["a"], X[:1, :4]), "vectors must be of the model of .* with 8 dimensions, got 4"),
            ((["a"], X[0]), "embeddings must have shape"),
        ):
            with fails(message):
                catalog.add_vectors(*wrong)
        assert catalog.count() == 5
        with fails("a field must be a name"):
            catalog.index_field("a b")
        with fails(".*must have a model to embed images, but it holds vectors only"):
            catalog.search("photo.jpg")


def test_opening(embedder: Embedder, tmp_path: Path) -> None:
    with fails("a catalog must exist to be opened, got none at"):
        Catalog.open(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    Catalog.open(tmp_path / "new", embedder).close()
    with fails("a catalog must exist to be opened, got none at"):
        Catalog.open(tmp_path / "new")  # nothing was added
    write_photos(tmp_path / "photos")
    with fails("a new catalog must be an empty folder"):
        Catalog.open(tmp_path / "photos", embedder)
    with Catalog.open(tmp_path / "new", embedder) as catalog:
        with fails("images must be existing files"):
            catalog.add(tmp_path / "none")
        catalog.add(tmp_path / "photos")
        catalog.store.write(catalog.record | {"version": 9})
    with fails("must be a catalog of version 1, got 'liftedstruct catalog', version 9"):
        Catalog.open(tmp_path / "new")


def test_vectors_of_another_dimension_than_the_model(shop: Catalog, embedder: Embedder, tmp_path: Path) -> None:
    with fails("vectors must have 8 dimensions like the model"):
        shop.add_vectors(["a"], np.zeros((1, 4)))
    with Catalog.open(tmp_path / "new", embedder) as new:
        with fails("vectors must have 8 dimensions like the model"):
            new.add_vectors(["a"], np.zeros((1, 4)))
        new.add_vectors(["a"], np.zeros((1, 8)))
        assert new.add(tmp_path / "photos").added == 6


def test_the_model_is_remembered(shop: Catalog, embedder: Embedder, tmp_path: Path) -> None:
    file, other = tmp_path / "photos/top.png", make_embedder(1)
    shop.close()
    (tmp_path / "catalog").rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    with Catalog.open(tmp_path / "link") as moved:
        assert moved.search(file)[0].matches[0].id == "top.png"
        assert moved.embedder.short_sha() == embedder.short_sha()
        assert moved.add(tmp_path / "photos").unchanged == 6
        assert "small, 8 dimensions" in moved.status()  # not the name of the copy
        with fails(r"images must be embedded by the model of .*link, small \(SHA-256 \w{16}\), got small"):
            moved.use(other)
    with Catalog.open(tmp_path / "moved", other) as wrong:
        for call in (lambda: wrong.search(file), lambda: wrong.add(tmp_path / "photos")):
            with fails("images must be embedded by the model of"):
                call()
        wrong.use(embedder.save(tmp_path / "run.safetensors"))
        assert wrong.search(file)[0].matches[0].id == "top.png"
        assert wrong.count() == 6


def test_a_new_model_replaces_the_old_at_once(
    shop: Catalog, embedder: Embedder, encoded: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    photos, other = tmp_path / "photos", make_embedder(1, dim=5)
    for i in range(40):
        write_photo(photos / f"p{i // 2}/{i}.png", 100 + i)
    shop.add(photos)
    shop.index_field("price")
    calibrate(shop, 0.2)
    x, before = embedder.encode(photos / "top.png"), shop.record["current"]
    seen: list[str] = []

    def watching(*args: Any) -> None:
        """Store a chunk; then search from elsewhere, and stop after the second one."""
        put(*args)
        with Catalog.open(tmp_path / "catalog") as reader:
            (answer,) = reader.search(photos / "top.png")
            assert (answer.matches[0].id, answer.verdict is None, reader.count()) == ("top.png", False, 46)
            seen.append(reader.status().splitlines()[-1])
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("liftedstruct.catalog.adding.CHUNK", 16)
    with Catalog.open(tmp_path / "catalog", other) as new:
        with fails("a new model must embed all images of the catalog, but 46 are not given"):
            new.add(photos / "chair", new_model=True)
        put = new.store.put
        monkeypatch.setattr(new.store, "put", watching)
        with pytest.raises(KeyboardInterrupt):
            new.add(photos, new_model=True)
        assert seen == ["next model   small, 16 items so far", "next model   small, 32 items so far"]
        assert new.record["current"] == before
    encoded.clear()
    with Catalog.open(tmp_path / "catalog", other) as new:  # resumed
        assert new.add(photos, new_model=True) == Added(14, 0, 32, 0)
        assert len(encoded) == 14
        assert new.search(photos / "top.png")[0].matches[0].id == "top.png"
        record = new.record
        assert ("calibration" in record, record["next"], record["fields"]) == (False, None, ["price"])
        assert (record["current"]["table"], record["current"]["model"]["dim"]) == (before["table"] + 1, 5)
    assert len(list((tmp_path / "catalog").glob("model-*.safetensors"))) == 1
    with fails("queries must have 5 dimensions"):
        shop.search(x)


def test_an_unfinished_new_model_is_dropped(shop: Catalog, embedder: Embedder, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for seed in (1, 2):  # the second one replaces the first
        with Catalog.open(tmp_path / "catalog", make_embedder(seed)) as new:
            new.begin(new._embedder, 8, new_model=True)
            new.store.put(2, [Item(f"{seed}")], np.zeros((1, 8), np.float32))
            assert [item.id for item in new.store.items(2)] == [f"{seed}"]
    assert shop.record["next"]["table"] == 2
    assert shop.add(photos).unchanged == 6
    assert shop.record["next"]["table"] == 2  # it can be finished later
    assert shop.add(photos, new_model=True).unchanged == 6  # with the current model: dropped
    assert shop.record["next"] is None
    assert {file.name for file in (tmp_path / "catalog").glob("model-*")} == {f"model-{embedder.short_sha()}.safetensors"}


def test_a_killed_begin_leaves_nothing_behind(tmp_path: Path, embedder: Embedder) -> None:
    """A table that was created before the record was written may have another dimension."""
    photos = write_photos(tmp_path / "photos")
    with Catalog.open(tmp_path / "catalog", embedder) as catalog:
        catalog.store.create(1, 3)
        assert catalog.add(photos).added == 6
        catalog.store.create(2, 3)
    with Catalog.open(tmp_path / "catalog", make_embedder(1, 5)) as catalog:
        assert catalog.add(photos, new_model=True).added == 6
        assert catalog.search(photos / "top.png")[0].matches[0].id == "top.png"


@pytest.mark.parametrize(
    "scheme", [pytest.param(scheme, marks=pytest.mark.slow if scheme else ()) for scheme in (*STORES, "milvus-server")]
)
def test_recall_is_that_of_evaluate(scheme: str, tmp_path: Path) -> None:
    X, products = planted(60, 4, spread=0.6)
    products[-3:] = ["alone", "by itself", "single"]
    expected = ls.evaluate(X, products, ks=(1,), clustering=None, samples=100).recall[1].value
    for address in new_address(scheme, tmp_path):
        with catalog_of(address, X, products) as catalog:
            hits = []
            for i, answer in enumerate(catalog.search(X, k=2)):
                nearest = next(match for match in answer.matches if match.id != f"{i}")
                if products.count(products[i]) > 1:
                    hits.append(nearest.product == products[i])
            assert catalog.ids(Condition("product", "=", "alone")) == ["237"]
    assert 0.3 < expected < 0.9
    assert np.mean(hits) == expected


# --- replaced models, names, and what a catalog refuses ---------------------------------------------------------------------


def test_a_new_model_never_loses_images(shop: Catalog, tmp_path: Path) -> None:
    photos, gone = tmp_path / "photos", tmp_path / "unmounted"
    table = tmp_path / "list.csv"
    table.write_text("path,id\n" + "".join(f"photos/{name},{name}\n" for name in IDS))
    photos.rename(gone)
    with Catalog.open(tmp_path / "catalog", make_embedder(7)) as new, fails(r"6 cannot be read \('chair/1.png', ...\)"):
        new.add(table, new_model=True)
    assert (shop.ids(), shop.search(np.zeros(8, np.float32), 1)[0].matches[0].path[:1]) == (IDS, "/")
    gone.rename(photos)
    with Catalog.open(tmp_path / "catalog", make_embedder(7)) as new:
        assert new.add(table, new_model=True).added == 6


def test_another_file_does_not_replace_one_of_the_same_id(shop: Catalog, tmp_path: Path) -> None:
    write_photo(tmp_path / "others/chair/1.png", 77)
    before = shop.vectors(list(shop.items()))
    with fails("images must have distinct ids, got 'chair/1.png' for .*photos.* and .*others"):
        shop.add(tmp_path / "others")
    assert np.array_equal(shop.vectors(list(shop.items())), before)
    (tmp_path / "photos/chair/1.png").unlink()  # it has moved
    assert shop.add(tmp_path / "others").updated == 1


def test_an_open_catalog_follows_a_new_model(shop: Catalog, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    with Catalog.open(tmp_path / "catalog") as reader:
        reader.search(photos / "top.png")
        nearest, stored = reader.store.nearest, reader.record
        with Catalog.open(tmp_path / "catalog", make_embedder(5)) as new:
            new.add(photos, new_model=True)
        assert reader.search(photos / "lamp/1.png", 1)[0].matches[0].distance < 1e-4  # embedded by the new model
        assert reader.record["current"] != stored["current"]
        calls = []

        def replaced_meanwhile(*arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) == 1:
                with Catalog.open(tmp_path / "catalog", make_embedder(6)) as new:
                    new.add(photos, new_model=True)
            return nearest(*arguments)

        reader.store.nearest = replaced_meanwhile  # type: ignore[method-assign,assignment]
        answer = reader.search(photos / "lamp/2.png", 1)[0]
        assert (answer.matches[0].id, len(calls)) == ("lamp/2.png", 2)
        assert answer.matches[0].distance < 1e-4
    assert len(list((tmp_path / "catalog").glob("model-*"))) == 1


def test_a_product_of_many_images(tmp_path: Path) -> None:
    """The margin is not looked for among all images."""
    X = np.random.default_rng(0).normal(size=(20_000, 4)).astype(np.float32)
    with catalog_of(tmp_path / "catalog", X, ["one"] * len(X)) as catalog:
        asked = []
        nearest = catalog.store.nearest
        catalog.store.nearest = lambda *a: asked.append(a[2]) or nearest(*a)  # type: ignore[method-assign,func-returns-value]
        assert catalog.search(X[0], 3)[0].margin is None
        assert max(asked) == 1024


def test_csv_cells_keep_their_digits(embedder: Embedder, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos")
    rows = ["12345678901234567891,true,.5", "12345678901234567892,false,5."]
    table = tmp_path / "list.csv"
    table.write_text("path,sku,in stock,weight\n" + "".join(f"photos/chair/{i}.png,{row}\n" for i, row in enumerate(rows, 1)))
    with Catalog.open(tmp_path / "catalog", embedder) as shop:
        shop.add(table)
        assert [item.metadata for item in shop.items()] == [
            {"sku": "12345678901234567891", "in_stock": "true", "weight": 0.5},
            {"sku": "12345678901234567892", "in_stock": "false", "weight": 5},
        ]
        found = shop.ids("sku = 12345678901234567892"), shop.ids("in_stock = true"), shop.ids("weight < 1")
        assert found == (["photos/chair/2.png"], ["photos/chair/1.png"], ["photos/chair/1.png"])
        table.write_text("path,a b,a_b\nphotos/top.png,1,2\n")
        with fails("columns must have distinct names"):
            shop.add(table)


def test_files_that_cannot_be_items(shop: Catalog, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    os.mkfifo(photos / "pipe.png")
    table = tmp_path / "list.csv"
    table.write_text("path,id\nphotos/pipe.png,a\nno\0where.png,b\n")
    added = shop.add([photos, table])
    assert added.unchanged == 6
    reasons = sorted(added.unreadable.values())
    assert [reason.partition(",")[0] for reason in reasons] == [
        "a path must be valid text without NUL characters",
        "cannot be read: not a regular file",
    ]


def test_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ("mysql://me:s3cret@host/db", "http://me:s3cret@host"):
        with fails("an address must be a folder, postgresql://... or milvus:..., got .*://me:\\*\\*\\*@host") as caught:
            Catalog.open(address, make_embedder())
        assert "s3cret" not in str(caught.value)
    with fails("a catalog must exist to be opened, got none at nowhere"):
        Catalog.open("nowhere")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_password_is_not_shown() -> None:
    pytest.importorskip("psycopg")
    for address in (
        "postgresql://me:pa%ss@127.0.0.1:1/db",
        "postgresql://me:s3cr#et@127.0.0.1:1/db",
        "postgresql://me:s3c@[::1/db#x",
    ):
        with pytest.raises(ValueError, match="Check that the server runs") as caught:
            Catalog.open(address, make_embedder())
        assert not any(secret in str(caught.value) for secret in ("pa%ss", "s3c"))

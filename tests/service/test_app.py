"""Each endpoint gives what the library gives."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from PIL import Image

from catalog.shop import catalog_of, make_embedder, planted, write_photo, write_photos
from liftedstruct.catalog import Catalog
from liftedstruct.catalog.calibration import calibrate
from liftedstruct.catalog.store import Item
from liftedstruct.embedder import Embedder
from service.running import client_of

STRANGE = ["a/b//c.png", "x y?z#&+%2F.png", "Stühle/椅子 🪑.png", "two\nlines", "../up", "a" * 900, "items", "%", "a\\b", " "]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return make_embedder()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("shop") / "photos")


@pytest.fixture(scope="module")
def shop(embedder: Embedder, photos: Path) -> Iterator[Catalog]:
    with Catalog.open(photos.parent / "catalog", embedder) as catalog:
        catalog.add(photos)
        yield catalog


@pytest.fixture(scope="module")
def client(shop: Catalog) -> Iterator[httpx.Client]:
    with client_of(shop) as client:
        yield client


@pytest.fixture
def vectors(tmp_path: Path) -> Iterator[Catalog]:
    """A catalog of 60 vectors of 12 products, with metadata, and a calibration."""
    X, products = planted(12, 5)
    metadata = [{"price": 10 + i, "color": ("red", "blue")[i % 2]} if i % 7 else {} for i in range(60)]
    with catalog_of(tmp_path / "vectors", X, products, metadata=metadata) as catalog:
        calibrate(catalog, 0.1)
        yield catalog


@pytest.fixture
def service(vectors: Catalog) -> Iterator[httpx.Client]:
    with client_of(vectors) as client:
        yield client


def check_answer(found: Any, catalog: Catalog, query: Any, **further: Any) -> None:
    """Compare an answer with that of the library."""
    [answer] = catalog.search(query, **further)
    assert [each["id"] for each in found["matches"]] == [match.id for match in answer.matches]
    for each, match in zip(found["matches"], answer.matches, strict=True):
        assert (each["rank"], each["product"], each["metadata"]) == (match.rank, match.product, dict(match.metadata))
        assert each["has_image"] == (bool(match.path) and Path(match.path).is_file())
        assert each["distance"] == pytest.approx(match.distance, rel=1e-5, abs=1e-6)  # batches change the rounding
        assert "path" not in each
    assert (found["verdict"], found["product"]) == (answer.verdict, answer.product)
    assert found["margin"] == (None if answer.margin is None else pytest.approx(answer.margin, rel=1e-4))
    assert found["threshold"] == (catalog.record.get("calibration") or {}).get("threshold")
    assert found["milliseconds"] > 0


def url(id: str) -> str:
    return quote(id, safe="")


def bytes_of(image: Image.Image, format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def problem(response: Any, status: int, words: str) -> None:
    """Check that a response is an error on one line, with these words and a remedy."""
    assert response.status_code == status, response.text
    detail = response.json()["detail"]
    assert words in detail
    assert "\n" not in detail


# --- search --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "further",
    [
        {},
        {"k": 3},
        {"k": 60},
        {"k": 4, "group_by": "product"},
        {"k": 5, "where": "price < 40 and color = red"},
        {"index": "hnsw", "k": 2},
        {"where": "price < 0"},
    ],
)
def test_search_by_vector(service: httpx.Client, vectors: Catalog, further: dict[str, Any]) -> None:
    query = np.random.default_rng(5).normal(size=8).astype(np.float32)
    response = service.post("/search", json={"vector": query.tolist(), **further})
    assert response.status_code == 200
    check_answer(response.json(), vectors, query, **further)


@pytest.mark.parametrize(
    "further", [{}, {"k": 3, "group_by": "product"}, {"k": 7, "where": "color = red"}, {"k": 59}, {"k": 100}]
)
def test_search_by_item_leaves_it_out(service: httpx.Client, vectors: Catalog, further: dict[str, Any]) -> None:
    items = list(vectors.items())
    X = vectors.vectors(items)
    for i in (0, 17, 59):
        others = [item for item in items if item.id != str(i)]
        with catalog_of(
            Path(vectors.address) / f"../without {i}", np.delete(X, i, 0), [item.product for item in others]
        ) as rest:
            rest.store.put(
                rest.table, [Item(str(j), o.product, metadata=o.metadata) for j, o in enumerate(others)], np.delete(X, i, 0)
            )
            [expected] = rest.search(X[i], **{"k": 10, **further})
        for found in (service.post("/search", json={"id": str(i), **further}), service.get(f"/neighbors/{i}", params=further)):
            answer = found.json()
            assert [each["id"] for each in answer["matches"]] == [others[int(match.id)].id for match in expected.matches]
            assert answer["margin"] == pytest.approx(expected.margin)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF"])
def test_search_by_image(client: httpx.Client, shop: Catalog, photos: Path, format: str) -> None:
    content = bytes_of(Image.open(photos / "chair/1.png"), format)
    response = client.post("/search", files={"image": ("any name", content)}, data={"k": 3})
    assert response.status_code == 200
    check_answer(response.json(), shop, content, k=3)


def test_search_by_an_image_on_its_side(client: httpx.Client, shop: Catalog, photos: Path) -> None:
    upright = Image.open(photos / "lamp/1.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 270 degrees to show it
    content = bytes_of(upright.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)
    found = client.post("/search", files={"image": content}, data={"k": 1}).json()
    assert found["matches"][0]["id"] == "lamp/1.png"
    assert found["matches"][0]["distance"] == pytest.approx(0, abs=1e-5)
    cropped = client.post("/search", files={"image": content}, data={"crop": "0.5,0.25,0.5,0.5"}).json()
    check_answer(cropped, shop, upright.convert("RGB").crop((20, 9, 40, 27)))


@pytest.mark.parametrize("crop", ["", "0,0,1,1", "0,0,0.0001,0.0001", "0.9999,0.9999,0.0001,0.0001"])
def test_crops(client: httpx.Client, crop: str, photos: Path) -> None:
    response = client.post("/search", files={"image": (photos / "top.png").read_bytes()}, data={"crop": crop})
    assert response.status_code == 200


@pytest.mark.parametrize("crop", ["1", "0,0,0,1", "a,b,c,d", "0,0,2,1", "-0.1,0,1,1", "nan,0,1,1", "0,0,inf,1", "0,0,1e-400,1"])
def test_crops_outside_of_the_image(client: httpx.Client, crop: str, photos: Path) -> None:
    response = client.post("/search", files={"image": (photos / "top.png").read_bytes()}, data={"crop": crop})
    problem(response, 422, "crop must be")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"vector": [1.0] * 7}, "8 dimensions"),
        ({"vector": [1.0] * 8, "where": "price <"}, "a filter must be like"),
        ({"vector": [1.0] * 8, "where": "\ud800"}, "the body"),
        ({"vector": [1.0] * 8, "group_by": "no field!"}, "a field must be"),
        ({"vector": [1.0] * 8, "index": "ivf"}, "index must be one of"),
        ({"vector": [1.0] * 8, "k": 0}, "k: "),
        ({"vector": [1.0] * 8, "k": 1001}, "k: "),
        ({"vector": [1.0] * 8, "k": "3"}, "k: "),
        ({"vector": [1e300] * 8}, "float32"),
        ({"vector": ["a"]}, "vector.0: "),
        ({"vector": []}, "vector: "),
        ({"vector": [1.0] * 8, "unknown": 1}, "unknown: "),
        ({}, "an id or a vector"),
        ({"vector": [1.0] * 8, "id": "3"}, "an id or a vector"),
        ([1, 2], "the body: "),
    ],
)
def test_wrong_queries(service: httpx.Client, query: Any, words: str) -> None:
    problem(service.post("/search", content=json.dumps(query), headers={"content-type": "application/json"}), 422, words)


@pytest.mark.parametrize("body", [b"", b"{", b'{"vector": [NaN]}', b"[" * 100_000, b'{"k": ' + b"9" * 5000 + b"}", b"\xff"])
def test_broken_json(service: httpx.Client, body: bytes) -> None:
    problem(service.post("/search", content=body, headers={"content-type": "application/json"}), 422, ". Correct it.")


def test_other_bodies(service: httpx.Client) -> None:
    problem(service.post("/search", content=b"x", headers={"content-type": "text/plain"}), 415, "multipart/form-data")
    problem(service.post("/search", content=b"x", headers={"content-type": "multipart/form-data"}), 400, "boundary")
    problem(service.post("/search", data={"k": "1"}), 415, "multipart/form-data")
    problem(service.post("/encode", json={}), 415, "multipart/form-data")
    problem(service.post("/search", json={"id": "unknown"}), 404, "'unknown'")


def test_a_catalog_without_a_model_embeds_nothing(service: httpx.Client, photos: Path) -> None:
    content = (photos / "top.png").read_bytes()
    for path in ("/search", "/encode"):
        files = {"image" if path == "/search" else "images": content}
        problem(service.post(path, files=files), 422, "Pass vectors.")


def test_an_empty_catalog(tmp_path: Path) -> None:
    with catalog_of(tmp_path / "catalog", np.ones((1, 3), np.float32)) as catalog:
        catalog.remove(["0"])
        with client_of(catalog) as client:
            assert client.get("/status").json()["items"] == 0
            assert client.get("/classes").json() == []
            assert client.get("/items").json() == {"items": [], "next": None}
            found = client.post("/search", json={"vector": [1, 2, 3]}).json()
            assert (found["matches"], found["margin"], found["product"]) == ([], None, None)
            assert client.put("/items/new", json={"vector": [1, 2, 3]}).status_code == 200
            assert client.post("/search", json={"vector": [1, 2, 3]}).json()["matches"][0]["id"] == "new"
            assert client.get("/status").json()["items"] == 1


# --- encode --------------------------------------------------------------------------------------------------------------


def test_encode(client: httpx.Client, embedder: Embedder, photos: Path) -> None:
    files = sorted(photos.rglob("*.png"))
    found = client.post("/encode", files=[("images", file.read_bytes()) for file in files]).json()
    assert found["dim"] == 8
    np.testing.assert_allclose(found["vectors"], embedder.encode(files), rtol=1e-4, atol=1e-5)


def test_what_is_no_image(client: httpx.Client, photos: Path) -> None:
    good = (photos / "top.png").read_bytes()
    for bad in (b"", b"text", good[:40], b"<svg xmlns='http://www.w3.org/2000/svg'/>"):
        problem(client.post("/encode", files=[("images", good), ("images", bad)]), 422, "an image must be readable")
        problem(client.post("/search", files={"image": bad}), 422, "an image must be readable")
        problem(client.post("/search", files={"image": bad}, data={"crop": "0,0,1,1"}), 422, "an image must be readable")
        problem(client.put("/items/bad", files={"image": bad}), 422, "an image must be readable")
    problem(client.get("/items/bad"), 404, "'bad'")
    problem(client.post("/encode", files=[("images", good)] * 65), 400, "Too many files")
    problem(client.post("/encode", files=[("other", good)]), 422, "images: ")
    problem(client.post("/search", files=[("images", good)]), 422, "image: ")
    problem(client.post("/search", files=[("image", good)] * 2), 422, "image: ")
    problem(client.post("/search", files=[("image", good)], data={"k": ["1", "2"]}), 422, "k: ")


# --- items ---------------------------------------------------------------------------------------------------------------


def test_items_in_pages(service: httpx.Client, vectors: Catalog) -> None:
    for where in ("", "color = red"):
        found, pages = list[Any](), 0
        after: Any = -1
        while after is not None:
            page = service.get("/items", params={"where": where, "after": after, "limit": 7}).json()
            found, after, pages = found + page["items"], page["next"], pages + 1
        expected = list(vectors.items(where or None))
        assert [(each["id"], each["seq"], each["product"]) for each in found] == [(i.id, i.seq, i.product) for i in expected]
        assert [each["metadata"] for each in found] == [dict(item.metadata) for item in expected]
        assert pages == len(expected) // 7 + 1
    problem(service.get("/items", params={"limit": 0}), 422, "limit: ")
    problem(service.get("/items", params={"after": "x"}), 422, "after: ")
    problem(service.get("/items", params={"where": "x"}), 422, "a filter must be like")


@pytest.mark.parametrize("id", STRANGE)
def test_any_id(service: httpx.Client, vectors: Catalog, id: str) -> None:
    metadata = {"name": "Stuhl", "size": 4, "weight": 2.5}
    body = {"vector": [0.5] * 8, "product": "Ünï\ncode", "metadata": metadata}
    response = service.put(f"/items/{url(id)}", json=body)
    assert response.status_code == 200
    stored = response.json()
    assert stored == service.get(f"/items/{url(id)}").json() == {
        "seq": 61, "id": id, "product": "Ünï\ncode", "metadata": metadata, "has_image": False
    }  # fmt: skip
    [item] = [item for item in vectors.items() if item.id == id]
    assert (item.product, dict(item.metadata)) == ("Ünï\ncode", metadata)
    np.testing.assert_array_equal(vectors.vectors([item])[0], np.full(8, 0.5, np.float32))
    assert service.get(f"/neighbors/{url(id)}").status_code == 200
    assert service.post("/search", json={"vector": [0.5] * 8, "k": 1}).json()["matches"][0]["id"] == id
    problem(service.get(f"/images/{url(id)}"), 404, "was never given")
    assert service.delete(f"/items/{url(id)}").json() == {"removed": 1}
    problem(service.delete(f"/items/{url(id)}"), 404, "one of the catalog")
    assert id not in vectors.ids()


def test_replacing_an_item_keeps_its_place(service: httpx.Client, vectors: Catalog) -> None:
    before = service.get("/items/3").json()
    after = service.put("/items/3", json={"vector": [9] * 8, "product": "new"}).json()
    assert after == before | {"product": "new", "metadata": {}}
    assert vectors.search(np.full(8, 9, np.float32))[0].matches[0].id == "3"
    assert service.get("/classes", params={"q": "NEW"}).json()[0]["count"] == 1


def test_adding_an_image(photos: Path, tmp_path: Path, embedder: Embedder) -> None:
    with Catalog.open(tmp_path / "catalog", embedder) as catalog:
        catalog.add(photos)
        with client_of(catalog) as client:
            content = write_photo(tmp_path / "new.png", 77).read_bytes()
            form = {"product": "chair", "metadata": '{"price": 5}'}
            stored = client.put("/items/new", files={"image": content}, data=form).json()
            assert stored == {"seq": 7, "id": "new", "product": "chair", "metadata": {"price": 5}, "has_image": False}
            [answer] = catalog.search(content, k=1)
            assert answer.matches[0].id == "new"
            assert answer.matches[0].distance == pytest.approx(0, abs=1e-5)
            assert not list((tmp_path / "catalog").rglob("*.png"))  # it is not kept


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"vector": [1] * 7}, "7 dimensions"),
        ({"product": "x"}, "vector: "),
        ({"vector": [1] * 8, "metadata": {"no field!": 1}}, "a field must be"),
        ({"vector": [1] * 8, "metadata": {"id": 1}}, "the item's own"),
        ({"vector": [1] * 8, "metadata": {"x": None}}, "metadata.x"),
        ({"vector": [1] * 8, "metadata": {"x": 2**60}}, "2^53"),
        ({"vector": [1] * 8, "product": "\0"}, "NUL"),
    ],
)
def test_wrong_items(service: httpx.Client, vectors: Catalog, body: Any, words: str) -> None:
    problem(service.put("/items/new", json=body), 422, words)
    assert vectors.count() == 60


def test_wrong_ids(service: httpx.Client) -> None:
    problem(service.put(f"/items/{'a' * 1001}", json={"vector": [1] * 8}), 422, "an id must be a text of 1 to 1,000 bytes")
    problem(service.put("/items/%00", json={"vector": [1] * 8}), 422, "NUL")
    problem(service.get("/items/%00"), 422, "NUL")
    problem(service.get("/items/"), 404, "Not Found")
    problem(service.post("/items/x"), 405, "Method Not Allowed")
    data = {"metadata": "{"}
    problem(service.put("/items/x", files={"image": b"x"}, data=data), 422, "metadata: ")


def test_a_second_writer(service: httpx.Client, vectors: Catalog) -> None:
    with Catalog.open(vectors.address) as other, other.store.writing():
        response = service.put("/items/new", json={"vector": [1] * 8})
        problem(response, 503, "in use by process")
        assert response.headers["retry-after"] == "5"
        problem(service.delete("/items/3"), 503, "Wait for it")
    assert service.put("/items/new", json={"vector": [1] * 8}).status_code == 200


# --- images --------------------------------------------------------------------------------------------------------------


def test_images(client: httpx.Client, photos: Path) -> None:
    response = client.get("/images/chair%2F1.png")
    assert response.content == (photos / "chair/1.png").read_bytes()
    assert response.headers["content-type"] == "image/png"
    assert response.headers["cache-control"].startswith("private")
    small = client.get("/thumbnails/chair%2F1.png", params={"size": 20})
    image = Image.open(io.BytesIO(small.content))
    assert (image.format, image.size) == ("WEBP", (20, 18))
    for path, etag in (
        ("/images/chair%2F1.png", response.headers["etag"]),
        ("/thumbnails/chair%2F1.png?size=20", small.headers["etag"]),
    ):
        again = client.get(path, headers={"if-none-match": etag})
        assert (again.status_code, again.content) == (304, b"")
    problem(client.get("/thumbnails/chair%2F1.png", params={"size": 5000}), 422, "size: ")
    problem(client.get("/images/unknown"), 404, "'unknown'")


def test_images_of_other_formats_and_on_their_side(tmp_path: Path, embedder: Embedder) -> None:
    source = Image.open(write_photo(tmp_path / "source.png", 3))
    exif = Image.Exif()
    exif[0x0112] = 6
    folder = tmp_path / "photos"
    folder.mkdir()
    source.save(folder / "side.jpg", exif=exif, quality=95)
    source.save(folder / "plain.jpg", quality=95)
    source.save(folder / "scan.tif")
    source.save(folder / "modern.avif")
    with Catalog.open(tmp_path / "catalog", embedder) as catalog:
        catalog.add(folder)
        with client_of(catalog) as client:
            kinds = {"side.jpg": "jpeg", "plain.jpg": "jpeg", "scan.tif": "jpeg", "modern.avif": "avif"}
            for name, kind in kinds.items():
                response = client.get(f"/images/{name}")
                assert response.headers["content-type"] == f"image/{kind}"
                shown = Image.open(io.BytesIO(response.content))
                assert shown.getexif().get(0x0112, 1) == 1
                expected = source.transpose(Image.Transpose.ROTATE_270) if name == "side.jpg" else source
                assert shown.size == expected.size
                difference = np.asarray(shown.convert("RGB"), float) - np.asarray(expected, float)
                assert np.abs(difference).mean() < 12
                thumbnail = Image.open(io.BytesIO(client.get(f"/thumbnails/{name}?size=32").content))
                assert max(thumbnail.size) == 32


def test_images_that_changed_or_moved_away(tmp_path: Path, embedder: Embedder) -> None:
    photos = write_photos(tmp_path / "photos")
    with Catalog.open(tmp_path / "catalog", embedder) as catalog:
        catalog.add(photos)
        with client_of(catalog) as client:
            before = client.get("/thumbnails/top.png")
            write_photo(photos / "top.png", 99)
            after = client.get("/thumbnails/top.png")
            assert (before.headers["etag"], before.content) != (after.headers["etag"], after.content)
            (photos / "top.png").rename(tmp_path / "elsewhere.png")
            (photos / "chair/1.png").write_bytes(b"broken")
            (photos / "chair/2.png").unlink()
            (photos / "chair/2.png").mkdir()
            for path in ("/images", "/thumbnails"):
                problem(client.get(f"{path}/top.png"), 404, "moved away")
                problem(client.get(f"{path}/chair%2F1.png"), 404, "not an image")
                problem(client.get(f"{path}/chair%2F2.png"), 404, "is a folder")
            assert not client.get("/items/top.png").json()["has_image"]
            shown = {each["id"]: each["has_image"] for each in client.get("/items").json()["items"]}
            assert (shown["top.png"], shown["lamp/1.png"]) == (False, True)
            assert client.get("/neighbors/top.png").status_code == 200


# --- the catalog ---------------------------------------------------------------------------------------------------------


def test_status(service: httpx.Client, vectors: Catalog) -> None:
    found = service.get("/status").json()
    calibration = vectors.record["calibration"]
    assert (found["items"], found["products"], found["address"]) == (60, 12, vectors.address)
    assert found["model"] == {"name": "vectors without a model", "dim": 8, "sha": ""}
    assert (found["threshold"], found["calibration"]) == (calibration["threshold"], calibration)
    assert (found["explorer"], found["decisions"]) == (False, None)
    color, price = found["fields"]
    numbers = sum(1 for item in vectors.items() if item.metadata.get("color") == "red")
    blue = sum(1 for item in vectors.items() if item.metadata.get("color") == "blue")
    assert color == {
        "name": "color",
        "kind": "text",
        "min": None,
        "max": None,
        "values": ["red", "blue"] if numbers > blue else color["values"],
    }
    assert (price["kind"], price["min"], price["max"], len(price["values"])) == ("number", 11, 69, 50)


def test_a_field_of_numbers_and_texts(tmp_path: Path) -> None:
    with (
        catalog_of(
            tmp_path / "c", np.eye(3, dtype=np.float32), metadata=[{"size": 42}, {"size": "XL"}, {"size": "XL"}]
        ) as catalog,
        client_of(catalog) as client,
    ):
        expected = {"name": "size", "kind": "text", "min": None, "max": None, "values": ["XL", 42]}
        assert client.get("/status").json()["fields"] == [expected]


def test_classes(tmp_path: Path) -> None:
    products = ["Stühle", "stuhl", "", "Crème brûlée", "Stühle", "STUHL", "stuhl", "straße", ""]
    with catalog_of(tmp_path / "c", np.eye(9, dtype=np.float32), products) as catalog, client_of(catalog) as client:
        names = sorted(set(products))
        found = client.get("/classes").json()
        assert [(each["product"], each["count"]) for each in found][:2] == [("Stühle", 2), ("stuhl", 2)]
        assert all(names[each["row"]] == each["product"] for each in found)
        assert len(found) == 5
        for text, expected in {"STUH": 3, "creme": 1, "BRÛLÉE": 1, "strasse": 1, "x": 0, "": 5}.items():
            assert len(client.get("/classes", params={"q": text}).json()) == expected
        assert len(client.get("/classes", params={"limit": 2}).json()) == 2


def test_health_and_pages(client: httpx.Client) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready"}
    problem(client.get("/nothing"), 404, "Not Found")
    problem(client.get("/"), 404, "Not Found")
    assert client.get("/docs").headers["content-type"].startswith("text/html")
    assert client.get("/static/docs.js").status_code == 200
    assert client.get("/static/map/map.js").status_code == 200
    assert client.get("/static/map/map.css").headers["content-type"].startswith("text/css")
    for path in ("/static/map/page.py", "/static/map/interactive_map.py", "/static/map/map.html", "/static/map/..%2Fpage.py"):
        assert client.get(path).status_code == 404
    for path in ("/static/..%2Fapp.py", "/static/%2e%2e/app.py", "/static/../app.py", "/static//etc/passwd", "/static/"):
        assert client.get(path).status_code == 404


def test_the_explorer_has_a_page(shop: Catalog, tmp_path: Path) -> None:
    with client_of(shop, explorer=True, decisions=tmp_path / "decisions.csv") as client:
        assert client.get("/").headers["content-type"].startswith("text/html")
        status = client.get("/status").json()
        assert (status["explorer"], status["decisions"]) == (True, str(tmp_path / "decisions.csv"))


def test_another_process_changes_the_catalog(service: httpx.Client, vectors: Catalog) -> None:
    assert service.get("/status").json()["items"] == 60
    with Catalog.open(vectors.address) as other:
        other.add_vectors(["61"], np.full((1, 8), 3, np.float32), ["other"])
        other.remove(["0"])
    assert service.get("/status").json()["items"] == 60
    assert service.get("/classes", params={"q": "other"}).json()[0]["count"] == 1
    assert service.post("/search", json={"vector": [3] * 8, "k": 1}).json()["matches"][0]["id"] == "61"
    problem(service.get("/items/0"), 404, "'0'")


def test_the_model_is_replaced_by_another_process(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    content = (photos / "top.png").read_bytes()
    with Catalog.open(tmp_path / "catalog", make_embedder(0)) as catalog:
        catalog.add(photos)
    with Catalog.open(tmp_path / "catalog") as catalog, client_of(catalog) as client:
        assert client.post("/search", files={"image": content}).json()["matches"][0]["distance"] == pytest.approx(0, abs=1e-5)
        with Catalog.open(tmp_path / "catalog", make_embedder(1)) as other:
            other.add(photos, new_model=True)
        found = client.post("/search", files={"image": content}).json()
        assert found["matches"][0]["distance"] == pytest.approx(0, abs=1e-5)
        assert client.get("/status").json()["model"]["sha"] == make_embedder(1).short_sha()


def test_an_image_is_not_added_to_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = write_photos(tmp_path / "photos")
    content = (photos / "top.png").read_bytes()
    with Catalog.open(tmp_path / "catalog", make_embedder(0)) as catalog:
        catalog.add(photos)
    with Catalog.open(tmp_path / "catalog") as catalog, client_of(catalog) as client:
        encode = Embedder.encode

        def replacing(*arguments: Any, **further: Any) -> Any:
            monkeypatch.undo()
            found = encode(*arguments, **further)
            with Catalog.open(tmp_path / "catalog", make_embedder(1)) as other:
                other.add(photos, new_model=True)
            return found

        monkeypatch.setattr(Embedder, "encode", replacing)
        problem(client.put("/items/new", files={"image": content}), 429, "another process replaced it")
        assert client.put("/items/new", files={"image": content}).status_code == 200
        assert client.get("/neighbors/new").json()["matches"][0]["distance"] == pytest.approx(0, abs=1e-5)

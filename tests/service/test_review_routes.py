import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from catalog.shop import make_embedder
from liftedstruct.catalog import Catalog
from liftedstruct.data import read_decisions, read_images
from liftedstruct.review import KINDS
from review.planted import clusters
from service.reviewed import WRONG, make_catalog
from service.running import client_of


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    with make_catalog(tmp_path_factory.mktemp("review") / "photos") as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "decisions.csv"


@pytest.fixture
def client(catalog: Catalog, file: Path) -> Iterator[httpx.Client]:
    with client_of(catalog, explorer=True, decisions=file) as made:
        wait(made)
        yield made


def wait(client: httpx.Client) -> dict[str, Any]:
    assert client.get("/review").json()["state"] == "none"
    assert client.post("/review").status_code == 202
    end = time.monotonic() + 60
    while (found := client.get("/review").json())["state"] == "building":
        assert 0 <= found["progress"] <= 1
        assert time.monotonic() < end
        time.sleep(0.02)
    assert found["state"] == "ready", found["note"]
    return dict(found)


def listed(client: httpx.Client, kind: str, **params: Any) -> list[dict[str, Any]]:
    return list(client.get(f"/review/{kind}", params=params).json()["items"])


def decide(client: httpx.Client, kind: str, item: dict[str, Any], action: str, value: str = "") -> httpx.Response:
    return client.post("/decisions", json={"kind": kind, "key": item["key"], "action": action, "value": value})


def test_the_lists_have_what_was_planted(client: httpx.Client) -> None:
    found = client.get("/review").json()
    assert {each["kind"]: each["title"] for each in found["kinds"]} == KINDS
    labels = listed(client, "labels")
    assert {each["items"][0]["id"]: each["suggestions"][0]["value"] for each in labels[:2]} == {
        k: v[1] for k, v in WRONG.items()
    }
    first = labels[0]
    assert first["items"][0]["has_image"]
    assert {each["product"] for each in first["evidence"][:3]} == {first["suggestions"][0]["value"]}
    assert first["evidence"][0]["distance"] > 0
    assert re.match(r"[3-6] of the 6 images nearest to it are “product \d”, none", first["reason"])
    [pair] = listed(client, "duplicates")
    assert {pair["items"][0]["id"], pair["evidence"][0]["id"]} == {"0/0.png", "0/copy.jpg"}
    [leak] = listed(client, "leaks")
    assert (leak["items"][0]["id"], leak["evidence"][0]["id"]) == ("1/2.png", "1/leak.jpg")
    for each in found["kinds"]:
        assert client.get(f"/review/{each['kind']}").json()["total"] == each["count"]


def test_pages_of_a_list(client: httpx.Client) -> None:
    every = listed(client, "labels")
    first = listed(client, "labels", limit=1)
    assert first + listed(client, "labels", after=first[0]["key"]) == every


def test_decisions_are_lines_of_the_file(client: httpx.Client, file: Path, catalog: Catalog) -> None:
    first, second = listed(client, "labels")[:2]
    assert decide(client, "labels", first, "relabel", first["suggestions"][0]["value"]).status_code == 201
    [line] = read_decisions(file)
    item = first["items"][0]
    assert (line.action, line.id, line.product, line.value) == ("relabel", item["id"], item["product"], WRONG[item["id"]][1])
    assert Path(line.path).is_absolute()
    assert Path(line.path).is_file()
    assert first["key"] not in [each["key"] for each in listed(client, "labels")]
    decide(client, "labels", second, "keep")
    [pair] = listed(client, "duplicates")
    decide(client, "duplicates", pair, "drop")
    assert listed(client, "duplicates") == []
    found = client.get("/decisions").json()
    assert found["counts"] == {"relabel": 1, "keep": 1, "drop": 1}
    assert str(file) in found["command"]
    assert client.get("/decisions.csv").text.replace("\r", "") == file.read_text()
    images = read_images(catalog.folder.parent, decisions=file)
    assert len(images) == 49
    assert not [warning for warning in images.warnings if "decisions" in warning]


def test_undo_brings_the_suggestion_back(client: httpx.Client, file: Path) -> None:
    before = listed(client, "labels")
    for each in before[:2]:
        decide(client, "labels", each, "drop")
    undone = client.delete("/decisions").json()
    assert (undone["kind"], undone["key"]) == ("labels", before[1]["key"])
    assert len(read_decisions(file)) == 1
    assert listed(client, "labels")[0] == before[1]
    client.delete("/decisions")
    answer = client.delete("/decisions")
    assert answer.status_code == 404
    assert "there is none left" in answer.json()["detail"]


def test_keep_is_remembered_by_the_next_server(catalog: Catalog, file: Path) -> None:
    with client_of(catalog, explorer=True, decisions=file) as client:
        wait(client)
        [leak] = listed(client, "leaks")
        decide(client, "leaks", leak, "keep")
    with client_of(catalog, explorer=True, decisions=file) as client:
        wait(client)
        assert listed(client, "leaks") == []
        assert client.get("/decisions").json()["counts"] == {"keep": 1}


@pytest.mark.parametrize(
    ("change", "status", "word"),
    [
        ({"kind": "colors"}, 404, "key must be one of the list"),
        ({"key": "none"}, 404, "key must be one of the list"),
        ({"action": "paint"}, 422, "action"),
        ({"action": "relabel", "value": " "}, 422, "value must be a class"),
        ({"action": "drop", "value": "x"}, 422, "value must be a class"),
        ({"more": 1}, 422, "more"),
        ({"action": "relabel", "value": "x" * 200_000}, 422, "value"),
    ],
)
def test_wrong_decisions_are_refused(client: httpx.Client, file: Path, change: dict[str, Any], status: int, word: str) -> None:
    good = {"kind": "labels", "key": listed(client, "labels")[0]["key"], "action": "drop", "value": ""}
    answer = client.post("/decisions", json=good | change)
    assert answer.status_code == status
    assert word in answer.json()["detail"]
    assert not file.exists()
    assert client.get("/review/colors").status_code == 404
    assert client.get("/decisions.csv").status_code == 404


def test_a_damaged_file_is_an_error_with_its_line(client: httpx.Client, file: Path) -> None:
    file.write_text("action,path,id,product,value,kind,time\nrename,a,,,,,\n")
    answer = client.get("/decisions")
    assert answer.status_code == 422
    assert "line 2: action must be one of" in answer.json()["detail"]


def test_classes_are_merged_and_split(tmp_path: Path) -> None:
    X, labels = clusters(10, 8)
    names = [f"p{c}" for c in labels]
    for i in (0, 3, 5):
        names[i] = "p0 again"
    for i in np.flatnonzero(labels == 7).tolist():
        names[i] = "p6"
    with Catalog.open(tmp_path / "shop", make_embedder(dim=16)) as catalog:
        catalog.add_vectors([f"item {i}" for i in range(len(X))], X.astype(np.float32), names)
        with client_of(catalog, explorer=True, decisions=tmp_path / "d.csv") as client:
            wait(client)
            [pair], [two] = listed(client, "one"), listed(client, "two")
            assert decide(client, "one", pair, "drop").status_code == 422
            decide(client, "one", pair, "merge", pair["suggestions"][0]["value"])
            decide(client, "two", two, "relabel", two["suggestions"][0]["value"])
            merge, *split = read_decisions(tmp_path / "d.csv")
            assert (merge.action, merge.product, merge.value) == ("merge", "p0 again", "p0")
            assert [(each.action, each.value) for each in split] == [("relabel", "p6 2")] * 8
            assert listed(client, "one") == listed(client, "two") == []
            assert len(client.delete("/decisions").json()["decisions"]) == 8
            assert [each["key"] for each in listed(client, "two")] == [two["key"]]


def test_a_single_item_and_a_changed_catalog(tmp_path: Path) -> None:
    with Catalog.open(tmp_path / "shop", make_embedder()) as catalog:
        catalog.add_vectors(["a"], np.ones((1, 8), np.float32))
        with client_of(catalog, explorer=True, decisions=tmp_path / "d.csv") as client:
            assert [each["count"] for each in wait(client)["kinds"]] == [0] * len(KINDS)
            assert not client.get("/review").json()["stale"]
            catalog.add_vectors(["b"], np.zeros((1, 8), np.float32))
            assert client.get("/review").json()["stale"]

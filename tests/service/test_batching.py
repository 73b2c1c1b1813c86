"""Requests that arrive together are one call, and each gets the answer that it would get alone."""

import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.shop import catalog_of, make_embedder, planted, write_photos
from liftedstruct.catalog import Catalog
from liftedstruct.embedder import Embedder
from liftedstruct.service import app
from liftedstruct.service.app import Asked, Service
from liftedstruct.service.batching import Batcher, Busy
from service.running import running

# --- the queue -----------------------------------------------------------------------------------------------------------


class Gate:
    """Work that waits until it is let through, and records its batches."""

    def __init__(self) -> None:
        self.open, self.entered, self.batches = threading.Event(), threading.Event(), list[list[int]]()

    def __call__(self, items: list[int]) -> list[int | Exception]:
        self.entered.set()
        assert self.open.wait(20)
        self.batches.append(items)
        return [ValueError(f"negative {item}") if item < 0 else 2 * item for item in items]


def test_what_waits_is_one_batch() -> None:
    gate = Gate()
    queue = Batcher("double", gate, most=4, room=10)
    [first] = queue.submit([1])
    assert gate.entered.wait(20)
    rest = queue.submit([2, -3]) + queue.submit([4]) + queue.submit([5, 6])
    gate.open.set()
    assert first.result(20) == 2
    assert [each.result(20) for each in rest if each is not rest[1]] == [4, 8, 10, 12]
    with pytest.raises(ValueError, match="negative -3"):
        rest[1].result(20)
    assert gate.batches == [[1], [2, -3, 4, 5], [6]]
    queue.close()


def test_a_full_queue_takes_all_or_nothing() -> None:
    gate = Gate()
    queue = Batcher("double", gate, most=4, room=3)
    queue.submit([1])
    assert gate.entered.wait(20)
    queue.submit([2, 3])
    with pytest.raises(Busy, match="at most 3 requests may wait to double, got one more"):
        queue.submit([4, 5])
    [last] = queue.submit([4])
    with pytest.raises(Busy):
        queue.submit([5])
    gate.open.set()
    assert last.result(20) == 8
    queue.close()


def test_what_is_cancelled_is_left_out() -> None:
    gate = Gate()
    queue = Batcher("double", gate)
    queue.submit([1])
    assert gate.entered.wait(20)
    second, third = queue.submit([2, 3])
    assert second.cancel()
    gate.open.set()
    assert third.result(20) == 6
    with pytest.raises(CancelledError):
        second.result(20)
    assert gate.batches == [[1], [3]]
    queue.close()


def test_a_failed_call_fails_its_batch_only() -> None:
    def work(items: list[int]) -> list[int]:
        return [1 // item for item in items]

    queue: Batcher[int, int] = Batcher("divide", work)
    with pytest.raises(ZeroDivisionError):
        queue.submit([0])[0].result(20)
    assert queue.submit([1])[0].result(20) == 1
    queue.close()


def test_closing_works_on_what_waits() -> None:
    gate = Gate()
    queue = Batcher("double", gate, most=2)
    futures = queue.submit([1, 2, 3, 4, 5])
    closing = threading.Thread(target=queue.close)
    closing.start()
    gate.open.set()
    closing.join(20)
    assert [each.result(0) for each in futures] == [2, 4, 6, 8, 10]
    assert not queue.thread.is_alive()
    with pytest.raises(Busy, match="shutting down"):
        queue.submit([1])


def test_a_queue_without_work_has_no_thread() -> None:
    queue: Batcher[int, int] = Batcher("unused", lambda items: items)
    queue.close()
    assert "unused" not in [thread.name for thread in threading.enumerate()]


# --- searches ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Any:
    X, products = planted(20, 6)
    metadata = [{"price": i % 50} for i in range(len(X))]
    with catalog_of(tmp_path_factory.mktemp("vectors") / "catalog", X, products, metadata=metadata) as catalog:
        yield catalog


KEYS = st.tuples(
    st.integers(1, 130),
    st.sampled_from([None, "price < 20", "product = 'product 3' or price = 7", "price < 0"]),
    st.sampled_from([None, "product", "price"]),
    st.sampled_from(["exact", "hnsw"]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(st.tuples(st.integers(0, 2**31), st.none() | st.integers(0, 119).map(str), st.integers(0, 2)), max_size=12),
    keys=st.lists(KEYS, min_size=3, max_size=3),
)
def test_a_batch_gives_what_single_searches_give(vectors: Catalog, asked: list[Any], keys: list[Any]) -> None:
    service = Service(vectors)
    Q = [np.random.default_rng(seed).normal(size=8).astype(np.float32) for seed, _, _ in asked]
    together = service._search([Asked(q, keys[at], name) for q, (_, name, at) in zip(Q, asked, strict=True)])
    for q, (_, name, at), found in zip(Q, asked, together, strict=True):
        assert isinstance(found, dict)
        k, where, group_by, index = keys[at]
        [answer] = vectors.search(q, k, where, group_by, index, [name])
        assert [(each["id"], each["distance"]) for each in found["matches"]] == [(m.id, m.distance) for m in answer.matches]
        assert (found["margin"], found["verdict"], found["product"]) == (answer.margin, answer.verdict, answer.product)
        assert name not in [each["id"] for each in found["matches"]]
    service.close()


def test_a_wrong_search_does_not_fail_the_others(vectors: Catalog) -> None:
    service = Service(vectors)
    q, key = np.zeros(8, np.float32), (3, None, None, "exact")
    asked = [Asked(q, key), Asked(q[:5], key), Asked(q, (3, "price <", None, "exact")), Asked(q, key)]
    found = service._search(asked)
    assert [type(each) for each in found] == [dict, ValueError, ValueError, dict]
    assert found[0] == found[3]
    service.close()


def test_searches_that_arrive_together_are_one_call(vectors: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, search = list[int](), Catalog.search

    def counting(self: Catalog, Q: Any, *arguments: Any) -> Any:
        sizes.append(len(Q))
        time.sleep(0.1)
        return search(self, Q, *arguments)

    with running(vectors) as server, ThreadPoolExecutor(32) as pool:
        monkeypatch.setattr(Catalog, "search", counting)
        Q = np.random.default_rng(1).normal(size=(32, 8)).astype(np.float32)

        def ask(q: Any) -> Any:
            return httpx.post(f"http://127.0.0.1:{server.port}/search", json={"vector": q.tolist(), "k": 4}, timeout=30).json()

        answers = list(pool.map(ask, Q))
    assert sum(sizes) == 32
    assert len(sizes) < 12
    for q, answer in zip(Q, answers, strict=True):
        [expected] = search(vectors, q, 4)
        assert [each["id"] for each in answer["matches"]] == [match.id for match in expected.matches]


def test_encodes_that_arrive_together_are_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos, embedder = write_photos(tmp_path / "photos"), make_embedder()
    sizes, encode = list[int](), Embedder.encode

    def counting(self: Embedder, images: Any, *arguments: Any, **further: Any) -> Any:
        sizes.append(len(images))
        time.sleep(0.1)
        return encode(self, images, *arguments, **further)

    with Catalog.open(tmp_path / "catalog", embedder) as catalog:
        catalog.add(photos)
        files = sorted(photos.rglob("*.png"))
        with running(catalog) as server, ThreadPoolExecutor(12) as pool:
            monkeypatch.setattr(Embedder, "encode", counting)

            def ask(file: Path) -> Any:
                content = {"images": file.read_bytes()}
                return httpx.post(f"http://127.0.0.1:{server.port}/encode", files=content, timeout=30).json()["vectors"][0]

            found = list(pool.map(ask, files * 3))
    assert sum(sizes) == 18
    assert len(sizes) < 12
    np.testing.assert_allclose(found, np.tile(encode(embedder, files), (3, 1)), rtol=1e-4, atol=1e-5)


# --- limits --------------------------------------------------------------------------------------------------------------


class Slow:
    """A search that waits until it is let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.open, search = threading.Event(), threading.Event(), Catalog.search

        def slow(catalog: Catalog, *arguments: Any) -> Any:
            self.entered.set()
            self.open.wait(20)
            return search(catalog, *arguments)

        monkeypatch.setattr(Catalog, "search", slow)


def test_too_many_requests(vectors: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(vectors) as server, ThreadPoolExecutor(8) as pool:
        server.server.config.app.state.service.searcher.room = 3
        slow = Slow(monkeypatch)

        def ask() -> httpx.Response:
            return httpx.post(f"http://127.0.0.1:{server.port}/search", json={"vector": [0] * 8}, timeout=30)

        first = pool.submit(ask)
        assert slow.entered.wait(20)
        rest = [pool.submit(ask) for _ in range(6)]
        while len(done := [each for each in rest if each.done()]) < 3:
            time.sleep(0.01)
        refused = done[0].result()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "at most 3 requests may wait" in refused.json()["detail"]
        assert server.client.get("/health").status_code == 200
        slow.open.set()
        assert first.result().status_code == 200
        assert sorted(each.result().status_code for each in rest) == [200] * 3 + [429] * 3


def test_a_search_that_takes_too_long(vectors: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(vectors) as server:
        monkeypatch.setattr(app, "SECONDS", 0.3)
        slow = Slow(monkeypatch)
        response = server.client.post("/search", json={"vector": [0] * 8})
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert "at most 0.3 seconds" in response.json()["detail"]
        slow.open.set()
        assert server.client.post("/search", json={"vector": [0] * 8}).status_code == 200


def test_requests_in_flight_are_answered_when_the_server_stops(vectors: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(vectors) as server, ThreadPoolExecutor(8) as pool:
        slow = Slow(monkeypatch)
        asked = [pool.submit(httpx.post, f"http://127.0.0.1:{server.port}/search", json={"vector": [0] * 8}) for _ in range(8)]
        assert slow.entered.wait(20)
        time.sleep(0.3)
        server.stop()
        time.sleep(0.3)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{server.port}/health")
        slow.open.set()
        assert [each.result().status_code for each in asked] == [200] * 8
        server.thread.join(20)
        assert not server.thread.is_alive()
    assert not any(thread.name in ("encode", "search") for thread in threading.enumerate() if thread.is_alive())


def test_not_ready_while_it_loads(vectors: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    load, waiting = Service.load, threading.Event()

    def late(self: Service) -> None:
        waiting.wait(20)
        load(self)

    monkeypatch.setattr(Service, "load", late)
    threading.Timer(0.5, waiting.set).start()
    with running(vectors) as server:
        assert any(line.startswith("GET /ready 503") for line in server.log)
        assert server.client.get("/ready").status_code == 200

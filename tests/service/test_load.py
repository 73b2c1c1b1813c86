"""What was acknowledged is stored, whatever happens to the server."""

import os
import random
import re
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from catalog.shop import catalog_of
from faults import fill, small_disk, start, wait
from liftedstruct.catalog import Catalog
from service.running import running

WRITERS = 4


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def vector_of(name: str) -> list[float]:
    return np.random.default_rng(int(re.findall(r"\d+", name)[0])).normal(size=8).astype(np.float32).tolist()  # type: ignore[no-any-return]


class Clients:
    """Threads that add and remove items, and remember what was acknowledged."""

    def __init__(self, address: str) -> None:
        self.address, self.there, self.gone, self.unknown = address, set[str](), set[str](), set[str]()
        self.stopped = False

    def work(self, first: int, pause: Callable[[], float]) -> int:
        """Add items, every fifth of which is removed again, until the server is gone, and return the number of the last."""
        i = first
        with httpx.Client(base_url=self.address, timeout=10) as client:
            while not self.stopped:
                name = f"item {i}"
                self.unknown.add(name)
                try:
                    assert client.put(f"/items/{name}", json={"vector": vector_of(name)}).status_code == 200
                    self.there.add(name)
                    self.unknown.discard(name)
                    if i % 5 == 0:
                        self.there.discard(name)
                        self.unknown.add(name)
                        assert client.delete(f"/items/{name}").status_code == 200
                        self.unknown.discard(name)
                        self.gone.add(name)
                except httpx.TransportError:
                    break
                i += WRITERS
                time.sleep(pause())
        return i


def check(catalog: Catalog, clients: Clients) -> None:
    items = {item.id: item for item in catalog.items()}
    assert clients.there <= set(items)
    assert not clients.gone & set(items)
    assert set(items) - clients.there - clients.unknown == {"0"}
    X = catalog.vectors([items[name] for name in sorted(clients.there)])
    np.testing.assert_array_equal(X, np.array([vector_of(name) for name in sorted(clients.there)], np.float32))


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    dice = random.Random(0)
    catalog_of(tmp_path / "catalog", np.zeros((1, 8), np.float32)).close()
    begin = [1 + i for i in range(WRITERS)]
    clients, port = Clients(""), free_port()
    clients.address = f"http://127.0.0.1:{port}"
    for _ in range(5):
        pid = start("serve", tmp_path / "catalog", "--port", port, log=tmp_path / "log")
        for _ in range(500):
            try:
                if httpx.get(f"{clients.address}/ready").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        with ThreadPoolExecutor(WRITERS) as pool:
            working = [pool.submit(clients.work, i, lambda: 0.0) for i in begin]
            time.sleep(dice.uniform(0.3, 1.5))
            os.kill(pid, signal.SIGKILL)
            begin = [each.result(30) + WRITERS for each in working]
        assert wait(pid) is None
        with Catalog.open(tmp_path / "catalog") as catalog:
            check(catalog, clients)
    assert len(clients.there) > 100
    assert len(clients.gone) > 20


@pytest.mark.slow
def test_nothing_is_lost_when_the_server_is_stopped(tmp_path: Path) -> None:
    catalog_of(tmp_path / "catalog", np.zeros((1, 8), np.float32)).close()
    with Catalog.open(tmp_path / "catalog") as catalog:
        clients = Clients("")
        with running(catalog) as server, ThreadPoolExecutor(WRITERS) as pool:
            clients.address = f"http://127.0.0.1:{server.port}"
            working = [pool.submit(clients.work, 1 + i, lambda: 0.0) for i in range(WRITERS)]
            time.sleep(1.5)
            server.stop()
            for each in working:
                each.result(30)
        check(catalog, clients)


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        with catalog_of(disk / "catalog", np.zeros((1, 8), np.float32)) as catalog, running(catalog) as server:
            assert server.client.put("/items/a", json={"vector": [1] * 8}).status_code == 200
            filler = fill(disk)
            codes = {
                server.client.put(f"/items/x{i}", json={"vector": [1] * 8, "product": "p" * 3000}).status_code
                for i in range(20)
            }
            assert codes <= {200, 503}
            assert 503 in codes
            assert server.client.post("/search", json={"vector": [1] * 8, "k": 1}).json()["matches"][0]["id"] == "a"
            filler.unlink()
            assert server.client.put("/items/b", json={"vector": [1] * 8}).status_code == 200
            ids = set(catalog.ids())
        assert {"0", "a", "b"} <= ids

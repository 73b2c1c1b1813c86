"""Every kind of store can be served, to many clients at a time."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from catalog.servers import new_address
from catalog.shop import catalog_of, planted
from liftedstruct.catalog import Catalog
from liftedstruct.catalog.store import STORES
from service.running import running

STORES_TO_TEST = [pytest.param(scheme, marks=pytest.mark.slow if scheme else ()) for scheme in (*STORES, "milvus-server")]


@pytest.fixture(params=STORES_TO_TEST)
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    X, products = planted(10, 5)
    for address in new_address(request.param, tmp_path):
        with catalog_of(address, X, products, metadata=[{"price": i} for i in range(50)]) as catalog:
            yield catalog


def test_clients_that_read_and_write(catalog: Catalog) -> None:
    with running(catalog) as server, ThreadPoolExecutor(8) as pool:

        def work(number: int) -> None:
            vector = np.random.default_rng(number).normal(size=8).astype(np.float32).tolist()
            with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
                for i in range(4):
                    name = f"new {number} {i}"
                    body: Any = {"vector": vector, "product": f"p{number}", "metadata": {"price": 1000 + number}}
                    assert client.put(f"/items/{name}", json=body).json()["product"] == f"p{number}"
                    found = client.post("/search", json={"vector": vector, "k": 3, "where": f"price = {1000 + number}"}).json()
                    assert name in [match["id"] for match in found["matches"]]
                    assert client.get("/items", params={"where": "price < 1000", "after": 25, "limit": 5}).status_code == 200
                    assert client.get("/classes", params={"q": "product"}).json()[0]["count"] == 5
                    assert client.get(f"/neighbors/{name}").json()["matches"][0]["id"] != name
                    if i < 3:
                        assert client.delete(f"/items/{name}").json() == {"removed": 1}

        for each in [pool.submit(work, number) for number in range(8)]:
            each.result(120)
        assert not any("Traceback" in line for line in server.log)
    assert sorted(catalog.ids("price > 999")) == [f"new {number} 3" for number in range(8)]

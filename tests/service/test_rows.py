"""The items of a catalog as arrays, of every kind of store."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from catalog.shop import catalog_of, planted
from liftedstruct.catalog import Catalog
from liftedstruct.service import rows as module
from liftedstruct.service.rows import Rows, RowsCache


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    X, products = planted(6, 5)
    products[7] = ""
    metadata = [{"price": i} if i % 3 else {"color": "red"} for i in range(30)]
    with catalog_of(tmp_path / "catalog", X, products, metadata=metadata) as catalog:
        yield catalog


def check(rows: Rows, catalog: Catalog) -> None:
    """Compare rows with the items one by one."""
    items = list(catalog.items())
    assert len(rows) == len(items)
    assert rows.seqs.tolist() == [item.seq for item in items]
    assert rows.ids == [item.id for item in items]
    assert rows.paths == [item.path for item in items]
    assert [rows.products[label] for label in rows.labels] == [item.product for item in items]
    assert rows.products == sorted({item.product for item in items})
    np.testing.assert_array_equal(rows.X, catalog.vectors(items))
    names = {name for item in items for name in item.metadata}
    assert rows.fields == {name: [item.metadata.get(name) for item in items] for name in names}
    assert rows.sizes.tolist() == [sum(item.product == name for item in items) for name in rows.products]


@pytest.fixture(params=["local", "database"])
def store(request: pytest.FixtureRequest, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalog in a folder, and one without the arrays and versions of a folder, as databases are."""
    if request.param == "database":
        for name in ("arrays", "version"):
            monkeypatch.delattr(type(catalog.store), name)
        monkeypatch.setattr(module, "CHUNK", 7)
    return catalog


def test_rows_are_the_items(store: Catalog) -> None:
    cache = RowsCache(store)
    rows = cache.current()
    check(rows, store)
    assert cache.current() is rows
    store.add_vectors(["new"], np.ones((1, 8), np.float32), ["new"], [{"other": "x"}])
    cache.writes += 1
    after = cache.current()
    assert after.version != rows.version
    check(after, store)
    store.remove(["3", "new"])
    check(cache.current(), store)


def test_the_array_of_a_folder_is_not_copied(catalog: Catalog) -> None:
    rows = RowsCache(catalog).current()
    assert rows.X is catalog.store.arrays(catalog.table)[1]  # type: ignore[attr-defined]


def test_a_replaced_item_changes_the_version(catalog: Catalog) -> None:
    cache = RowsCache(catalog)
    before = cache.current().version
    with Catalog.open(catalog.address) as other:
        other.add_vectors(["3"], np.ones((1, 8), np.float32), ["other"])
    assert cache.current().version != before
    check(cache.current(), catalog)


@pytest.mark.parametrize("change", ["add", "remove"])
def test_items_that_change_while_they_are_read(catalog: Catalog, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    items = type(catalog.store).items

    def changing(store: Any, table: int, *further: Any) -> Any:
        monkeypatch.undo()
        if change == "add":
            catalog.add_vectors(["new"], np.ones((1, 8), np.float32))
        else:
            catalog.remove(["4"])
        return items(store, table, *further)

    monkeypatch.setattr(type(catalog.store), "items", changing)
    cache = RowsCache(catalog)
    rows = cache.current()
    assert len(rows) == len(rows.X) == len(rows.seqs) == len(rows.labels) == (30 if change == "add" else 29)
    for i, name in enumerate(rows.ids):
        [item] = catalog.items(f"id = '{name}'")
        np.testing.assert_array_equal(rows.X[i], catalog.vectors([item])[0])
    check(cache.current(), catalog)


def test_rows_of_a_large_catalog_may_be_old(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW", 0.0)
    monkeypatch.setattr(module, "PATIENCE", 1e9)
    cache = RowsCache(catalog)
    rows = cache.current()
    catalog.remove(["3"])
    assert cache.current() is rows
    monkeypatch.setattr(module, "PATIENCE", 0)
    check(cache.current(), catalog)


def test_neighbors(catalog: Catalog) -> None:
    rows = RowsCache(catalog).current()
    D, j = rows.neighbors(5)
    assert not rows.approximate
    full = np.linalg.norm(rows.X[:, None].astype(float) - rows.X[None], axis=2)
    np.fill_diagonal(full, np.inf)
    np.testing.assert_array_equal(j, np.argsort(full, axis=1, kind="stable")[:, :5])
    np.testing.assert_allclose(D, np.sort(full, axis=1)[:, :5], rtol=1e-5)
    assert rows.neighbors(3)[1].tolist() == j[:, :3].tolist()
    assert rows.neighbors(100)[0].shape == (30, 29)


def test_approximate_neighbors_leave_out_the_item_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT", 100)
    X = np.repeat(planted(60, 10, dim=16)[0], 2, axis=0)  # each vector twice
    X[:40] = X[0]  # more duplicates than neighbors
    with catalog_of(tmp_path / "catalog", X) as catalog:
        rows = RowsCache(catalog).current()
        D, j = rows.neighbors(8)
        assert rows.approximate
        assert D.shape == j.shape == (1200, 8)
        assert not (j == np.arange(1200)[:, None]).any()
        np.testing.assert_allclose(D, np.linalg.norm(rows.X[:, None] - rows.X[j], axis=2), atol=1e-3)
        assert (np.diff(D, axis=1) >= -1e-5).all()
        assert (D[:, 0] < 1e-3).all()


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_items(tmp_path: Path, n: int) -> None:
    with catalog_of(tmp_path / "catalog", np.eye(3, dtype=np.float32)) as catalog:
        catalog.remove([str(i) for i in range(n, 3)])
        rows = RowsCache(catalog).current()
        check(rows, catalog)
        D, j = rows.neighbors()
        assert D.shape == j.shape == (n, max(n - 1, 0))

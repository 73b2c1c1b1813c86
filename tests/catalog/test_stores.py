"""The contract of a store: every store gives the same answers, equal to brute force in float64, ties included."""

import gc
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from catalog.servers import new_address
from catalog.shop import matches
from liftedstruct.catalog.store import STORES, Item, Store, Vectors, nearest_of_candidates, open_store
from liftedstruct.catalog.where import And, Condition, Not, Or, Value, Where

DIM = 8
STORES_TO_TEST = [pytest.param(scheme, marks=pytest.mark.slow if scheme else ()) for scheme in (*STORES, "milvus-server")]
VALUES = st.sampled_from(
    [0, 1, -3, 2.5, 2**53, "", "a", "b", "ä", "A", "10", "o'neill", 'a "b"', "back\\slash", "line\nfeed", "%"]
)
FIELDS = st.sampled_from(["price", "size", "Größe", "id", "product", "nowhere"])


def wheres() -> st.SearchStrategy[Where]:
    def comparison(field: str, operator: str, value: Value) -> Where:
        return Condition(field, operator, str(value) if field in ("id", "product") else value)

    leaf = st.builds(comparison, FIELDS, st.sampled_from(["=", "<", "<=", ">", ">="]), VALUES)

    def several(kind: type[And | Or], part: st.SearchStrategy[Where]) -> st.SearchStrategy[Where]:
        return st.lists(part, min_size=2, max_size=3).map(lambda parts: kind(tuple(parts)))

    return st.recursive(leaf, lambda part: st.one_of(several(And, part), several(Or, part), part.map(Not)), max_leaves=6)


def items(n: int, seed: int = 0) -> tuple[list[Item], Vectors]:
    """Return items with fields of mixed types that are missing here and there, and vectors with many ties."""
    rng = np.random.default_rng(seed)
    values: list[Value] = [
        0,
        1,
        -3,
        2.5,
        2**53,
        "",
        "a",
        "b",
        "ä",
        "A",
        "10",
        "o'neill",
        'a "b"',
        "back\\slash",
        "line\nfeed",
        "%",
    ]

    def metadata() -> dict[str, Value]:
        return {name: values[rng.integers(len(values))] for name in ("price", "size", "Größe") if rng.random() < 0.7}

    found = [Item(f"{i} 'é\"\n\\", f"p{i % 7}" if i % 5 else "", f"/x/{i}", f"{i:x}", metadata()) for i in range(n)]
    return found, rng.integers(-1, 2, (n, DIM)).astype(np.float32)


def brute_force(everything: dict[int, tuple[Item, Vectors]], q: Vectors, k: int, where: Where | None) -> list[int]:
    rows = [(seq, x) for seq, (item, x) in everything.items() if matches(where, item.fields)]
    distances = {seq: float(((q.astype(float) - x.astype(float)) ** 2).sum()) for seq, x in rows}
    return sorted(distances, key=lambda seq: (distances[seq], seq))[:k]


@pytest.fixture(scope="module", params=STORES_TO_TEST)
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from new_address(request.param, tmp_path_factory.mktemp("store"))


@pytest.fixture
def store(address: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    opened = open_store(address, create=True)
    for table in (1, 2):
        opened.drop(table)
    opened.create(1, DIM)
    yield opened
    opened.close()


def content(store: Store, table: int = 1) -> dict[int, tuple[Item, Vectors]]:
    return store.get(table, [item.seq for item in store.items(table)])


def test_put_get_and_order(store: Store) -> None:
    rows, X = items(20)
    store.put(1, rows[:15], X[:15])
    store.put(1, rows[15:], X[15:])
    found = list(store.items(1))
    assert [item.id for item in found] == [item.id for item in rows]
    seqs = [item.seq for item in found]
    assert seqs == sorted(set(seqs))
    for item, row, x in zip(found, rows, X, strict=True):
        got, vector = store.get(1, [item.seq])[item.seq]
        assert got == item
        assert (item.product, item.path, item.content, dict(item.metadata)) == (
            row.product,
            row.path,
            row.content,
            row.metadata,
        )
        assert vector.tobytes() == x.tobytes()
    assert store.get(1, [10**6]) == {}
    for i in (0, 7, 19):
        assert [item.seq for item in store.items(1, None, seqs[i])] == seqs[i + 1 :]
    some = Condition("product", "=", rows[1].product)
    assert [item.id for item in store.items(1, some, seqs[1])] == [rows[8].id]


def test_an_update_keeps_its_place(store: Store) -> None:
    rows, X = items(10)
    store.put(1, rows, X)
    before = [(item.id, item.seq) for item in store.items(1)]
    store.nearest(1, X[:1], 3)
    store.put(1, [Item(rows[4].id, "new", metadata={"price": 5}), Item("another")], X[:2] + 100)
    after = list(store.items(1))
    assert [(item.id, item.seq) for item in after[:10]] == before
    assert (after[4].product, after[4].metadata, after[10].id) == ("new", {"price": 5}, "another")
    assert [seqs.tolist() for _, seqs in store.nearest(1, X[:2] + 100, 1)] == [[before[4][1]], [after[10].seq]]


def test_remove(store: Store) -> None:
    rows, X = items(10)
    store.put(1, rows, X)
    store.nearest(1, X[:1], 3)
    assert store.remove(1, [rows[0].id, rows[9].id, "unknown"]) == 2
    assert [item.id for item in store.items(1)] == [item.id for item in rows[1:9]]
    assert store.count(1) == 8
    store.put(1, rows[9:], X[9:])
    assert next(reversed(list(store.items(1)))).id == rows[9].id  # a removed item comes back as the last one
    found = [item.seq for item in store.items(1)]
    assert sorted(store.nearest(1, X[:1], 20)[0][1].tolist()) == found


@pytest.mark.parametrize("k", [1, 5, 40, 300])
def test_nearest_equals_brute_force_with_ties(store: Store, k: int) -> None:
    rows, X = items(120)
    store.put(1, rows, X)
    everything, Q = content(store), np.concatenate([X[:4], X[:3] + np.float32(0.25)])
    for q, (D2, seqs) in zip(Q, store.nearest(1, Q, k), strict=True):
        assert seqs.tolist() == brute_force(everything, q, k, None)
        exact = [float(((q.astype(float) - everything[seq][1].astype(float)) ** 2).sum()) for seq in seqs.tolist()]
        np.testing.assert_allclose(D2, exact, rtol=1e-12)


def test_nearest_far_from_the_origin_and_with_tiny_differences(store: Store) -> None:
    rng = np.random.default_rng(1)
    X = (1000 + 1e-3 * rng.normal(size=(200, DIM))).astype(np.float32)
    store.put(1, [Item(f"{i}") for i in range(200)], X)
    everything = content(store)
    for q, (_, seqs) in zip(X[:5], store.nearest(1, X[:5], 10), strict=True):
        assert seqs.tolist() == brute_force(everything, q, 10, None)


@pytest.fixture(scope="module")
def filled(address: str) -> Iterator[tuple[Store, dict[int, tuple[Item, Vectors]]]]:
    store = open_store(address, create=True)
    store.create(9, DIM)
    rows, X = items(150, seed=3)
    store.put(9, rows, X)
    store.index_field(9, "price")
    yield store, content(store, 9)
    store.drop(9)
    store.close()


@given(where=wheres())
@settings(max_examples=60, deadline=None)
def test_filters_select_what_the_definition_selects(
    filled: tuple[Store, dict[int, tuple[Item, Vectors]]], where: Where
) -> None:
    store, everything = filled
    selected = [seq for seq, (item, _) in everything.items() if matches(where, item.fields)]
    assert [item.seq for item in store.items(9, where)] == sorted(selected)
    assert store.count(9, where) == len(selected)
    ((_, seqs),) = store.nearest(9, np.zeros((1, DIM), np.float32), 12, where)
    assert seqs.tolist() == brute_force(everything, np.zeros(DIM, np.float32), 12, where)


def test_tables_are_apart_and_the_record_is_kept(store: Store, address: str) -> None:
    rows, X = items(5)
    store.create(2, 3)
    store.put(1, rows, X)
    store.put(2, rows[:2], X[:2, :3])
    assert (store.count(1), store.count(2)) == (5, 2)
    store.drop(2)
    store.create(2, 4)
    assert store.count(2) == 0
    store.write({"name": "Straße", "number": 1})
    again = open_store(address)
    assert again.read() == {"name": "Straße", "number": 1}
    assert again.count(1) == 5
    again.close()


def test_another_connection_sees_writes(store: Store, address: str) -> None:
    rows, X = items(6)
    store.put(1, rows[:3], X[:3])
    other = open_store(address)
    assert len(other.nearest(1, X[:1], 10)[0][1]) == 3
    store.put(1, rows[3:], X[3:])
    store.remove(1, [rows[0].id])
    assert len(other.nearest(1, X[:1], 10)[0][1]) == 5
    assert other.count(1) == 5
    other.close()


def test_an_address_without_a_catalog(store: Store, address: str) -> None:
    """A connection that was opened is closed, not left to the garbage collector, which warns about it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="a catalog must exist to be opened, got none at"):
            open_store(f"{address}_none")
        gc.collect()
    assert [str(each.message) for each in caught if issubclass(each.category, ResourceWarning)] == []


def test_all_items_are_fetched_once() -> None:
    """If an engine has no further candidates than all items, as with more ties than it returns."""
    X, counts = np.zeros((500, 2), np.float32), list[int]()

    def candidates(q: Vectors, count: int) -> tuple[Vectors, NDArray[np.int64], NDArray[np.float64] | None]:
        counts.append(count)
        if count <= 40:
            return X[:count], np.arange(count), np.zeros(count)
        return X, np.arange(500), None

    D2, seqs = nearest_of_candidates(candidates, X[0], 5)
    assert (D2.tolist(), seqs.tolist()) == ([0] * 5, [0, 1, 2, 3, 4])
    assert len(counts) == 2


def test_one_writer(store: Store, address: str) -> None:
    other = open_store(address)
    with store.writing(), pytest.raises(ValueError, match="in use by"), other.writing():
        pass
    with other.writing():
        pass
    other.close()


def test_empty(store: Store) -> None:
    Q = np.zeros((2, DIM), np.float32)
    assert [seqs.tolist() for _, seqs in store.nearest(1, Q, 3)] == [[], []]
    assert (store.count(1), list(store.items(1)), store.remove(1, ["a"])) == (0, [], 0)
    rows, X = items(3)
    store.put(1, rows, X)
    assert [seqs.tolist() for _, seqs in store.nearest(1, Q, 3, Condition("id", "=", "no"))] == [[], []]


def test_approximate_index(store: Store) -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(600, DIM)).astype(np.float32)
    store.put(1, [Item(f"{i}", metadata={"half": i % 2}) for i in range(600)], X)
    assert "hnsw" in store.INDEXES
    store.build(1, "hnsw")
    assert store.size(1, "hnsw") > 0
    exact, approximate = (store.nearest(1, X[:20], 10, None, index) for index in ("exact", "hnsw"))
    hits = [len(set(a.tolist()) & set(b.tolist())) for (_, a), (_, b) in zip(exact, approximate, strict=True)]
    assert sum(hits) > 0.9 * 200
    for (_, seqs), (D2, found) in zip(exact, approximate, strict=True):
        assert (np.diff(D2) >= 0).all()  # ranked by the exact distance
        assert found[0] == seqs[0]
    filtered = store.nearest(1, X[:5], 10, Condition("half", "=", 1), "hnsw")
    assert all(len(seqs) == 10 for _, seqs in filtered)  # a filter does not leave too few
    with pytest.raises(ValueError, match="index must be one of"):
        store.nearest(1, X[:1], 1, None, "ivf")
    with pytest.raises(ValueError, match="index must be one of"):
        store.build(1, "ivf")

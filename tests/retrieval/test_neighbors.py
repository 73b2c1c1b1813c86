import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy.spatial import KDTree

from liftedstruct.retrieval import nearest_neighbors, neighbors
from liftedstruct.retrieval.neighbors import NeighborSearch
from retrieval import brute_force

Array = NDArray[np.floating]


@pytest.fixture(autouse=True)
def candidates_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the candidate search for few images, too."""
    monkeypatch.setattr(neighbors, "DIRECT", 0)


def listed(X: Array, k: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    tensor = torch.from_numpy(X)
    D2, j = NeighborSearch(tensor).nearest(tensor, k, torch.arange(len(X)))
    return D2.numpy(), j.numpy()


@given(st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_equal_to_a_stable_argsort(data: st.DataObject) -> None:
    n, d = data.draw(st.tuples(st.integers(2, 120), st.integers(1, 3)))
    elements = data.draw(st.sampled_from([st.integers(-2, 2).map(float), st.floats(-1, 1, width=32)]))
    X = data.draw(hnp.arrays(np.float32, (n, d), elements=elements)) + np.float32(data.draw(st.sampled_from([0, 1000])))
    k = data.draw(st.integers(1, n - 1))
    D2, j = listed(X, k)
    np.testing.assert_array_equal(j, brute_force.neighbors(X)[:, :k])
    np.testing.assert_array_equal(D2, np.take_along_axis(brute_force.squares(X, X), j, axis=1))


@pytest.mark.parametrize("kind", ["plain", "grid", "far", "duplicates", "all equal", "two far clusters", "outliers", "tiny"])
def test_exact_however_the_cut_falls(kind: str) -> None:
    rng = np.random.default_rng(0)
    X: Array = rng.standard_normal((900, 6)).astype(np.float32)
    if kind == "grid":
        X = rng.integers(0, 3, (900, 6)).astype(np.float32)
    elif kind == "far":
        X = X * 1e-3 + np.float32(1e4)
    elif kind == "duplicates":
        X = X[rng.integers(0, 5, 900)]
    elif kind == "all equal":
        X[:] = X[0]
    elif kind == "two far clusters":
        X = X * 1e-4 + np.where(np.arange(900) % 2, 100, -100).astype(np.float32)[:, None]
    elif kind == "outliers":
        X[::100] *= 1e30
    elif kind == "tiny":
        X = X.astype(np.float64) * 1e-200
    np.testing.assert_array_equal(listed(X, 5)[1], brute_force.neighbors(X)[:, :5])


def test_few_images_at_once_and_many_by_candidates_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).integers(0, 4, (300, 3)).astype(np.float32)
    by_candidates = nearest_neighbors(X, 6)
    monkeypatch.setattr(neighbors, "DIRECT", 1 << 23)
    at_once = nearest_neighbors(X, 6)
    np.testing.assert_array_equal(at_once, by_candidates)


def test_a_tree_finds_the_same() -> None:
    rng = np.random.default_rng(0)
    X, Q = rng.standard_normal((3000, 4)), rng.standard_normal((50, 4))
    distances, indices = nearest_neighbors(X, 7, Q)
    expected, j = KDTree(X).query(Q, 7)
    np.testing.assert_array_equal(indices, j)
    np.testing.assert_allclose(distances, expected, rtol=1e-14)
    distances, indices = nearest_neighbors(X, 7)
    expected, j = KDTree(X).query(X, 8)
    np.testing.assert_array_equal(indices, j[:, 1:])
    np.testing.assert_allclose(distances, expected[:, 1:], rtol=1e-14)


def test_cosine() -> None:
    rng = np.random.default_rng(0)
    X, Q = rng.standard_normal((500, 5)).astype(np.float32), rng.standard_normal((20, 5))
    distances, indices = nearest_neighbors(X, 9, Q, metric="cosine")
    cos = (Q @ X.T) / np.linalg.norm(Q, axis=1)[:, None] / np.linalg.norm(X.astype(float), axis=1)
    np.testing.assert_array_equal(indices, np.argsort(-cos, axis=1)[:, :9])
    np.testing.assert_allclose(distances, 1 - np.take_along_axis(cos, indices, axis=1), atol=1e-14)
    ray = np.array([[1.0, 1.0], [4.0, 4.0], [1.0, 0.0], [-3.0, -3.0], [1e200, 1e200]])
    distances, indices = nearest_neighbors(ray, 4, metric="cosine")
    assert indices[0].tolist() == [1, 4, 2, 3]
    np.testing.assert_allclose(distances[0], [0, 0, 1 - 0.5**0.5, 2], atol=1e-15)
    assert distances[0, 0] == 0


def test_by_hand_with_ties() -> None:
    X = np.array([[0.0], [2.0], [-2.0], [2.0]])
    distances, indices = nearest_neighbors(X, 3)
    assert indices.tolist() == [[1, 2, 3], [3, 0, 2], [0, 1, 3], [1, 0, 2]]
    assert distances.tolist() == [[2, 2, 2], [0, 2, 4], [2, 4, 4], [0, 2, 4]]
    distances, indices = nearest_neighbors(X, 4, queries=X[:1])
    assert indices.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_for_tensors_and_arrays_for_arrays(dtype: torch.dtype) -> None:
    X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    distances, indices = nearest_neighbors(X.requires_grad_(), 2)
    assert (distances.dtype, indices.dtype) == (torch.float64, torch.int64)
    as_array = X.detach().double().numpy()
    expected = nearest_neighbors(as_array, 2)
    assert isinstance(expected[0], np.ndarray)
    np.testing.assert_array_equal(indices.numpy(), expected[1])
    np.testing.assert_array_equal(distances.numpy(), expected[0])
    np.testing.assert_array_equal(nearest_neighbors(X, 3, as_array)[1][:, 1:], expected[1])


ROWS = np.random.default_rng(0).standard_normal((6, 2))
NAN = ROWS.copy()
NAN[3, 0] = -np.inf
ZERO = ROWS.copy()
ZERO[2] = 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((ROWS, 6), r"k must be at most 5 for 6 embeddings \(an image is not its own neighbor\), got 6\. Lower k"),
        ((ROWS[:1], 1), r"k must be at most 0 for 1 embeddings"),
        ((ROWS, 7, ROWS), r"k must be at most 6 for 6 embeddings, got 7"),
        ((ROWS, 0), r"k must be a whole number >= 1, got 0"),
        ((ROWS, 1.0), r"k must be a whole number >= 1, got 1\.0"),
        ((ROWS, 1, ROWS[:, :1]), r"queries must have the same dimension as the embeddings, 2, got 1\. Embed both the same way"),
        ((ROWS, 1, ROWS[:0]), r"embeddings must have shape \(m, d\) with m, d >= 1, got \(0, 2\)"),
        ((NAN, 1), r"embeddings must be finite, but row 3 holds -inf \(first of 1 such rows\)"),
        ((ROWS, 1, NAN), r"queries must be finite, but row 3 is not"),
        ((NAN, 1, None, "cosine"), r"embeddings must be finite, but row 3 holds -inf"),
        (
            (ZERO, 1, None, "cosine"),
            r"embeddings must be nonzero for metric='cosine', but row 2 is zero \(first of 1 such rows\)\. Drop it, or",
        ),
        ((ROWS, 1, ZERO, "cosine"), r"queries must be nonzero for metric='cosine', but row 2 is"),
        ((ROWS, 1, None, "euclid"), r"metric must be one of cosine, euclidean, got 'euclid'\. Did you mean 'euclidean'\?"),
    ],
)
def test_bad_input(arguments, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=text) as caught:
        nearest_neighbors(*arguments)
    assert "\n" not in str(caught.value)

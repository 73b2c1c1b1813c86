import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.cluster import KMeans as ReferenceKMeans

from liftedstruct.clustering import kmeans, nmi


def blobs(
    classes: int, images: int, d: int = 4, spread: float = 0.1, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), images)
    return 3 * rng.normal(size=(classes, d))[y] + spread * rng.normal(size=(len(y), d)), y


def test_finds_clusters_that_are_far_apart() -> None:
    X, y = blobs(5, 30)
    found = kmeans(X, 5)
    assert nmi(y, found.labels) == 1.0
    np.testing.assert_allclose(found.centers[found.labels[::30]], [X[y == k].mean(axis=0) for k in range(5)], rtol=1e-12)
    assert found.inertia == pytest.approx(np.square(X - found.centers[found.labels]).sum(), rel=1e-12)


def test_as_good_as_a_reference_with_as_many_starts() -> None:
    X, _ = blobs(30, 12, d=8, spread=1.5)
    reference = ReferenceKMeans(30, init="random", n_init=5, max_iter=25, random_state=0).fit(X)
    assert kmeans(X, 30).inertia < 1.02 * reference.inertia_


def test_more_starts_are_never_worse() -> None:
    X, _ = blobs(30, 12, d=8, spread=1.0)
    inertias = [kmeans(X, 30, n_init=n_init).inertia for n_init in (1, 3, 10)]
    assert inertias[0] >= inertias[1] >= inertias[2]
    assert inertias[0] > inertias[2]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 3), st.integers(2, 5), st.integers(0, 10**9), st.data())
def test_exactly_k_clusters_also_of_duplicates(n: int, d: int, values: int, seed: int, data: st.DataObject) -> None:
    X = np.random.default_rng(seed).integers(values, size=(n, d)).astype(np.float32)
    distinct, copies = np.unique(X, axis=0, return_inverse=True)
    K = data.draw(st.integers(1, len(distinct)))
    found = kmeans(X, K, seed=seed)
    assert np.bincount(found.labels, minlength=K).min() >= 1
    assert len(found.centers) == K
    for k in range(K):
        np.testing.assert_allclose(found.centers[k], X[found.labels == k].mean(axis=0, dtype=np.float64), rtol=0, atol=1e-12)
    if len(distinct) == K:
        assert nmi(copies, found.labels) == 1.0
    if len(distinct) < n:
        with pytest.raises(ValueError, match=rf"at most the number of distinct embeddings, {len(distinct)}, got"):
            kmeans(X, len(distinct) + 1)


def test_the_seed_decides() -> None:
    X, _ = blobs(20, 10, spread=2.0)
    first = kmeans(X, 20, seed=4)
    np.testing.assert_array_equal(first.labels, kmeans(X, 20, seed=4).labels)
    assert len({kmeans(X, 20, seed=seed, n_init=1).inertia for seed in range(5)}) > 1


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 1e7), (2.0**500, 0.0), (2.0**-400, 0.0), (2.0**300, 2.0**310)])
def test_far_away_or_far_too_large_or_small(scale: float, shift: float) -> None:
    X, _ = blobs(6, 10, spread=0.5)
    X = np.round(X * 2**20) / 2**20  # so that the shift is exact
    plain, moved = kmeans(X, 6), kmeans(X * scale + shift, 6)
    np.testing.assert_array_equal(plain.labels, moved.labels)
    np.testing.assert_allclose(moved.centers, plain.centers * scale + shift, rtol=1e-12)
    assert moved.inertia == pytest.approx(plain.inertia * scale**2, rel=1e-6)


def test_any_float_type_and_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    X, _ = blobs(4, 10)
    expected = kmeans(X, 4).labels
    tensor = torch.from_numpy(X).requires_grad_()
    for same in (X.astype(np.float16), X.astype(np.float32), tensor, tensor.bfloat16()):
        np.testing.assert_array_equal(kmeans(same, 4).labels, expected)
    assert len(np.unique(kmeans(X, 40).labels)) == 40  # one cluster per point
    assert kmeans(X, 1).labels.tolist() == [0] * 40
    assert capfd.readouterr() == ("", "")


def test_leaves_the_threads_of_faiss_as_they_were() -> None:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        kmeans(blobs(4, 10)[0], 4)
        assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(before)


NAN = np.zeros((5, 2))
NAN[3, 1] = np.nan


@pytest.mark.parametrize(
    ("X", "arguments", "text"),
    [
        (
            np.eye(3),
            {"n_clusters": 4},
            r"n_clusters must be at most the number of distinct embeddings, 3, got 4\. Pass 3 or fewer\.",
        ),
        (np.eye(3), {"n_clusters": 0}, r"n_clusters must be a whole number >= 1, got 0"),
        (np.eye(3), {"n_clusters": 1.0}, r"n_clusters must be a whole number >= 1, got 1\.0"),
        (np.eye(3), {"n_clusters": 2, "n_init": 0}, r"n_init must be a whole number >= 1, got 0"),
        (np.eye(3), {"n_clusters": 2, "max_iter": 0}, r"max_iter must be a whole number >= 1, got 0"),
        (np.eye(3), {"n_clusters": 2, "seed": -1}, r"seed must be a whole number >= 0, got -1"),
        (NAN, {"n_clusters": 2}, r"embeddings must be finite, but row 3 holds nan"),
        (np.ones((9, 2)), {"n_clusters": 2}, r"distinct embeddings, 1, got 2\. Pass 1 or fewer\."),
        (np.ones((0, 2)), {"n_clusters": 1}, r"embeddings must have shape \(m, d\) with m, d >= 1"),
        (np.ones((3, 2), int), {"n_clusters": 1}, r"embeddings must be of a float type, got int64"),
    ],
)
def test_bad_input(X: NDArray[np.float64], arguments: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        kmeans(X, **arguments)
    assert "\n" not in str(caught.value)

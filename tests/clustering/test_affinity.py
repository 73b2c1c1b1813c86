import itertools
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.cluster import AffinityPropagation as Peer

from liftedstruct.clustering import AffinityPropagation, affinity_propagation, preference_search
from liftedstruct.clustering.similarities import all_pairs, median_similarity

Matrix = NDArray[np.float64]


def blobs(classes: int, images: int, d: int, spread: float, seed: int) -> Matrix:
    rng = np.random.default_rng(seed)
    return np.repeat(rng.normal(size=(classes, d)), images, axis=0) + spread * rng.normal(size=(classes * images, d))


def net_similarity(X: Matrix, exemplars: NDArray[np.int64], preference: float) -> float:
    """Compute the net similarity from the definition, with every point at its nearest exemplar."""
    S = -np.square(X[:, None] - X[None, exemplars]).sum(axis=-1)
    S = S.max(axis=1)
    S[exemplars] = preference
    return float(S.sum())


def consistent(found: AffinityPropagation, X: Matrix) -> None:
    C = found.n_clusters
    assert sorted(set(found.labels)) == list(range(C))
    assert (np.diff(found.exemplars) > 0).all()
    assert (found.labels[found.exemplars] == np.arange(C)).all()
    chosen = -np.square(X - X[found.exemplars[found.labels]]).sum(axis=1)
    chosen[found.exemplars] = found.preference
    assert found.net_similarity == pytest.approx(chosen.sum(), rel=1e-5, abs=1e-6)


SETS = {
    "blobs, tight": blobs(12, 15, 4, 0.1, 0),
    "blobs, loose": blobs(12, 15, 4, 0.5, 1),
    "blobs, one heap": blobs(1, 200, 2, 1.0, 2),
    "many small": blobs(60, 3, 8, 0.2, 3),
    "few large": blobs(3, 80, 16, 0.4, 4),
    "high dimensions": blobs(20, 10, 128, 1.0, 5),
    "a line": np.linspace(0, 10, 150)[:, None] ** 1.5,
    "uniform": np.random.default_rng(6).uniform(size=(250, 2)),
    "long tails": np.random.default_rng(7).standard_t(2, size=(200, 3)),
    "far away": blobs(10, 20, 3, 0.3, 8) + 1000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("share", [0.2, 1.0, 8.0])
def test_net_similarity_is_at_least_scikit_learns(name: str, share: float) -> None:
    X = SETS[name]
    preference = -share * float(np.median(np.square(X[:, None] - X[None]).sum(axis=-1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = Peer(preference=preference, damping=0.9, max_iter=1000, random_state=0).fit(X)
    found = affinity_propagation(X, preference=preference, damping=0.9)
    consistent(found, X)
    assert found.converged
    assert found.net_similarity == pytest.approx(net_similarity(X, found.exemplars, preference), rel=1e-5)
    theirs = net_similarity(X, peer.cluster_centers_indices_, preference) if len(peer.cluster_centers_indices_) else -np.inf
    assert found.net_similarity >= theirs - 1e-3 * abs(theirs)


@pytest.mark.slow
def test_isolated_pairs_reach_the_optimum() -> None:
    X = 100.0 * np.repeat(np.arange(40), 2)[:, None] + np.tile([0.0, 1.0], 40)[:, None]
    found = affinity_propagation(X, preference=-2.0)
    assert found.n_clusters == 40
    assert found.net_similarity == pytest.approx(-120)  # each pair: one preference and one distance of 1
    assert (found.labels == np.repeat(np.arange(40), 2)).all()
    graph = affinity_propagation(X, preference=-2.0, neighbors=3)
    assert graph.net_similarity == pytest.approx(-120)


@pytest.mark.parametrize("copies", [2, 3, 10])
@pytest.mark.parametrize("neighbors", [None, 12])
def test_duplicates_reach_the_optimum(copies: int, neighbors: int | None) -> None:
    X = np.repeat(10.0 * np.arange(8), copies)[:, None]
    found = affinity_propagation(X, preference=-1.0, neighbors=neighbors)
    assert found.net_similarity == pytest.approx(-8)
    assert (found.labels == np.repeat(np.arange(8), copies)).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.3, 1.0, 3.0]), tied=st.booleans())
def test_close_to_the_optimum_of_every_set_of_exemplars(seed: int, share: float, tied: bool) -> None:
    X = np.random.default_rng(seed).normal(size=(9, 2))
    X = np.round(2 * X) if tied else X
    S = -np.square(X[:, None] - X[None]).sum(axis=-1)
    preference = share * float(np.median(S)) - 0.1
    subsets = itertools.chain.from_iterable(itertools.combinations(range(9), size) for size in range(1, 10))
    optimum = max(net_similarity(X, np.array(subset), preference) for subset in subsets)
    found = affinity_propagation(X, preference=preference)
    consistent(found, X)
    assert found.net_similarity <= optimum + 1e-6 * abs(optimum)
    assert found.net_similarity >= 1.3 * optimum  # not an exhaustive search; most results are optimal, see below


def test_most_small_problems_are_solved_to_the_optimum() -> None:
    solved = 0
    for seed in range(30):
        X = np.random.default_rng(seed).normal(size=(8, 2))
        preference = -float(np.median(np.square(X[:, None] - X[None]).sum(axis=-1)))
        subsets = itertools.chain.from_iterable(itertools.combinations(range(8), size) for size in range(1, 9))
        optimum = max(net_similarity(X, np.array(subset), preference) for subset in subsets)
        solved += affinity_propagation(X, preference=preference).net_similarity >= optimum * (1 + 1e-6)
    assert solved >= 24


@pytest.mark.parametrize("K", [2, 5, 17, 40])
@pytest.mark.parametrize("neighbors", [None, 60])
def test_exactly_k_clusters_where_there_are_k(K: int, neighbors: int | None) -> None:
    X = blobs(K, 12, 6, 0.03, K)
    found = affinity_propagation(X, n_clusters=K, neighbors=neighbors)
    assert found.n_clusters == found.requested == K
    assert (found.labels == np.repeat(np.arange(K), 12)[found.exemplars].argsort().argsort()[found.labels]).all()
    assert len(set(zip(found.labels, np.repeat(np.arange(K), 12), strict=True))) == K
    consistent(found, X)


@pytest.mark.parametrize("K", [1, 2, 7, 50, 150, 199, 200])
def test_other_numbers_are_reached_by_the_preference_alone(K: int) -> None:
    X = SETS["blobs, one heap"]
    found = affinity_propagation(X, n_clusters=K)
    assert abs(found.n_clusters - K) <= 0.01 * K
    consistent(found, X)
    if K < 200:
        assert found.preference in [preference for preference, _ in found.history]
        alone = affinity_propagation(X, preference=found.preference)
        assert found.net_similarity >= alone.net_similarity or alone.n_clusters != K


def test_a_number_that_is_jumped_over_is_said() -> None:
    X = np.repeat(np.array([0.0, 50.0]), 10)[:, None]
    with pytest.warns(UserWarning, match="gives 5 clusters; the nearest number is 2") as said:
        found = affinity_propagation(X, n_clusters=5)
    assert said[0].filename == __file__
    assert found.requested == 5


def test_graph_and_all_pairs_agree_where_the_graph_is_wide() -> None:
    X = blobs(10, 20, 4, 0.2, 3)
    dense = affinity_propagation(X, n_clusters=10)
    graph = affinity_propagation(X, n_clusters=10, neighbors=100)
    assert (dense.neighbors, graph.neighbors) == (None, 100)
    assert (dense.labels == graph.labels).all()
    assert affinity_propagation(X, n_clusters=10, neighbors=500).neighbors is None


def test_too_little_memory_takes_the_graph() -> None:
    X = blobs(10, 30, 4, 0.1, 3)
    found = affinity_propagation(X, n_clusters=10, max_bytes=100_000)
    assert found.neighbors == 150  # 5 n / K
    assert found.n_clusters == 10
    assert affinity_propagation(X, n_clusters=100, max_bytes=100_000).neighbors == 50


@pytest.mark.parametrize("neighbors", [3, 12])
def test_a_number_out_of_reach_of_the_graph_names_the_neighbours_needed(neighbors: int) -> None:
    X = blobs(5, 40, 3, 0.05, 0)
    with pytest.raises(ValueError, match=f"5 is not with {neighbors} neighbors: .* Pass neighbors=199"):
        affinity_propagation(X, n_clusters=5, neighbors=neighbors)
    assert affinity_propagation(X, n_clusters=5, neighbors=199).n_clusters == 5


def test_the_same_on_one_thread_and_on_all() -> None:
    X = np.random.default_rng(0).uniform(size=(600, 2))  # enough for several threads
    threads = numba.get_num_threads()
    several = affinity_propagation(X, n_clusters=30)
    try:
        numba.set_num_threads(1)
        one = affinity_propagation(X, n_clusters=30)
    finally:
        numba.set_num_threads(threads)
    assert (one.labels == several.labels).all()
    assert (one.preference, one.net_similarity, one.history) == (several.preference, several.net_similarity, several.history)


def test_any_float_type_array_or_tensor() -> None:
    X = blobs(6, 10, 4, 0.05, 0).astype(np.float16)
    expected = affinity_propagation(X.astype(np.float64), n_clusters=6).labels
    for given_as in (X, X.astype(np.float32), torch.from_numpy(X), torch.from_numpy(X).bfloat16(), X[::-1][::-1]):
        assert (affinity_propagation(given_as, n_clusters=6).labels == expected).all()


@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_one_heap_and_an_outlier(spread: float) -> None:
    X = np.concatenate((spread * np.random.default_rng(0).normal(size=(9, 1)), [[10.0]]))
    for preference in (-1.0, -40.0):  # the outlier becomes an exemplar long before the cluster has one
        assert affinity_propagation(X, preference=preference).labels.tolist() == [0] * 9 + [1]
    assert affinity_propagation(X, n_clusters=2).labels.tolist() == [0] * 9 + [1]


def test_mostly_duplicates() -> None:
    X = np.concatenate((np.zeros(95), [10.0, 20.0, 30.0, 40.0, 50.0]))[:, None]
    for K in (1, 2, 3, 6):
        found = affinity_propagation(X, n_clusters=K)
        assert found.n_clusters == K
        assert len(set(found.labels[:95])) == 1


@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1e-3, 1e15, 1e100])
def test_the_scale_of_the_embeddings_changes_nothing(scale: float) -> None:
    X = blobs(5, 8, 3, 0.1, 0)
    expected, found = affinity_propagation(X, n_clusters=5), affinity_propagation(scale * X, n_clusters=5)
    assert (found.labels == expected.labels).all()
    assert found.preference == pytest.approx(scale**2 * expected.preference)
    assert found.net_similarity == pytest.approx(scale**2 * expected.net_similarity)
    assert (affinity_propagation(scale * X, preference=found.preference).labels == expected.labels).all()


def test_near_duplicates_keep_their_digits() -> None:
    near = np.array([0, 0.001, 0.002, 0.5, 0.501, 0.502])
    X = np.concatenate((1e6 + near, -1e6 - near))[:, None]
    for neighbors in (None, 5):
        found = affinity_propagation(X, preference=-1e-5, neighbors=neighbors)
        assert found.net_similarity == pytest.approx(-4.8e-5, rel=1e-4)


def test_all_pairs_that_would_not_fit_and_no_graph_that_helps() -> None:
    with pytest.raises(ValueError, match=r"200 points in 5 clusters need .* Raise max_bytes"):
        affinity_propagation(np.random.default_rng(0).normal(size=(200, 2)), n_clusters=5, max_bytes=1000)


def test_degenerate_inputs() -> None:
    one = affinity_propagation(np.array([[3.0, 4.0]]))
    assert (one.labels.tolist(), one.exemplars.tolist()) == ([0], [0])
    two = np.array([[0.0], [1.0]])
    assert affinity_propagation(two, n_clusters=1).labels.tolist() == [0, 0]
    assert affinity_propagation(two, n_clusters=2).labels.tolist() == [0, 1]
    assert affinity_propagation(two, preference=-0.1).n_clusters == 2
    assert affinity_propagation(two, preference=-5).n_clusters == 1
    same = np.ones((20, 3))
    assert affinity_propagation(same).n_clusters == 1
    assert affinity_propagation(same, n_clusters=1).n_clusters == 1
    assert affinity_propagation(same, n_clusters=20).n_clusters == 20
    assert affinity_propagation(same, preference=-3.0).net_similarity == pytest.approx(-3)
    assert (
        affinity_propagation(blobs(4, 5, 2, 0.1, 0), preference=1.0).n_clusters == 20
    )  # a positive preference makes every point an exemplar


def test_oscillation_is_damped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preference_search, "TIE_BREAK", 0.0)  # with it, none of a hundred such datasets oscillates
    X = torch.from_numpy(np.round(1.5 * np.random.default_rng(2).normal(size=(12, 2))))
    stubborn = preference_search.PreferenceSearch(all_pairs(X - X.mean(dim=0)), damping=0.5, max_iter=1000, convergence_iter=10)
    stubborn.step(0.3 * median_similarity(X))
    assert stubborn.messages is not None
    assert stubborn.messages.damping >= 0.75


def test_messages_that_do_not_come_to_rest_are_told() -> None:
    found = affinity_propagation(SETS["uniform"], preference=-0.1, max_iter=5)
    assert not found.converged
    consistent(found, SETS["uniform"])


def test_progress_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    affinity_propagation(SETS["blobs, tight"], n_clusters=12, progress=True)
    assert "affinity propagation, step 1: preference -" in capsys.readouterr().err
    affinity_propagation(SETS["blobs, tight"], n_clusters=12)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_clusters": 7}, "n_clusters must be at most the number of points, got 7 for 6 points"),
        ({"n_clusters": 0}, "n_clusters must be a whole number >= 1, got 0"),
        ({"n_clusters": 2.5}, "n_clusters must be a whole number >= 1, got 2.5"),
        ({"n_clusters": 2, "preference": -1.0}, "n_clusters and preference must not be given together, got both"),
        ({"preference": np.nan}, "preference must be finite, got nan"),
        ({"preference": "low"}, "preference must be finite, got low"),
        ({"damping": "much"}, "damping must be at least 0.5 and less than 1, got much"),
        ({"neighbors": 0}, "neighbors must be a whole number >= 1, got 0"),
        ({"damping": 0.3}, "damping must be at least 0.5 and less than 1, got 0.3"),
        ({"damping": 1.0}, "damping must be at least 0.5 and less than 1, got 1.0"),
        ({"max_iter": 0}, "max_iter must be a whole number >= 1"),
    ],
)
def test_bad_settings(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        affinity_propagation(np.random.default_rng(0).normal(size=(6, 2)), **options)  # type: ignore[arg-type]


def test_bad_embeddings() -> None:
    X = np.ones((5, 2))
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match="embeddings must be finite, but row 3 holds nan"):
        affinity_propagation(X)
    with pytest.raises(ValueError, match="embeddings must have shape"):
        affinity_propagation(np.ones((0, 2)))


@pytest.mark.slow
def test_compiled_code_is_kept_for_the_next_process(tmp_path: Path) -> None:
    code = """
import numpy as np
from liftedstruct.clustering import affinity_propagation, exemplars, messages
affinity_propagation(np.random.default_rng(0).normal(size=(20, 2)), n_clusters=3, neighbors=15)
for kernel in (messages._sweep, exemplars._two_nearest, exemplars._exchange_gains):
    stats = kernel.__wrapped__.stats
    print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment).stdout.split()
        for _ in range(2)
    ]
    assert runs == [["0", "1"] * 3, ["1", "0"] * 3]


@pytest.mark.slow
def test_from_two_threads_at_once_under_the_threading_layer_of_macos() -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
import numba, numpy as np
from liftedstruct.clustering import affinity_propagation
X = np.random.default_rng(0).normal(size=(600, 4))
alone = affinity_propagation(X, n_clusters=20).labels
with ThreadPoolExecutor(2) as pool:
    found = list(pool.map(lambda _: affinity_propagation(X, n_clusters=20).labels, range(4)))
assert all((labels == alone).all() for labels in found)
assert numba.threading_layer() == "workqueue"
"""
    environment = {**os.environ, "NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)

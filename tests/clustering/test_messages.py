import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from liftedstruct.clustering.messages import FAR, RECENT, Messages, Similarities
from liftedstruct.clustering.similarities import all_pairs, guess_preference, median_similarity, neighbor_graph

Matrix = NDArray[np.float64]


def plain(S: Matrix, p: NDArray[np.float32], damping: float, iterations: int) -> tuple[Matrix, Matrix]:
    """Run Frey and Dueck's updates as written in the paper, with all matrices stored in float64."""
    n = len(S)
    everyone = np.arange(n)
    S = S.copy()
    S[everyone, everyone] = p
    A, R = np.zeros((n, n)), np.zeros((n, n))
    for _ in range(iterations):
        for_others = np.empty((n, n))
        Y = A + S
        for k in range(n):
            for_others[:, k] = np.delete(Y, k, axis=1).max(axis=1)
        R = damping * R + (1 - damping) * (S - for_others)
        support = np.maximum(R, 0)
        support[everyone, everyone] = 0
        new = np.minimum(0, (np.diag(R) + support.sum(axis=0))[None, :] - support)
        new[everyone, everyone] = support.sum(axis=0)
        A = damping * A + (1 - damping) * new
    return R, A


def as_matrix(similarities: Similarities, values: NDArray[np.float32]) -> Matrix:
    """Return values stored in the layout of the similarities as an (n, n) matrix, with FAR where there is no pair."""
    n = similarities.n
    matrix = np.full((n, n), float(FAR))
    for i in range(n):
        row = slice(similarities.start[i], similarities.start[i + 1])
        real = similarities.values[row] > FAR
        columns = np.arange(len(real)) if len(similarities.columns) == 0 else similarities.columns[row]
        matrix[i, columns[real]] = values[row][real]
    return matrix


@pytest.mark.parametrize("neighbors", [None, 60, 9])
@pytest.mark.parametrize("damping", [0.5, 0.9])
@pytest.mark.parametrize("share", [0.05, 1.0, 20.0])
def test_messages_are_those_of_the_plain_updates(neighbors: int | None, damping: float, share: float) -> None:
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(97, 3)))
    similarities = all_pairs(X) if neighbors is None else neighbor_graph(X, neighbors)
    S = as_matrix(similarities, similarities.values)
    p = (share * median_similarity(X) * rng.uniform(0.999, 1, 97)).astype(np.float32)
    messages = Messages(similarities, damping, p)
    done = 0
    for iterations in (1, 2, 7, 40):
        while done < iterations:
            exemplars = messages.iterate()
            done += 1
        R, A = plain(S, p, damping, iterations)
        scale = np.abs(R[R > -1e20]).max()
        assert np.allclose(messages.r_own, np.diag(R), atol=1e-5 * scale)
        assert np.allclose(messages.a_own, np.diag(A), atol=3e-5 * scale)
        decided = np.abs(np.diag(R) + np.diag(A)) > 1e-4 * scale
        assert (exemplars == (np.diag(R) + np.diag(A) > 0))[decided].all()
    assert messages.e_count.max() < RECENT


def test_a_change_of_preferences_goes_on_from_the_messages() -> None:
    rng = np.random.default_rng(1)
    X = torch.from_numpy(10 * np.repeat(rng.normal(size=(6, 2)), 10, axis=0) + rng.normal(size=(60, 2)))
    p = np.full(60, -20, np.float32) * rng.uniform(0.999, 1, 60).astype(np.float32)
    straight, turned = Messages(all_pairs(X), 0.8, p), Messages(all_pairs(X), 0.8, p)
    for step in range(100):
        if step % 10 == 0:
            turned.change_preferences(p.copy())  # the same preferences: nothing changes
        assert (straight.iterate() == turned.iterate()).all()
    assert (straight.r_own == turned.r_own).all()
    turned.change_preferences((100 * p).astype(np.float32))
    turned.change_preferences((3 * p).astype(np.float32))
    assert np.allclose(turned.r_own, straight.r_own + 2 * p, rtol=1e-3)
    assert sum(turned.iterate().sum() == 6 for _ in range(100)) > 50  # the number of clusters


@pytest.mark.parametrize("n", [2, 31, 32, 33, 700])
def test_all_pairs_are_squared_distances_also_far_from_the_origin(n: int) -> None:
    X = torch.from_numpy(np.random.default_rng(2).normal(size=(n, 4)))
    X[1] = X[0] + 1e-4
    similarities = all_pairs(X - X.mean(dim=0))
    S = as_matrix(similarities, similarities.values)
    D2 = np.square(X.numpy()[:, None] - X.numpy()[None]).sum(axis=-1)
    apart = ~np.eye(n, dtype=bool)
    assert np.allclose(-S[apart], D2[apart], rtol=1e-6, atol=1e-12)
    assert (np.diag(S) == FAR).all()
    assert (similarities.degrees == n - 1).all()


def test_the_graph_has_the_nearest_neighbors_both_ways() -> None:
    X = np.random.default_rng(3).normal(size=(80, 2))
    similarities = neighbor_graph(torch.from_numpy(X), 5)
    S = as_matrix(similarities, similarities.values)
    D2 = np.square(X[:, None] - X[None]).sum(axis=-1)
    near = np.zeros((80, 80), bool)
    near[np.arange(80)[:, None], D2.argsort(axis=1)[:, 1:6]] = True
    assert ((near | near.T) == (S > FAR)).all()
    assert np.allclose(-S[S > FAR], D2[S > FAR], rtol=1e-6)
    assert (similarities.degrees == (near | near.T).sum(axis=1)).all()


def test_median_is_exact_for_few_points_and_close_for_many() -> None:
    X = np.random.default_rng(4).normal(size=(3000, 3))
    for n, error in ((2, 0), (100, 0), (3000, 0.03)):
        D2 = np.square(X[:n, None] - X[None, :n]).sum(axis=-1)[np.triu_indices(n, 1)]
        assert median_similarity(torch.from_numpy(X[:n])) == pytest.approx(-np.median(D2), rel=error or 0.02 / n)


def test_the_guess_is_of_the_right_size() -> None:
    rng = np.random.default_rng(5)
    X = torch.from_numpy(rng.normal(size=(50, 8))[np.arange(1000) % 50] * 5 + 0.1 * rng.normal(size=(1000, 8)))
    assert guess_preference(X, 20) < 20 * guess_preference(X, 300) < 0
    assert guess_preference(torch.zeros(10, 2), 3) <= 0

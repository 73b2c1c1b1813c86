import numpy as np
import pytest
import torch

from liftedstruct.clustering import exemplars as module
from liftedstruct.clustering.exemplars import refine_exemplars
from liftedstruct.clustering.similarities import all_pairs, neighbor_graph


@pytest.mark.parametrize("neighbors", [None, 12])
@pytest.mark.parametrize("seed", range(5))
def test_gain_of_an_exchange_is_what_choosing_anew_gives(neighbors: int | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = torch.from_numpy(rng.normal(size=(60, 3)))
    similarities = all_pairs(X) if neighbors is None else neighbor_graph(X, neighbors)
    some = np.zeros(60, bool)
    some[rng.choice(60, 8, replace=False)] = True
    before = module._choose(similarities, module._covered(similarities, some), -1.0)
    best = -np.inf
    for m in np.flatnonzero(before.chosen != np.arange(60)):
        other = np.sort(np.where(before.exemplars == before.chosen[m], m, before.exemplars))
        nearest = module._nearest(similarities, other)[0]
        if (np.delete(nearest, other) >= 0).all():
            best = max(best, module._choose(similarities, other, -1.0).net_similarity)
    only, everywhere = (module._choose(similarities, each, -1.0) for each in module._exchanged(similarities, before))
    assert max(only.net_similarity, before.net_similarity) == pytest.approx(max(best, before.net_similarity), rel=1e-6)
    assert len(only.exemplars) == len(everywhere.exemplars) == len(before.exemplars)


@pytest.mark.parametrize("neighbors", [None, 15])
def test_refining_only_ever_raises_the_net_similarity_and_adds_no_exemplar(neighbors: int | None) -> None:
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(100, 2)))
    similarities = all_pairs(X) if neighbors is None else neighbor_graph(X, neighbors)
    for size in (1, 5, 30, 100):
        some = np.zeros(100, bool)
        some[rng.choice(100, size, replace=False)] = True
        covered = module._covered(similarities, some)
        for preference in (-0.01, -1.0, -50.0):
            settled = refine_exemplars(similarities, some, preference)
            assert settled.net_similarity >= module._choose(similarities, covered, preference).net_similarity
            assert len(settled.exemplars) <= len(covered)
            again = np.zeros(100, bool)
            again[settled.exemplars] = True
            assert (refine_exemplars(similarities, again, preference).exemplars == settled.exemplars).all()


def test_a_needless_exemplar_is_removed() -> None:
    X = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    settled = refine_exemplars(all_pairs(X), np.ones(4, bool), -5.0)
    assert settled.chosen[0] == settled.chosen[1] != settled.chosen[2] == settled.chosen[3]
    assert settled.net_similarity == pytest.approx(-12)
    assert refine_exemplars(all_pairs(X), np.ones(4, bool), -0.5).exemplars.tolist() == [0, 1, 2, 3]


def test_a_point_of_a_graph_without_an_exemplar_in_reach_becomes_one() -> None:
    X = torch.tensor([[0.0], [1.0], [2.0], [50.0], [51.0], [52.0]])
    only_left = np.array([True, False, False, False, False, False])
    settled = refine_exemplars(neighbor_graph(X, 2), only_left, -3.0)
    assert settled.exemplars.tolist() == [1, 4]
    assert settled.chosen.tolist() == [1, 1, 1, 4, 4, 4]

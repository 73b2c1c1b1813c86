import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from liftedstruct.distances import SortedBatch, negative_mask, pairwise_distances, positive_mask


def by_difference(X: torch.Tensor) -> torch.Tensor:
    D: torch.Tensor = (X.double()[:, None] - X.double()[None, :]).norm(dim=2)
    return D


def all_distances(X: torch.Tensor) -> torch.Tensor:
    batch = SortedBatch.of(X, torch.arange(len(X)))
    D = batch.products(slice(0, len(X)), out=X.new_empty(len(X), len(X)))
    batch.distances(D, slice(0, len(X)))
    return D


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.floats(-100, 100, width=32)))
@settings(deadline=None)
def test_equal_to_the_difference_of_the_vectors(points: np.ndarray) -> None:
    X = torch.from_numpy(points)
    D, expected = pairwise_distances(X), by_difference(X)
    torch.testing.assert_close(D.double(), expected, rtol=1e-3, atol=1e-18)
    assert (D[expected.float() == 0] == 0).all()
    fast = all_distances(X)
    assert fast.diagonal().isinf().all()
    torch.testing.assert_close(fast.fill_diagonal_(0).double(), expected, rtol=1e-3, atol=1e-18)


@pytest.mark.parametrize("offset", [0.0, 100.0, 10_000.0])
def test_accurate_far_from_the_origin(offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(64, 128, generator=generator) * 0.01 + offset
    torch.testing.assert_close(pairwise_distances(X).double(), by_difference(X), rtol=1e-4, atol=0)


def test_accurate_in_two_tight_clusters_far_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(40, 64, generator=generator) * 1e-3
    X[20:] += 50
    torch.testing.assert_close(pairwise_distances(X).double(), by_difference(X), rtol=1e-5, atol=0)
    fast = all_distances(X).fill_diagonal_(0)
    torch.testing.assert_close(fast.double(), by_difference(X), rtol=1e-5, atol=0)


def test_gradient_is_zero_where_the_distance_is() -> None:
    X = torch.tensor([[1.0, 2.0], [1.0, 2.0], [4.0, 6.0]], requires_grad=True)
    D = pairwise_distances(X)
    (gradient,) = torch.autograd.grad(D[0, 1] + D[0, 2], X)
    assert D[0, 1] == 0
    torch.testing.assert_close(gradient, torch.tensor([[-0.6, -0.8], [0.0, 0.0], [0.6, 0.8]]))


def test_gradcheck_to_second_order() -> None:
    X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(pairwise_distances, X)
    assert torch.autograd.gradgradcheck(pairwise_distances, X)


def test_masks() -> None:
    y = torch.tensor([3, 1, 3])
    assert positive_mask(y).tolist() == [[False, False, True], [False, False, False], [True, False, False]]
    assert negative_mask(y).tolist() == [[False, True, False], [True, False, True], [False, True, False]]


@pytest.mark.parametrize("max_bytes", [1, 5000, 1 << 30])
def test_sorted_batch_knows_every_positive(max_bytes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(7, (50,), generator=generator)
    batch = SortedBatch.of(torch.randn(50, 3, generator=generator), y)
    expected = positive_mask(y)
    assert batch.n_pairs == int(expected.sum()) // 2
    assert batch.n_classes == 7
    found = torch.zeros(50, 50, dtype=torch.bool)
    covered = []
    for rows in batch.blocks(max_bytes):
        cols, real = batch.positives(rows)
        own = torch.arange(rows.start, rows.stop)[:, None].expand_as(cols)
        found[batch.order[own[real]], batch.order[cols[real]]] = True
        covered += list(range(rows.start, rows.stop))
    assert torch.equal(found, expected)
    assert covered == list(range(50))
    assert torch.equal(batch.in_callers_order(batch.order[:, None]).squeeze(1), torch.arange(50))

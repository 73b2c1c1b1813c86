import math

import pytest
import torch

from liftedstruct import inspect_batch, lifted_struct_loss


def example(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(24, 6, generator=generator, dtype=torch.float64), torch.randint(6, (24,), generator=generator)


def test_agrees_with_the_loss_and_its_gradient() -> None:
    X, y = example()
    seen = inspect_batch(X, y)
    X.requires_grad_()
    loss = lifted_struct_loss(X, y)
    (gradient,) = torch.autograd.grad(loss, X)
    assert seen.loss == pytest.approx(loss.item(), rel=1e-12)
    total = seen.pull**2 + seen.push**2 + 2 * seen.pull * seen.push * seen.opposition.nan_to_num()  # law of cosines
    torch.testing.assert_close(total.sqrt(), gradient.norm(dim=1))
    assert 0 < seen.pull_share < 1


def test_temperature_divides_the_embeddings() -> None:
    X, y = example()
    assert str(inspect_batch(X, y, temperature=0.5)) == str(inspect_batch(2 * X, y))


def test_weights_are_the_papers() -> None:
    """Equations 6 and 7 divided by equation 5: exp(alpha - D_ik) / exp(J_ij - D_ij)."""
    X, y = example()
    seen = inspect_batch(X, y, margin=0.5)
    D = torch.cdist(X, X)
    for number, (i, j) in enumerate(seen.pairs.tolist()):
        weights = seen.pair_weights(number)
        for side, a in enumerate((i, j)):
            expected = torch.where(y != y[a], (0.5 - D[a]).exp() / (seen.J[number] - D[i, j]).exp(), 0.0)
            torch.testing.assert_close(weights[side], expected)
        assert weights.sum().item() == pytest.approx(1)
    torch.testing.assert_close(seen.side_shares.sum(dim=1), torch.ones(len(seen.pairs), dtype=torch.float64))
    assert torch.equal(seen.active, seen.J > 0)


def test_distances_and_active_pairs() -> None:
    X = torch.tensor([[0.0, 0.0], [0.0, 1.0], [100.0, 0.0], [104.0, 0.0]])
    seen = inspect_batch(X, [0, 0, 1, 1])
    assert seen.positive_distance == pytest.approx(2.5)
    assert seen.negative_distance == pytest.approx(102.0, rel=1e-3)
    assert seen.active_share == 0
    assert math.isnan(seen.pull_share)
    assert inspect_batch(X, [0, 1, 0, 1]).active_share == 1


def test_signs_of_collapse() -> None:
    y = torch.arange(128) // 2
    collapsed = inspect_batch(torch.full((128, 16), 0.1), y)
    assert collapsed.loss == pytest.approx((1 + math.log(252)) ** 2 / 2, rel=1e-5)
    assert collapsed.loss == pytest.approx(collapsed.collapsed_loss, rel=1e-5)
    assert collapsed.effective_rank == 0
    assert collapsed.mean_norm == pytest.approx(0.4)
    assert collapsed.positive_distance == collapsed.negative_distance == 0
    generator = torch.Generator().manual_seed(0)
    line = torch.randn(128, 1, generator=generator) * torch.randn(1, 16, generator=generator) + 7
    assert inspect_batch(line, y).effective_rank == pytest.approx(1, abs=0.01)
    assert inspect_batch(torch.randn(128, 16, generator=generator), y).effective_rank > 14


def test_effective_negatives() -> None:
    X = torch.tensor([[0.0], [0.0], [9.0], [9.0], [9.0], [-9.0]])
    seen = inspect_batch(X, [0, 0, 1, 1, 1, 2])
    assert seen.effective_negatives[0].item() == pytest.approx(4)  # three at 9 and one at -9, all at the same distance
    assert seen.effective_negatives[5].item() == pytest.approx(2, abs=0.01)  # the two at 0 are nearer than the three at 9


@pytest.mark.parametrize("labels", [[0], [0, 1, 2], [4, 4, 4]])
def test_edges_are_finite_where_they_mean_something(labels: list[int]) -> None:
    seen = inspect_batch(torch.arange(2.0 * len(labels)).reshape(-1, 2).half(), labels)
    assert seen.loss == 0
    assert math.isfinite(seen.mean_norm)
    assert math.isfinite(seen.effective_rank)
    assert (seen.pull == 0).all()
    assert (seen.push == 0).all()
    assert "effective rank" in str(seen)


def test_reads_as_a_table() -> None:
    lines = str(inspect_batch(*example())).splitlines()
    assert len(lines) == 8
    assert lines[1].startswith("active pairs           100.0%  of 43 ")

import warnings
from typing import get_args

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import LpDistance
from torch import Tensor

from liftedstruct import ContrastiveLoss, contrastive_loss
from liftedstruct.losses.contrastive import Pairs, contrastive_loss_plain
from liftedstruct.samplers import PairSampler


def random_batch(m: int = 20, classes: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(m, 3, generator=generator, dtype=torch.float64) / 2
    return X, torch.randint(classes, (m,), generator=generator)


def loop_over_all_pairs(X: Tensor, y: Tensor, margin: float) -> float:
    sums, counts = [0.0, 0.0], [0, 0]
    for i in range(len(y)):
        for j in range(i + 1, len(y)):
            D, positive = (X[i] - X[j]).norm().item(), int(y[i] == y[j])
            sums[positive] += D**2 if positive else max(0.0, margin - D) ** 2
            counts[positive] += 1
    return sum(total / max(1, count) for total, count in zip(sums, counts, strict=True)) / 2


def test_rows_equal_the_loop_of_equation_1() -> None:
    X, y = random_batch()
    for margin in (0.5, 1.0, 2.0):
        total = 0.0
        for t in range(10):
            D = (X[2 * t] - X[2 * t + 1]).norm().item()
            total += D**2 if y[2 * t] == y[2 * t + 1] else max(0.0, margin - D) ** 2
        assert contrastive_loss(X, y, margin, pairs="rows").item() == pytest.approx(total / 20, rel=1e-12)
        assert ContrastiveLoss(margin, pairs="rows")(X, y) == contrastive_loss(X, y, margin, pairs="rows")


@pytest.mark.filterwarnings("ignore:contrastive_loss needs")
@pytest.mark.parametrize(("m", "classes"), [(20, 2), (31, 7), (300, 40), (5, 1), (2, 2), (1, 1)])
def test_all_pairs_equal_the_loop_and_autograd(m: int, classes: int) -> None:
    X, y = random_batch(m, classes)
    X.requires_grad_()
    for margin in (0.0, 1.0, 2.0):
        loss, plain = contrastive_loss(X, y, margin), contrastive_loss_plain(X, y, margin)
        torch.testing.assert_close(loss, plain, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.autograd.grad(loss, X), torch.autograd.grad(plain, X), rtol=0, atol=1e-12)
        if m < 50:
            assert loss.item() == pytest.approx(loop_over_all_pairs(X.detach(), y, margin), rel=1e-12, abs=1e-15)
        assert ContrastiveLoss(margin)(X, y) == loss


def test_positive_pairs_equal_pytorch_metric_learning() -> None:
    """Their negatives have a different form, margin - D² without the outer square; with margin 0, they contribute nothing."""
    X, y = random_batch(40, 6)
    peer = pml.ContrastiveLoss(pos_margin=0, neg_margin=0, distance=LpDistance(normalize_embeddings=False, power=2))
    assert contrastive_loss(X, y, 0.0).item() == pytest.approx(peer(X, y).item() / 2, rel=1e-12)


@pytest.mark.parametrize("pairs", ["all", "rows"])
def test_gradcheck(pairs: Pairs) -> None:
    X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    labels = [0, 0, 0, 1, 2, 1, 2, 2, 1, 1, 0, 2]
    assert torch.autograd.gradcheck(lambda x: contrastive_loss(x, labels, 3.0, pairs=pairs), X)
    assert torch.autograd.gradgradcheck(lambda x: contrastive_loss(x, labels, 3.0, pairs=pairs), X)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("pairs", ["all", "rows"])
def test_equal_images_of_different_classes_have_no_direction(dtype: torch.dtype, pairs: Pairs) -> None:
    X = torch.ones(4, 2, dtype=dtype, requires_grad=True)
    loss = contrastive_loss(X, [0, 1, 2, 2], pairs=pairs)
    loss.backward()
    assert loss.item() == (0.25 if pairs == "rows" else 0.5)
    assert X.grad is not None
    assert (X.grad == 0).all()


@pytest.mark.parametrize("gap", [1e-3, 1e-6])
def test_tight_clusters_far_apart_keep_their_digits(gap: float) -> None:
    X, y = random_batch(60, 12)
    X = (gap * X + 20 * (torch.arange(60) % 2)[:, None]).float()
    single, exact = X.requires_grad_(), X.detach().double().requires_grad_()
    loss, expected = contrastive_loss(single, y), contrastive_loss_plain(exact, y)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    (gradient,), (wanted,) = torch.autograd.grad(loss, single), torch.autograd.grad(expected, exact)
    torch.testing.assert_close(gradient.double(), wanted, rtol=0, atol=1e-5 * wanted.abs().max().item())


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match="an even number of rows, got 3"):
        contrastive_loss(torch.zeros(3, 2), [0, 0, 1], pairs="rows")
    with pytest.raises(ValueError, match="pairs must be one of all, rows, got 'row'"):
        ContrastiveLoss(pairs="row")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="margin"):
        ContrastiveLoss(-1.0)


@pytest.mark.parametrize(("labels", "kind"), [([0, 0, 0, 0, 1, 1, 1, 1], "positive"), (list(range(8)), "negative")])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("pairs", ["all", "rows"])
def test_pairs_of_one_kind(labels: list[int], kind: str, compiled: bool, pairs: Pairs) -> None:
    if pairs == "all":
        labels = [0] * 8 if kind == "positive" else labels
    torch.compiler.reset()
    loss = torch.compile(contrastive_loss, fullgraph=True, backend="aot_eager") if compiled else contrastive_loss
    X, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.tensor(labels)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = loss(X, y, pairs=pairs)
    assert value.isfinite()
    (said,) = [str(each.message) for each in caught if each.category is UserWarning]
    assert f"{4 if pairs == 'rows' else 28} pairs that are all {kind}" in said


def test_no_warning_for_one_pair_or_for_the_batches_made_for_it() -> None:
    for pairs in get_args(Pairs):
        contrastive_loss(torch.zeros(2, 3), [0, 0], pairs=pairs)
        contrastive_loss(torch.zeros(2, 3), [0, 1], pairs=pairs)
    y = np.arange(40) // 4
    for rows in PairSampler(y, 4):
        contrastive_loss(torch.zeros(4, 3), y[rows], pairs="rows")


def test_is_what_it_says() -> None:
    assert repr(ContrastiveLoss(0.5)) == "ContrastiveLoss(margin=0.5, pairs='all')"
    assert ContrastiveLoss().layout is None
    assert ContrastiveLoss(pairs="rows").layout == "pairs"

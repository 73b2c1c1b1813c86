import shutil
import warnings

import numpy as np
import pytest
import torch

from liftedstruct import ContrastiveLoss, contrastive_loss
from liftedstruct.samplers import PairBatches


def test_equals_the_loop_of_equation_1() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(20, 3, generator=generator, dtype=torch.float64) / 2
    y = torch.randint(2, (20,), generator=generator)
    for margin in (0.5, 1.0, 2.0):
        total = 0.0
        for t in range(10):
            D = (X[2 * t] - X[2 * t + 1]).norm().item()
            total += D**2 if y[2 * t] == y[2 * t + 1] else max(0.0, margin - D) ** 2
        assert contrastive_loss(X, y, margin).item() == pytest.approx(total / 20, rel=1e-12)
        assert ContrastiveLoss(margin)(X, y) == contrastive_loss(X, y, margin)


def test_gradcheck() -> None:
    X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    labels = [0, 0, 0, 1, 2, 1, 2, 2, 1, 1, 0, 2]
    assert torch.autograd.gradcheck(lambda x: contrastive_loss(x, labels, 3.0), X)
    assert torch.autograd.gradgradcheck(lambda x: contrastive_loss(x, labels, 3.0), X)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_equal_images_of_different_classes_have_no_direction(dtype: torch.dtype) -> None:
    X = torch.ones(4, 2, dtype=dtype, requires_grad=True)
    loss = contrastive_loss(X, [0, 1, 2, 2])
    loss.backward()
    assert loss.item() == 0.25
    assert X.grad is not None
    assert (X.grad == 0).all()


def test_odd_rows() -> None:
    with pytest.raises(ValueError, match=r"pairs in rows 2t and 2t \+ 1, so an even number of rows, got 3\. Drop a row"):
        contrastive_loss(torch.zeros(3, 2), [0, 0, 1])


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ([0, 0, 0, 0, 1, 1, 1, 1], "got 4 pairs that are all positive, which only pull together. Sample with PairBatches."),
        ([0, 1, 2, 3, 4, 5, 6, 7], "got 4 pairs that are all negative, which only push apart. Sample with PairBatches."),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_pairs_of_one_kind(labels: list[int], text: str, compiled: bool) -> None:
    torch.compiler.reset()
    loss = torch.compile(contrastive_loss, fullgraph=True, backend="aot_eager") if compiled else contrastive_loss
    X, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.tensor(labels)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = loss(X, y)
    assert value.isfinite()
    (said,) = [str(each.message) for each in caught if each.category is UserWarning]
    assert said == f"contrastive_loss needs positive and negative pairs in rows 2t and 2t + 1, {text}"


def test_no_warning_for_one_pair_or_for_the_batches_made_for_it() -> None:
    contrastive_loss(torch.zeros(2, 3), [0, 0])
    contrastive_loss(torch.zeros(2, 3), [0, 1])
    y = np.arange(40) // 4
    for rank in range(3):
        batches = PairBatches(y, 12, rank=rank, world_size=3)  # four rows are the least that a rank can have
        for rows in batches:
            contrastive_loss(torch.zeros(4, 3), y[rows])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile_without_a_graph_break(backend: str) -> None:
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler, and there is none")
    torch.compiler.reset()
    compiled = torch.compile(lambda x, y: 2 * contrastive_loss(3 * x, y), fullgraph=True, dynamic=True, backend=backend)
    for m in (8, 12):
        X = torch.randn(m, 3, generator=torch.Generator().manual_seed(m), requires_grad=True)
        y = torch.arange(m) // 3
        (expected,) = torch.autograd.grad(2 * contrastive_loss(3 * X, y), X)
        loss = compiled(X, y)
        torch.testing.assert_close(loss, 2 * contrastive_loss(3 * X, y))
        torch.testing.assert_close(torch.autograd.grad(loss, X)[0], expected)
    with pytest.raises(ValueError, match="row 3 holds nan"):
        compiled(torch.where(torch.arange(12)[:, None] == 3, torch.nan, X.detach()), y)
    operator = torch.ops.liftedstruct.contrastive_positives.default
    torch.library.opcheck(operator, (X.detach(), X.detach()[::2, 0], y), test_utils=("test_schema", "test_faketensor"))


def test_is_what_it_says() -> None:
    assert repr(ContrastiveLoss(0.5)) == "ContrastiveLoss(margin=0.5)"

import shutil

import pytest
import torch
from torch import Tensor

from liftedstruct import TripletLoss, triplet_loss
from liftedstruct.losses.triplet import Negative


def triplets(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randint(5, (n,), generator=generator)
    other = (a + 1 + torch.randint(4, (n,), generator=generator)) % 5
    X = torch.randn(3 * n, 3, generator=generator, dtype=torch.float64)
    return X, torch.stack((a, a, other), dim=1).reshape(-1)


def test_equals_the_loop_of_equation_2() -> None:
    X, y = triplets(10)
    for margin in (0.0, 1.0, 4.0):
        total = 0.0
        for t in range(10):
            a, p, n = X[3 * t], X[3 * t + 1], X[3 * t + 2]
            total += max(0.0, ((a - p) ** 2).sum().item() - ((a - n) ** 2).sum().item() + margin)
        assert triplet_loss(X, y, margin).item() == pytest.approx(3 / (2 * 30) * total, rel=1e-12)
        assert TripletLoss(margin)(X, y) == triplet_loss(X, y, margin)


def test_semi_hard_equals_the_loop() -> None:
    for seed in range(5):
        X, y = triplets(8, seed)
        X[y == 0] *= 0.05  # a tight class, so that some anchors have only nearer negatives and some only farther ones
        X[0], X[1] = torch.tensor([50.0, 0, 0]), torch.tensor([-50.0, 0, 0])
        total = 0.0
        for t in range(8):
            a, d_ap = X[3 * t], (X[3 * t] - X[3 * t + 1]).norm().item()
            others = [(a - X[k]).norm().item() for k in range(24) if y[k] != y[3 * t]]
            farther = [d for d in others if d > d_ap]
            d_an = min(farther) if farther else max(others)
            total += max(0.0, d_ap**2 - d_an**2 + 1.0)
        assert triplet_loss(X, y, negative="semi-hard").item() == pytest.approx(3 / (2 * 24) * total, rel=1e-9)
        assert TripletLoss(negative="semi-hard")(X, y) == triplet_loss(X, y, negative="semi-hard")


@pytest.mark.parametrize("negative", ["given", "semi-hard"])
def test_gradcheck(negative: Negative) -> None:
    X, y = triplets(4)
    assert torch.autograd.gradcheck(lambda x: triplet_loss(x, y, 3.0, negative=negative), X.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda x: triplet_loss(x, y, 3.0, negative=negative), X)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("negative", ["given", "semi-hard"])
def test_all_equal(dtype: torch.dtype, negative: str) -> None:
    X = torch.ones(6, 2, dtype=dtype, requires_grad=True)
    loss = triplet_loss(X, [0, 0, 1, 1, 1, 0], negative=negative)  # type: ignore[arg-type]
    loss.backward()
    assert loss.item() == 0.5  # 3 / (2 * 6) * 2 * alpha
    assert X.grad is not None
    assert (X.grad == 0).all()


def test_wrong_layouts() -> None:
    with pytest.raises(ValueError, match=r"a multiple of three rows, got 4\. Drop rows"):
        triplet_loss(torch.zeros(4, 2), [0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"got labels \[1, 0, 1\] in rows 3 to 5\. Sample with TripletBatches"):
        triplet_loss(torch.zeros(6, 2), [0, 0, 1, 1, 0, 1])
    with pytest.raises(ValueError, match=r"got labels \[0, 0, 0\] in rows 0 to 2"):
        triplet_loss(torch.zeros(3, 2), [0, 0, 0])
    with pytest.raises(ValueError, match=r"negative must be one of given, semi-hard, got 'semihard'\. Did you mean"):
        TripletLoss(negative="semihard")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("negative", ["given", "semi-hard"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile_without_a_graph_break(backend: str, negative: Negative) -> None:
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler, and there is none")
    torch.compiler.reset()

    def step(x: Tensor, labels: Tensor) -> Tensor:
        return 2 * triplet_loss(3 * x, labels, negative=negative)

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=backend)
    for n in (5, 8):
        X, y = triplets(n)
        X.requires_grad_()
        loss = compiled(X, y)
        torch.testing.assert_close(loss, step(X, y))
        torch.testing.assert_close(torch.autograd.grad(loss, X)[0], torch.autograd.grad(step(X, y), X)[0])
    with pytest.raises(ValueError, match="row 3 holds nan"):
        compiled(torch.where(torch.arange(24)[:, None] == 3, torch.nan, X.detach()), y)
    with pytest.raises(ValueError, match=r"in rows 0 to 2\. Sample with TripletBatches"):
        compiled(X, torch.zeros_like(y))
    operator = torch.ops.liftedstruct.triplet_negatives.default
    torch.library.opcheck(operator, (X.detach(), y, negative), test_utils=("test_schema", "test_faketensor"))


def test_repr() -> None:
    assert repr(TripletLoss()) == "TripletLoss(margin=1.0, negative='given')"

import math

import pytest
import torch

from liftedstruct.losses.distillation import similarity_distillation_loss

X, T = (torch.randn(6, dim, generator=torch.Generator().manual_seed(dim)) for dim in (3, 5))


def by_loops(X: torch.Tensor, T: torch.Tensor, temperature: float) -> float:
    def distribution(Y: torch.Tensor, i: int) -> list[float]:
        cosines = [float(Y[i] @ Y[j] / Y[i].norm() / Y[j].norm()) for j in range(len(Y)) if j != i]
        powers = [math.exp(cosine / temperature) for cosine in cosines]
        return [power / sum(powers) for power in powers]

    total = 0.0
    for i in range(len(X)):
        total += sum(p * math.log(p / q) for p, q in zip(distribution(T, i), distribution(X, i), strict=True))
    return total / len(X)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_matches_the_definition(temperature: float) -> None:
    assert similarity_distillation_loss(X, T, temperature).item() == pytest.approx(by_loops(X, T, temperature), rel=1e-4)


def test_only_similarities_matter() -> None:
    Q = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))[0]
    assert similarity_distillation_loss(7 * X @ Q, X).item() == pytest.approx(0, abs=1e-5)
    assert similarity_distillation_loss(X, T).item() == pytest.approx(
        similarity_distillation_loss(X @ Q, T / 3).item(), rel=1e-4
    )
    order = torch.tensor([4, 0, 5, 1, 3, 2])
    assert similarity_distillation_loss(X[order], T[order]).item() == pytest.approx(similarity_distillation_loss(X, T).item())


def test_the_student_learns_from_the_teacher() -> None:
    student, teacher = X.clone().requires_grad_(), T.clone().requires_grad_()
    optimizer = torch.optim.SGD([student], lr=0.1)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = similarity_distillation_loss(student, teacher)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
    assert teacher.grad is None

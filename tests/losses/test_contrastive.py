import pytest
import torch

from liftedstruct import ContrastiveLoss, contrastive_loss


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
    assert torch.autograd.gradcheck(lambda x: contrastive_loss(x, [0, 0, 0, 1, 2, 1, 2, 2, 1, 1, 0, 2], 3.0), X)


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


def test_compiles_and_is_what_it_says() -> None:
    X, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) // 4
    torch.testing.assert_close(torch.compile(contrastive_loss, backend="eager")(X, y), contrastive_loss(X, y))
    assert repr(ContrastiveLoss(0.5)) == "ContrastiveLoss(margin=0.5)"

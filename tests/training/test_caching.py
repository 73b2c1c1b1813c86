import pytest
import torch
from torch import Tensor, nn

from liftedstruct.embedder import Embedder
from liftedstruct.losses import contrastive_loss, lifted_struct_loss
from liftedstruct.training.caching import batch_gradient, check_exact
from liftedstruct.training.machine import seed_torch
from liftedstruct.trunks import make_trunk

M = 24


def make(dropout: float) -> tuple[Embedder, Tensor, Tensor]:
    torch.manual_seed(0)
    embedder = Embedder(make_trunk("small"), 8, dropout).train()
    return embedder, torch.randint(256, (M, 20, 20, 3), dtype=torch.uint8), torch.arange(M) // 2


def gradients(embedder: Embedder) -> Tensor:
    parts = [parameter.grad.flatten() for parameter in embedder.parameters() if parameter.grad is not None]
    embedder.zero_grad()
    return torch.cat(parts)


def largest_difference(a: Tensor, b: Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize("chunk", [1, 4, 7, 23, 24, 100])
def test_equals_the_gradient_of_the_whole_batch(chunk: int) -> None:
    embedder, pixels, labels = make(dropout=0.0)
    lifted_struct_loss(embedder(pixels), labels).backward()
    whole = gradients(embedder)
    loss, X, dX = batch_gradient(embedder, pixels, lambda X: lifted_struct_loss(X, labels), chunk=chunk)
    assert largest_difference(gradients(embedder), whole) < 1e-5
    assert loss == pytest.approx(lifted_struct_loss(embedder(pixels), labels).item(), rel=1e-5)
    assert X.shape == dX.shape == (M, 8)


@pytest.mark.parametrize("chunk", [5, 12, 24])
def test_dropout_is_repeated(chunk: int) -> None:
    embedder, pixels, _ = make(dropout=0.4)
    labels = torch.arange(M) // 3  # positive and negative pairs
    rows = []
    for c, part in enumerate(pixels.split(chunk)):  # one graph over all chunks, with the dropout of each chunk
        seed_torch(7, 3, c)
        rows.append(embedder(part))
    X = torch.cat(rows)
    value = contrastive_loss(X, labels, 9.0)
    value.backward()
    whole = gradients(embedder)
    loss, X_cached, _ = batch_gradient(
        embedder, pixels, lambda X: contrastive_loss(X, labels, 9.0), chunk=chunk, seed=(7, 3), scale=4.0
    )
    assert largest_difference(gradients(embedder) / 4, whole) < 1e-5
    torch.testing.assert_close(X_cached, X.detach())
    assert loss == pytest.approx(value.item(), rel=1e-5)
    batch_gradient(embedder, pixels, lambda X: contrastive_loss(X, labels, 9.0), chunk=chunk, seed=(7, 4))
    assert largest_difference(gradients(embedder), whole) > 1e-2  # another step uses different dropout


def test_error_if_caching_would_not_be_exact() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    with pytest.raises(ValueError, match=r"batch norms with frozen statistics to be exact, but 1 uses batch statistics"):
        check_exact(network.train())
    check_exact(network.eval())
    without = nn.BatchNorm1d(4, track_running_stats=False).eval()
    with pytest.raises(ValueError, match=r"the network uses batch statistics\. Pass freeze_batch_norm true"):
        check_exact(without)
    with pytest.raises(ValueError, match="batch norms with frozen statistics"):
        check_exact(nn.InstanceNorm2d(4, track_running_stats=True))  # its statistics would include every image twice
    check_exact(nn.InstanceNorm2d(4))

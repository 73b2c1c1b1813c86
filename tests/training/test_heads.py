import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import nn

from liftedstruct.training.heads import HEADS


def unused() -> torch.Tensor:
    raise AssertionError("this initialization does not need features")


def test_uniform_is_as_in_the_paper() -> None:
    head = nn.Linear(48, 2000)
    HEADS["uniform"](head, unused, scale=1.0)
    bound = (3 / 48) ** 0.5
    assert 0.99 * bound < head.weight.abs().max().item() <= bound
    assert head.weight.var().item() == pytest.approx(1 / 48, rel=0.02)  # variance 1 / fan-in
    assert not head.bias.any()


@pytest.mark.parametrize("dim", [5, 40])
def test_orthogonal(dim: int) -> None:
    head = nn.Linear(20, dim)
    HEADS["orthogonal"](head, unused, scale=1.5)
    W = head.weight.detach()
    gram = W @ W.T if dim <= 20 else W.T @ W
    torch.testing.assert_close(gram, 2.25 * torch.eye(min(dim, 20)), atol=1e-5, rtol=0)
    assert not head.bias.any()


def test_pca_matches_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    features = (rng.normal(size=(200, 12)) * np.linspace(1, 6, 12) @ rng.normal(size=(12, 12)) + 30).astype(np.float32)
    head = nn.Linear(12, 4)
    HEADS["pca"](head, lambda: torch.from_numpy(features), scale=2.0)
    ours = head(torch.from_numpy(features)).detach().numpy()
    theirs = 2 * PCA(4, svd_solver="full").fit(features.astype(np.float64)).transform(features)
    signs = np.sign((ours * theirs).sum(axis=0))
    np.testing.assert_allclose(ours, theirs * signs, atol=1e-3)
    strongest = head.weight.detach().gather(1, head.weight.detach().abs().argmax(dim=1, keepdim=True))
    assert (strongest > 0).all()  # the same sign on every machine


def test_more_dimensions_than_features() -> None:
    features, layer = torch.randn(100, 6, dtype=torch.float64), nn.Linear(6, 9).double()
    HEADS["pca"](layer, lambda: features, scale=2.0)
    torch.testing.assert_close(torch.pdist(layer(features)), 2 * torch.pdist(features))
    assert (layer.weight.abs().sum(dim=1) > 0).all()  # a zero row would never get a gradient


def test_more_dimensions_than_images() -> None:
    features, other = torch.randn(4, 6, dtype=torch.float64), torch.randn(2, 6, dtype=torch.float64)
    layer = nn.Linear(6, 6).double()
    HEADS["pca"](layer, lambda: features)
    gram = layer.weight.detach() @ layer.weight.detach().T
    torch.testing.assert_close(gram, torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(torch.pdist(layer(other)), torch.pdist(other))  # all directions are included

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import nn

from liftedstruct.training.heads import HEADS


def test_uniform_is_the_papers() -> None:
    head = nn.Linear(48, 2000)
    HEADS["uniform"](head, 1.0, None)
    bound = (3 / 48) ** 0.5
    assert 0.99 * bound < head.weight.abs().max().item() <= bound
    assert head.weight.var().item() == pytest.approx(1 / 48, rel=0.02)  # variance 1 / fan-in is the point of it
    assert not head.bias.any()


@pytest.mark.parametrize("dim", [5, 40])
def test_orthogonal(dim: int) -> None:
    head = nn.Linear(20, dim)
    HEADS["orthogonal"](head, 1.5, None)
    W = head.weight.detach()
    gram = W @ W.T if dim <= 20 else W.T @ W
    torch.testing.assert_close(gram, 2.25 * torch.eye(min(dim, 20)), atol=1e-5, rtol=0)
    assert not head.bias.any()


def test_pca_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    features = (rng.normal(size=(200, 12)) * np.linspace(1, 6, 12) @ rng.normal(size=(12, 12)) + 30).astype(np.float32)
    head = nn.Linear(12, 4)
    HEADS["pca"](head, 2.0, torch.from_numpy(features))
    ours = head(torch.from_numpy(features)).detach().numpy()
    theirs = 2 * PCA(4, svd_solver="full").fit(features.astype(np.float64)).transform(features)
    signs = np.sign((ours * theirs).sum(axis=0))
    np.testing.assert_allclose(ours, theirs * signs, atol=1e-3)
    strongest = head.weight.detach().gather(1, head.weight.detach().abs().argmax(dim=1, keepdim=True))
    assert (strongest > 0).all()  # one sign on every machine


@pytest.mark.parametrize(("n", "most"), [(100, 6), (4, 3)])
def test_pca_of_too_many_dimensions(n: int, most: int) -> None:
    message = rf"head pca must have at most {most} dimensions \(6 features of {n} images\), got dim 7\. Pass a smaller dim"
    with pytest.raises(ValueError, match=message):
        HEADS["pca"](nn.Linear(6, 7), 1.0, torch.randn(n, 6))

import numpy as np
import pytest
import torch
from scipy.linalg import fractional_matrix_power
from scipy.spatial.distance import pdist
from sklearn.decomposition import PCA
from torch import nn

from liftedstruct.training.heads import FROM_FEATURES, HEADS, SHRINKAGE, narrowed


def test_uniform_is_the_papers() -> None:
    head = nn.Linear(48, 2000)
    HEADS["uniform"](head, 1.0, None, None)
    bound = (3 / 48) ** 0.5
    assert 0.99 * bound < head.weight.abs().max().item() <= bound
    assert head.weight.var().item() == pytest.approx(1 / 48, rel=0.02)  # variance 1 / fan-in is the point of it
    assert not head.bias.any()


@pytest.mark.parametrize("dim", [5, 40])
def test_orthogonal(dim: int) -> None:
    head = nn.Linear(20, dim)
    HEADS["orthogonal"](head, 1.5, None, None)
    W = head.weight.detach()
    gram = W @ W.T if dim <= 20 else W.T @ W
    torch.testing.assert_close(gram, 2.25 * torch.eye(min(dim, 20)), atol=1e-5, rtol=0)
    assert not head.bias.any()


def test_pca_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    features = (rng.normal(size=(200, 12)) * np.linspace(1, 6, 12) @ rng.normal(size=(12, 12)) + 30).astype(np.float32)
    head = nn.Linear(12, 4)
    HEADS["pca"](head, 2.0, torch.from_numpy(features), None)
    ours = head(torch.from_numpy(features)).detach().numpy()
    theirs = 2 * PCA(4, svd_solver="full").fit(features.astype(np.float64)).transform(features)
    signs = np.sign((ours * theirs).sum(axis=0))
    np.testing.assert_allclose(ours, theirs * signs, atol=1e-3)
    strongest = head.weight.detach().gather(1, head.weight.detach().abs().argmax(dim=1, keepdim=True))
    assert (strongest > 0).all()  # one sign on every machine


def test_narrowed_is_pca_of_what_the_head_makes() -> None:
    rng = np.random.default_rng(2)
    features = torch.from_numpy((rng.normal(size=(90, 12)) @ rng.normal(size=(12, 12)) + 5).astype(np.float32))
    head = nn.Linear(12, 8)
    wide, ours = (layer(features).detach().numpy() for layer in (head, narrowed(head, 3, features)))
    theirs = PCA(3, svd_solver="full").fit_transform(wide.astype(np.float64))
    np.testing.assert_allclose(ours, theirs * np.sign((ours * theirs).sum(axis=0)), atol=1e-4)
    assert head.out_features == 8
    same = narrowed(head, 8, features)(features).detach().numpy()
    np.testing.assert_allclose(pdist(same), pdist(wide), rtol=1e-3)  # as many dimensions as there are keep all distances


def classes_of_features(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes of 1 to 9 images in mixed order, which vary a lot along some directions and little along others."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(100 * rng.permutation(40) - 7, np.arange(40) % 9 + 1))
    within = rng.normal(size=(len(y), 12)) * np.geomspace(0.2, 6, 12) @ rng.normal(size=(12, 12))
    F = rng.normal(0, 8, (4000, 12))[y + 7] + within + 30
    return torch.from_numpy(F.astype(np.float32)), torch.from_numpy(y)


def covariance_within(F: np.ndarray, y: np.ndarray) -> np.ndarray:
    S = np.zeros((F.shape[1], F.shape[1]))
    for label in set(y.tolist()):
        of_class = F[y == label]
        for f in of_class:
            S += np.outer(f - of_class.mean(axis=0), f - of_class.mean(axis=0)) / len(F)
    return S


def test_whitened_by_its_formula() -> None:
    features, labels = classes_of_features()
    F, y = features.numpy().astype(np.float64), labels.numpy()
    head = nn.Linear(12, 4)
    HEADS["whitened"](head, 2.0, features, labels)
    S = covariance_within(F, y)
    level = np.trace(S) / 12
    root = fractional_matrix_power((1 - SHRINKAGE) * S + SHRINKAGE * level * np.eye(12), -0.5)
    theirs = 2 * np.sqrt(level) * PCA(4, svd_solver="full").fit_transform(F @ root)
    ours = head(features).detach().numpy()
    np.testing.assert_allclose(ours, theirs * np.sign((ours * theirs).sum(axis=0)), atol=2e-3)
    assert np.abs(theirs).mean() > 5


@pytest.mark.parametrize("dim", [3, 12])
def test_classes_vary_alike_after_whitening(dim: int) -> None:
    """Up to the shrinkage, which stands for images that vary alike in all directions."""
    features, labels = classes_of_features(1)
    head = nn.Linear(12, dim, dtype=torch.float64)
    HEADS["whitened"](head, 1.0, features, labels)
    W, S = head.weight.detach().numpy(), covariance_within(features.numpy().astype(np.float64), labels.numpy())
    level = np.trace(S) / 12
    np.testing.assert_allclose(W @ ((1 - SHRINKAGE) * S + SHRINKAGE * level * np.eye(12)) @ W.T, level * np.eye(dim), atol=1e-6)
    assert np.linalg.cond(W @ S @ W.T) < np.linalg.cond(S)


def test_whitened_by_hand() -> None:
    """Classes differ along the first axis and vary along the second, a little more: S = diag(0, 100), its mean is 50."""
    a, b = 60**0.5, 10.0
    F = torch.tensor([(a, b), (a, -b), (-a, b), (-a, -b)]) + torch.tensor([7.0, -2.0])
    pca, whitened = nn.Linear(2, 1), nn.Linear(2, 1)
    HEADS["pca"](pca, 1.0, F, None)
    HEADS["whitened"](whitened, 3.0, F, torch.tensor([5, 5, -1, -1]))
    torch.testing.assert_close(pca.weight.detach(), torch.tensor([[0.0, 1.0]]), atol=1e-6, rtol=0)
    length = 3 * (50 / (50 * SHRINKAGE)) ** 0.5  # along the first axis the drawn S is the shrinkage alone
    torch.testing.assert_close(whitened.weight.detach(), torch.tensor([[length, 0.0]]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(whitened.bias.detach(), torch.tensor([-7 * length]), atol=1e-4, rtol=1e-5)


def test_whitened_without_two_images_of_a_class_is_pca() -> None:
    features, _ = classes_of_features(2)
    whitened, pca = nn.Linear(12, 4), nn.Linear(12, 4)
    HEADS["whitened"](whitened, 1.5, features, torch.arange(len(features)))
    HEADS["pca"](pca, 1.5, features, None)
    assert torch.equal(whitened.weight, pca.weight)
    assert torch.equal(whitened.bias, pca.bias)


def test_more_dimensions_than_features() -> None:
    features, layer = torch.randn(100, 6, dtype=torch.float64), nn.Linear(6, 9).double()
    HEADS["pca"](layer, 2.0, features, None)
    torch.testing.assert_close(torch.pdist(layer(features)), 2 * torch.pdist(features))
    assert (layer.weight.abs().sum(dim=1) > 0).all()  # no dimension is left out, which no gradient would reach


@pytest.mark.parametrize("head", sorted(FROM_FEATURES))
def test_more_dimensions_than_images(head: str) -> None:
    features, other = torch.randn(4, 6, dtype=torch.float64), torch.randn(2, 6, dtype=torch.float64)
    layer = nn.Linear(6, 6).double()
    HEADS[head](layer, 1.0, features, torch.tensor([0, 1, 2, 3]))  # no class has two images: nothing to even out
    gram = layer.weight.detach() @ layer.weight.detach().T
    torch.testing.assert_close(gram, torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(torch.pdist(layer(other)), torch.pdist(other))  # all directions are there

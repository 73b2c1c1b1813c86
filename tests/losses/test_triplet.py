import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import LpDistance
from torch import Tensor

from liftedstruct import TripletLoss, triplet_loss
from liftedstruct.losses.triplet import Triplets


def triplets(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randint(5, (n,), generator=generator)
    other = (a + 1 + torch.randint(4, (n,), generator=generator)) % 5
    X = torch.randn(3 * n, 3, generator=generator, dtype=torch.float64)
    return X, torch.stack((a, a, other), dim=1).reshape(-1)


def loop(X: Tensor, y: Tensor, margin: float, semi_hard: bool) -> float:
    """Loop over every anchor, positive and negative, or over the semi-hard negative of each anchor and positive."""
    values: list[float] = []
    for a in range(len(y)):
        others = [(X[a] - X[n]).norm().item() for n in range(len(y)) if y[n] != y[a]]
        for p in range(len(y)):
            if p == a or y[p] != y[a] or not others:
                continue
            d_ap = (X[a] - X[p]).norm().item()
            farther = [d for d in others if d > d_ap]
            chosen = [min(farther) if farther else max(others)] if semi_hard else others
            values += [max(0.0, d_ap**2 - d_an**2 + margin) for d_an in chosen]
    return sum(values) / (2 * max(1, len(values)))


def test_rows_equal_the_loop_of_equation_2() -> None:
    X, y = triplets(10)
    for margin in (0.0, 1.0, 4.0):
        total = 0.0
        for t in range(10):
            a, p, n = X[3 * t], X[3 * t + 1], X[3 * t + 2]
            total += max(0.0, ((a - p) ** 2).sum().item() - ((a - n) ** 2).sum().item() + margin)
        assert triplet_loss(X, y, margin, triplets="rows").item() == pytest.approx(3 / (2 * 30) * total, rel=1e-12)
        assert TripletLoss(margin, triplets="rows")(X, y) == triplet_loss(X, y, margin, triplets="rows")


def test_semi_hard_rows_equal_the_loop() -> None:
    for seed in range(5):
        X, y = triplets(8, seed)
        X[y == 0] *= 0.05  # a tight class: some anchors have only nearer negatives, some only farther ones
        X[0], X[1] = torch.tensor([50.0, 0, 0]), torch.tensor([-50.0, 0, 0])
        total = 0.0
        for t in range(8):
            a, d_ap = X[3 * t], (X[3 * t] - X[3 * t + 1]).norm().item()
            others = [(a - X[k]).norm().item() for k in range(24) if y[k] != y[3 * t]]
            farther = [d for d in others if d > d_ap]
            d_an = min(farther) if farther else max(others)
            total += max(0.0, d_ap**2 - d_an**2 + 1.0)
        assert triplet_loss(X, y, triplets="rows-semi-hard").item() == pytest.approx(3 / (2 * 24) * total, rel=1e-9)


@pytest.mark.parametrize("mode", ["all", "semi-hard"])
@pytest.mark.parametrize(("m", "classes"), [(7, 2), (24, 3), (30, 12), (40, 2)])
def test_whole_batches_equal_the_loop(mode: Triplets, m: int, classes: int) -> None:
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        X = torch.randn(m, 3, generator=generator, dtype=torch.float64)
        y = torch.randint(classes, (m,), generator=generator)
        X[y == 0] *= 0.05
        X[0] *= 50  # anchors that have only nearer negatives
        for margin in (0.0, 1.0, 4.0):
            expected = pytest.approx(loop(X, y, margin, mode == "semi-hard"), rel=1e-9, abs=1e-12)
            assert triplet_loss(X, y, margin, triplets=mode).item() == expected
            assert TripletLoss(margin, triplets=mode)(X, y) == triplet_loss(X, y, margin, triplets=mode)


def test_all_equal_pytorch_metric_learning() -> None:
    X, y = triplets(12)
    X.requires_grad_()
    peer = pml.TripletMarginLoss(margin=50, distance=LpDistance(normalize_embeddings=False, power=2))  # all triplets are active
    loss, expected = triplet_loss(X, y, 50.0), peer(X, y) / 2
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, X), torch.autograd.grad(expected, X))


@pytest.mark.parametrize("mode", get_args(Triplets))
def test_gradcheck(mode: Triplets) -> None:
    X, y = triplets(4)
    assert torch.autograd.gradcheck(lambda x: triplet_loss(x, y, 3.0, triplets=mode), X.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda x: triplet_loss(x, y, 3.0, triplets=mode), X)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("mode", get_args(Triplets))
def test_all_equal(dtype: torch.dtype, mode: Triplets) -> None:
    X = torch.ones(6, 2, dtype=dtype, requires_grad=True)
    loss = triplet_loss(X, [0, 0, 1, 1, 1, 0], triplets=mode)
    loss.backward()
    assert loss.item() == 0.5  # half the margin
    assert X.grad is not None
    assert (X.grad == 0).all()


@pytest.mark.parametrize("mode", ["all", "semi-hard"])
@pytest.mark.parametrize("labels", [[0], [0, 0, 0], [0, 1, 2]])
def test_nothing_to_compare(mode: Triplets, labels: list[int]) -> None:
    X = torch.randn(len(labels), 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = triplet_loss(X, labels, triplets=mode)
    loss.backward()
    assert loss.item() == 0
    assert X.grad is not None
    assert (X.grad == 0).all()


def test_tight_clusters_far_apart_keep_their_digits() -> None:
    X, y = triplets(30)
    X = (1e-3 * X + 20 * (torch.arange(90) % 2)[:, None]).float()
    single, exact = X.requires_grad_(), X.detach().double().requires_grad_()
    loss, expected = triplet_loss(single, y), triplet_loss(exact, y)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    (gradient,), (wanted,) = torch.autograd.grad(loss, single), torch.autograd.grad(expected, exact)
    torch.testing.assert_close(gradient.double(), wanted, rtol=0, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")
def test_four_thousand_images_in_bounded_memory() -> None:
    """4,096 images have 50 million triplets; one array of (a, p, n) would take hundreds of megabytes."""
    code = """
import re, torch
from pathlib import Path
from liftedstruct import triplet_loss
def status(field): return 1024 * int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
X = torch.randn(4096, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
triplet_loss(X[:64], torch.arange(64) // 4).backward()
before = status("VmRSS")
triplet_loss(X, torch.arange(4096) // 4).backward()
print(status("VmHWM") - before)
"""
    tidy = {**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}  # glibc returns freed memory at once
    extra = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=tidy).stdout)
    assert extra < 4 * 4096 * 4096 * 8


def test_wrong_layouts() -> None:
    with pytest.raises(ValueError, match="a multiple of three rows, got 4"):
        triplet_loss(torch.zeros(4, 2), [0, 0, 1, 1], triplets="rows")
    with pytest.raises(ValueError, match=r"got labels \[1, 0, 1\] in rows 3 to 5"):
        triplet_loss(torch.zeros(6, 2), [0, 0, 1, 1, 0, 1], triplets="rows")
    with pytest.raises(ValueError, match=r"got labels \[0, 0, 0\] in rows 0 to 2"):
        triplet_loss(torch.zeros(3, 2), [0, 0, 0], triplets="rows-semi-hard")
    with pytest.raises(ValueError, match=r"triplets must be one of .* got 'semihard'"):
        TripletLoss(triplets="semihard")  # type: ignore[arg-type]


def test_is_what_it_says() -> None:
    assert repr(TripletLoss()) == "TripletLoss(margin=1.0, triplets='all')"
    layouts = {mode: TripletLoss(triplets=mode).layout for mode in get_args(Triplets)}
    assert layouts == {"all": None, "semi-hard": None, "rows": "triplets", "rows-semi-hard": "triplets"}

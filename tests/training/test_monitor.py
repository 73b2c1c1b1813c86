import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from liftedstruct.losses import contrastive_loss, inspect_batch
from liftedstruct.losses.inspection import effective_rank
from liftedstruct.training import monitor
from liftedstruct.training.monitor import TrainingProgress, summarize_batch

LINE: dict[str, Any] = {
    "step": 50,
    "loss": 3.14159,
    "active_images": 0.5,
    "positive_distance": 1.0,
    "negative_distance": 2.0,
    "effective_rank": 7.25,
    "collapsed": False,
    "images_per_second": 80.0,
}
LOGGED = ("positive_distance", "negative_distance", "mean_norm", "effective_rank")


def test_active_images_are_those_with_a_gradient() -> None:
    X = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 0, 0], [5, 0, 0], [0, 1, 0], [0, 9, 1]], requires_grad=True)
    y = torch.tensor([0, 0, 0, 1, 1, 2])  # rows: a positive pair at 1, negative pairs at 5 and 8, beyond the margin
    (dX,) = torch.autograd.grad(contrastive_loss(X, y, 1.0, pairs="rows"), X)
    assert summarize_batch(X.detach(), dX, y)["active_images"] == pytest.approx(1 / 3)


def test_signs_of_collapse() -> None:
    y, X = torch.arange(16) // 2, torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    dX = torch.zeros_like(X)
    assert not summarize_batch(X, dX, y)["collapsed"]
    assert summarize_batch(0.01 * X, dX, y)["collapsed"]  # one point, compared with the margin
    assert summarize_batch(0.01 * X + 7, dX, y)["collapsed"]
    assert summarize_batch(X[:, :1].expand(16, 8).contiguous(), dX, y)["collapsed"]  # a line
    assert not summarize_batch(9 * X[:3], dX[:3], y[:3])["collapsed"]  # too few images: three points span a plane


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["random", "clusters", "duplicates", "one class", "no positives", "one image", "two classes"])
def test_summary_matches_inspect_batch(kind: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    m = 1 if kind == "one image" else 90
    X = torch.randn(m, 12, generator=generator)
    if kind == "clusters":
        X = 1e-2 * X + 5 * (torch.arange(m) % 2)[:, None]
    if kind == "duplicates":
        X[30:60] = X[:30]
    n_classes = {"one class": 1, "two classes": 2}.get(kind, 20)
    y = torch.arange(m) - 5 if kind == "no positives" else torch.randint(n_classes, (m,), generator=generator) - 5
    for margin, scale in ((1.0, 1.0), (0.2, 8.0)):
        points = (scale * X).to(dtype)
        seen = inspect_batch(points, y, margin)
        expected = {name: getattr(seen, name) for name in LOGGED}
        found = summarize_batch(points, points, y, margin)
        assert {name: found[name] for name in LOGGED} == pytest.approx(expected, rel=1e-5, nan_ok=True)
        assert "sampled_rows" not in found


def test_large_batches_are_sampled() -> None:
    generator = torch.Generator().manual_seed(0)
    y = (torch.arange(3000) // 3)[torch.randperm(3000, generator=generator)]
    X = torch.randn(1000, 20, generator=generator)[y] + 0.1 * torch.randn(3000, 20, generator=generator)
    state = torch.get_rng_state()
    found = summarize_batch(X, X, y)
    assert found == summarize_batch(X, X, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert found["sampled_rows"] == 1024
    same, D = y[:, None] == y, torch.cdist(X.double(), X.double())
    assert found["negative_distance"] == pytest.approx(D[~same].mean().item(), rel=5e-3)
    assert found["positive_distance"] == pytest.approx(D[same.fill_diagonal_(False)].mean().item(), rel=1e-2)
    assert found["mean_norm"] == pytest.approx(X.norm(dim=1).mean().item())
    assert found["effective_rank"] == pytest.approx(effective_rank(X.flip(0)), rel=1e-4)


def test_a_class_larger_than_the_sample_is_truncated() -> None:
    X = torch.randn(2500, 4, generator=torch.Generator().manual_seed(0))
    for y in (torch.zeros(2500, dtype=torch.long), torch.arange(2500).clamp_max(300)):
        found = summarize_batch(X, X, y)
        part, same = X[-1024:], y[-1024:, None] == y[-1024:]
        expected = torch.cdist(part, part)[same.fill_diagonal_(False)].mean().item()
        assert found["sampled_rows"] == 1024
        assert found["positive_distance"] == pytest.approx(expected, rel=0.05)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_summary_never_allocates_the_full_distance_matrix() -> None:
    code = """
import re, torch
from pathlib import Path
from liftedstruct.training.monitor import summarize_batch
def status(field): return 1024 * int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
X, y = torch.randn(4096, 16), torch.arange(4096) // 4
summarize_batch(X[:64], X[:64], y[:64])
before = status("VmRSS")
summarize_batch(X, X, y)
print(status("VmHWM") - before)
"""
    extra = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    assert extra < 4096 * 4096 * 4


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("COLUMNS", "160")
    progress = TrainingProgress(100, 0, 64, wanted=True)
    assert progress.bar is not None
    progress.advance(50)
    progress.show(LINE)
    progress.close()
    shown = capsys.readouterr().err
    assert "50/100" in shown
    assert "loss 3.142, 50% of images active, distances 1 (positive) and 2 (negative), rank 7.2" in shown
    assert "ends " in shown


def test_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(monitor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    progress = TrainingProgress(100, 10, 64, wanted=False)
    now[0] += 8
    assert progress.pace(20) == 80.0  # 640 images in 8 s
    now[0] += 99  # a validation
    progress.pause(20)
    now[0] += 4
    assert progress.pace(25) == 80.0


def test_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    progress = TrainingProgress(100, 0, 64, wanted=True)
    progress.show(LINE)
    progress.show(LINE | {"step": 51})  # too soon after the first: not shown
    progress.show(LINE | {"step": 100, "active_images": float("nan")})
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        "step 50 of 100: loss 3.142, 50% of images active, distances 1 (positive) and 2 (negative), "
        "rank 7.2, 80 images/s, ends "
    )
    assert lines[1].startswith("step 100 of 100: loss 3.142, distances")
    assert "ends" not in lines[1]
    silent = TrainingProgress(100, 0, 64, wanted=False)
    silent.show(LINE)
    silent.show(LINE | {"collapsed": True})
    silent.close()
    assert capsys.readouterr().err.startswith(
        "warning: the embedding is collapsed at step 50: images of different classes are 2"
    )

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from liftedstruct.losses import contrastive_loss, triplet_loss
from liftedstruct.training import reporting
from liftedstruct.training.reporting import Progress, look

LINE: dict[str, Any] = {
    "step": 50,
    "loss": 3.14159,
    "active_share": 0.5,
    "positive_distance": 1.0,
    "negative_distance": 2.0,
    "effective_rank": 7.25,
    "collapsed": False,
    "images_per_second": 80.0,
}


def test_active_share_of_pairs_and_triplets() -> None:
    X = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 0, 0], [5, 0, 0], [0, 1, 0], [0, 9, 1]], requires_grad=True)
    y = torch.tensor([0, 0, 0, 1, 1, 2])  # a positive pair at 1, negative pairs at 5 and 8: beyond the margin
    (dX,) = torch.autograd.grad(contrastive_loss(X, y, 1.0), X)
    assert look("contrastive", 1.0, X.detach(), dX, y)["active_share"] == pytest.approx(1 / 3)
    y = torch.tensor([0, 0, 1, 1, 1, 2])
    X = torch.tensor([[0.0, 0, 0], [1, 0, 0], [9, 0, 0], [0, 0, 0], [0, 5, 0], [0, 1, 1]], requires_grad=True)
    (dX,) = torch.autograd.grad(triplet_loss(X, y, 1.0), X)  # 1 - 81 + 1 < 0, 25 - 2 + 1 > 0
    assert look("triplet", 1.0, X.detach(), dX, y)["active_share"] == 0.5


def test_signs_of_collapse() -> None:
    y, X = torch.arange(16) // 2, torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    dX = torch.zeros_like(X)
    assert not look("lifted_struct", 1.0, X, dX, y)["collapsed"]
    assert look("lifted_struct", 1.0, 0.01 * X, dX, y)["collapsed"]  # one point, as far as the margin can see
    assert look("lifted_struct", 1.0, 0.01 * X + 7, dX, y)["collapsed"]
    assert look("lifted_struct", 1.0, X[:, :1].expand(16, 8).contiguous(), dX, y)["collapsed"]  # a line
    assert not look("lifted_struct", 1.0, 9 * X[:3], dX[:3], y[:3])["collapsed"]  # three points never span more than a plane


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("COLUMNS", "160")
    progress = Progress(100, 0, 64, wanted=True)
    assert progress.bar is not None
    progress.advance(50)
    progress.show(LINE)
    progress.close()
    shown = capsys.readouterr().err
    assert "50/100" in shown
    assert "loss 3.142, 50% of pairs active, distances 1 and 2, rank 7.2" in shown
    assert "ends " in shown


def test_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(reporting, "time", SimpleNamespace(monotonic=lambda: now[0]))
    progress = Progress(100, 10, 64, wanted=False)
    now[0] += 8
    assert progress.pace(20) == 80.0  # 640 images in 8 s
    now[0] += 99  # a validation
    progress.pause(20)
    now[0] += 4
    assert progress.pace(25) == 80.0


def test_lines_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(100, 0, 64, wanted=True)
    progress.show(LINE)
    progress.show(LINE | {"step": 51})  # at once after the first: not shown
    progress.show(LINE | {"step": 100, "active_share": float("nan")})
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        "step 50 of 100: loss 3.142, 50% of pairs active, distances 1 and 2, rank 7.2, 80 images/s, ends "
    )
    assert lines[1].startswith("step 100 of 100: loss 3.142, distances")
    assert "ends" not in lines[1]
    silent = Progress(100, 0, 64, wanted=False)
    silent.show(LINE)
    silent.show(LINE | {"collapsed": True})
    silent.close()
    assert capsys.readouterr().err.startswith(
        "warning: the embedding has collapsed at step 50: images of different classes are 2"
    )

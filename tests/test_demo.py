import pytest
import torch

from liftedstruct.demo import demo, plot


def test_every_loss_finds_the_direction(capsys: pytest.CaptureFixture[str]) -> None:
    results = demo(steps=300, seed=1)
    printed = capsys.readouterr().out
    before = float(printed.split("as they come  ")[1].split("%")[0]) / 100
    assert [result.method for result in results] == ["contrastive", "triplet", "lifted structured"]
    for result in results:
        assert before < 0.75 < 0.95 < result.recall_at_1
        assert result.error < 2
        assert result.stretch > 20
        assert f"{result.method:<18} {result.recall_at_1:6.1%}" in printed


def test_plot() -> None:
    page = plot(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 27]), width=4, height=2)
    assert page == "  |   b\n  |a   \n  +----"

import inspect
from dataclasses import fields
from pathlib import Path

import pytest

from liftedstruct.embedder import EMBEDDER
from liftedstruct.training import TrainConfig
from liftedstruct.training.command import train_command
from training.sets import products


def test_a_flag_for_every_setting() -> None:
    parameters = inspect.signature(train_command).parameters
    assert {field.name for field in fields(TrainConfig)} | {"preset", "config", "resume"} == set(parameters)
    for name, parameter in parameters.items():
        assert parameter.default is None
        assert f"\n    {name}: " in (train_command.__doc__ or "")
    assert parameters["lr"].annotation == float | None
    assert parameters["freeze"].annotation == int | str | None


def test_train_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = products(tmp_path / "products")
    (tmp_path / "mine.yaml").write_text("steps: 9\ncrop: 28\nbatch_size: 16\ndim: 8\nthreads: 1\n")
    run = tmp_path / "run"
    arguments = {"out": str(run), "trunk": "small", "freeze": 1, "steps": 3}
    train_command(str(packed.folder), "quick", tmp_path / "mine.yaml", None, **arguments)
    assert capsys.readouterr().out.startswith(f"{run}: the embedder of step ")
    before = (run / EMBEDDER).read_bytes()
    train_command(resume=run)
    assert ", Recall@1 " in capsys.readouterr().out
    assert (run / EMBEDDER).read_bytes() == before
    with pytest.raises(ValueError, match=r"must go on with the settings that it began with, got lr too\. Leave it out"):
        train_command(resume=run, lr=1.0)
    with pytest.raises(ValueError, match=r"data must be given: folder of a prepared data set\. On the command line: train"):
        train_command(out="run")

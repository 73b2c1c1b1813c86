import json
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from liftedstruct.data import PackedImages
from liftedstruct.training import TrainConfig, length, train
from liftedstruct.training.config import parse_minutes
from liftedstruct.training.loop import Training
from liftedstruct.training.pace import Pace
from liftedstruct.training.run_folder import LOG, TRIAL, is_finished
from training.sets import products, run, settings

AUTO: dict[str, Any] = {"steps": 0, "max_steps": 60, "patience": 8, "validate_every": 4, "lr": 3e-3, "schedule": "constant"}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedImages:
    """Prepare products with 40 training classes and no validation classes."""
    return products(tmp_path_factory.mktemp("products"), classes=80, images=4, validation=0)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "MIN_STEPS", 2)


def scores(folder: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    return {line["step"]: line["map_at_r"] for line in lines if "map_at_r" in line}


@pytest.mark.parametrize(
    ("step", "best_step", "finished"),
    [
        (100, 0, False),
        (150, 0, True),  # no improvement at all
        (199, 0, False),  # validation every 50 steps only
        (200, 100, False),
        (250, 100, True),
        (750, 600, False),  # a late best step is given a third as many steps again
        (800, 600, True),
        (1000, 990, True),  # all steps
    ],
)
def test_patience_by_hand(step: int, best_step: int, finished: bool) -> None:
    config = TrainConfig(data="-", out="-", steps=1000, patience=150)
    assert is_finished(config, step, best_step, 0.5) is finished
    assert is_finished(config, step, best_step, -1.0) is (step == 1000)  # no validation
    assert is_finished(TrainConfig(data="-", out="-", steps=1000), step, best_step, 0.5) is (step == 1000)


def test_the_length_is_chosen_on_held_out_classes(
    packed: PackedImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = train(settings(packed, tmp_path / "run", **AUTO))
    said = capsys.readouterr().err
    found = scores(tmp_path / "run" / TRIAL)
    best = min(step for step, recall in found.items() if recall == max(found.values()))
    waited = -(-max(8, best / 3) // 4) * 4  # at least 8 steps and a third of the best step, until a validation
    assert 0 < best < max(found) == best + waited < 60  # stopped early
    assert one.steps == one.config.steps == best
    assert f"{one.steps} steps: best on 0.2 of the training classes, which are now trained on too" in said
    trained_on = one.embedder().trained_on
    assert trained_on is not None
    assert (len(trained_on.class_names), len(trained_on.validation)) == (40, 0)
    given = run(packed, tmp_path / "given", **AUTO | {"steps": one.steps, "validate_every": 0, "patience": 0})
    assert (given.folder / "embedder.safetensors").read_bytes() == (one.folder / "embedder.safetensors").read_bytes()

    assert train(settings(packed, tmp_path / "run", **AUTO)).steps == one.steps  # the same command finds its run
    assert "nothing to do" in capsys.readouterr().err
    for name, was, now in (("lr", r"0\.003", 0.5), ("steps", "0", 30), ("patience", "8", 12), ("validate_every", "4", 8)):
        with pytest.raises(ValueError, match=rf"its {name} is {was}, got {now}"):
            run(packed, tmp_path / "run", **AUTO | {name: now})
    run(packed, tmp_path / "two", **AUTO | {"steps": 2})
    with pytest.raises(ValueError, match=r"its steps is 2, got 0"):
        run(packed, tmp_path / "two", **AUTO)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"must be empty to start a run, but it contains 'notes.txt'"):
        run(packed, tmp_path / "other", **AUTO)
    assert not (tmp_path / "other" / TRIAL).exists()  # found before the trial


def test_all_dimensions_get_the_same_length(packed: PackedImages, tmp_path: Path) -> None:
    prefixes: dict[str, Any] = AUTO | {"train_dim": None, "min_dim": 64}
    wide, narrow = (run(packed, tmp_path / str(dim), **prefixes | {"dim": dim}) for dim in (512, 64))
    assert narrow.steps == wide.steps
    assert (narrow.folder / TRIAL / "embedder.safetensors").read_bytes() == (
        wide.folder / TRIAL / "embedder.safetensors"
    ).read_bytes()
    assert (narrow.embedder().dim, wide.embedder().dim) == (64, 512)


def test_no_more_than_max_steps(packed: PackedImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "MIN_STEPS", 50)
    assert run(packed, tmp_path / "run", **AUTO | {"max_steps": 9}).steps == 9


def test_too_few_validation_classes_are_trained_on(packed: PackedImages, tmp_path: Path) -> None:
    """One class cannot be validated on, so a trial run chooses the length, and the run trains on all classes."""
    one = run(packed, tmp_path / "run", **AUTO | {"validation": 0.01})
    trained_on = one.embedder().trained_on
    assert trained_on is not None
    assert len(trained_on.class_names) == 40
    assert run(packed, tmp_path / "run", **AUTO | {"validation": 0.01}).steps == one.steps  # found again


def test_a_signal_in_the_last_validation_of_the_trial(
    packed: PackedImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    validate = Training._validate

    def stop(self: Training) -> None:
        validate(self)
        if self.step == 8:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Training, "_validate", stop)
    few = AUTO | {"max_steps": 8}
    with pytest.raises(KeyboardInterrupt):
        run(packed, tmp_path / "run", **few)
    assert "stopped by SIGTERM after the last step, 8. The run is saved." in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.yaml").exists()
    monkeypatch.setattr(Training, "_validate", validate)
    assert run(packed, tmp_path / "run", **few).steps == run(packed, tmp_path / "whole", **few).steps


def test_an_early_stopped_run_without_its_embedder_is_still_finished(tmp_path: Path) -> None:
    packed = products(tmp_path / "products", classes=48, images=4, validation=0.25)
    one = run(packed, tmp_path / "run", **AUTO)
    last = max(scores(one.folder))
    assert one.best_step < last
    (one.folder / "embedder.safetensors").unlink()
    again = run(packed, tmp_path / "run", **AUTO)
    assert (again.steps, again.best_step, one.embedder().trained_on.step) == (last, last, last)  # type: ignore[union-attr]
    assert run(packed, tmp_path / "run", **AUTO).steps == last  # not trained again
    assert max(scores(one.folder)) == last


def test_no_gain_on_held_out_classes(packed: PackedImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(settings(packed, tmp_path / "run", **AUTO | {"lr": 0.0})).steps == 2  # MIN_STEPS
    assert "2 steps: the minimum; 0.2 of the training classes were best at 0" in capsys.readouterr().err


def test_stopped_in_the_trial_and_resumed(packed: PackedImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(packed, tmp_path / "whole", **AUTO)
    validate = Training._validate

    def stop(self: Training) -> None:
        validate(self)
        if self.step == 4:
            self._save()
            raise KeyboardInterrupt

    monkeypatch.setattr(Training, "_validate", stop)
    with pytest.raises(KeyboardInterrupt):
        run(packed, tmp_path / "run", **AUTO)
    monkeypatch.setattr(Training, "_validate", validate)
    assert not (tmp_path / "run" / "config.yaml").exists()
    resumed = run(packed, tmp_path / "run", **AUTO)
    for part in (".", TRIAL):
        assert scores(resumed.folder / part) == scores(whole.folder / part)
        assert (resumed.folder / part / "embedder.safetensors").read_bytes() == (
            whole.folder / part / "embedder.safetensors"
        ).read_bytes()


def test_validation_classes_stop_the_run_itself(tmp_path: Path) -> None:
    packed = products(tmp_path / "products", classes=48, images=4, validation=0.25)
    one = run(packed, tmp_path / "run", **AUTO)
    found = scores(one.folder)
    assert not (one.folder / TRIAL).exists()
    assert found[one.best_step] == max(found.values())
    assert one.recall_at_1 == next(
        line["recall_at_1"] for line in one.log() if line["step"] == one.best_step and "map_at_r" in line
    )
    assert is_finished(one.config, max(found), one.best_step, max(found.values()))


def test_without_classes_to_hold_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = products(tmp_path / "products", classes=8, images=4, validation=0)
    assert (
        train(settings(packed, tmp_path / "run", **AUTO | {"max_steps": 24})).steps == 24
    )  # 30 epochs of one batch, at most max_steps
    assert "24 steps: 30 epochs, at most 400, since there are too few classes" in capsys.readouterr().err
    assert run(packed, tmp_path / "more", **AUTO | {"max_steps": 100}).steps == 30


def test_large_datasets_hold_out_fewer_classes() -> None:
    config = TrainConfig(data="-", out="run")
    assert length.trial_config(config, 5_000, 100).validation == 0.2
    assert length.trial_config(config, 60_000, 10_000).validation == 1000 / 60_000
    assert length.trial_config(config, 60_000, 200).validation == 10 / 200  # ten classes, even if they have more images
    assert length.trial_config(config, 60_000, 20).validation == 0.2
    assert length.trial_config(config, 30, 8).validation == 0.25  # two classes


@pytest.mark.parametrize(("budget", "minutes"), [("30m", 30.0), ("2h", 120.0), ("90s", 1.5), ("0.5 h", 30.0), ("45min", 45.0)])
def test_durations(budget: str, minutes: float) -> None:
    assert parse_minutes(budget) == minutes


@pytest.mark.parametrize("budget", ["30", "0m", "-5m", "m", "1d", "", "1e3m"])
def test_bad_durations(budget: str) -> None:
    with pytest.raises(ValueError, match=r"budget must be a duration such as 30m or 2h, got .*\. Give a number above 0"):
        parse_minutes(budget)


def test_a_budget_shrinks_crops_then_freezes_more_stages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 224 px with 4 frozen stages, a step of both runs takes 2 s, and the evaluations take 1 s per step of one run."""
    tried: list[tuple[int | None, Any]] = []

    def pace(config: TrainConfig) -> Pace:
        tried.append((config.train_crop, config.freeze))
        assert config.train_crop is not None
        return Pace(64 * (224 / config.train_crop) ** 2, 20.0)

    monkeypatch.setattr(length, "measure_pace", pace)
    monkeypatch.setattr(length, "PackedImages", lambda folder: SimpleNamespace(size=329))
    monkeypatch.setattr(length, "needs_trial", lambda config, packed: not config.validation)
    monkeypatch.setattr(length, "_trial_of", lambda config, packed: config)
    monkeypatch.setattr(length, "_validation_rows", lambda config, packed: np.arange(1000))  # 20 images per step
    config = TrainConfig(data="-", out=str(tmp_path), max_steps=100_000)

    def planned(budget: str, progress: bool = False, **changes: Any) -> tuple[int | None, Any, int]:
        tried.clear()
        plan = length.plan_for(replace(config, budget=budget, **changes), progress)
        assert plan.budget is None
        return plan.train_crop, plan.freeze, plan.max_steps

    assert planned("1h") == (224, 4, 1020)
    assert tried == [(224, 4)]
    assert planned("40m", validation=0.2) == (224, 4, 1020)  # without a trial run, all steps are for the run itself
    assert planned("17m") == (192, 4, int(17 * 60 * 0.85 / (2 * (192 / 224) ** 2 + 1)))
    assert planned("5m")[:2] == (156, 6)
    assert tried == [(224, 4), (192, 4), (156, 4), (156, 5), (156, 6)]
    assert planned("1s", progress=True)[2] == 2  # at least MIN_STEPS
    assert "warning: budget 1s is too short for 2 steps, the minimum: about 0 min" in capsys.readouterr().err
    assert planned("5m", train_crop=200, freeze=2)[:2] == (200, 2)  # given settings are kept
    assert planned("1h", max_steps=500) == (224, 4, 500)
    monkeypatch.setattr(length, "PackedImages", lambda folder: SimpleNamespace(size=32))
    assert planned("1h")[:2] == (32, 4)  # no larger than the images
    tried.clear()
    length.plan_for(replace(config, budget="1s", trunk="small"), progress=False)
    assert {freeze for _, freeze in tried} == {0}  # stages of a trunk that freezes none by default are not frozen


def test_a_trial_needs_classes_to_hold_out(packed: PackedImages, tmp_path: Path) -> None:
    config = settings(packed, tmp_path, **AUTO)
    assert length.needs_trial(config, packed)
    assert not length.needs_trial(replace(config, validation=0.2), packed)  # the run itself is validated
    few = products(tmp_path / "few", classes=30, images=4, validation=0)
    assert not length.needs_trial(config, few)  # 15 training classes


def test_a_run_with_a_budget_keeps_its_plan(packed: PackedImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {**AUTO, "budget": "1m", "max_steps": 1000}
    speeds = iter([Pace(16 * 2 * 8 / 50.9, 1e9), Pace(1e6, 1.0)])  # 8 steps of 16 images in each half of 51 seconds
    monkeypatch.setattr(length, "ENOUGH", 0)
    monkeypatch.setattr(length, "measure_pace", lambda config: next(speeds))
    one = run(packed, tmp_path / "run", **changes)
    assert (one.config.max_steps, one.config.budget) == (8, None)
    assert max(scores(one.folder / TRIAL)) == 8
    again = run(packed, tmp_path / "run", **changes)
    assert again.config == one.config

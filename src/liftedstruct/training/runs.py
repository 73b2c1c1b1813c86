"""Runs: start one or resume one, after everything that can be wrong with it has been checked."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from liftedstruct.data import PackedImages
from liftedstruct.embedder import EMBEDDER, Embedder
from liftedstruct.runtime.progress import say
from liftedstruct.training.config import TrainConfig
from liftedstruct.training.loop import WEIGHTS, Training
from liftedstruct.training.machine import find_device, find_threads, prepared, seed_torch, warn_of_emulation
from liftedstruct.training.run_folder import RunFolder
from liftedstruct.trunks import Trunk, make_trunk

__all__ = ["Run", "check_run", "starting_trunk", "train"]

MAY_CHANGE = ("data", "out", "device", "threads", "checkpoint_minutes", "log_every")  # may change without another embedding
LEFT_TO_TRUNK = ("pool", "train_dim", "crop", "train_crop", "freeze", "pretrained_mix")  # None leaves them to the trunk
TRAIN_DIM = 512


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    config: TrainConfig
    steps: int
    best_step: int  # after which step the embedder was saved
    recall_at_1: float | None  # of the embedder on the validation classes, where there are any

    def embedder(self) -> Embedder:
        """What was learned."""
        return Embedder.load(self.folder)

    def log(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return RunFolder(self.folder).read_log()


def train(config: TrainConfig, *, progress: bool = True) -> Run:
    """Train an embedding, or resume: whatever is in the folder of these settings, the finished run is returned.

    Ctrl-C and SIGTERM end it after the current step, with a state to resume from, and before the first step at once;
    anything harder loses no more than the work since the last checkpoint. The test classes are never read.

    Args:
        config: all settings; those of a run that is there already must be the same.
        progress: show how far it is, on the terminal or as lines of text.

    """
    folder = RunFolder(config.out)
    if not folder.has_run():
        return _train(config, folder, progress)
    check_run(config)
    begun, state = folder.config(), folder.progress()
    if state is None or state["step"] < begun.steps or not (folder / EMBEDDER).exists():
        free = {name: getattr(config, name) for name in MAY_CHANGE if getattr(config, name) is not None}
        return _train(replace(begun, **free), folder, progress)
    if progress:
        say(f"{folder.path} has all its {begun.steps:,} steps, nothing to do")
    return Run(folder.path, begun, state["step"], state["best_step"], state["best"] if state["best"] >= 0 else None)


def check_run(config: TrainConfig) -> None:
    """Raise if the folder of these settings holds a run of other ones, or of other data where that is there already."""
    folder = RunFolder(config.out)
    if not folder.has_run():
        return
    begun = folder.config()
    for name in (field.name for field in fields(TrainConfig) if field.name not in MAY_CHANGE):
        was, now = getattr(begun, name), getattr(config, name)
        if name == "weights":
            was, now = _absolute(was), _absolute(now)
        if now != was and not (now is None and name in LEFT_TO_TRUNK):
            raise ValueError(
                f"{folder.path} must hold a run of these settings, its {name} is {was} and not {now}. "
                "Choose another folder, or remove that one."
            )
    if Path(config.data).exists():
        _check_same(folder.record(), PackedImages(config.data))


def starting_trunk(config: TrainConfig) -> Trunk:
    """The trunk that a run of these settings starts from."""
    seed_torch(config.seed, 0, WEIGHTS)
    drawn = config.weights == "random"
    return make_trunk(config.trunk.name, None if drawn else config.weights, not drawn, **config.trunk.options)


def _train(config: TrainConfig, folder: RunFolder, progress: bool) -> Run:
    """Check everything, then start or resume."""
    packed, device = PackedImages(config.data), find_device(config.device)
    warn_of_emulation(device, config.precision)
    with prepared(device, config.threads or find_threads()), folder.locked():
        new = not folder.has_run()
        if new:
            folder.check_new()
            record, state = {}, None
        else:
            record, state = folder.record(), folder.load_state()
            _check_same(record, packed)
            for key, now in _machine().items():
                if progress and record[key] != now:
                    say(f"warning: {key} was {record[key]} when the run began and is {now}; the last digits may differ")
        trunk = _make_trunk(config, state[1] if state else None)
        config = _resolved(config, packed, trunk, device)
        if progress and config.crop and config.crop < trunk.suggested["crop"] and packed.size == config.crop:
            say(f"crops of {config.crop} px, the size of the prepared images; {trunk.suggested['crop']} px suit the trunk")
        embedder = Embedder(trunk, config.train_dim or config.dim, config.dropout, config.normalize, config.crop)
        training = Training(config, folder, packed, embedder.to(device), progress)
        training.check()
        if new:
            folder.begin(config, _record(training))
        else:
            _check_counts(record, training)
        training.start(state)
        training.run()
    recall = training.best if training.validates else None
    return Run(folder.path, config, training.step, training.best_step, recall)


def _make_trunk(config: TrainConfig, state: dict[str, Any] | None) -> Trunk:
    """The trunk as it starts; of a run that resumes, only its shape, which needs no file of weights."""
    if state is None:
        return starting_trunk(config)
    trunk = make_trunk(config.trunk.name, pretrained=False, **state["options"])
    trunk.weights = state["weights"]
    return trunk


def _resolved(config: TrainConfig, packed: PackedImages, trunk: Trunk, device: torch.device) -> TrainConfig:
    """The settings with nothing left open; the trunk gets its pooling."""
    suggested = trunk.suggested
    pool = config.pool or suggested["pool"]
    trunk.set_pool(pool)
    crop = config.crop or min(suggested["crop"], packed.size)
    train_crop = config.train_crop or (crop if config.crop else min(suggested.get("train_crop", crop), crop))
    for name, side in (("crop", crop), ("train_crop", train_crop)):
        if side > packed.size:
            raise ValueError(
                f"{name} must be at most the size of the prepared images, {packed.size}, got {side}. "
                f"Pass a smaller {name}, or prepare them larger, --size."
            )
    mix = config.pretrained_mix
    if mix is None:
        mix = suggested["pretrained_mix"] if config.weights != "random" and config.freeze_batch_norm else 0.0
    train_dim = max(TRAIN_DIM, config.dim) if config.train_dim is None and config.dim else config.train_dim
    return replace(
        config,
        data=str(packed.folder),
        out=str(Path(config.out).absolute()),
        weights=_absolute(config.weights),
        pool=config.pool if pool == "own" else pool,
        train_dim=train_dim or 0,
        crop=crop,
        train_crop=train_crop,
        freeze=suggested["freeze"] if config.freeze is None else config.freeze,
        pretrained_mix=mix,
        device=str(device),
        threads=torch.get_num_threads(),
    )


def _check_same(record: dict[str, Any], packed: PackedImages) -> None:
    """Raise if the data changed since the run began."""
    if record["checksum"] != packed.checksum:
        raise ValueError(
            f"{packed.folder} must be as it was when the run began, its checksum was {record['checksum'][:12]} and is "
            f"{packed.checksum[:12]}. Bring it back, or start another run."
        )


def _check_counts(record: dict[str, Any], training: Training) -> None:
    """Raise if there are other images than when the run began: a checksum does not see one that could not be read then."""
    now = len(training.train_rows), len(training.validation_rows)
    before = record["images"], record["validation_images"]
    if now != before:
        raise ValueError(
            f"{training.packed.folder} must be as it was when the run began, with {before[0]} training and {before[1]} "
            f"validation images; it has {now[0]} and {now[1]}. Bring it back, or start another run."
        )


def _record(training: Training) -> dict[str, Any]:
    """What the run depends on beside its settings."""
    return {
        "checksum": training.packed.checksum,
        "images": len(training.train_rows),
        "validation_images": len(training.validation_rows),
        "trunk": training.started_from,
        **_machine(),
    }


def _machine() -> dict[str, str]:
    """What the last digits depend on, beside the number of threads."""
    return {"torch": torch.__version__, "processor": torch.backends.cpu.get_cpu_capability()}


def _absolute(weights: str | None) -> str | None:
    """Weights by their whole path, if they are a file."""
    return weights if weights in (None, "random") else str(Path(weights).absolute())

"""Start or resume a run, after checking its settings, data and folder."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from liftedstruct.data import PackedImages
from liftedstruct.embedder import EMBEDDER, Embedder
from liftedstruct.runtime import seeds
from liftedstruct.runtime.progress import say
from liftedstruct.training.config import TrainConfig, trains_prefixes
from liftedstruct.training.inputs import can_validate, split_rows
from liftedstruct.training.length import EVERY, PATIENCE, choose_steps, plan_for
from liftedstruct.training.loop import Training, nested_dims
from liftedstruct.training.machine import find_device, find_threads, prepared, seed_torch, warn_of_emulation
from liftedstruct.training.pace import resolve_crops
from liftedstruct.training.run_folder import RunFolder
from liftedstruct.trunks import RANDOM, Trunk, make_trunk

__all__ = ["Run", "check_run", "shared_training", "starting_trunk", "train", "truncate_run"]

# Settings that affect the embedding at most by rounding.
MAY_CHANGE = ("data", "out", "device", "threads", "checkpoint_minutes", "log_every")
# Settings whose default, None, is replaced by _resolved.
RESOLVED = ("pool", "train_dim", "crop", "train_crop", "freeze", "lr", "warmup", "pretrained_mix")
REQUESTED = "requested"  # entry of the record: settings as given, where the run chose others (number of steps, budget)
TRAIN_DIM, WARMUP, PRETRAINED_MIX = 512, 30, 0.3


@dataclass(frozen=True)
class Run:
    """Finished run."""

    folder: Path
    config: TrainConfig
    steps: int
    best_step: int  # step of the saved embedder
    recall_at_1: float | None  # of the embedder on the validation classes; None without validation

    def embedder(self) -> Embedder:
        """Load the trained embedder."""
        return Embedder.load(self.folder)

    def log(self) -> list[dict[str, Any]]:
        """Return the lines of the log."""
        return RunFolder(self.folder).read_log()


def train(config: TrainConfig, *, progress: bool = True) -> Run:
    """Train an embedder, or resume or return the run in `config.out`.

    Ctrl-C and SIGTERM stop the run after the current step and save a checkpoint to resume from; before the first step, they
    stop it at once. If the process is killed, only the work since the last checkpoint is lost. The test classes are never read.

    Args:
        config: all settings. If the run folder already holds a run, its settings must be the same, except those that affect
            the embedding at most by rounding: `data`, `out`, `device`, `threads`, `checkpoint_minutes` and `log_every`.
        progress: show progress, as a bar on a terminal or as lines of text.

    Returns:
        The finished run.

    """
    folder = RunFolder(config.out)
    if not folder.has_run():
        with folder.locked():
            folder.check_new()  # before a trial run
        planned = config if config.budget is None else plan_for(config, progress)
        planned = planned if planned.steps else _with_steps(planned, progress)
        requested = {name: value for name, value in vars(config).items() if getattr(planned, name) != value}
        return _train(planned, folder, progress, requested)
    check_run(config)
    begun, state = folder.config(), folder.progress()
    if state is None or not folder.is_finished() or not (folder / EMBEDDER).exists():
        free = {name: getattr(config, name) for name in MAY_CHANGE if getattr(config, name) is not None}
        return _train(replace(begun, **free), folder, progress)
    if progress:
        say(f"{folder.path} has finished all {state['step']:,} steps, nothing to do")
    return Run(folder.path, begun, state["step"], state["best_step"], state["best_recall"] if state["best"] >= 0 else None)


def _with_steps(config: TrainConfig, progress: bool) -> TrainConfig:
    """Return the settings with the number of steps of a trial run, or with early stopping on given validation classes."""
    packed = PackedImages(config.data)
    validation = split_rows(packed, config.validation, config.seed)[1]
    if len(validation) and can_validate(packed.labels[validation]):
        every = config.validate_every or EVERY
        return replace(config, steps=config.max_steps, patience=config.patience or PATIENCE, validate_every=every)
    shared = replace(config, dim=shared_training(config).dim)  # the same length for all dimensions
    steps = choose_steps(shared, packed, lambda trial: train(trial, progress=progress).best_step, progress)
    warmup = None if config.warmup is None else min(config.warmup, steps // 2)
    return replace(config, steps=steps, warmup=warmup, patience=0, validation=0.0, validate_every=0)


def shared_training(config: TrainConfig) -> TrainConfig:
    """Return the same settings for all runs that train the same network and differ only in the dimension that is saved."""
    prefixes = nested_dims(TRAIN_DIM, config.min_dim) if trains_prefixes(config) else ()
    if config.train_dim is not None or config.dim not in (*prefixes, TRAIN_DIM):
        return config
    return replace(config, out="-", dim=TRAIN_DIM)


def truncate_run(run: Run, config: TrainConfig) -> None:
    """Create the run of `config` from a finished run whose settings differ only in a larger `dim`, without training again."""
    wide, folder = RunFolder(run.folder), RunFolder(config.out)
    with folder.locked():
        folder.check_new()
        folder.copy_progress(wide)
        folder.begin(replace(run.config, dim=config.dim, out=config.out), wide.record())
        folder.save_embedder(run.embedder().truncated(config.dim))


def check_run(config: TrainConfig) -> None:
    """Raise an error if the run folder holds a run with other settings, or on other data (if `config.data` exists)."""
    folder = RunFolder(config.out)
    if not folder.has_run():
        return
    begun = folder.config()
    requested = folder.record().get(REQUESTED, {})
    for name in (field.name for field in fields(TrainConfig) if field.name not in MAY_CHANGE):
        was, now = requested.get(name, getattr(begun, name)), getattr(config, name)
        if name == "weights":
            was, now = _absolute(was), _absolute(now)
        if now != was and not (now is None and name in RESOLVED):
            raise ValueError(
                f"{folder.path} must hold a run with the same settings, but its {name} is {was}, got {now}. "
                "Choose another folder, or delete this one."
            )
    if Path(config.data).exists():
        _check_same(folder.record(), PackedImages(config.data))


def starting_trunk(config: TrainConfig) -> Trunk:
    """Return the trunk that a run with these settings starts from."""
    seed_torch(config.seed, 0, seeds.WEIGHTS)
    drawn = config.weights == "random"
    return make_trunk(config.trunk.name, None if drawn else config.weights, not drawn, **config.trunk.options)


def _train(config: TrainConfig, folder: RunFolder, progress: bool, requested: Mapping[str, Any] | None = None) -> Run:
    """Check the run, then start or resume it. `requested` are settings as given, where `config` has others."""
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
                    say(f"warning: {key} was {record[key]} when the run started and is now {now}; the last digits may differ")
        trunk = _make_trunk(config, state[1] if state else None)
        config = _resolved(config, packed, trunk, device)
        if progress and config.crop and config.crop < trunk.suggested["crop"] and packed.size == config.crop:
            say(f"using crops of {config.crop} px, the prepared size; the default of the trunk is {trunk.suggested['crop']} px")
        settings = config.dropout, config.normalize, config.crop, packed.size, packed.resize_mode
        embedder = Embedder(trunk, config.train_dim or config.dim, *settings)
        training = Training(config, folder, packed, embedder.to(device), progress)
        training.check()
        if new:
            folder.begin(config, _record(training) | ({REQUESTED: requested} if requested else {}))
        else:
            _check_counts(record, training)
        training.start(state)
        training.run()
    recall = training.best_recall if training.validates else None
    return Run(folder.path, config, training.step, training.best_step, recall)


def _make_trunk(config: TrainConfig, state: dict[str, Any] | None) -> Trunk:
    """Return the initial trunk, or, if the run resumes, a trunk without weights, which needs no weights file."""
    if state is None:
        return starting_trunk(config)
    trunk = make_trunk(config.trunk.name, pretrained=False, **state["options"])
    trunk.weights = state["weights"]
    return trunk


def _resolved(config: TrainConfig, packed: PackedImages, trunk: Trunk, device: torch.device) -> TrainConfig:
    """Return the settings with all defaults resolved, and set the pooling of the trunk."""
    suggested = trunk.suggested
    pool = config.pool or suggested["pool"]
    trunk.set_pool(pool)
    crop, train_crop = resolve_crops(config, trunk, packed.size)
    for name, side in (("crop", crop), ("train_crop", train_crop)):
        if side > packed.size:
            raise ValueError(
                f"{name} must be at most the size of the prepared images, {packed.size}, got {side}. "
                f"Pass a smaller {name}, or prepare the dataset with a larger size."
            )
    frozen, mix = suggested["freeze"] if config.freeze is None else config.freeze, config.pretrained_mix
    if mix is None:
        mix = PRETRAINED_MIX if trunk.weights != RANDOM and frozen != "trunk" and config.freeze_batch_norm else 0.0
    train_dim = config.train_dim
    if train_dim is None and config.dim:
        train_dim = max(TRAIN_DIM, config.dim) if trains_prefixes(config) else 0
    return replace(
        config,
        data=str(packed.folder),
        out=str(Path(config.out).absolute()),
        weights=_absolute(config.weights),
        pool=config.pool if pool == "own" else pool,
        train_dim=train_dim or 0,
        crop=crop,
        train_crop=train_crop,
        freeze=frozen,
        lr=suggested["lr"] if config.lr is None else config.lr,
        warmup=min(WARMUP, config.steps // 2) if config.warmup is None else config.warmup,
        pretrained_mix=mix,
        device=str(device),
        threads=torch.get_num_threads(),
    )


def _check_same(record: dict[str, Any], packed: PackedImages) -> None:
    """Raise an error if the data changed since the run started."""
    if record["checksum"] != packed.checksum:
        raise ValueError(
            f"{packed.folder} must be unchanged since the run started, but its checksum was {record['checksum'][:12]} and is "
            f"{packed.checksum[:12]} now. Restore it, or start a new run."
        )


def _check_counts(record: dict[str, Any], training: Training) -> None:
    """Raise an error if the number of images changed: the checksum does not cover images that cannot be read."""
    now = len(training.train_rows), len(training.validation_rows)
    before = record["images"], record["validation_images"]
    if now != before:
        raise ValueError(
            f"{training.packed.folder} must be unchanged since the run started, with {before[0]} training and {before[1]} "
            f"validation images, got {now[0]} and {now[1]}. Restore it, or start a new run."
        )


def _record(training: Training) -> dict[str, Any]:
    """Return what the run depends on in addition to its settings."""
    return {
        "checksum": training.packed.checksum,
        "images": len(training.train_rows),
        "validation_images": len(training.validation_rows),
        "trunk": training.started_from,
        **_machine(),
    }


def _machine() -> dict[str, str]:
    """Return what rounding depends on, in addition to the number of threads."""
    return {"torch": torch.__version__, "processor": torch.backends.cpu.get_cpu_capability()}


def _absolute(file: str | None) -> str | None:
    """Return the absolute path of a file of weights; other values are unchanged."""
    return file if file in (None, "random") else str(Path(file).absolute())

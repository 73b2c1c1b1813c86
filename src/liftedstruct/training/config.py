"""All settings of a run: one dataclass for Python, the flags and the YAML file."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_type_hints

from liftedstruct.losses import LOSSES
from liftedstruct.runtime.checks import pick
from liftedstruct.runtime.settings import (
    Choice,
    Count,
    Fraction,
    NonNegative,
    Registry,
    Setting,
    Whole,
    check_value,
    choose,
    describe,
    unknown,
)
from liftedstruct.samplers import SAMPLERS
from liftedstruct.training.augmentations import AUGMENTATIONS
from liftedstruct.training.heads import HEADS
from liftedstruct.training.optimizers import OPTIMIZERS, SCHEDULES
from liftedstruct.training.presets import PRESETS
from liftedstruct.trunks import TRUNKS

__all__ = ["REGISTRIES", "TrainConfig", "as_yaml", "config_settings", "load_config", "merge_settings"]

Entry = Any  # a name, or a mapping of a name and options, is made a Choice

# Settings that name an entry of a registry; its options are settings of their own, such as loss.margin.
REGISTRIES: dict[str, Registry] = {
    "trunk": TRUNKS,
    "head": HEADS,
    "loss": LOSSES,
    "sampler": SAMPLERS,
    "augmentation": AUGMENTATIONS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}


def _default(what: str, name: str, **options: Any) -> Any:
    """The entry that the recipe has, and those of its options that are not the entry's own defaults."""
    return field(default_factory=lambda: choose(what, REGISTRIES[what], {"name": name, **options}))


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run. The defaults are the recipe that did best on held-out training classes; see docs/recipe.md.

    A setting that chooses among several (trunk, head, loss, sampler, augmentation, optimizer, schedule) takes a name or a
    mapping of a name and options: ``loss="triplet"``, ``loss={"name": "triplet", "margin": 0.5}``. Without a name, or with that
    of the default, options that are left out keep the values of the recipe.

    Args:
        data: folder of a prepared dataset.
        out: folder of the run, created if absent; if it holds this run already, the run resumes.
        trunk: network below the head (see "liftedstruct list trunks").
        weights: file with the trunk's weights, or "random". Default: the pretrained weights that come with the trunk.
        pool: pooling of the last feature map: avg, max or avg+max. Default: what suits the trunk.
        dim: dimensions of the embedding; 0 trains the pooled features themselves.
        train_dim: dimensions while training, reduced to dim by PCA. Default: 512, or dim if that is more; 0 means dim.
        normalize: scale every embedding to unit length.
        dropout: dropout of the features before the head.
        head: initialization of the head, the last linear layer (see "liftedstruct list heads").
        loss: the loss (see "liftedstruct list losses").
        sampler: which images meet in a batch (see "liftedstruct list samplers").
        batch_size: images per batch, at most; a sampler may round it down.
        steps: training steps.
        crop: side of the center crop that is embedded, in pixels. Default: what suits the trunk, within the prepared size.
        train_crop: side of the crops in training, in pixels. Default: what suits the trunk, or crop if that is given.
        augmentation: crops to train on (see "liftedstruct list augmentations").
        optimizer: the optimizer (see "liftedstruct list optimizers").
        lr: learning rate.
        schedule: learning rate schedule (see "liftedstruct list schedules").
        warmup: steps of linear warm-up before the schedule.
        freeze: number of the trunk's first stages that stay fixed, or "trunk" for all. Default: what suits the trunk.
        freeze_batch_norm: keep the running statistics of batch norm layers.
        ema_decay: decay of the EMA of the weights, lower in the first steps; the EMA is what is kept. 0 keeps the weights.
        pretrained_mix: share of the pretrained weights in the weights that are kept (WiSE-FT). Default: what suits the trunk.
        clip_norm: largest norm of the gradient; 0 does not clip.
        cache_chunk: images per forward pass with gradient caching, exact for the whole batch; 0 is one pass.
        precision: float32, bfloat16, or float16 on CUDA.
        validation: fraction of the training classes to hold out, if the dataset has no validation classes.
        validate_every: steps between measurements of Recall@1 on validation classes; 0 never measures.
        checkpoint_minutes: minutes between checkpoints.
        log_every: steps between lines of the log.
        seed: seed of every random choice.
        device: cpu, cuda or cuda:N. Default: cuda if available.
        threads: CPU threads. Default: as many as this process may use.

    """

    data: str
    out: str
    trunk: Entry = _default("trunk", "efficientnet_lite0")
    weights: str | None = None
    pool: Literal["avg", "max", "avg+max"] | None = None
    dim: Whole = 512
    train_dim: Whole | None = None
    normalize: bool = True
    dropout: Fraction = 0.0
    head: Entry = _default("head", "pca")
    loss: Entry = _default("loss", "lifted_struct", margin=4.0, temperature=0.05)
    sampler: Entry = _default("sampler", "balanced", samples_per_class=4)
    batch_size: Count = 64
    steps: Count = 400
    crop: Count | None = None
    train_crop: Count | None = None
    augmentation: Entry = _default("augmentation", "random_resized_crop")
    optimizer: Entry = _default("optimizer", "adamw")
    lr: NonNegative = 1e-4
    schedule: Entry = _default("schedule", "cosine")
    warmup: Whole = 0
    freeze: Whole | Literal["trunk"] | None = None
    freeze_batch_norm: bool = True
    ema_decay: Fraction = 0.0
    pretrained_mix: Fraction | None = None
    clip_norm: NonNegative = 0.0
    cache_chunk: Whole = 0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    validation: Fraction = 0.0
    validate_every: Whole = 100
    checkpoint_minutes: NonNegative = 5.0
    log_every: Count = 10
    seed: Whole = 0
    device: str | None = None
    threads: Count | None = None

    def __post_init__(self) -> None:
        for setting in config_settings():
            name, value = setting.name, getattr(self, setting.name)
            if name in REGISTRIES:
                value = choose(name, REGISTRIES[name], value, setting.default)
            else:
                value = check_value(name, value, setting.annotation, setting.help)
            object.__setattr__(self, name, value)
        _check_together(self)

    def plain(self) -> dict[str, Any]:
        """The settings as plain data, as a YAML file has them."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value.plain() if isinstance(value, Choice) else value for name, value in values}


@cache
def config_settings() -> tuple[Setting, ...]:
    """What :class:`TrainConfig` declares; the default of ``data`` and ``out`` is None."""
    hints = get_type_hints(TrainConfig, include_extras=True)
    defaults = {
        each.name: each.default_factory() if callable(each.default_factory) else each.default for each in fields(TrainConfig)
    }
    return tuple(
        Setting(name, hints[name], None if name in ("data", "out") else default, describe(TrainConfig, name))
        for name, default in defaults.items()
    )


def load_config(file: str | Path | None = None, preset: str | None = None, **settings: Any) -> TrainConfig:
    """Settings from a preset, then from a YAML file, then as they are given; later ones win.

    >>> load_config(preset="paper", data="cub", out="run", dim=64).optimizer.name
    'caffe_sgd'
    >>> load_config(data="cub", out="run", loss={"margin": 2.0}).loss.options["temperature"]  # that of the recipe stays
    0.05
    """
    return merge_settings(
        pick(PRESETS, preset, "preset") if preset is not None else {},
        _read_yaml(Path(file)) if file is not None else {},
        settings,
    )


def merge_settings(*layers: Mapping[str, Any]) -> TrainConfig:
    """Settings from several layers; later ones win. Options that a layer leaves out stay as those before have them."""
    known = {setting.name: setting for setting in config_settings()}
    merged: dict[str, Any] = {}
    for name, value in (item for layer in layers for item in layer.items()):
        if name not in known:
            raise unknown("TrainConfig", name, known)
        if name in REGISTRIES:
            value = choose(name, REGISTRIES[name], value, merged.get(name, known[name].default))
        merged[name] = value
    for name in ("data", "out"):
        if merged.get(name) is None:
            raise ValueError(f"{name} must be given: {known[name].help} On the command line: train DATA --out RUN.")
    return TrainConfig(**merged)


def as_yaml(config: TrainConfig) -> str:
    """The settings as a YAML file that :func:`load_config` reads back."""
    import yaml

    text: str = yaml.safe_dump(config.plain(), sort_keys=False, allow_unicode=True)
    return text


def _read_yaml(file: Path) -> Mapping[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{file} must be a YAML file of settings, there is none. Check the path.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} must be a YAML file of settings, got: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold settings, such as 'lr: 0.0002' on a line, got {type(content).__name__}.")
    return content


def _check_together(config: TrainConfig) -> None:
    """Raise for settings that exclude one another."""
    layout = getattr(config.loss.make(), "layout", None)  # the loss itself raises for values that it does not take
    if layout is not None and layout != getattr(config.sampler.entry, "layout", None):
        raise ValueError(
            f"the {config.loss} loss must have its rows laid out by the sampler {layout!r}, got {config.sampler.name!r}. "
            f"Pass sampler {layout}."
        )
    if config.warmup and config.warmup >= config.steps:
        raise ValueError(f"warmup must be less than steps, {config.steps}, got {config.warmup}. Lower it.")
    if config.train_dim and not 0 < config.dim <= config.train_dim:
        raise ValueError(
            f"train_dim must be at least dim, which it is reduced to, got {config.train_dim} with dim {config.dim}. "
            "Raise it, or pass 0."
        )
    if config.pretrained_mix and not config.freeze_batch_norm:
        raise ValueError(
            f"pretrained_mix must be 0 where batch norm statistics are trained, got {config.pretrained_mix}. "
            "Pass pretrained_mix 0, or freeze_batch_norm true."
        )
    if config.freeze == "trunk" and config.dim == 0:
        raise ValueError("a frozen trunk must have a head to train, got dim 0. Pass a dim, or freeze fewer stages.")
    if config.precision == "float16" and config.device is not None and not config.device.startswith("cuda"):
        raise ValueError(f"precision float16 must have a CUDA device, got {config.device}. Pass bfloat16 or float32.")

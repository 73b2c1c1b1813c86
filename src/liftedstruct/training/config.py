"""All settings of a run, as one dataclass shared by the Python API, the command line and YAML files."""

import re
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

__all__ = [
    "REGISTRIES",
    "TrainConfig",
    "as_yaml",
    "config_settings",
    "load_config",
    "merge_settings",
    "parse_minutes",
    "takes_prefixes",
    "trains_prefixes",
]

Entry = Any  # a name, or a mapping with a name and options; converted to a Choice

# Settings that name an entry of a registry. The options of the entry are settings too, such as loss.margin.
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
    """Return a dataclass field with the default entry; `options` override the defaults of the entry."""
    return field(default_factory=lambda: choose(what, REGISTRIES[what], {"name": name, **options}))


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run. The defaults are the recipe chosen on held-out training classes; see docs/recipe.md.

    `trunk`, `head`, `loss`, `sampler`, `augmentation`, `optimizer` and `schedule` take a name or a mapping with a name and
    options: `loss="triplet"` or `loss={"name": "triplet", "margin": 0.5}`. If the name is omitted, or is the default, options
    that are not given keep the values of the recipe.

    Args:
        data: folder of a prepared dataset.
        out: run folder, created if missing; if it already holds this run, the run resumes.
        trunk: network that computes the features (see "liftedstruct list trunks").
        weights: file with weights for the trunk, or "random". Default: the pretrained weights of the trunk.
        pool: pooling of the feature map: avg, max or avg+max. Default: depends on the trunk.
        dim: embedding dimension; 0 trains the pooled features without a head.
        train_dim: embedding dimension during training, of which the first dim are saved; 0 means dim. Default: 512, or dim if
            larger; without min_dim, or if the loss has parameters or a method `prepare`, dim.
        min_dim: also train the first min_dim, 2 min_dim, 4 min_dim, ... dimensions (Matryoshka), so that the embedding can be
            truncated; 0 trains all dimensions only.
        normalize: L2-normalize the embeddings.
        dropout: dropout probability of the features before the head.
        head: initialization of the head, the last linear layer (see "liftedstruct list heads").
        loss: loss function (see "liftedstruct list losses").
        sampler: batch sampler (see "liftedstruct list samplers").
        batch_size: maximum number of images per batch; the sampler may round it down.
        steps: number of training steps; 0 chooses it on held-out training classes, then trains on all of them.
        max_steps: maximum number of steps that 0 chooses.
        budget: time for the whole training, such as 30m or 2h; limits max_steps, and if needed shrinks the training crops and
            freezes more stages.
        patience: stop if MAP@R on the validation classes has not improved for this many steps, or a third of the best step
            if that is more. 0 never stops early, or means 100 if steps is 0.
        crop: size of the center crop for validation and inference, in pixels. Default: depends on the trunk, at most the
            prepared size.
        train_crop: size of the training crops, in pixels. Default: crop if given, otherwise depends on the trunk.
        augmentation: augmentation of the training images (see "liftedstruct list augmentations").
        optimizer: optimizer (see "liftedstruct list optimizers").
        lr: learning rate. Default: depends on the trunk.
        schedule: learning rate schedule (see "liftedstruct list schedules").
        warmup: number of linear warm-up steps before the schedule. Default: 30, but at most half of the steps.
        freeze: number of trunk stages to freeze, starting from the input, or "trunk" for all. Default: depends on the trunk.
        freeze_batch_norm: keep the running statistics of batch norm layers fixed.
        ema_decay: decay of the EMA of the weights, lower in the first steps; the EMA is saved, not the weights. 0 disables it.
        pretrained_mix: fraction of the pretrained weights in the saved weights of the trunk (WiSE-FT). Default: 0.3, or 0
            without pretrained weights.
        clip_norm: maximum norm of the gradient; 0 disables clipping.
        cache_chunk: images per forward pass with gradient caching, which keeps the gradient exact; 0 disables caching.
        precision: float32, bfloat16, or float16 (CUDA only).
        validation: fraction of the training classes to hold out for validation if the dataset has no validation classes.
        validate_every: steps between evaluations of Recall@1 and MAP@R on the validation classes; 0 disables validation, or
            means 50 if steps is 0.
        checkpoint_minutes: minutes between checkpoints.
        log_every: steps between log lines.
        seed: random seed.
        device: cpu, cuda or cuda:N. Default: cuda if available.
        threads: number of CPU threads. Default: all that are available to this process.

    """

    data: str
    out: str
    trunk: Entry = _default("trunk", "efficientnet_lite0")
    weights: str | None = None
    pool: Literal["avg", "max", "avg+max"] | None = None
    dim: Whole = 512
    train_dim: Whole | None = None
    min_dim: Whole = 64
    normalize: bool = True
    dropout: Fraction = 0.0
    head: Entry = _default("head", "pca")
    loss: Entry = _default("loss", "lifted_struct", margin=4.0, temperature=0.05)
    sampler: Entry = _default("sampler", "balanced", samples_per_class=4)
    batch_size: Count = 64
    steps: Whole = 0
    max_steps: Count = 1000
    budget: str | None = None
    patience: Whole = 0
    crop: Count | None = None
    train_crop: Count | None = None
    augmentation: Entry = _default("augmentation", "random_resized_crop")
    optimizer: Entry = _default("optimizer", "adamw")
    lr: NonNegative | None = None
    schedule: Entry = _default("schedule", "constant")
    warmup: Whole | None = None
    freeze: Whole | Literal["trunk"] | None = None
    freeze_batch_norm: bool = True
    ema_decay: Fraction = 0.99
    pretrained_mix: Fraction | None = None
    clip_norm: NonNegative = 0.0
    cache_chunk: Whole = 0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    validation: Fraction = 0.0
    validate_every: Whole = 50
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

    def __hash__(self) -> int:  # without the options of a Choice, which may not be hashable
        return hash(tuple(value.name if isinstance(value, Choice) else value for value in vars(self).values()))

    def plain(self) -> dict[str, Any]:
        """Return the settings as plain data, as written to YAML files."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value.plain() if isinstance(value, Choice) else value for name, value in values}


@cache
def config_settings() -> tuple[Setting, ...]:
    """Return the settings that `TrainConfig` declares. The default of `data` and `out` is None."""
    hints = get_type_hints(TrainConfig, include_extras=True)
    defaults = {
        each.name: each.default_factory() if callable(each.default_factory) else each.default for each in fields(TrainConfig)
    }
    return tuple(
        Setting(name, hints[name], None if name in ("data", "out") else default, describe(TrainConfig, name))
        for name, default in defaults.items()
    )


def load_config(file: str | Path | None = None, preset: str | None = None, **settings: Any) -> TrainConfig:
    """Load settings from a preset, then a YAML file, then keyword arguments; later values override earlier ones.

    Examples:
        >>> load_config(preset="paper", data="cub", out="run", dim=64).optimizer.name
        'caffe_sgd'
        >>> load_config(data="cub", out="run", loss={"margin": 2.0}).loss.options["temperature"]  # as in the recipe
        0.05
    """
    return merge_settings(
        pick(PRESETS, preset, "preset") if preset is not None else {},
        _read_yaml(Path(file)) if file is not None else {},
        settings,
    )


def merge_settings(*layers: Mapping[str, Any]) -> TrainConfig:
    """Merge layers of settings; later layers override earlier ones. Options that a layer omits keep their earlier values."""
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
    """Return the settings as YAML text for `load_config`."""
    import yaml

    text: str = yaml.safe_dump(config.plain(), sort_keys=False, allow_unicode=True)
    return text


def _read_yaml(file: Path) -> Mapping[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{file} must be a YAML file of settings, but it does not exist. Check the path.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} must be a YAML file of settings, got: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must contain settings, such as the line 'lr: 0.0002', got {type(content).__name__}.")
    return content


def parse_minutes(text: str) -> float:
    """Return the minutes of a duration such as 30m or 1.5h.

    Examples:
        >>> parse_minutes("30m"), parse_minutes("1.5h"), parse_minutes("90s")
        (30.0, 90.0, 1.5)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)", text.strip())
    if not found or not float(found[1]):
        raise ValueError(f"budget must be a duration such as 30m or 2h, got {text!r}. Give a number above 0 and s, m or h.")
    return float(found[1]) * {"s": 1 / 60, "m": 1, "min": 1, "h": 60}[found[2]]


def takes_prefixes(config: TrainConfig) -> bool:
    """Return whether the loss takes embeddings of any dimension. One with parameters, such as proxies, has one dimension."""
    loss = config.loss.make()
    return not hasattr(loss, "prepare") and not list(loss.parameters())


def trains_prefixes(config: TrainConfig) -> bool:
    """Return whether prefixes of the embedding are trained too, so that it can be truncated."""
    return bool(config.dim and config.min_dim and takes_prefixes(config))


def _check_together(config: TrainConfig) -> None:
    """Raise an error if settings are incompatible."""
    layout = getattr(config.loss.make(), "layout", None)  # the loss checks its own options
    if layout is not None and layout != getattr(config.sampler.entry, "layout", None):
        raise ValueError(
            f"the {config.loss} loss requires batches from the sampler {layout!r}, got {config.sampler.name!r}. "
            f"Pass sampler {layout}."
        )
    steps = config.steps or config.max_steps
    if config.warmup and config.warmup >= steps:
        raise ValueError(f"warmup must be less than steps ({steps}), got {config.warmup}. Lower warmup.")
    if config.train_dim and not 0 < config.dim <= config.train_dim:
        raise ValueError(
            f"train_dim must be at least dim, with dim above 0, got {config.train_dim} with dim {config.dim}. "
            "Raise train_dim, or pass 0."
        )
    if config.train_dim and config.train_dim > config.dim and not takes_prefixes(config):
        raise ValueError(
            f"train_dim must be 0 or dim, {config.dim}, with the {config.loss} loss, whose parameters have one dimension, "
            f"got {config.train_dim}. Pass 0."
        )
    if config.pretrained_mix and not config.freeze_batch_norm:
        raise ValueError(
            f"pretrained_mix must be 0 if batch norm statistics are trained, got {config.pretrained_mix}. "
            "Pass pretrained_mix 0, or freeze_batch_norm true."
        )
    if not config.steps and config.schedule.name != "constant":
        raise ValueError(
            f"schedule must be constant if the number of steps is chosen (steps 0), got {config.schedule.name}. Pass steps."
        )
    if config.patience and config.steps and not config.validate_every:
        raise ValueError(f"patience requires validate_every above 0, got patience {config.patience}. Pass both, or neither.")
    if config.budget is not None:
        parse_minutes(config.budget)
    if config.budget is not None and config.steps:
        raise ValueError(f"budget requires steps 0, which it limits, got steps {config.steps}. Pass steps 0, or no budget.")
    if config.freeze == "trunk" and config.dim == 0:
        raise ValueError("a frozen trunk requires a head to train, got dim 0. Pass a dim above 0, or freeze fewer stages.")
    if config.precision == "float16" and config.device is not None and not config.device.startswith("cuda"):
        raise ValueError(f"precision float16 requires a CUDA device, got {config.device}. Pass bfloat16 or float32.")

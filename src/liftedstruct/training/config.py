"""All settings of a run: one dataclass for Python, the flags and the YAML file."""

import contextlib
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from liftedstruct.losses import LOSSES
from liftedstruct.runtime.checks import as_plain, check_margin, pick
from liftedstruct.samplers import SAMPLERS
from liftedstruct.training.heads import HEADS
from liftedstruct.training.optimizers import OPTIMIZERS, SCHEDULES
from liftedstruct.training.presets import preset_settings
from liftedstruct.trunks import DEFAULT_TRUNK, POOLS

__all__ = ["TrainConfig", "as_yaml", "batches_of", "describe", "load_config"]

BATCHES_OF = {"contrastive": "pairs", "triplet": "triplets"}  # the only ones that these losses can take


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run. The defaults fine-tune the whole of a pretrained trunk; a preset changes some of them.

    Args:
        data: folder of a prepared data set.
        out: folder of the run, made if absent.
        trunk: network below the last layer (see "liftedstruct list trunks").
        weights: file with the trunk's weights, or "random"; by default the pretrained ones that the trunk knows.
        dim: dimensions of the embedding; 0 trains the trunk's pooled features themselves.
        train_dim: dimensions in training, of which the embedding is the principal components; by default as dim.
        pool: how the last map of the trunk becomes features: average, max, or both, their sum.
        normalize: give every embedding length 1.
        dropout: share of the features that is dropped before the last layer, in training.
        loss: what is minimised (see "liftedstruct list losses").
        margin: the paper's alpha.
        temperature: divisor of the embeddings in front of the loss.
        negative: of the triplet loss, "given" or "semi-hard".
        batches: which images meet (see "liftedstruct list batches"); by default those that suit the loss.
        batch_size: images in a batch, the paper's m; by default 64, of triplets 63, or as many as the data fills.
        images: of balanced batches, images of each class.
        mined: of mined batches, share that is mined.
        refresh_every: of mined batches, steps between two searches for difficult neighbours.
        difficult: of mined batches, difficult neighbours of each image.
        self_pairs: of pairs, count an image with itself as a positive pair, as the authors' code does.
        steps: training steps.
        crop: side of the crops in pixels that the embedder is for; by default the trunk's.
        train_crop: side of the crops in training; by default as crop.
        least_area: smallest share of an image that a crop shows, scaled to its side; 0 cuts crops without scaling.
        mirror: flip every other crop.
        colour: largest change of the brightness, contrast and saturation of a crop, 0.2 for a fifth; 0 leaves them.
        optimizer: sgd or adamw.
        lr: learning rate.
        momentum: of sgd; of adamw the first beta.
        weight_decay: of weights; biases and normalisations have none.
        head_lr: what the rate is multiplied by for the last layer's weight.
        head_bias_lr: what the rate is multiplied by for the last layer's bias.
        bias_lr: what the rate is multiplied by for the biases of the trunk's convolutions.
        schedule: of the rate: constant, step or cosine.
        warmup: steps in which the rate rises to its height.
        decays: of the step schedule, how many times the rate falls.
        decay_factor: of the step schedule, what the rate is multiplied by each time.
        head: start of the last layer: uniform, orthogonal, pca or whitened.
        head_scale: factor of that start.
        freeze: number of the trunk's first stages that stay as they are, or "trunk" for all.
        feature_crops: of a frozen trunk, fixed crops of each image: the centre, then random ones.
        batch_norm: "frozen" keeps the statistics of batch norms, "train" uses those of the batch.
        average: share of the past in the moving average of the weights, which is what is kept; 0 keeps the weights.
        start_share: share of the weights at the start in what is kept, beside those at the end; 0 keeps the latter.
        clip: largest norm of the gradient; 0 does not clip.
        cache_chunk: images that go through the network at once, with the exact gradient of the batch; 0 means all.
        precision: float32, bfloat16, or on a CUDA device float16.
        validation: fraction of the training classes to hold out, if the data has no validation classes.
        validate_every: steps between two measurements of Recall@1 on held-out classes; 0 never measures.
        checkpoint_minutes: minutes between two states to go on from.
        log_every: steps between two lines of the log.
        seed: every random choice descends from it.
        device: cpu, cuda or cuda:N; by default cuda if there is one.
        threads: of the processor; by default as many as this process may use.

    """

    data: str
    out: str
    trunk: str = DEFAULT_TRUNK
    weights: str | None = None
    dim: int = 512
    train_dim: int | None = None
    pool: str = "average"
    normalize: bool = False
    dropout: float = 0.0
    loss: str = "lifted_struct"
    margin: float = 1.0
    temperature: float = 1.0
    negative: str = "given"
    batches: str | None = None
    batch_size: int | None = None
    images: int = 2
    mined: float = 0.5
    refresh_every: int = 200
    difficult: int = 10
    self_pairs: bool = False
    steps: int = 1000
    crop: int | None = None
    train_crop: int | None = None
    least_area: float = 0.0
    mirror: bool = True
    colour: float = 0.0
    optimizer: str = "adamw"
    lr: float = 2e-4
    momentum: float = 0.9
    weight_decay: float = 1e-4
    head_lr: float = 1.0
    head_bias_lr: float = 1.0
    bias_lr: float = 1.0
    schedule: str = "cosine"
    warmup: int = 0
    decays: int = 2
    decay_factor: float = 0.1
    head: str = "orthogonal"
    head_scale: float = 1.0
    freeze: int | str = 0
    feature_crops: int = 1
    batch_norm: str = "frozen"
    average: float = 0.0
    start_share: float = 0.0
    clip: float = 0.0
    cache_chunk: int = 0
    precision: str = "float32"
    validation: float = 0.0
    validate_every: int = 100
    checkpoint_minutes: float = 5.0
    log_every: int = 10
    seed: int = 0
    device: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        hints = get_type_hints(TrainConfig)
        for field in fields(self):
            kinds = get_args(hints[field.name]) or (hints[field.name],)
            object.__setattr__(self, field.name, _as_kind(field.name, getattr(self, field.name), kinds))
        for name, registry in REGISTRIES.items():
            pick(registry, getattr(self, name), name)
        for name, (least, most) in RANGES.items():
            _check_range(name, getattr(self, name), least, most)
        check_margin(self.margin)
        _check_together(self)


REGISTRIES: dict[str, Mapping[str, object]] = {
    "loss": LOSSES,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "head": HEADS,
    "pool": POOLS,
    "negative": dict.fromkeys(("given", "semi-hard")),
    "batch_norm": dict.fromkeys(("frozen", "train")),
    "precision": dict.fromkeys(("bfloat16", "float16", "float32")),
}
APPLIES = {  # settings that mean something only where another one has this value
    "negative": ("loss", "triplet"),
    "images": ("batches", "balanced"),
    "mined": ("batches", "mined"),
    "refresh_every": ("batches", "mined"),
    "difficult": ("batches", "mined"),
    "self_pairs": ("batches", "pairs"),
    "decays": ("schedule", "step"),
    "decay_factor": ("schedule", "step"),
    "feature_crops": ("freeze", "trunk"),
}
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("batch_size", "images"), (2, math.inf)),
    **dict.fromkeys(("refresh_every", "difficult", "steps", "crop", "train_crop", "train_dim"), (1, math.inf)),
    **dict.fromkeys(("feature_crops", "log_every", "threads"), (1, math.inf)),
    **dict.fromkeys(("dim", "warmup", "decays", "cache_chunk", "validate_every", "seed", "lr", "weight_decay"), (0, math.inf)),
    **dict.fromkeys(("head_lr", "head_bias_lr", "bias_lr", "decay_factor", "clip", "checkpoint_minutes"), (0, math.inf)),
    **dict.fromkeys(("dropout", "momentum", "validation", "colour", "average", "start_share"), (0, math.nextafter(1, 0))),
    **dict.fromkeys(("mined", "least_area"), (0, 1)),
    **dict.fromkeys(("head_scale", "temperature"), (math.nextafter(0, 1), math.inf)),
}


def load_config(file: str | Path | None = None, preset: str | None = None, **settings: Any) -> TrainConfig:
    """Settings from a preset, then from a YAML file, then as they are given; later ones win.

    What a preset has for another choice than that of the later ones (images of each class, for batches that are not balanced)
    is left out.

    >>> load_config(preset="paper", data="cub", out="run", dim=64).head_lr
    10.0
    """
    for name in settings:
        _check_known(name, "the settings")
    given = (_read_yaml(Path(file)) if file is not None else {}) | {name: as_plain(value) for name, value in settings.items()}
    suggested = preset_settings(preset, given.get("loss"), given.get("trunk")) if preset is not None else {}
    chosen = suggested | given
    chosen["batches"] = chosen.get("batches") or BATCHES_OF.get(str(chosen.get("loss")), "balanced")
    idle = {name for name, (where, wanted) in APPLIES.items() if chosen.get(where) != wanted}
    if suggested.get("normalize") and not chosen["normalize"]:
        idle |= {"temperature", "margin"}  # they were for the unit sphere
    if not isinstance(chosen.get("dim"), int) or not 0 < chosen["dim"] <= suggested.get("train_dim", 0):
        idle |= {"train_dim"}
    idle |= {"pool"} if ":" in str(chosen.get("trunk")) else set()  # trunks of other packages pool by themselves
    idle |= {"train_crop"} if given.get("crop") not in (None, suggested.get("crop")) else set()  # for crops of another side
    unmixed = chosen.get("weights") == "random" or chosen.get("batch_norm") == "train"
    idle |= {"start_share"} if unmixed else set()
    one_view = chosen.get("freeze") == "trunk" and chosen.get("feature_crops", 1) == 1
    idle |= {"least_area", "train_crop"} if one_view else set()
    merged = {name: value for name, value in suggested.items() if name not in idle} | given
    for name in ("data", "out"):
        if merged.get(name) is None:
            raise ValueError(f"{name} must be given: {describe(name)} On the command line: train DATA --out RUN.")
    return TrainConfig(**merged)


def batches_of(config: TrainConfig) -> str:
    """Which batches a run has: those that were chosen, or those that suit the loss."""
    return config.batches or BATCHES_OF.get(config.loss, "balanced")


def as_yaml(config: TrainConfig) -> str:
    """The settings as a YAML file that :func:`load_config` reads back."""
    import yaml

    text: str = yaml.safe_dump(asdict(config), sort_keys=False, allow_unicode=True)
    return text


def describe(name: str) -> str:
    """What a setting is, in the words of :class:`TrainConfig`."""
    found = re.search(rf"^\s*{name}: (.*)$", TrainConfig.__doc__ or "", flags=re.MULTILINE)
    return found[1] if found else ""


def _read_yaml(file: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{file} must be a YAML file of settings, there is none. Check the path.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} must be a YAML file of settings, got: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold settings, such as 'lr: 0.0002' on a line, got {type(content).__name__}.")
    for name in content:
        _check_known(name, str(file))
    return content


def _check_known(name: object, where: str) -> None:
    known = [field.name for field in fields(TrainConfig)]
    if name not in known:
        close = difflib.get_close_matches(str(name), known, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(known)}."
        raise ValueError(f"{where} must hold settings of TrainConfig, got {name!r}. {hint}")


def _as_kind(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """The value as one of the kinds that the setting may have, all of them Python's own, so that YAML can write it."""
    value = as_plain(value)
    if value is None and type(None) in kinds:
        return None
    if isinstance(value, str) and float in kinds:  # YAML takes 1e-4 for text
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) and bool not in kinds:
        kinds_met: tuple[type, ...] = ()
    else:
        kinds_met = (*kinds, int) if float in kinds else kinds
    if isinstance(value, kinds_met):
        number: Any = value
        return float(number) if float in kinds else number
    if isinstance(value, Path) and str in kinds:
        return str(value)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "nothing"}
    wanted = " or ".join(words[kind] for kind in kinds)
    raise ValueError(f"{name} must be {wanted}, got {value!r}. {name}: {describe(name)}")


def _check_range(name: str, value: float | None, least: float, most: float) -> None:
    if value is None or (least <= value <= most and math.isfinite(value)):
        return
    if least == math.nextafter(0, 1):
        rule = "a finite number above 0"
    elif most == math.inf:
        rule = f"a finite number >= {least:g}"
    else:
        rule = f"a number from {least:g} to {'below ' if most < 1 else ''}1"
    raise ValueError(f"{name} must be {rule}, got {value!r}. {name}: {describe(name)}")


def _check_applies(config: TrainConfig) -> None:
    """Raise for a setting that would do nothing beside the others."""
    chosen = asdict(config) | {"batches": batches_of(config)}
    for name, (where, wanted) in APPLIES.items():
        if chosen[name] != TrainConfig.__dataclass_fields__[name].default and chosen[where] != wanted:
            raise ValueError(
                f"{name} must be left out unless {where} is {wanted}, got {chosen[name]!r} with {where} {chosen[where]}. "
                f"Pass {where} {wanted}, or leave it out."
            )


def _check_together(config: TrainConfig) -> None:
    """Settings that do not go with one another."""
    if config.batches is not None:
        pick(SAMPLERS, config.batches, "batches")
        wanted = BATCHES_OF.get(config.loss, config.batches)
        if config.batches != wanted:
            raise ValueError(
                f"the {config.loss} loss must have its rows laid out as {wanted}, got batches {config.batches!r}. "
                f"Pass batches {wanted}, or leave it out."
            )
    _check_applies(config)
    if config.warmup >= config.steps and config.warmup:
        raise ValueError(f"warmup must be less than steps, {config.steps}, got {config.warmup}. Lower it.")
    if isinstance(config.freeze, str) and config.freeze != "trunk":
        raise ValueError(f"freeze must be a number of stages or 'trunk', got {config.freeze!r}. Pass one of these.")
    if config.train_dim is not None and not 0 < config.dim <= config.train_dim:
        raise ValueError(
            f"train_dim must be at least dim, which it is reduced to, got {config.train_dim} with dim {config.dim}. "
            "Raise it, or leave it out."
        )
    if config.start_share and config.batch_norm == "train":
        raise ValueError(
            f"start_share must be left out with batch_norm train, whose statistics are the end's, got {config.start_share}. "
            "Pass batch_norm frozen, or leave it out."
        )
    if config.freeze == "trunk" and config.dim == 0:
        raise ValueError("a frozen trunk must have a last layer to train, got dim 0. Pass a dim, or freeze fewer stages.")
    views = {"least_area": config.least_area > 0, "colour": config.colour > 0}
    views["train_crop"] = config.train_crop not in (None, config.crop)
    for name in (name for name, wanted in views.items() if wanted and config.freeze == "trunk" and config.feature_crops == 1):
        raise ValueError(
            f"{name} must be left out where a frozen trunk sees the centre crop only, got {getattr(config, name)}. "
            "Pass feature_crops 2 or more, or leave it out."
        )
    if config.precision == "float16" and config.device is not None and not config.device.startswith("cuda"):
        raise ValueError(f"precision float16 must have a CUDA device, got {config.device}. Pass bfloat16 or float32.")

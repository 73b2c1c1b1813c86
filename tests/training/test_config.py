import itertools
import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from liftedstruct.training import PRESETS, REGISTRIES, TrainConfig, config_settings, load_config, merge_settings
from liftedstruct.training.config import as_yaml

BASE: dict[str, Any] = {"data": "set", "out": "run"}


def test_every_setting_is_documented_in_order() -> None:
    described = re.findall(r"^        (\w+): ", TrainConfig.__doc__ or "", flags=re.MULTILINE)
    assert described == [field.name for field in fields(TrainConfig)]
    assert all(setting.help.endswith((".", ")")) for setting in config_settings())


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_yaml_round_trip(preset: str | None, tmp_path: Path) -> None:
    config = load_config(preset=preset, data="set", out="grüße/日本", lr=1e-6, crop=None, freeze="trunk", seed=7)
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(config), encoding="utf-8")
    assert load_config(file) == config
    assert load_config(file, lr=0.5) == replace(config, lr=0.5)


def test_the_recipe_is_the_default() -> None:
    config = TrainConfig(**BASE)
    assert config.loss.plain() == {"name": "lifted_struct", "margin": 4.0, "temperature": 0.05}
    assert config.sampler.plain() == {"name": "balanced", "samples_per_class": 4}
    assert config.augmentation.options["min_crop_scale"] == 0.3
    assert (config.trunk.name, config.head.name, config.lr, config.steps) == ("efficientnet_lite0", "pca", None, 0)
    assert (config.normalize, config.schedule.name, config.ema_decay, config.min_dim) == (True, "constant", 0.99, 64)


def test_a_name_and_options(tmp_path: Path) -> None:
    """Another name has its own defaults; the same name, or none, keeps earlier options."""
    assert TrainConfig(**BASE, loss="lifted_struct") == TrainConfig(**BASE)
    assert TrainConfig(**BASE, loss={"margin": 2}).loss.options == {"margin": 2.0, "temperature": 0.05}
    triplet = TrainConfig(**BASE, loss={"name": "triplet", "margin": 0.5}).loss
    assert (triplet.name, triplet.options["margin"], triplet.options["triplets"]) == ("triplet", 0.5, "all")
    quick = load_config(preset="quick", loss={"margin": 3.0}, **BASE)
    assert quick.loss.options == {"margin": 3.0, "temperature": 0.05}
    layers: list[dict[str, Any]] = [BASE, {"loss": "triplet"}, {"loss": {"margin": 7.0}}, {"loss": {"triplets": "semi-hard"}}]
    assert merge_settings(*layers).loss.plain() == {"name": "triplet", "margin": 7.0, "triplets": "semi-hard"}
    (tmp_path / "a.yaml").write_text("loss:\n  margin: 1e-1\nsampler: hard_negatives\n")  # YAML parses 1e-1 as text
    config = load_config(tmp_path / "a.yaml", **BASE)
    assert (config.loss.options["margin"], config.sampler.name) == (0.1, "hard_negatives")


def test_every_entry_of_every_registry_can_be_chosen() -> None:
    for setting, registry in REGISTRIES.items():
        for name in registry:
            chosen: dict[str, Any] = {setting: name}
            config = TrainConfig(**BASE, steps=100, **chosen)
            assert getattr(config, setting).name == name
            mapping: dict[str, Any] = {setting: {"name": name}}
            assert getattr(config, setting).plain() == getattr(replace(config, **mapping), setting).plain()


def test_numpy_values_become_plain(tmp_path: Path) -> None:
    some: dict[str, Any] = {"dim": 64, "lr": 0.01, "normalize": False, "loss": "triplet", "freeze": 2, "batch_size": 63}
    plain = TrainConfig(**BASE, **some)
    arrays: dict[str, Any] = {name: np.array(value) for name, value in some.items()}  # 0-d arrays
    scalars: dict[str, Any] = {name: array[()] for name, array in arrays.items()}
    for given in (arrays, scalars):
        config = TrainConfig(**BASE, **given)
        assert config == plain
        (tmp_path / "a.yaml").write_text(as_yaml(config))
        assert load_config(tmp_path / "a.yaml") == plain
    assert TrainConfig(**BASE, loss={"margin": np.float32(2)}).loss.options["margin"] == 2.0
    wrong: dict[str, Any] = {"steps": np.float64(3), "normalize": np.int64(1), "dim": np.True_, "lr": np.ones(1)}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=r"must be (a whole number|true or false|a number), got "):
            TrainConfig(**BASE | {name: value})


def test_no_message_repeats_a_word() -> None:
    messages = []
    values: tuple[Any, ...] = ([], math.nan, -1)
    for field, value in itertools.product(fields(TrainConfig), values):
        try:
            TrainConfig(**BASE | {field.name: value})
        except ValueError as error:
            messages.append(str(error))
    for name in BASE:
        with pytest.raises(ValueError, match=rf"^{name} must be given: .*folder.+\. On the command line") as caught:
            load_config(**{key: value for key, value in BASE.items() if key != name})
        messages.append(str(caught.value))
    assert len(messages) > len(fields(TrainConfig))
    assert [message for message in messages if re.search(r"\b(\w+) \1\b", message)] == []


def test_the_papers_settings() -> None:
    config = load_config(preset="paper", **BASE)
    assert (config.trunk.name, config.optimizer.name, config.head.name) == ("googlenet", "caffe_sgd", "uniform")
    assert config.optimizer.options == {"momentum": 0.9, "weight_decay": 2e-4}
    assert (config.lr, config.schedule.name, config.steps) == (1e-4, "constant", 20_000)
    assert config.loss.plain() == {"name": "lifted_struct", "margin": 1.0, "temperature": 1.0}
    assert (config.sampler.name, config.batch_size, config.crop, config.dropout) == ("pairs", 128, 227, 0.4)
    assert not config.normalize


def test_configs_are_hashable() -> None:
    configs = [TrainConfig(**BASE, loss={"margin": margin}, seed=seed) for margin in (1, 1.0, 2) for seed in (0, 1)]
    assert len(set(configs)) == 4
    assert hash(configs[0]) == hash(configs[2])
    assert {configs[0]: "a run"}[configs[2]] == "a run"


def test_later_settings_win(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("lr: 1e-3\nclip_norm: 5\nsteps: 10\n")  # YAML parses 1e-3 as text
    config = load_config(file, "paper", steps=20, **BASE)
    assert (config.lr, config.clip_norm, config.steps, config.dropout) == (1e-3, 5.0, 20, 0.4)
    assert isinstance(config.clip_norm, float)
    assert TrainConfig(Path("set"), Path("run")).data == "set"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate: 1\n", r"got 'learning_rate'"),
        ("freez: 1\n", r"got 'freez'\. Did you mean 'freeze'\?"),
        ("7: 1\n", r"got 7"),
        ("- 1\n", r"a\.yaml must contain settings"),
        ("a: [\n", r"a\.yaml must be a YAML file of settings"),
        ("lr: !!python/object:os.system {}\n", r"a\.yaml must be a YAML file of settings"),
        ("lr: fast\n", r"lr must be a number, got 'fast'"),
        ("loss: [triplet]\n", r"loss must be a name or a mapping"),
        ("loss: {name: [triplet]}\n", r"loss must be one of"),
        ("loss: {mrgin: 1}\n", r"got 'mrgin'\. Did you mean 'margin'\?"),
    ],
)
def test_bad_files(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_config(file, **BASE)
    assert "\n" not in str(caught.value)


def test_absent_file_and_settings() -> None:
    with pytest.raises(ValueError, match=r"none\.yaml must be a YAML file of settings, but it does not exist"):
        load_config("none.yaml")
    with pytest.raises(ValueError, match=r"got 'step'\. Did you mean 'steps'\?"):
        load_config(step=3, **BASE)
    with pytest.raises(ValueError, match=r"preset must be one of paper, quick, got 'papr'\. Did you mean 'paper'\?"):
        load_config(preset="papr", **BASE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "lifted"}, r"loss must be one of .*, got 'lifted'\. Did you mean 'lifted_struct'\?"),
        ({"sampler": "pair"}, r"sampler must be one of .*, got 'pair'\. Did you mean 'pairs'\?"),
        ({"optimizer": "adam"}, r"optimizer must be one of .*, got 'adam'\. Did you mean 'adamw'\?"),
        ({"schedule": "cos"}, r"schedule must be one of .*, got 'cos'\. Did you mean 'cosine'\?"),
        ({"head": "PCA"}, r"head must be one of .*, got 'PCA'"),
        ({"trunk": "smal"}, r"trunk must be one of .*, got 'smal'"),
        ({"augmentation": "crop"}, r"augmentation must be one of .*, got 'crop'"),
        ({"pool": "mean"}, r"pool must be 'avg' or 'max' or 'avg\+max', got 'mean'"),
        ({"precision": "half"}, r"precision must be .*, got 'half'"),
        ({"loss": {"name": "contrastive", "pairs": "rows"}}, r"contrastive .* sampler 'pairs', got 'balanced'"),
        ({"loss": {"name": "triplet", "triplets": "rows"}, "sampler": "pairs"}, r"the sampler 'triplets', got 'pairs'"),
        ({"loss": {"negative": "semi-hard"}}, r"loss lifted_struct .* got 'negative'"),
        ({"sampler": {"self_pairs": True}}, r"sampler balanced .* got 'self_pairs'"),
        ({"schedule": {"name": "step", "decays": 0}}, r"schedule\.decays must be a whole number >= 1, got 0"),
        ({"steps": -1}, r"steps must be a whole number >= 0, got -1"),
        ({"steps": 1.5}, r"steps must be a whole number, got 1\.5"),
        ({"steps": True}, r"steps must be a whole number, got True"),
        ({"normalize": 1}, r"normalize must be true or false, got 1"),
        ({"lr": -1}, r"lr must be a number >= 0, got -1"),
        ({"lr": float("nan")}, r"lr must be a number >= 0, got nan"),
        ({"optimizer": {"name": "sgd", "momentum": 1.0}}, r"optimizer\.momentum must be a number >= 0 and < 1, got 1\.0"),
        ({"augmentation": {"min_crop_scale": 1.5}}, r"min_crop_scale must be a number >= 0 and <= 1, got 1\.5"),
        ({"augmentation": {"color_jitter": 1.0}}, r"color_jitter must be a number >= 0 and < 1, got 1\.0"),
        ({"ema_decay": 1.0}, r"ema_decay must be a number >= 0 and < 1, got 1\.0"),
        ({"loss": {"temperature": 0}}, r"temperature"),
        ({"loss": {"margin": -1}}, r"margin"),
        ({"pretrained_mix": 1.0}, r"pretrained_mix must be a number >= 0 and < 1, got 1\.0"),
        ({"pretrained_mix": 0.5, "freeze_batch_norm": False}, r"pretrained_mix must be 0 if .* got 0\.5"),
        (
            {"budget": "5m", "steps": 100},
            r"budget requires steps 0, which it limits, got steps 100\. Pass steps 0, or no budget",
        ),
        ({"schedule": "cosine"}, r"schedule must be constant if the number of steps is chosen \(steps 0\), got cosine"),
        ({"patience": 9, "steps": 50, "validate_every": 0}, r"patience requires validate_every above 0, got patience 9"),
        ({"budget": "soon"}, r"budget must be a duration such as 30m or 2h, got 'soon'"),
        ({"warmup": 1000}, r"warmup must be less than steps \(1000\), got 1000"),
        ({"dim": 64, "train_dim": 32}, "train_dim must be at least dim, .*got 32 with dim 64"),
        ({"dim": 0, "train_dim": 32}, "train_dim must be at least dim, .*got 32 with dim 0"),
        (
            {"dim": 5, "train_dim": 32, "loss": "pml:ProxyAnchorLoss"},
            "train_dim must be 0 or dim, 5, with the .*got 32. Pass 0",
        ),
        ({"train_crop": 0}, r"train_crop must be a whole number >= 1, got 0"),
        ({"head": {"scale": 0}}, r"head\.scale must be a number > 0, got 0"),
        ({"crop": "big"}, r"crop must be a whole number, got 'big'"),
        ({"warmup": 9, "steps": 9}, r"warmup must be less than steps \(9\), got 9"),
        ({"freeze": "all"}, r"freeze must be a whole number or 'trunk', got 'all'"),
        ({"freeze": "trunk", "dim": 0}, r"a frozen trunk requires a head to train, got dim 0"),
        ({"precision": "float16", "device": "cpu"}, r"precision float16 requires a CUDA device, got cpu"),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        TrainConfig(**BASE | changes)
    assert "\n" not in str(caught.value)

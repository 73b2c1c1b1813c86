import itertools
import math
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from liftedstruct.training import PRESETS, TrainConfig, load_config
from liftedstruct.training.config import as_yaml, describe

BASE: dict[str, Any] = {"data": "set", "out": "run"}


def test_every_setting_is_described_in_its_order() -> None:
    described = re.findall(r"^        (\w+): ", TrainConfig.__doc__ or "", flags=re.MULTILINE)
    assert described == [field.name for field in fields(TrainConfig)]
    assert describe("lr") == "learning rate."
    assert describe("nothing") == ""


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_yaml_round_trip(preset: str | None, tmp_path: Path) -> None:
    config = load_config(preset=preset, data="set", out="grüße/日本", lr=1e-6, crop=None, freeze="trunk", seed=7)
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(config), encoding="utf-8")
    assert load_config(file) == config
    assert load_config(file, lr=0.5) == replace(config, lr=0.5)


def test_values_of_numpy_become_plain_ones(tmp_path: Path) -> None:
    some: dict[str, Any] = {
        "dim": 64,
        "lr": 0.01,
        "mirror": False,
        "loss": "triplet",
        "freeze": 2,
        "margin": 1.0,
        "batch_size": 63,
    }
    plain = TrainConfig(**BASE, **some)
    arrays: dict[str, Any] = {name: np.array(value) for name, value in some.items()}  # without dimensions
    scalars: dict[str, Any] = {name: array[()] for name, array in arrays.items()}
    for given in (arrays, scalars):
        config = TrainConfig(**BASE, **given)
        assert config == plain
        assert all(type(getattr(config, name)) is type(value) for name, value in some.items())
        (tmp_path / "a.yaml").write_text(as_yaml(config))
        assert load_config(tmp_path / "a.yaml") == plain
    dims: tuple[Any, ...] = (256, np.int64(256))  # the preset's train_dim stays for both
    assert len({load_config(preset="best", dim=dim, **BASE) for dim in dims}) == 1
    wrong: dict[str, Any] = {"steps": np.float64(3), "mirror": np.int64(1), "dim": np.True_, "lr": np.ones(1)}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=r"must be (a whole number|true or false|a number), got "):
            TrainConfig(**BASE | {name: value})


def test_no_message_says_a_word_twice() -> None:
    messages = []
    values: tuple[Any, ...] = ([], math.nan, -1)
    for field, value in itertools.product(fields(TrainConfig), values):
        try:
            TrainConfig(**BASE | {field.name: value})
        except ValueError as error:
            messages.append(str(error))
    for name in BASE:
        with pytest.raises(ValueError, match=rf"^{name} must be given: folder of .+\. On the command line") as caught:
            load_config(**{key: value for key, value in BASE.items() if key != name})
        messages.append(str(caught.value))
    assert len(messages) > len(fields(TrainConfig))
    assert any("margin: the paper's alpha." in message for message in messages)
    assert [message for message in messages if re.search(r"\b(\w+) \1\b", message)] == []


def test_the_papers_settings() -> None:
    config = load_config(preset="paper", **BASE)
    assert (config.trunk, config.optimizer, config.momentum, config.weight_decay) == ("googlenet", "sgd", 0.9, 2e-4)
    assert (config.lr, config.schedule, config.steps) == (1e-4, "constant", 20_000)
    assert (config.head_lr, config.head_bias_lr, config.bias_lr, config.head) == (10, 20, 2, "uniform")
    assert (config.batches, config.batch_size, config.margin, config.crop, config.dropout) == ("pairs", 128, 1.0, 227, 0.4)
    assert not config.normalize


def test_a_preset_knows_what_another_loss_needs(tmp_path: Path) -> None:
    triplets = load_config(preset="paper", loss="triplet", **BASE)
    assert (triplets.batches, triplets.batch_size, triplets.margin) == ("triplets", 120, 1.0)
    for preset, images, margin, negative in (("best", 4, 4.0, "semi-hard"), ("quick", 2, 1.0, "given")):
        of = {loss: load_config(preset=preset, loss=loss, **BASE) for loss in ("lifted_struct", "contrastive", "triplet")}
        assert all(config.normalize for config in of.values())
        assert [config.margin for config in of.values()] == [margin, 1.0, 0.5]
        assert [config.negative for config in of.values()] == ["given", "given", negative]
        assert [config.temperature for config in of.values()] == [0.05, 1.0, 1.0]
        assert [config.images for config in of.values()] == [images, 2, 2]  # what does not apply is left out
        seen = [config.steps * (63 if loss == "triplet" else 64) for loss, config in of.items()]
        assert max(seen) - min(seen) < 64  # less than a batch
    google = load_config(preset="best", trunk="googlenet", **BASE)
    assert (google.lr, google.start_share, google.temperature, google.margin) == (1e-4, 0.0, 0.05, 4.0)
    assert load_config(preset="best", **BASE).start_share == 0.4
    assert load_config(preset="best", trunk="googlenet", lr=1e-3, **BASE).lr == 1e-3
    assert load_config(preset="quick", trunk="timm:resnet18", **BASE).pool == "average"  # it pools by itself
    raw = load_config(preset="best", normalize=False, **BASE)
    assert (raw.temperature, raw.margin) == (1.0, 1.0)  # others were for the unit sphere
    assert load_config(preset="best", batches="mined", **BASE).images == 2
    for trunk in ("small", "timm:resnet18"):  # of which there were no trials
        untried = load_config(preset="best", trunk=trunk, **BASE)
        assert (untried.crop, untried.train_crop, untried.start_share, untried.margin) == (None, None, 0.0, 4.0)
    unmixable: tuple[dict[str, Any], ...] = ({"weights": "random"}, {"batch_norm": "train"})
    for unmixed in unmixable:
        assert load_config(preset="best", **unmixed, **BASE).start_share == 0.0
    sides: tuple[dict[str, Any], ...] = (
        *(
            {},
            {"crop": 128},
            {"crop": 128, "train_crop": 96},
            {"freeze": "trunk"},
            {"freeze": "trunk", "feature_crops": 4},
            {"crop": 288},
        ),
    )
    of_best = [load_config(preset="best", **side, **BASE) for side in sides]
    assert [(config.crop, config.train_crop) for config in of_best] == [
        *((288, 224), (128, None), (128, 96), (288, None), (288, 224), (288, 224)),
    ]
    with pytest.raises(ValueError, match=r"images must be left out unless batches is balanced"):
        load_config(preset="best", batches="mined", images=4, **BASE)
    (tmp_path / "a.yaml").write_text("loss: triplet\n")
    assert load_config(tmp_path / "a.yaml", "quick", **BASE) == of["triplet"]
    assert load_config(preset="quick", loss="triplet", margin=2, **BASE).margin == 2.0
    (tmp_path / "a.yaml").write_text("loss: [triplet]\n")
    with pytest.raises(ValueError, match=r"loss must be text, got \['triplet'\]"):
        load_config(tmp_path / "a.yaml", "quick", **BASE)


def test_later_settings_win(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("lr: 1e-3\nhead_lr: 5\nsteps: 10\n")  # YAML itself takes 1e-3 for text
    config = load_config(file, "paper", steps=20, **BASE)
    assert (config.lr, config.head_lr, config.steps, config.dropout) == (1e-3, 5.0, 20, 0.4)
    assert isinstance(config.head_lr, float)
    assert TrainConfig(Path("set"), Path("run")).data == "set"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate: 1\n", r"got 'learning_rate'\. There are data, out, trunk, .*, lr, "),
        ("head_rl: 1\n", r"a\.yaml must hold settings of TrainConfig, got 'head_rl'\. Did you mean 'head_lr'\?"),
        ("7: 1\n", r"a\.yaml must hold settings of TrainConfig, got 7\. There are"),
        ("- 1\n", r"a\.yaml must hold settings, such as 'lr: 0\.0002' on a line, got list\."),
        ("a: [\n", r"a\.yaml must be a YAML file of settings, got: while parsing"),
        (
            "lr: !!python/object:os.system {}\n",
            r"a\.yaml must be a YAML file of settings, got: could not determine a constructor",
        ),
        ("lr: fast\n", r"lr must be a number, got 'fast'\. lr: learning rate\."),
    ],
)
def test_bad_files(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_config(file, **BASE)
    assert "\n" not in str(caught.value)


def test_absent_file_and_settings() -> None:
    with pytest.raises(ValueError, match=r"none\.yaml must be a YAML file of settings, there is none\. Check the path"):
        load_config("none.yaml")
    with pytest.raises(
        ValueError, match=r"out must be given: folder of the run, made if absent\. On the command line: train DATA --out"
    ):
        load_config(data="set")
    with pytest.raises(
        ValueError, match=r"the settings must hold settings of TrainConfig, got 'step'\. Did you mean 'steps'\?"
    ):
        load_config(step=3, **BASE)
    with pytest.raises(ValueError, match=r"preset must be one of best, paper, quick, got 'papr'\. Did you mean 'paper'\?"):
        load_config(preset="papr", **BASE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "lifted"}, r"loss must be one of .*, got 'lifted'\. Did you mean 'lifted_struct'\?"),
        ({"batches": "pair"}, r"batches must be one of .*, got 'pair'\. Did you mean 'pairs'\?"),
        ({"optimizer": "adam"}, r"optimizer must be one of adamw, sgd, got 'adam'\. Did you mean 'adamw'\?"),
        ({"schedule": "cos"}, r"schedule must be one of constant, cosine, step, got 'cos'\. Did you mean 'cosine'\?"),
        ({"head": "PCA"}, r"head must be one of orthogonal, pca, uniform, whitened, got 'PCA'"),
        ({"batch_norm": "freeze"}, r"batch_norm must be one of frozen, train, got 'freeze'\. Did you mean 'frozen'\?"),
        ({"pool": "mean"}, r"pool must be one of average, both, max, got 'mean'"),
        ({"precision": "half"}, r"precision must be one of bfloat16, float16, float32, got 'half'"),
        (
            {"loss": "contrastive", "batches": "balanced"},
            r"the contrastive loss must have its rows laid out as pairs, got batch",
        ),
        (
            {"loss": "triplet", "batches": "mined"},
            r"the triplet loss must have its rows laid out as triplets, .* Pass batches tr",
        ),
        (
            {"negative": "semi-hard"},
            r"negative must be left out unless loss is triplet, got 'semi-hard' with loss lifted_struct\. Pass loss triplet",
        ),
        ({"self_pairs": True}, r"self_pairs must be left out unless batches is pairs, got True with batches balanced\."),
        ({"mined": 0.9}, "mined must be left out unless batches is mined, got 0.9 with batches balanced"),
        ({"images": 4, "loss": "triplet"}, "images must be left out unless batches is balanced, got 4 with batches triplets"),
        ({"feature_crops": 5}, "feature_crops must be left out unless freeze is trunk, got 5 with freeze 0"),
        ({"freeze": "trunk", "colour": 0.2}, "colour must be left out where a frozen trunk sees the centre crop only, got 0.2"),
        ({"freeze": "trunk", "crop": 64, "train_crop": 48}, "train_crop must be left out where a frozen trunk sees the centre"),
        ({"decays": 3}, "decays must be left out unless schedule is step, got 3 with schedule cosine"),
        ({"steps": 0}, r"steps must be a finite number >= 1, got 0\. steps: training steps"),
        ({"steps": 1.5}, r"steps must be a whole number, got 1\.5"),
        ({"steps": True}, r"steps must be a whole number, got True"),
        ({"normalize": 1}, r"normalize must be true or false, got 1"),
        ({"lr": -1}, r"lr must be a finite number >= 0, got -1\.0"),
        ({"lr": float("nan")}, r"lr must be a finite number >= 0, got nan"),
        ({"momentum": 1.0}, r"momentum must be a number from 0 to below 1, got 1\.0"),
        ({"mined": 2}, r"mined must be a number from 0 to 1, got 2\.0"),
        ({"least_area": 1.5}, r"least_area must be a number from 0 to 1, got 1\.5"),
        ({"least_area": float("nan")}, r"least_area must be a number from 0 to 1, got nan"),
        ({"colour": 1.0}, r"colour must be a number from 0 to below 1, got 1\.0"),
        ({"colour": -0.1}, r"colour must be a number from 0 to below 1, got -0\.1"),
        ({"average": 1.0}, r"average must be a number from 0 to below 1, got 1\.0"),
        ({"temperature": 0}, r"temperature must be a finite number above 0, got 0\.0"),
        ({"temperature": float("inf")}, r"temperature must be a finite number above 0, got inf"),
        ({"start_share": 1.0}, r"start_share must be a number from 0 to below 1, got 1\.0"),
        ({"start_share": 0.5, "batch_norm": "train"}, r"start_share must be left out with batch_norm train, .* got 0\.5\."),
        ({"train_dim": 0}, r"train_dim must be a finite number >= 1, got 0"),
        ({"dim": 64, "train_dim": 32}, "train_dim must be at least dim, which it is reduced to, got 32 with dim 64"),
        ({"dim": 0, "train_dim": 32}, "train_dim must be at least dim, which it is reduced to, got 32 with dim 0"),
        ({"train_crop": 0}, r"train_crop must be a finite number >= 1, got 0"),
        ({"head_scale": 0}, r"head_scale must be a finite number above 0, got 0\.0"),
        ({"margin": -1}, r"margin must be a finite number >= 0, got -1\.0"),
        ({"crop": "big"}, r"crop must be a whole number or nothing, got 'big'"),
        ({"warmup": 9, "steps": 9}, r"warmup must be less than steps, 9, got 9\. Lower it"),
        ({"freeze": "all"}, r"freeze must be a number of stages or 'trunk', got 'all'"),
        ({"freeze": "trunk", "dim": 0}, r"a frozen trunk must have a last layer to train, got dim 0"),
        (
            {"precision": "float16", "device": "cpu"},
            r"precision float16 must have a CUDA device, got cpu\. Pass bfloat16 or float32",
        ),
    ],
)
def test_bad_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        TrainConfig(**BASE | changes)
    assert "\n" not in str(caught.value)


def test_sensible_combinations() -> None:
    for batches in ("balanced", "mined", "pairs", "triplets"):
        for loss in ("lifted_struct", "structured_hinge"):
            assert TrainConfig(**BASE, loss=loss, batches=batches).batches == batches
    assert asdict(TrainConfig(**BASE, loss="triplet", negative="semi-hard"))["batches"] is None
    assert TrainConfig(**BASE, precision="bfloat16", device="cpu").precision == "bfloat16"
    assert TrainConfig(**BASE, least_area=1, colour=0.99, average=0.9999, temperature=1e-3).least_area == 1.0

"""Tests of plugins: a file that registers losses, a sampler and a trunk, with one line each."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from liftedstruct.cli import main
from liftedstruct.embedder import Embedder
from liftedstruct.losses import LOSSES
from liftedstruct.samplers import SAMPLERS
from liftedstruct.training import RunFolder, load_config, train
from liftedstruct.training.learner import Learner
from liftedstruct.trunks import TRUNKS
from training.sets import products

PLUGIN = dedent('''
    import numpy as np
    import torch
    from torch import nn

    from liftedstruct.losses import LOSSES
    from liftedstruct.samplers import SAMPLERS, Sampler
    from liftedstruct.trunks import TRUNKS, Trunk


    class PullLoss(nn.Module):
        """Mean power of the distances between images of the same class.

        Args:
            power: exponent of the distances.

        """

        def __init__(self, power: float = 2.0) -> None:
            super().__init__()
            self.power = power

        def forward(self, embeddings, labels):
            D = (embeddings[:, None] - embeddings).square().sum(dim=2).add(1e-12).sqrt()
            return D[labels[:, None] == labels].pow(self.power).mean()


    class ProxyLoss(nn.Module):
        """Proxy loss with one trainable proxy per class."""

        def __init__(self, classes: int = 64, d=4) -> None:
            super().__init__()
            self.proxies = nn.Parameter(torch.randn(classes, d))

        def forward(self, embeddings, labels):
            return nn.functional.cross_entropy(-torch.cdist(embeddings, self.proxies), labels)


    class RandomSampler(Sampler):
        """Sampler that draws images at random.

        Args:
            first: number of the first image to draw from.

        """

        unit = 1

        def __init__(self, labels, batch_size=8, *, first: int = 0, seed=0):
            super().__init__(labels, batch_size, seed)
            self.first, self.steps_per_epoch = first, max(1, len(self.labels) // self.batch_size)

        def batch(self, t):
            return np.random.default_rng([self.seed, t]).integers(self.first, len(self.labels), self.batch_size)


    def patches(weights=None, pretrained=True, *, width: int = 12):
        """Non-overlapping patches of 8 x 8 pixels.

        Args:
            width: number of features.

        """
        stages = {"stem": [nn.Conv2d(3, width, 8, 8), nn.ReLU()]}
        return Trunk("patches", stages, input_size=24, num_features=width, mean=(127.5,) * 3, std=(64.0,) * 3, min_size=8)


    LOSSES["pull"] = PullLoss
    LOSSES["proxy"] = ProxyLoss
    SAMPLERS["random"] = RandomSampler
    TRUNKS["patches"] = patches
''')


@pytest.fixture
def plugin(tmp_path: Path) -> Any:
    """Write the plugin file; remove its registered entries afterwards."""
    (tmp_path / "toys.py").write_text(PLUGIN)
    yield tmp_path / "toys.py"
    for registry, name in ((LOSSES, "pull"), (LOSSES, "proxy"), (SAMPLERS, "random"), (TRUNKS, "patches")):
        registry.pop(name, None)


def test_from_python(plugin: Path, tmp_path: Path) -> None:
    exec(compile(PLUGIN, plugin, "exec"), {"__name__": "toys"})
    packed = products(tmp_path / "products", validation=0)
    toys: dict[str, Any] = {
        "loss": {"name": "pull", "power": 1.5},
        "sampler": {"name": "random", "first": 3},
        "trunk": {"name": "patches", "width": 7},
    }
    config = load_config(
        data=packed.folder, out=tmp_path / "run", dim=4, train_dim=0, steps=4, batch_size=8, log_every=1, **toys
    )
    assert load_config(data="d", out="o", loss="pull").loss.options == {"power": 2.0}
    run = train(config, progress=False)
    losses = [line["loss"] for line in run.log() if "loss" in line]
    assert len(losses) == 4
    assert run.embedder().trunk.num_features == 7
    assert train(config, progress=False) == run  # the plugin settings match those of the saved run
    for wrong in ({"power": "high"}, {"powr": 1.0}):
        with pytest.raises(ValueError, match=r"powe?r"):
            load_config(data="d", out="o", loss={"name": "pull", **wrong})


def test_parameters_of_a_loss_are_trained_and_resumed(plugin: Path, tmp_path: Path) -> None:
    exec(compile(PLUGIN, plugin, "exec"), {"__name__": "toys"})
    packed = products(tmp_path / "products", validation=0)
    short: dict[str, Any] = {"trunk": "small", "dim": 4, "train_dim": 0, "crop": 28, "batch_size": 8, "threads": 1}

    def proxies(name: str, steps: int) -> tuple[torch.Tensor, bytes]:
        config = load_config(data=packed.folder, out=tmp_path / name, loss="proxy", steps=steps, checkpoint_minutes=0, **short)
        run = train(config, progress=False)
        state = RunFolder(run.folder).load_state()
        assert state is not None
        return state[0]["loss.proxies"], (run.folder / "embedder.safetensors").read_bytes()

    first, _ = proxies("one", 1)
    last, learned = proxies("all", 6)
    assert not torch.equal(first, last)
    folder = tmp_path / "resumed"
    take_step, steps = Learner.take_step, []

    def stop(self: Learner, *args: Any) -> Any:
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return take_step(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "take_step", stop)
        with pytest.raises(KeyboardInterrupt):
            proxies("resumed", 6)
    assert folder.exists()
    again, same = proxies("resumed", 6)
    assert torch.equal(again, last)
    assert same == learned


def test_plugin_with_an_import_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "types.py").write_text("import a_package_that_is_not_there")
    assert main(["--plugin", str(tmp_path / "types.py"), "list", "losses"]) == 2
    assert "a_package_that_is_not_there" in capsys.readouterr().err


def test_from_the_command_line(plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = products(tmp_path / "products", validation=0)
    command = ["train", str(packed.folder), "--out", str(tmp_path / "run"), "--dim", "4", "--steps", "2", "--batch-size", "8"]
    toys = ["--loss", "pull", "--loss.power", "1.5", "--sampler", "random", "--trunk", "patches", "--trunk.width", "9"]
    assert main([*command, "--loss", "pull"]) == 1  # not registered yet
    assert "loss must be one of" in capsys.readouterr().err
    assert main(["--plugin", str(plugin), *command, *toys]) == 0
    config = load_config(tmp_path / "run" / "config.yaml")
    assert config.loss.plain() == {"name": "pull", "power": 1.5}
    assert config.sampler.plain() == {"name": "random", "first": 0}
    assert Embedder.load(tmp_path / "run").trunk.num_features == 9
    assert main([*command, *toys, "--plugin", str(plugin)]) == 0  # the flag works anywhere
    capsys.readouterr()
    assert main(["--plugin", str(plugin), "list", "losses"]) == 0
    assert "    power = 2.0: exponent of the distances." in capsys.readouterr().out.splitlines()
    with pytest.raises(SystemExit, match="0"):
        main(["--plugin", str(plugin), "train", "--help"])
    assert "--loss.power" in capsys.readouterr().out
    assert main(["--plugin", str(tmp_path / "none.py"), "list", "losses"]) == 2
    assert capsys.readouterr().err.count("\n") == 1

"""Losses of pytorch-metric-learning by name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses, miners
from torch import Tensor, nn

from liftedstruct.cli import main
from liftedstruct.losses import LOSSES
from liftedstruct.losses.pml import pml_loss
from liftedstruct.runtime.settings import choose
from liftedstruct.training import RunFolder, load_config
from liftedstruct.training.config import trains_prefixes
from liftedstruct.training.learner import Learner
from liftedstruct.training.optimizers import parameter_groups
from training.sets import products, run, settings

Y = torch.tensor([3, 3, 7, 7, 7, 0, 0, 0])
X = nn.functional.normalize(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), dim=1)


def make(name: str, **options: Any) -> nn.Module:
    loss: nn.Module = choose("loss", LOSSES, {"name": name, **options}).make()
    return loss


@pytest.mark.parametrize("name", ["TripletMarginLoss", "MultiSimilarityLoss", "ContrastiveLoss", "SupConLoss"])
def test_value_of_the_wrapped_loss(name: str) -> None:
    torch.testing.assert_close(make(f"pml:{name}")(X, Y), getattr(losses, name)()(X, Y), rtol=0, atol=0)


def test_options_reach_the_wrapped_loss() -> None:
    ours = make("pml:TripletMarginLoss", margin=0.4, swap=True)(X, Y)
    assert ours == losses.TripletMarginLoss(margin=0.4, swap=True)(X, Y)
    assert ours != make("pml:TripletMarginLoss")(X, Y)


def test_a_number_in_a_text_is_a_number() -> None:
    """`triplets_per_anchor` is "all" or a number, and a flag passes a text."""
    torch.manual_seed(0)
    ours = make("pml:TripletMarginLoss", triplets_per_anchor="2", margin=1.0)
    assert ours.loss.triplets_per_anchor == 2  # type: ignore[union-attr]
    assert ours(X, Y).isfinite()
    assert make("pml:TripletMarginLoss").loss.triplets_per_anchor == "all"  # type: ignore[union-attr]


def test_miner() -> None:
    near = X + 2 * torch.eye(8, 4)[Y]  # with easy pairs, which the miner drops
    ours = make("pml:MultiSimilarityLoss", miner="MultiSimilarityMiner")(near, Y)
    pairs = miners.MultiSimilarityMiner()(near, Y)
    assert ours == losses.MultiSimilarityLoss()(near, Y, pairs)
    assert ours != losses.MultiSimilarityLoss()(near, Y)
    with pytest.raises(
        ValueError, match=r"loss\.miner must be one of .*, got 'MultiSimMiner'\. Did you mean 'MultiSimilarityMin"
    ):
        make("pml:MultiSimilarityLoss", miner="MultiSimMiner")


def test_options_are_those_of_the_constructor() -> None:
    """Own parameters first, then those of base classes (CosFaceLoss takes num_classes through *args), then ours."""
    common = {"miner": "", "proxy_lr_scale": 100.0}
    expected: dict[str, dict[str, Any]] = {
        "ProxyAnchorLoss": {"margin": 0.1, "alpha": 32},
        "CosFaceLoss": {"margin": 0.35, "scale": 64},
        "ProxyNCALoss": {"softmax_scale": 1},
        "HistogramLoss": {"n_bins": None, "delta": None},
        "RankedListLoss": {"margin": None, "Tn": None, "imbalance": 0.5, "Tp": 0},
    }
    for name, options in expected.items():
        assert choose("loss", LOSSES, f"pml:{name}").options == options | common
    with pytest.raises(ValueError, match=r"loss pml:ProxyAnchorLoss must be given known settings, got 'alfa'.*'alpha'"):
        make("pml:ProxyAnchorLoss", alfa=1)
    with pytest.raises(ValueError, match=r"loss\.alpha must be a whole number or a number, got 'large'"):
        make("pml:ProxyAnchorLoss", alpha="large")
    with pytest.raises(ValueError, match=r"loss pml:RankedListLoss must be given valid options, got \{.*'margin' and 'Tn'"):
        make("pml:RankedListLoss")


PROXY = ["ArcFaceLoss", "CosFaceLoss", "NormalizedSoftmaxLoss", "ProxyAnchorLoss", "ProxyNCALoss", "SoftTripleLoss"]


@pytest.mark.parametrize("name", [*PROXY, "SubCenterArcFaceLoss", "P2SGradLoss"])
def test_proxy_losses_match_the_wrapped_loss_on_class_indices(name: str) -> None:
    loss = make(f"pml:{name}")
    assert list(loss.parameters()) == []
    with pytest.raises(ValueError, match=rf"pml:{name} has no proxies yet\. Call prepare"):
        loss(X, Y)
    loss.prepare(Y, 4)  # type: ignore[operator]
    assert len(list(loss.parameters())) == 1
    dim = "descriptors_dim" if name == "P2SGradLoss" else "embedding_size"
    direct = getattr(losses, name)(**{"num_classes": 3, dim: 4})
    direct.load_state_dict(loss.loss.state_dict())  # type: ignore[union-attr]
    indices = torch.tensor([1, 1, 2, 2, 2, 0, 0, 0])
    torch.testing.assert_close(loss(X, Y), direct(X, indices), rtol=0, atol=0)
    assert parameter_groups(loss, 0.0)[0]["lr_scale"] == 100.0


def test_labels_are_compared_exactly() -> None:
    """Passed as they are, labels that are equal in float32 would be one class."""
    large = torch.tensor([2**40, 2**40 + 1, 2**40, 2**40 + 1, -5, -5, 2**63 - 1, 2**63 - 2])
    small = torch.tensor([1, 2, 1, 2, 0, 0, 4, 3])
    for name in ("TripletMarginLoss", "NCALoss"):
        assert make(f"pml:{name}")(X, large) == getattr(losses, name)()(X, small)
    loss = make("pml:ProxyAnchorLoss")
    loss.prepare(np.append(large.numpy(), 2**62), 4)  # type: ignore[operator]
    direct = losses.ProxyAnchorLoss(6, 4)
    direct.load_state_dict({"proxies": loss.loss.proxies})  # type: ignore[union-attr]
    assert loss(X, large) == direct(X, torch.tensor([1, 2, 1, 2, 0, 0, 5, 4]))
    with pytest.raises(ValueError, match=r"labels must be among those passed to prepare, got 17\. Prepare with all"):
        loss(X, large.where(large > 0, 17))
    loss.prepare(large[:6], 4)  # type: ignore[operator]  # no effect, since there are proxies already
    loss(X, large)
    fewer = make("pml:ProxyAnchorLoss")
    fewer.prepare(large[:6], 4)  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"labels must be among those passed to prepare, got 9223372036854775807\."):
        fewer(X, large)


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("pml:ProxyAnchor", "pml:ProxyAnchorLoss"),
        ("pml:triplet_margin_loss", "pml:TripletMarginLoss"),
        ("pml:GenericPairLoss", ""),  # a base class
        ("pml:CrossBatchMemory", ""),  # wraps another loss
        ("pml:", ""),
    ],
)
def test_unknown_names(name: str, close: str) -> None:
    with pytest.raises(ValueError, match=rf"loss must be one of pml:AngularLoss, .*, got '{name}'\..*{close}") as caught:
        load_config(data="d", out="o", loss=name)
    assert "\n" not in str(caught.value)
    assert "pml:VICRegLoss" not in str(caught.value).partition("got")[0]


def test_registry() -> None:
    assert LOSSES["pml:NCALoss"] is LOSSES["pml:NCALoss"]
    assert "pml:NCALoss" in LOSSES
    assert not any(name.startswith("pml:") for name in LOSSES)
    assert "pnl:NCALoss" not in LOSSES
    with pytest.raises(KeyError):
        LOSSES["nothing"]
    code = "import liftedstruct.training, sys; print('pytorch_metric_learning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_absent_package(monkeypatch: pytest.MonkeyPatch) -> None:
    pml_loss.cache_clear()
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.losses", None)
    with pytest.raises(ValueError, match=r"pytorch_metric_learning\.\w+ must be installed .*pip install 'liftedstruct\[pml\]'"):
        load_config(data="d", out="o", loss="pml:NCALoss")


@pytest.mark.parametrize(
    ("name", "prefixes"), [("lifted_struct", True), ("pml:MultiSimilarityLoss", True), ("pml:ProxyAnchorLoss", False)]
)
def test_prefixes_are_trained_without_proxies(name: str, prefixes: bool) -> None:
    assert trains_prefixes(load_config(data="d", out="o", dim=64, loss=name)) is prefixes


def test_proxies_are_trained_with_their_own_learning_rate(tmp_path: Path) -> None:
    packed = products(tmp_path / "products", validation=0)
    labels = packed.labels[packed.labels >= 0]
    config = settings(
        packed, tmp_path / "run", loss={"name": "pml:ProxyAnchorLoss", "proxy_lr_scale": 50}, optimizer="sgd", steps=2
    )
    torch.manual_seed(0)
    layer = nn.Linear(6, 5, bias=False)
    learner = Learner(config, layer, labels)
    proxies: Tensor = learner.loss.loss.proxies  # type: ignore[assignment, union-attr]
    assert proxies.shape == (len(np.unique(labels)), 5)
    scales = {id(p): group["lr_scale"] for group in learner.optimizer.param_groups for p in group["params"]}
    assert scales == {id(layer.weight): 1.0, id(proxies): 50.0}
    before = proxies.detach().clone()
    rows = torch.from_numpy(learner.sampler.batch(0))
    learner.take_step(0, torch.randn(len(rows), 6), torch.from_numpy(labels)[rows])
    assert not torch.equal(proxies, before)


@pytest.mark.parametrize("loss", [{"name": "pml:ProxyAnchorLoss", "alpha": 16}, {"name": "pml:MarginLoss", "learn_beta": True}])
def test_a_run_resumes_exactly(tmp_path: Path, loss: dict[str, Any]) -> None:
    packed = products(tmp_path / "products", validation=0)
    short: dict[str, Any] = {"loss": loss, "steps": 3, "checkpoint_minutes": 0, "batch_size": 8, "normalize": True}

    def trained(name: str) -> tuple[dict[str, Tensor], bytes]:
        folder = run(packed, tmp_path / name, **short).folder
        state = RunFolder(folder).load_state()
        assert state is not None
        return state[0], (folder / "embedder.safetensors").read_bytes()

    whole, learned = trained("whole")
    take_step, steps = Learner.take_step, []

    def stop(self: Learner, *args: Any) -> Any:
        steps.append(1)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return take_step(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "take_step", stop)
        with pytest.raises(KeyboardInterrupt):
            trained("resumed")
    own = "loss.loss.proxies" if "alpha" in loss else "loss.loss.beta"
    state = RunFolder(tmp_path / "resumed").load_state()
    assert state is not None
    assert state[1]["step"] == 2
    assert not torch.equal(state[0][own], whole[own])  # the last step is still to come
    again, same = trained("resumed")
    assert again.keys() == whole.keys()
    assert {f"optimizer.{own}.exp_avg", own} <= again.keys()
    assert all(torch.equal(again[name], whole[name]) for name in whole)
    assert same == learned


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = products(tmp_path / "products", validation=0)
    command = ["train", str(packed.folder), "--out", str(tmp_path / "run"), "--dim", "4", "--steps", "1", "--batch-size", "8"]
    command += ["--trunk", "small", "--crop", "28", "--threads", "1"]
    chosen = ["--loss", "pml:ProxyAnchorLoss", "--loss.margin", "0.2"]
    assert main([*command, *chosen]) == 0
    config = load_config(tmp_path / "run" / "config.yaml")
    plain = {"name": "pml:ProxyAnchorLoss", "margin": 0.2, "alpha": 32, "miner": "", "proxy_lr_scale": 100.0}
    assert config.loss.plain() == plain
    assert main([*command, *chosen]) == 0  # the settings match those of the saved run
    capsys.readouterr()
    assert main([*command, "--loss", "pml:ProxyAnchor"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_under_a_name_of_its_own_every_option_is_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = products(tmp_path / "products", validation=0)
    plugin = tmp_path / "anchors.py"
    plugin.write_text('from liftedstruct.losses import LOSSES\n\nLOSSES["anchors"] = LOSSES["pml:ProxyAnchorLoss"]\n')
    command = ["--plugin", str(plugin), "train", str(packed.folder), "--out", str(tmp_path / "run"), "--dim", "4"]
    command += ["--steps", "1", "--batch-size", "8", "--trunk", "small", "--crop", "28", "--threads", "1"]
    try:
        assert main([*command, "--loss", "anchors", "--loss.alpha", "16", "--loss.proxy-lr-scale", "10"]) == 0
        options = load_config(tmp_path / "run" / "config.yaml").loss.options
        assert options == {"margin": 0.1, "alpha": 16, "miner": "", "proxy_lr_scale": 10.0}
        capsys.readouterr()
        assert main(["--plugin", str(plugin), "list", "losses"]) == 0
        listed = capsys.readouterr().out
    finally:
        LOSSES.pop("anchors", None)
    assert "anchors              ProxyAnchorLoss of pytorch-metric-learning." in listed
    assert "    proxy_lr_scale = 100.0: factor of the learning rate for the loss's own parameters, such as proxies." in listed

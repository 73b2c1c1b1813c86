import math

import pytest
import torch
from torch import Tensor, nn

from liftedstruct.embedder import Embedder
from liftedstruct.runtime.settings import choose
from liftedstruct.training.optimizers import (
    OPTIMIZERS,
    SCHEDULES,
    freeze,
    load_state_tensors,
    lr_factor,
    state_tensors,
    training_mode,
    update_ema,
)
from liftedstruct.trunks import Trunk


def tiny() -> Embedder:
    """Return a small embedder with convolution biases and batch norms, which no built-in trunk combines."""
    stages: dict[str, list[nn.Module]] = {
        "stem": [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()],
        "middle": [nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)],
        "end": [nn.Conv2d(8, 6, 1)],
    }
    return Embedder(Trunk("tiny", stages, input_size=9, num_features=6, mean=(127.5,) * 3, min_size=4), 4)


def pixels(n: int = 4) -> Tensor:
    return torch.randint(256, (n, 9, 9, 3), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        ("constant", 0, 0.25),  # four warm-up steps
        ("constant", 3, 1.0),
        ("constant", 99, 1.0),
        ("step", 3, 1.0),
        ("step", 35, 1.0),  # three equal parts of 96 steps
        ("step", 36, 0.1),
        ("step", 67, 0.1),
        ("step", 68, 0.01),
        ("cosine", 4, 1.0),
        ("cosine", 28, (1 + math.sqrt(0.5)) / 2),
        ("cosine", 52, 0.5),
        ("cosine", 76, (1 - math.sqrt(0.5)) / 2),
    ],
)
def test_schedules_by_hand(schedule: str, step: int, expected: float) -> None:
    assert lr_factor(SCHEDULES[schedule], step, 100, warmup=4) == pytest.approx(expected, rel=1e-12)


def test_cosine_ends_near_zero() -> None:
    assert 0 < lr_factor(SCHEDULES["cosine"], 99, 100) < 3e-4
    assert SCHEDULES["step"](0.5, decays=1, factor=0.5) == 0.5


def test_learning_rates_and_weight_decay_of_the_paper() -> None:
    embedder = tiny()
    groups = OPTIMIZERS["caffe_sgd"](embedder).param_groups
    names = {id(parameter): name for name, parameter in embedder.named_parameters()}
    found = {names[id(p)]: (group["lr_scale"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert found == {
        "trunk.layers.stem.0.weight": (1, 2e-4),
        "trunk.layers.stem.0.bias": (2, 0),
        "trunk.layers.stem.1.weight": (1, 0),
        "trunk.layers.stem.1.bias": (1, 0),
        "trunk.layers.middle.0.weight": (1, 2e-4),
        "trunk.layers.middle.0.bias": (2, 0),
        "trunk.layers.middle.1.weight": (1, 0),
        "trunk.layers.middle.1.bias": (1, 0),
        "trunk.layers.end.0.weight": (1, 2e-4),
        "trunk.layers.end.0.bias": (2, 0),
        "linear.weight": (10, 2e-4),
        "linear.bias": (20, 0),
    }


def test_freezing() -> None:
    embedder = tiny()
    freeze(embedder, 2)
    training_mode(embedder, freeze_statistics=False)
    trained = {name for name, parameter in embedder.named_parameters() if parameter.requires_grad}
    assert trained == {"trunk.layers.end.0.weight", "trunk.layers.end.0.bias", "linear.weight", "linear.bias"}
    before = {name: buffer.clone() for name, buffer in embedder.named_buffers()}
    embedder(pixels()).sum().backward()
    assert all((buffer == before[name]).all() for name, buffer in embedder.named_buffers())  # statistics are frozen too
    assert embedder.training
    freeze(embedder, "trunk")
    assert not any(parameter.requires_grad for parameter in embedder.trunk.parameters())
    for wrong in (4, -1):
        with pytest.raises(
            ValueError, match=rf"freeze must be 0 to 3, the number of stages of tiny \(stem, middle, end\), got {wrong}"
        ):
            freeze(tiny(), wrong)


def test_layer_decay_by_hand() -> None:
    embedder, loss = tiny(), nn.Linear(2, 2)
    embedder.trunk.register_parameter("token", nn.Parameter(torch.zeros(6)))  # in no stage: like the first
    both = nn.ModuleDict({"network": embedder, "loss": loss})
    groups = OPTIMIZERS["adamw"](both, layer_decay=0.5).param_groups
    names = {id(parameter): name for name, parameter in both.named_parameters()}
    found = {names[id(p)].rpartition(".")[0]: group["lr_scale"] for group in groups for p in group["params"]}
    assert found == {
        "network.trunk": 0.125,
        "network.trunk.layers.stem.0": 0.125,
        "network.trunk.layers.stem.1": 0.125,
        "network.trunk.layers.middle.0": 0.25,
        "network.trunk.layers.middle.1": 0.25,
        "network.trunk.layers.end.0": 0.5,
        "network.linear": 1.0,
        "loss": 1.0,
    }
    assert sum(len(group["params"]) for group in groups) == len(names)
    assert {group["lr_scale"] for group in OPTIMIZERS["adamw"](embedder).param_groups} == {1.0}  # the default
    assert {group["lr_scale"] for group in OPTIMIZERS["adamw"](loss, layer_decay=0.5).param_groups} == {1.0}  # no trunk
    for wrong in (0.0, 1.5):
        with pytest.raises(ValueError, match=rf"optimizer.layer_decay must be a number > 0 and <= 1, got {wrong}"):
            choose("optimizer", OPTIMIZERS, {"name": "adamw", "layer_decay": wrong})


@pytest.mark.parametrize("frozen", [True, False])
def test_statistics_of_batch_norms(frozen: bool) -> None:
    embedder = tiny()
    training_mode(embedder, freeze_statistics=frozen)
    mean = embedder.get_buffer("trunk.layers.stem.1.running_mean")
    before = mean.clone()
    embedder(pixels()).sum().backward()
    assert torch.equal(mean, before) == frozen
    assert embedder.get_parameter("trunk.layers.stem.1.weight").grad is not None  # the affine parameters are trained either way


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_save_and_load_state_tensors(name: str) -> None:
    def step(embedder: Embedder, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 1e-2
        optimizer.zero_grad()
        embedder(pixels()).square().sum().backward()
        optimizer.step()

    def make() -> tuple[Embedder, torch.optim.Optimizer]:
        embedder = tiny().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return embedder, OPTIMIZERS[name](embedder, weight_decay=1e-2)

    one, its_optimizer = make()
    assert not [key for key in state_tensors({"embedder": one}, its_optimizer) if key.startswith("optimizer")]
    step(one, its_optimizer)
    saved = {
        key: tensor.detach().clone().contiguous() for key, tensor in state_tensors({"embedder": one}, its_optimizer).items()
    }
    step(one, its_optimizer)
    other, other_optimizer = make()
    load_state_tensors(saved, {"embedder": other}, other_optimizer)
    step(other, other_optimizer)
    for (key, left), right in zip(
        state_tensors({"embedder": one}, its_optimizer).items(),
        state_tensors({"embedder": other}, other_optimizer).values(),
        strict=True,
    ):
        assert torch.equal(left, right), key


def test_one_step_of_sgd_by_hand() -> None:
    embedder = tiny()
    optimizer = OPTIMIZERS["caffe_sgd"](embedder, weight_decay=0.1)
    assert isinstance(embedder.linear, nn.Linear)
    W = embedder.linear.weight.detach().clone()
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * group["lr_scale"]
    for parameter in embedder.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    V = 1 + 0.1 * W  # v = g + λ w
    torch.testing.assert_close(embedder.linear.weight.detach(), W - 0.1 * V)
    optimizer.step()
    W2 = W - 0.1 * V
    torch.testing.assert_close(embedder.linear.weight.detach(), W2 - 0.1 * (0.9 * V + 1 + 0.1 * W2))


@pytest.mark.filterwarnings("ignore:.*meta parameter in the current model.*:UserWarning")
def test_loaded_state_is_on_the_device_of_its_parameter() -> None:
    """Fused optimizers need the step count on the device too; the meta device stands for any other."""
    embedder = tiny()
    optimizer = OPTIMIZERS["adamw"](embedder)
    embedder(pixels()).sum().backward()
    optimizer.step()
    away = tiny().to("meta")
    other = OPTIMIZERS["adamw"](away)
    load_state_tensors(state_tensors({"embedder": embedder}, optimizer), {"embedder": away}, other)
    assert {value.device.type for state in other.state.values() for value in state.values()} == {"meta"}


def test_parameters_of_no_stage_are_frozen_with_the_first() -> None:
    embedder = tiny()
    embedder.trunk.register_parameter("token", nn.Parameter(torch.zeros(6)))
    assert [id(parameter) for parameter in embedder.trunk.unstaged_parameters()] == [id(embedder.trunk.token)]
    freeze(embedder, 0)
    assert embedder.trunk.token.requires_grad
    freeze(embedder, 1)
    assert not embedder.trunk.token.requires_grad


def test_ema_by_hand() -> None:
    average, embedder = tiny().eval().requires_grad_(False), tiny()
    nn.utils.vector_to_parameters(torch.full((sum(p.numel() for p in average.parameters()),), 1.0), average.parameters())
    for value, expected in ((3.0, 1.5), (5.0, 2.375), (5.0, 3.03125)):  # 0.75 * 1 + 0.25 * 3, 0.75 * 1.5 + 0.25 * 5, ...
        with torch.no_grad():
            for parameter in embedder.parameters():
                parameter.fill_(value)
        embedder.get_buffer("trunk.layers.stem.1.running_mean").fill_(7 * value)
        embedder.get_buffer("trunk.layers.stem.1.num_batches_tracked").fill_(int(value))
        update_ema(average, embedder, 0.75)
        assert all((parameter == expected).all() for parameter in average.parameters())
        assert all((parameter == value).all() for parameter in embedder.parameters())
        assert (average.get_buffer("trunk.layers.stem.1.running_mean") == 7 * value).all()  # copied, not averaged
        assert average.get_buffer("trunk.layers.stem.1.num_batches_tracked").item() == int(value)
    assert not any(parameter.requires_grad for parameter in average.parameters())
    assert all(parameter.requires_grad for parameter in embedder.parameters())

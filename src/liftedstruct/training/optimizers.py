"""What is trained, and how fast: frozen stages, parameter groups, optimizers, schedules, EMA, and their state."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, AdamW, Optimizer

from liftedstruct.embedder import Embedder
from liftedstruct.runtime.settings import Count, Fraction, NonNegative

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "freeze",
    "frozen_copy",
    "load_state_tensors",
    "lr_factor",
    "parameter_groups",
    "state_tensors",
    "training_mode",
    "update_ema",
]


def freeze(embedder: Embedder, stages: int | str) -> None:
    """Freeze the first stages of the trunk: so many, or all of them ("trunk")."""
    names = list(embedder.trunk.stages)
    if stages == "trunk":
        embedder.trunk.requires_grad_(False)
        return
    if not isinstance(stages, int) or not 0 <= stages <= len(names):
        raise ValueError(
            f"freeze must be 0 to {len(names)}, the number of stages of {embedder.trunk.name} ({', '.join(names)}), "
            f"got {stages!r}. Pass trunk to freeze it all."
        )
    for name in names[:stages]:
        for module in embedder.trunk.stages[name]:
            module.requires_grad_(False)
    for parameter in embedder.trunk.unstaged_parameters() if stages else ():
        parameter.requires_grad_(False)


def training_mode(embedder: Embedder, freeze_statistics: bool) -> None:
    """Training mode, except where nothing is trained, and except batch norms whose statistics stay as they are."""
    embedder.train()
    for module in embedder.trunk.modules():
        parameters = list(module.parameters())
        untrained = bool(parameters) and not any(p.requires_grad for p in parameters)
        if untrained or (freeze_statistics and isinstance(module, _BatchNorm)):
            module.eval()


def adamw(network: nn.Module, *, beta1: Fraction = 0.9, weight_decay: NonNegative = 1e-4) -> Optimizer:
    """Adam with decoupled weight decay.

    Args:
        beta1: decay of the mean gradient; that of its square is 0.999.
        weight_decay: of weights; biases and normalization layers have none.

    """
    groups = parameter_groups(network, weight_decay)
    return AdamW(groups, lr=0.0, betas=(beta1, 0.999), fused=True)  # several times as fast as the loop, on a CPU too


def sgd(network: nn.Module, *, momentum: Fraction = 0.9, weight_decay: NonNegative = 1e-4) -> Optimizer:
    """Stochastic gradient descent with momentum.

    Args:
        momentum: momentum factor.
        weight_decay: of weights; biases and normalization layers have none.

    """
    return SGD(parameter_groups(network, weight_decay), lr=0.0, momentum=momentum, fused=True)


def caffe_sgd(network: nn.Module, *, momentum: Fraction = 0.9, weight_decay: NonNegative = 2e-4) -> Optimizer:
    """SGD with the parameter groups of the paper's code: the head's rate x 10, its bias x 20, other biases of layers x 2.

    Args:
        momentum: momentum factor.
        weight_decay: of weights; biases and normalization layers have none.

    """
    head = next((module for name, module in network.named_modules() if name.split(".")[-1] == "linear"), None)
    layers = [module for module in network.modules() if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)]
    lr_scales = {id(layer.bias): 2.0 for layer in layers}
    if isinstance(head, nn.Linear):
        lr_scales |= {id(head.weight): 10.0, id(head.bias): 20.0}
    return SGD(parameter_groups(network, weight_decay, lr_scales), lr=0.0, momentum=momentum, fused=True)


def parameter_groups(
    network: nn.Module, weight_decay: float, lr_scales: Mapping[int, float] | None = None
) -> list[dict[str, Any]]:
    """The trained parameters in groups of equal ``lr_scale`` and weight decay; vectors have no decay.

    Args:
        network: all of it; frozen parameters are left out.
        weight_decay: of parameters with two dimensions or more.
        lr_scales: factor of the learning rate by the id of a parameter; 1 where there is none.

    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in network.parameters():
        if parameter.requires_grad:
            key = (lr_scales or {}).get(id(parameter), 1.0), weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault(key, []).append(parameter)
    return [{"params": params, "lr_scale": scale, "weight_decay": decay} for (scale, decay), params in groups.items()]


def constant(progress: float) -> float:
    """The same all the time."""
    return 1.0


def step(progress: float, *, decays: Count = 2, factor: NonNegative = 0.1) -> float:
    """Multiplied by a factor several times, at equal distances.

    Args:
        decays: how many times.
        factor: what the rate is multiplied by each time.

    """
    return factor ** math.floor(progress * (decays + 1))


def cosine(progress: float) -> float:
    """Half a cosine wave, from 1 to 0."""
    return (1 + math.cos(math.pi * progress)) / 2


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"adamw": adamw, "caffe_sgd": caffe_sgd, "sgd": sgd}
SCHEDULES: dict[str, Callable[..., float]] = {"constant": constant, "cosine": cosine, "step": step}


def lr_factor(schedule: Callable[[float], float], step: int, steps: int, warmup: int = 0) -> float:
    """What the learning rate is multiplied by at step 0..steps-1: linear warm-up, then the schedule.

    >>> [lr_factor(cosine, t, 6, warmup=2) for t in range(6)]  # half, all, then half a wave over four steps
    [0.5, 1.0, 1.0, 0.8535533905932737, 0.5, 0.14644660940672627]
    """
    if step < warmup:
        return (step + 1) / warmup
    return schedule((step - warmup) / max(1, steps - warmup))


def frozen_copy(embedder: Embedder) -> Embedder:
    """A copy that is not trained."""
    return copy.deepcopy(embedder).eval().requires_grad_(False)


@torch.no_grad()
def update_ema(ema: Embedder, embedder: Embedder, decay: float) -> None:
    """``ema <- decay · ema + (1 - decay) · weights``; statistics of batch norms are copied."""
    for mean, value in zip(ema.parameters(), embedder.parameters(), strict=True):
        mean.lerp_(value, 1 - decay)
    for kept, now in zip(ema.buffers(), embedder.buffers(), strict=True):
        kept.copy_(now)


def state_tensors(modules: Mapping[str, nn.Module], optimizer: Optimizer) -> dict[str, Tensor]:
    """All tensors of some modules and of their optimizer by name, to be saved."""
    tensors: dict[str, Tensor] = {}
    for prefix, module in modules.items():
        tensors |= {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}
        for name, parameter in module.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{prefix}.{name}.{key}"] = value
                elif value is not None:  # SGD has a None before its first step
                    kind = type(value).__name__
                    raise ValueError(
                        f"an optimizer must keep its state in tensors to be resumed, {key} is {kind}. Use another."
                    )
    return tensors


def load_state_tensors(tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module], optimizer: Optimizer) -> None:
    """What :func:`state_tensors` returned, back in place, in the memory layout that the steps after it are used to."""
    for prefix, module in modules.items():
        module.load_state_dict({name: tensors[f"{prefix}.{name}"] for name in module.state_dict()})
        for name, parameter in module.named_parameters():
            own = f"optimizer.{prefix}.{name}."
            for key in [key for key in tensors if key.startswith(own)]:
                like = parameter if tensors[key].shape == parameter.shape else tensors[key]
                value = torch.empty_like(like, device=parameter.device).copy_(tensors[key]).detach()
                optimizer.state[parameter][key.removeprefix(own)] = value

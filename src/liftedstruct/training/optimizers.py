"""What is trained, and how fast: frozen parts, groups of parameters with their own rates, optimizers and schedules."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, AdamW, Optimizer

from liftedstruct.embedder import Embedder

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "fixed_copy",
    "follow",
    "freeze",
    "gather",
    "group_parameters",
    "rate",
    "spread",
    "training_mode",
]


def freeze(embedder: Embedder, stages: int | str) -> None:
    """Leave the first stages of the trunk as they are: so many, or all of them ("trunk")."""
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
    for parameter in embedder.trunk.loose_parameters() if stages else ():
        parameter.requires_grad_(False)


def training_mode(embedder: Embedder, freeze_statistics: bool) -> None:
    """Training mode, except where nothing is trained, and except batch norms whose statistics stay as they are."""
    embedder.train()
    for module in embedder.trunk.modules():
        parameters = list(module.parameters())
        untrained = bool(parameters) and not any(p.requires_grad for p in parameters)
        if untrained or (freeze_statistics and isinstance(module, _BatchNorm)):
            module.eval()


def group_parameters(
    embedder: Embedder, *, weight_decay: float, head_lr: float = 1.0, head_bias_lr: float = 1.0, bias_lr: float = 1.0
) -> list[dict[str, Any]]:
    """Groups of parameters for an optimizer, each with ``multiplier``, what the rate is multiplied by, and its decay.

    Vectors (biases, and the scales of normalisations) have no weight decay. The head's weight and bias have their own
    multipliers, and so have the biases of the trunk's convolutions and linear layers.
    """
    layers = [module for module in embedder.trunk.modules() if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)]
    multipliers = {id(layer.bias): bias_lr for layer in layers}
    if isinstance(embedder.linear, nn.Linear):
        multipliers |= {id(embedder.linear.weight): head_lr, id(embedder.linear.bias): head_bias_lr}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in embedder.parameters():
        if parameter.requires_grad:
            key = multipliers.get(id(parameter), 1.0), weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault(key, []).append(parameter)
    return [{"params": params, "multiplier": m, "weight_decay": decay} for (m, decay), params in groups.items()]


def sgd(groups: list[dict[str, Any]], momentum: float) -> Optimizer:
    """Stochastic gradient descent with momentum, as in the paper."""
    return SGD(groups, lr=0.0, momentum=momentum, fused=True)


def adamw(groups: list[dict[str, Any]], momentum: float) -> Optimizer:
    """Adam with decoupled weight decay; ``momentum`` is its first beta."""
    return AdamW(groups, lr=0.0, betas=(momentum, 0.999), fused=True)  # several times as fast as the loop, on a CPU too


def constant(at: float, decays: int, factor: float) -> float:
    """The same all the time."""
    return 1.0


def step(at: float, decays: int, factor: float) -> float:
    """Multiplied by ``factor`` so many times, at equal distances."""
    return factor ** math.floor(at * (decays + 1))


def cosine(at: float, decays: int, factor: float) -> float:
    """Half a wave, from all to nothing."""
    return (1 + math.cos(math.pi * at)) / 2


OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]], float], Optimizer]] = {
    "adamw": adamw,
    "sgd": sgd,
}
SCHEDULES: dict[str, Callable[[float, int, float], float]] = {"constant": constant, "cosine": cosine, "step": step}


def rate(schedule: str, step: int, steps: int, *, warmup: int = 0, decays: int = 2, factor: float = 0.1) -> float:
    """What the learning rate is multiplied by at step 0..steps-1: a straight line up, then the schedule.

    >>> [rate("cosine", t, 6, warmup=2) for t in range(6)]  # half, all, then half a wave over four steps
    [0.5, 1.0, 1.0, 0.8535533905932737, 0.5, 0.14644660940672627]
    """
    if step < warmup:
        return (step + 1) / warmup
    return SCHEDULES[schedule]((step - warmup) / max(1, steps - warmup), decays, factor)


def fixed_copy(embedder: Embedder) -> Embedder:
    """An embedder of the same weights that no training changes."""
    return copy.deepcopy(embedder).eval().requires_grad_(False)


@torch.no_grad()
def follow(average: Embedder, embedder: Embedder, share: float) -> None:
    """Move the average of the weights on by one step: ``share`` of what it is, the rest of what the embedder is now."""
    for mean, value in zip(average.parameters(), embedder.parameters(), strict=True):
        mean.lerp_(value, 1 - share)
    for kept, now in zip(average.buffers(), embedder.buffers(), strict=True):  # statistics of batch norms
        kept.copy_(now)


def gather(embedder: Embedder, optimizer: Optimizer) -> dict[str, Tensor]:
    """All tensors of the embedder and the optimizer by name, to be saved."""
    tensors = {f"embedder.{name}": tensor for name, tensor in embedder.state_dict().items()}
    for name, parameter in embedder.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):  # SGD has a None before its first step
                tensors[f"optimizer.{name}.{key}"] = value
    return tensors


def spread(tensors: dict[str, Tensor], embedder: Embedder, optimizer: Optimizer) -> None:
    """What :func:`gather` gathered, back in its places, in the memory layout that the steps after it are used to."""
    own = "embedder."
    embedder.load_state_dict({name.removeprefix(own): value for name, value in tensors.items() if name.startswith(own)})
    for name, parameter in embedder.named_parameters():
        prefix = f"optimizer.{name}."
        for key in [key for key in tensors if key.startswith(prefix)]:
            like = parameter if tensors[key].shape == parameter.shape else tensors[key]
            value = torch.empty_like(like, device=parameter.device).copy_(tensors[key]).detach()
            optimizer.state[parameter][key.removeprefix(prefix)] = value

"""Freezing, parameter groups, optimizers, learning rate schedules, EMA of the weights, and optimizer state."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, AdamW, Optimizer

from liftedstruct.embedder import Embedder
from liftedstruct.runtime.settings import Count, Fraction, NonNegative, Range
from liftedstruct.trunks import Trunk

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

N = TypeVar("N", bound=nn.Module)


def freeze(embedder: Embedder, stages: int | str) -> None:
    """Freeze the first `stages` stages of the trunk, or all of it ("trunk")."""
    names = list(embedder.trunk.stages)
    if stages == "trunk":
        embedder.trunk.requires_grad_(False)
        return
    if not isinstance(stages, int) or not 0 <= stages <= len(names):
        raise ValueError(
            f"freeze must be 0 to {len(names)}, the number of stages of {embedder.trunk.name} ({', '.join(names)}), "
            f"got {stages!r}. Pass trunk to freeze all stages."
        )
    for name in names[:stages]:
        for module in embedder.trunk.stages[name]:
            module.requires_grad_(False)
    for parameter in embedder.trunk.unstaged_parameters() if stages else ():
        parameter.requires_grad_(False)


def training_mode(embedder: Embedder, freeze_statistics: bool) -> None:
    """Set training mode, but keep frozen modules, and optionally all batch norms of the trunk, in eval mode."""
    embedder.train()
    for module in embedder.trunk.modules():
        parameters = list(module.parameters())
        untrained = bool(parameters) and not any(p.requires_grad for p in parameters)
        if untrained or (freeze_statistics and isinstance(module, _BatchNorm)):
            module.eval()


def adamw(
    network: nn.Module,
    *,
    beta1: Fraction = 0.9,
    weight_decay: NonNegative = 1e-4,
    layer_decay: Annotated[float, Range(0, 1, above=True)] = 1.0,
) -> Optimizer:
    """Adam with decoupled weight decay.

    Args:
        beta1: decay of the moving average of the gradient; beta2 is 0.999.
        weight_decay: weight decay; biases and normalization layers are exempt.
        layer_decay: factor of the learning rate per trunk stage, from the head down (layer-wise learning rate decay).

    """
    groups = parameter_groups(network, weight_decay, _stage_lr_scales(network, layer_decay))
    return AdamW(groups, lr=0.0, betas=(beta1, 0.999), fused=True)  # several times as fast as the for-loop, also on CPU


def sgd(network: nn.Module, *, momentum: Fraction = 0.9, weight_decay: NonNegative = 1e-4) -> Optimizer:
    """Stochastic gradient descent with momentum.

    Args:
        momentum: momentum factor.
        weight_decay: weight decay; biases and normalization layers are exempt.

    """
    return SGD(parameter_groups(network, weight_decay), lr=0.0, momentum=momentum, fused=True)


def caffe_sgd(network: nn.Module, *, momentum: Fraction = 0.9, weight_decay: NonNegative = 2e-4) -> Optimizer:
    """SGD with the learning rates of the authors' code: head weights x 10, head bias x 20, biases of other layers x 2.

    Args:
        momentum: momentum factor.
        weight_decay: weight decay; biases and normalization layers are exempt.

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
    """Group the trainable parameters by `lr_scale` and weight decay; one-dimensional parameters have no weight decay.

    Args:
        network: module whose parameters are grouped; frozen parameters are skipped.
        weight_decay: weight decay of parameters with at least two dimensions.
        lr_scales: factor of the learning rate by parameter id; 1 for parameters that are not listed.

    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in network.parameters():
        if parameter.requires_grad:
            scale = (lr_scales or {}).get(id(parameter), 1.0) * getattr(parameter, "lr_scale", 1.0)  # attribute: of a loss
            key = scale, weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault(key, []).append(parameter)
    return [{"params": params, "lr_scale": scale, "weight_decay": decay} for (scale, decay), params in groups.items()]


def _stage_lr_scales(network: nn.Module, layer_decay: float) -> dict[int, float]:
    """Return `lr_scales` of the trunk's parameters, if there is a trunk: `layer_decay` in its last stage, its square before."""
    trunk = next((module for module in network.modules() if isinstance(module, Trunk)), None)
    if trunk is None:
        return {}
    stages = [[p for module in modules for p in module.parameters()] for modules in trunk.stages.values()]
    stages[0] += trunk.unstaged_parameters()
    return {id(p): layer_decay ** (len(stages) - i) for i, stage in enumerate(stages) for p in stage}


def constant(progress: float) -> float:
    """Keep the learning rate constant."""
    return 1.0


def step(progress: float, *, decays: Count = 2, factor: NonNegative = 0.1) -> float:
    """Multiply the learning rate by a factor at equal intervals.

    Args:
        decays: number of times that the learning rate decays.
        factor: factor of the learning rate at each decay.

    """
    return factor ** math.floor(progress * (decays + 1))


def cosine(progress: float) -> float:
    """Decay the learning rate to 0 along half a cosine wave."""
    return (1 + math.cos(math.pi * progress)) / 2


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"adamw": adamw, "caffe_sgd": caffe_sgd, "sgd": sgd}
SCHEDULES: dict[str, Callable[..., float]] = {"constant": constant, "cosine": cosine, "step": step}


def lr_factor(schedule: Callable[[float], float], step: int, steps: int, warmup: int = 0) -> float:
    """Return the factor of the learning rate at step 0..steps-1: linear warm-up, then the schedule.

    Examples:
        >>> [lr_factor(cosine, t, 6, warmup=2) for t in range(6)]  # two warm-up steps, then half a wave over four steps
        [0.5, 1.0, 1.0, 0.8535533905932737, 0.5, 0.14644660940672627]
    """
    if step < warmup:
        return (step + 1) / warmup
    return schedule((step - warmup) / max(1, steps - warmup))


def frozen_copy(network: N) -> N:
    """Return a frozen copy in eval mode."""
    return copy.deepcopy(network).eval().requires_grad_(False)


@torch.no_grad()
def update_ema(ema: nn.Module, network: nn.Module, decay: float) -> None:
    """Update `ema <- decay · ema + (1 - decay) · weights`; batch norm statistics are copied."""
    for mean, value in zip(ema.parameters(), network.parameters(), strict=True):
        mean.lerp_(value, 1 - decay)
    for kept, now in zip(ema.buffers(), network.buffers(), strict=True):
        kept.copy_(now)


def state_tensors(modules: Mapping[str, nn.Module], optimizer: Optimizer) -> dict[str, Tensor]:
    """Return all tensors of the modules and their optimizer by name, for a checkpoint."""
    tensors: dict[str, Tensor] = {}
    for prefix, module in modules.items():
        tensors |= {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}
        for name, parameter in module.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{prefix}.{name}.{key}"] = value
                elif value is not None:  # SGD momentum is None before the first step
                    kind = type(value).__name__
                    raise ValueError(
                        f"the state of an optimizer must consist of tensors, got {kind} for {key}. Use another optimizer."
                    )
    return tensors


def load_state_tensors(tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module], optimizer: Optimizer) -> None:
    """Load what `state_tensors` returned; optimizer tensors get the device and memory layout of their parameter."""
    for prefix, module in modules.items():
        module.load_state_dict({name: tensors[f"{prefix}.{name}"] for name in module.state_dict()})
        for name, parameter in module.named_parameters():
            own = f"optimizer.{prefix}.{name}."
            for key in [key for key in tensors if key.startswith(own)]:
                like = parameter if tensors[key].shape == parameter.shape else tensors[key]
                value = torch.empty_like(like, device=parameter.device).copy_(tensors[key]).detach()
                optimizer.state[parameter][key.removeprefix(own)] = value

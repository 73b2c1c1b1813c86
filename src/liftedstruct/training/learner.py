"""The training step shared by networks on images and linear layers on feature vectors."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from liftedstruct.data import Indices
from liftedstruct.runtime import seeds
from liftedstruct.samplers import Sampler
from liftedstruct.training.caching import batch_gradient
from liftedstruct.training.config import TrainConfig
from liftedstruct.training.optimizers import lr_factor

__all__ = ["DivergedError", "Learner", "StepResult", "distance_scale"]


HUGE = 1e15  # limit of embedding entries, far below 1.8e19, whose square overflows float32


class DivergedError(ValueError):
    """Error raised if the loss, the gradient or the embeddings are not finite, or the embeddings are huge."""


@dataclass(frozen=True)
class StepResult:
    """Result of a training step."""

    loss: float
    embeddings: Tensor  # (m, d), before the update
    gradient: Tensor  # of the loss with respect to the embeddings                                    (m, d)
    gradient_norm: float  # of all parameters, before clipping
    lr: float


class Learner:
    """Loss, sampler, optimizer and schedule of a run.

    Args:
        config: settings of the run.
        network: module to train; frozen parameters are skipped.
        labels: (n,), class numbers of the training images. The sampler draws indices into them.
        forward: function from inputs to embeddings. Default: `network`.
        dims: dimensions of the prefixes of an embedding that the loss is applied to as well (Kusupati et al. 2022).

    """

    def __init__(
        self,
        config: TrainConfig,
        network: nn.Module,
        labels: Indices,
        forward: Callable[[Tensor], Tensor] | None = None,
        dims: Sequence[int] = (),
    ) -> None:
        self.config, self.labels, self.forward = config, labels, forward or network
        self.device = next(network.parameters()).device
        loss: nn.Module = config.loss.make()
        if hasattr(loss, "prepare"):  # such as one proxy per class
            loss.prepare(labels, getattr(network, "width", None) or network.out_features)  # type: ignore[operator]
        self.loss = loss.to(self.device)
        self.sampler: Sampler = config.sampler.make(labels, config.batch_size, seed=config.seed)
        self.dims = tuple(dims)
        trained = network if not list(self.loss.parameters()) else nn.ModuleDict({"network": network, "loss": self.loss})
        self.optimizer: torch.optim.Optimizer = config.optimizer.make(trained)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "float16")

    def refresh_due(self, step: int) -> bool:
        """Return whether the sampler needs new embeddings before this step."""
        return self.sampler.refresh_every is not None and step % self.sampler.refresh_every == 0

    def refresh(self, embeddings: NDArray) -> None:  # type: ignore[type-arg]
        """Pass the embeddings of all training images to the sampler."""
        self.sampler.refresh(embeddings)

    def take_step(self, step: int, inputs: Tensor, labels: Tensor) -> StepResult:
        """Update the network with one batch. A `DivergedError` is raised before any parameter changes.

        Args:
            step: number of the step.
            inputs: (m, ...).
            labels: (m,).

        """
        config = self.config
        lr = (config.lr or 0.0) * lr_factor(config.schedule.make, step, config.steps, config.warmup or 0)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self.optimizer.zero_grad(set_to_none=True)

        def objective(X: Tensor) -> Tensor:
            largest = X.detach().abs().max().item()
            if not largest < HUGE:
                raise DivergedError(f"the embeddings must be finite and below 1e15, got values up to {largest:.3g}.")
            y, J = labels.to(X.device), torch.zeros((), device=X.device)
            for dim in (X.shape[1], *self.dims):
                Z = normalize(X[:, :dim]) if config.normalize and dim < X.shape[1] else X[:, :dim]
                J = J + self.loss(Z, y)
            return J / (1 + len(self.dims))

        loss, X, dX = batch_gradient(
            self.forward,
            inputs.to(self.device, non_blocking=True),
            objective,
            chunk=config.cache_chunk,
            seed=(config.seed, step, seeds.DROPOUT),
            parameters=list(self.loss.parameters()),
            scale=self.scaler.scale(torch.ones((), device=self.device)).item(),
        )
        if not math.isfinite(loss):
            raise DivergedError(f"the loss must be finite, got {loss}.")
        return StepResult(loss, X, dX, self._update(loss), lr)

    def _update(self, loss: float) -> float:
        """Run an optimizer step and return the gradient norm before clipping."""
        self.scaler.unscale_(self.optimizer)
        trained = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        total = nn.utils.get_total_norm([p.grad for p in trained])
        norm = total.item()
        if not math.isfinite(norm) and self.scaler.get_scale() <= 1:  # otherwise the scaler skips the update
            raise DivergedError(f"the gradient must be finite, got norm {norm} (loss {loss:.4g}).")
        if self.config.clip_norm:
            nn.utils.clip_grads_with_norm_(trained, self.config.clip_norm, total)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return norm


def distance_scale(loss: nn.Module) -> float:
    """Return the distance at which a loss separates two images, margin times temperature; a missing or zero one counts as 1."""
    return (getattr(loss, "margin", None) or 1.0) * (getattr(loss, "temperature", None) or 1.0)

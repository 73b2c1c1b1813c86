"""Losses that compute their value and gradient together, made known to autograd, to torch.compile and to second derivatives."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["closed_form"]

Compute = Callable[..., tuple[Tensor, Tensor]]
Plain = Callable[[Tensor], Tensor]


def closed_form(compute: Compute) -> Callable[..., Tensor]:
    """A differentiable loss ``(embeddings, labels, *settings, plain=...)`` from ``compute``.

    Args:
        compute: ``(embeddings, labels, *settings, gradient) -> (loss, dX)``, with annotations; dX is only used if ``gradient``.

    ``plain(embeddings)`` is the same loss in differentiable operations, for the gradient of the gradient.

    torch.compile sees the loss as one opaque operator: the number of positive pairs depends on the data, so there is nothing
    for it to trace, and the checks stay on. Outside of it ``compute`` is called directly, which is faster for small batches.
    """
    operator = torch.library.custom_op(f"liftedstruct::{compute.__name__.lstrip('_')}", compute, mutates_args=())

    @operator.register_fake
    def _(embeddings: Tensor, *settings: Any, **named: Any) -> tuple[Tensor, Tensor]:
        return embeddings.new_empty(()), embeddings.new_empty(embeddings.shape)

    def loss(embeddings: Tensor, labels: Tensor, *settings: Any, plain: Plain) -> Tensor:
        gradient = embeddings.requires_grad and torch.is_grad_enabled()
        run = operator if torch.compiler.is_compiling() else compute
        value, dX = run(embeddings.detach(), labels, *settings, gradient)
        if not gradient:
            return value
        out: Tensor = _ClosedForm.apply(embeddings, value, dX, plain)  # type: ignore[no-untyped-call]
        return out

    return loss


class _ClosedForm(torch.autograd.Function):
    """A loss whose gradient is known already. Asked for a gradient of the gradient, it goes through the plain version."""

    @staticmethod
    def forward(embeddings: Tensor, loss: Tensor, dX: Tensor, plain: Plain) -> Tensor:
        return loss.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Plain], output: Tensor) -> None:
        embeddings, _, dX, ctx.plain = inputs
        ctx.save_for_backward(embeddings, dX)

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor, None, None, None]:
        embeddings, dX = ctx.saved_tensors
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            (dX,) = torch.autograd.grad(ctx.plain(embeddings), embeddings, create_graph=True)
        return d_loss * dX, None, None, None

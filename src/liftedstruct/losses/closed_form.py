"""Losses that compute value and gradient together, with support for autograd, torch.compile and second derivatives."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["closed_form"]

Compute = Callable[..., tuple[Tensor, Tensor]]
Plain = Callable[[Tensor], Tensor]


def closed_form(compute: Compute) -> Callable[..., Tensor]:
    """Make a differentiable loss `(embeddings, labels, *settings, plain=...)` from `compute`.

    `plain(embeddings)` is the same loss in differentiable operations, used for second derivatives.

    torch.compile treats the loss as one opaque operator: the number of positive pairs depends on the data, so the loss cannot
    be traced. The input checks still run. Without torch.compile, `compute` is called directly, which is faster for small
    batches.

    Args:
        compute: `(embeddings, labels, *settings, gradient) -> (loss, dX)`, with annotations; dX is only used if `gradient`.
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
    """Loss with a precomputed gradient. Second derivatives use the plain version."""

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

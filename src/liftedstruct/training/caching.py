r"""Gradient caching: the exact gradient of a batch of any size, with the activation memory of one chunk.

A loss over a batch needs the embeddings of all its images at once, but not their activations:

1. run a forward pass on each chunk without a graph, and keep only the embeddings;
2. compute the gradient of the loss with respect to the embeddings, $\partial J / \partial X$;
3. run the forward pass on each chunk again, now with a graph, and a backward pass from its rows of $\partial J / \partial X$.

By the chain rule, the sum over chunks is the gradient of the whole batch. It is exact if the embedding of an image does not
depend on the other images (which excludes batch norms that use batch statistics) and if the second pass repeats the random
choices of the first (so the dropout of each chunk has its own seed). The cost is one additional forward pass.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from liftedstruct.training.machine import seed_torch

__all__ = ["batch_gradient", "check_exact"]


def check_exact(network: nn.Module) -> None:
    """Raise an error if an embedding depends on the other images of its batch."""
    for name, module in network.named_modules():
        running = any(buffer.startswith("running_") for buffer, _ in module.named_buffers(recurse=False))
        if (running and module.training) or (isinstance(module, _BatchNorm) and module.running_mean is None):
            raise ValueError(
                f"gradient caching requires batch norms with frozen statistics to be exact, but {name or 'the network'} uses "
                "batch statistics. Pass freeze_batch_norm true, or cache_chunk 0."
            )


def batch_gradient(
    forward: Callable[[Tensor], Tensor],
    inputs: Tensor,
    objective: Callable[[Tensor], Tensor],
    *,
    chunk: int = 0,
    seed: tuple[int, ...] = (0,),
    scale: float = 1.0,
    parameters: Sequence[nn.Parameter] = (),
) -> tuple[float, Tensor, Tensor]:
    """Add the gradient of `objective(forward(inputs))` to the gradients of the parameters.

    Args:
        forward: network whose output for a chunk of the inputs equals the same rows of its output for all inputs.
        inputs: (m, ...).
        objective: loss as a function of the (m, d) embeddings in float32.
        chunk: rows per forward pass; 0 means all rows in one pass.
        seed: seed for dropout; the index of the chunk is appended to it.
        scale: factor applied to all parameter gradients (loss scaling, for float16).
        parameters: parameters of the objective, such as proxies; their gradients are overwritten, not added to.

    Returns:
        The loss, the embeddings (m, d) and the gradient of the loss with respect to them (m, d).

    """
    chunks = inputs.split(chunk or len(inputs))
    if len(chunks) == 1:
        seed_torch(*seed, 0)
        outputs = [forward(inputs)]
    else:
        outputs = []
        with torch.no_grad():
            for c, rows in enumerate(chunks):
                seed_torch(*seed, c)
                outputs.append(forward(rows))
    X = torch.cat([output.detach() for output in outputs]).float().requires_grad_()  #                (m, d)
    loss = objective(X)
    dX, *of_loss = torch.autograd.grad(loss, [X, *parameters], allow_unused=True)  #                  (m, d)
    for parameter, gradient in zip(parameters, of_loss, strict=True):
        parameter.grad = None if gradient is None else scale * gradient
    for c, (rows, dX_c) in enumerate(zip(chunks, dX.split(len(chunks[0])), strict=True)):
        if len(chunks) > 1:
            seed_torch(*seed, c)
        output = outputs[0] if len(chunks) == 1 else forward(rows)
        output.backward((scale * dX_c).to(output.dtype))
    return loss.item(), X.detach(), dX

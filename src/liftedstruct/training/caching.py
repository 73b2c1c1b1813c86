r"""The gradient of a batch of any size in the memory of a chunk of it, exact.

A loss over a batch needs the embeddings of all its images at once, but not their activations:

1. every chunk goes forward without a graph, and only its embeddings are kept;
2. the loss gives its gradient at the embeddings, :math:`\partial J / \partial X`;
3. every chunk goes forward again, now with a graph, and backward from its rows of :math:`\partial J / \partial X`.

By the chain rule the sum over chunks is the gradient of the whole batch. It is exact if an image's embedding does not depend
on the images beside it (so not with batch norms that use the statistics of the batch) and if the second pass repeats the
random choices of the first (so every chunk draws its dropout from a seed of its own). It costs one forward pass more.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from liftedstruct.training.machine import seed_torch

__all__ = ["batch_gradient", "check_exact"]


def check_exact(network: nn.Module) -> None:
    """Raise if an embedding depends on the other images of its batch."""
    for name, module in network.named_modules():
        running = any(buffer.startswith("running_") for buffer, _ in module.named_buffers(recurse=False))
        if (running and module.training) or (isinstance(module, _BatchNorm) and module.running_mean is None):
            raise ValueError(
                f"gradient caching must have batch norms with frozen statistics to be exact, {name or 'the network'} uses "
                "those of the batch. Pass freeze_batch_norm true, or cache_chunk 0."
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
    """Add the gradient of ``objective(forward(inputs))`` to that of the parameters.

    Args:
        forward: the network; of a chunk of the inputs it makes the same rows as of all of them.
        inputs: (m, ...).
        objective: the loss, of the (m, d) embeddings in float32.
        chunk: rows that go through the network at once; 0 means all, in one pass.
        seed: what dropout descends from; chunk number c appends c to it.
        scale: the gradient of the parameters is multiplied by it (float16 needs that).
        parameters: of the objective, such as proxies; they get their gradient too.

    Returns:
        The loss, the embeddings (m, d) and the gradient of the loss at them (m, d).

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

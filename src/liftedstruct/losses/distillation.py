r"""Distillation: learn the similarities that a stronger embedding sees in a batch.

Each image $i$ has a distribution over the other images of its batch, by cosine similarity $s_{ij}$:
$p_{ij} = e^{s_{ij} / \tau} / \sum_{k \ne i} e^{s_{ik} / \tau}$. The loss is the divergence of the embedding's distribution $q$
from the teacher's distribution $p$:

$$
J = \frac{1}{m} \sum_i \sum_{j \ne i} p_{ij} \log \frac{p_{ij}}{q_{ij}}
$$

Only similarities are compared, so the teacher may have any dimension (Roth et al., *S2SD*, 2021).
"""

import torch
from torch import Tensor
from torch.nn.functional import kl_div, normalize

__all__ = ["similarity_distillation_loss"]


def similarity_distillation_loss(embeddings: Tensor, teacher: Tensor, temperature: float = 0.1) -> Tensor:
    """Compute the loss of a batch; its gradient is with respect to `embeddings` only.

    Args:
        embeddings: (m, d).
        teacher: (m, any dimension), embeddings of the same images by the teacher.
        temperature: tau, divisor of the cosine similarities.

    Examples:
        >>> X = torch.eye(3)
        >>> similarity_distillation_loss(2 * X, X).item()  # the same cosine similarities
        0.0
    """
    q, p = (_log_similarities(X, temperature) for X in (embeddings, teacher.detach()))  #             (m, m - 1)
    return kl_div(q, p, reduction="batchmean", log_target=True)


def _log_similarities(X: Tensor, temperature: float) -> Tensor:
    """Return the log of the distribution of each image over the others.                                  (m, m - 1)"""
    X, m = normalize(X.float()), len(X)
    others = ~torch.eye(m, dtype=torch.bool, device=X.device)
    return (X @ X.T / temperature)[others].view(m, m - 1).log_softmax(dim=1)

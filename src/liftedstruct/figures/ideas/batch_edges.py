"""The batch as a graph: which pairs of images each loss looks at (Figure 2 of the paper)."""

import math

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Arc
from torch import Tensor

from liftedstruct.figures.canvas import FAINT, drawing, new_figure
from liftedstruct.figures.ideas.marks import (
    bare,
    caption,
    class_key,
    class_numbers,
    edge_key,
    edge_style,
    frame,
    mark,
    subscript,
)
from liftedstruct.figures.ideas.slopes import Loss, contrastive_rows, distance_slopes, triplet_rows
from liftedstruct.losses import lifted_struct_loss
from liftedstruct.runtime.checks import Embeddings, Labels, as_embeddings, as_labels, check_finite, check_margin

__all__ = ["LABELS", "batch_graph", "equidistant", "six_images"]

LABELS = ("a", "a", "b", "b", "b", "c")  # six images that are three pairs, two triplets and one batch
PANELS: tuple[tuple[str, str, Loss], ...] = (
    ("(a) Contrastive embedding", "m/2", contrastive_rows),
    ("(b) Triplet embedding", "2m/3", triplet_rows),
    ("(c) Lifted structured embedding", "m(m − 1)/2", lifted_struct_loss),
)


def batch_graph(points: Embeddings | None = None, labels: Labels = LABELS, margin: float = 1.0) -> Figure:
    r"""One batch, three losses: an edge is drawn where :math:`\partial J / \partial D_{ij} \ne 0`.

    The slopes come from the losses' own gradients (:func:`~liftedstruct.figures.ideas.slopes.distance_slopes`). Positive pairs
    are red, solid and above the images, negative pairs blue, dashed and below; the width of an edge is the size of its slope.

    Args:
        points: (6, d) in general position, so d >= 5. By default all are at distance 0.5 from each other, and nothing but the
            loss makes a difference between two edges.
        labels: (6,), laid out both in pairs and in triplets.
        margin: the paper's :math:`\alpha`.

    """
    y, alpha = six_images(labels), check_margin(margin)
    X = equidistant(6) if points is None else as_embeddings(points).detach().cpu().double()
    y = as_labels(y, X)
    _check_position(X)
    with drawing():
        figure, axes = new_figure(10, 3.7, 1, 3)
        for ax, (title, most, loss) in zip(axes, PANELS, strict=True):
            similar, dissimilar = _draw(ax, distance_slopes(loss, X, y, alpha), y)
            ax.set_title(title)
            caption(
                ax,
                [
                    f"{similar + dissimilar} of 15 edges have a gradient, at most {most}.",
                    f"{similar} similar, {dissimilar} dissimilar.",
                ],
                58,
            )
        where = "all 0.5 apart" if points is None else "where they were given"
        numbers = y.unique().tolist()
        figure.legend(
            handles=[
                *edge_key("similar, above", "dissimilar, below", "not used by the loss"),
                *class_key(numbers, [f"class {number + 1}" for number in numbers]),
            ],
            loc="outside upper center",
            ncols=3 + len(numbers),
            title=f"An edge is drawn where ∂J/∂D ≠ 0, as wide as |∂J/∂D| is large: gradients of the three losses on six points "
            f"{where}, margin {alpha:g}",
        )
        return figure


def six_images(labels: Labels) -> Tensor:
    """The classes of a batch of six that is laid out in pairs and in triplets; the losses know what that means.   (6,)"""
    y = class_numbers(labels)
    if len(y) != 6:
        raise ValueError(f"the paper's batch has six images, got {len(y)} labels. Pass six.")
    for loss in (triplet_rows, contrastive_rows):
        loss(torch.zeros(6, 1), y)
    return y


def equidistant(m: int, distance: float = 0.5) -> Tensor:
    """So many points of which any two are equally far apart: a regular simplex.                                     (m, m)"""
    return torch.eye(m, dtype=torch.float64) * (distance / math.sqrt(2))


def _check_position(X: Tensor) -> None:
    check_finite(X, X.square().sum().item())
    sigma = torch.linalg.svdvals(X - X.mean(dim=0))
    spanned = int((sigma > 1e-6 * sigma[0]).sum())
    if spanned < len(X) - 1:
        raise ValueError(
            f"points must be in general position, so that no distance depends on the others: {len(X)} points must span "
            f"{len(X) - 1} dimensions, got {spanned}. Pass embeddings of more dimensions, without copies."
        )


def _draw(ax: Axes, slopes: Tensor, y: Tensor) -> tuple[int, int]:
    """All edges as arcs, similar ones above; and how many of the two kinds have a slope."""
    largest, counts, reach = slopes.abs().max().item(), [0, 0], [0.0, 0.0]
    for i, j in torch.combinations(torch.arange(len(y))).tolist():
        similar, slope, across = bool(y[i] == y[j]), abs(slopes[i, j].item()), j - i
        style = edge_style(similar, 1 + 2.6 * slope / largest) if slope else {"lw": 0.6, "color": FAINT, "alpha": 0.45}
        start = 0 if similar else 180
        ax.add_patch(
            Arc(
                ((i + j) / 2, 0),
                across,
                across,
                theta1=start,
                theta2=start + 180,
                zorder=3 if slope else 1,
                gid=f"edge {i} {j}" if slope else f"unused {i} {j}",
                **style,
            )
        )
        counts[similar] += slope > 0
        reach[similar] = max(reach[similar], across / 2)
    for i, number in enumerate(y.tolist()):
        mark(ax, (i, 0), number, 22, subscript(i))
    bare(ax)
    frame(ax, torch.tensor([-0.4, -reach[False] - 0.2]), torch.tensor([len(y) - 0.6, reach[True] + 0.4]))
    return counts[True], counts[False]

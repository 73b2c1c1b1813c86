"""Batch graph: the pairs of images that each loss uses (Figure 2 of the paper)."""

import math

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Arc
from torch import Tensor

from liftedstruct.figures.illustrations import markers
from liftedstruct.figures.illustrations.gradients import Loss, contrastive_rows, distance_gradients, triplet_rows
from liftedstruct.figures.style import FAINT, new_figure, styled
from liftedstruct.losses import lifted_struct_loss

__all__ = ["LABELS", "batch_graph", "equidistant"]

LABELS = torch.tensor([0, 0, 1, 1, 1, 2])  # six images: three pairs, two triplets or one batch
LOSSES: dict[str, Loss] = {"m/2": contrastive_rows, "2m/3": triplet_rows, "m(m − 1)/2": lifted_struct_loss}  # by edge limit


@styled()
def batch_graph() -> Figure:
    r"""Draw a batch as a graph, with the edges that each of the three losses uses.

    A loss uses an edge if $\partial J / \partial D_{ij} \ne 0$; unused edges are faint. The gradients are computed on six
    points at equal distances of 0.5, so only the loss makes edges differ. Positive pairs are red, solid and above the images;
    negative pairs are blue, dashed and below. The line width shows the magnitude of the gradient.
    """
    X = equidistant(6, 0.5)
    figure, axes = new_figure(10, 3.7, 1, 3)
    for ax, title, (most, loss) in zip(axes, markers.TITLES, LOSSES.items(), strict=True):
        ax.set_title(title)
        similar, dissimilar = _draw(ax, distance_gradients(loss, X, LABELS, markers.MARGIN))
        edges = f"{similar + dissimilar} of 15 edges have a gradient, at most {most}."
        markers.write_caption(ax, [edges, f"{similar} similar, {dissimilar} dissimilar."], 58)
    figure.legend(
        handles=[
            *markers.edge_handles("similar, above", "dissimilar, below"),
            Line2D([], [], label="not used by the loss", lw=0.8, color=FAINT, alpha=0.6),
            *markers.class_handles(["class 1", "class 2", "class 3"]),
        ],
        loc="outside upper center",
        ncols=6,
        title="Colored edges have ∂J/∂D ≠ 0; their width shows |∂J/∂D|. Gradients of the three losses on six points "
        f"at equal distances of 0.5, margin {markers.MARGIN:g}",
    )
    return figure


def equidistant(m: int, distance: float) -> Tensor:
    """Return points at equal distances from each other, a regular simplex.                                            (m, m)"""
    return torch.eye(m, dtype=torch.float64) * (distance / math.sqrt(2))


def _draw(ax: Axes, gradients: Tensor) -> tuple[int, int]:
    """Draw all edges as arcs, similar ones above; return how many similar and dissimilar edges have a gradient."""
    largest, counts, reach = gradients.abs().max().item(), [0, 0], [0.0, 0.0]
    for i, j in torch.combinations(torch.arange(len(LABELS))).tolist():
        similar, gradient = bool(LABELS[i] == LABELS[j]), abs(gradients[i, j].item())
        style = markers.edge_style(similar, 1 + 2.6 * gradient / largest) | {"gid": f"edge {i} {j}", "zorder": 3}
        if not gradient:
            style = {"lw": 0.6, "color": FAINT, "alpha": 0.45, "gid": f"unused {i} {j}", "zorder": 1}
        start = 0 if similar else 180
        ax.add_patch(Arc(((i + j) / 2, 0), j - i, j - i, theta1=start, theta2=start + 180, **style))
        counts[similar] += gradient > 0
        reach[similar] = max(reach[similar], (j - i) / 2)
    for i, label in enumerate(LABELS.tolist()):
        markers.draw_marker(ax, (i, 0), label, 22, markers.point_name(i))
    markers.fit_axes(ax, torch.tensor([[-0.4, -reach[False] - 0.2], [len(LABELS) - 0.6, reach[True] + 0.4]]))
    return counts[True], counts[False]

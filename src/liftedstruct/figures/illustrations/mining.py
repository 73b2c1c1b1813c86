"""Hard-negative mining: each image of a positive pair has its own hardest negative (Figure 4 of the paper)."""

from functools import partial

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

from liftedstruct.figures.illustrations import markers
from liftedstruct.figures.illustrations.gradients import Loss, pair_gradients
from liftedstruct.figures.style import FAINT, INK, PAPER, new_figure, styled
from liftedstruct.losses import lifted_struct_loss, structured_hinge_loss

__all__ = ["NEGATIVES", "PAIR", "POINTS", "mining", "plus", "push_weights"]

POINTS = torch.tensor([[-0.95, 0.75], [-0.55, -0.65], [0.0, 0.0], [0.9, 0.25], [1.35, -0.6], [1.85, 1.0]], dtype=torch.float64)
LABELS = (1, 1, 0, 0, 2, 2)
PAIR, NEGATIVES = (2, 3), [0, 1, 4, 5]  # rows
plus: Loss = partial(structured_hinge_loss, plus=True)  # the paper's footnote: keeps the hardest negative of each image
LOSSES: dict[str, tuple[Loss, str, str]] = {  # loss, and color and hatch of its bars
    "Eq. 3, hardest of both": (structured_hinge_loss, INK, ""),
    "with plus, hardest of each": (plus, PAPER, "/////"),
    "Eq. 4, all": (lifted_struct_loss, FAINT, ""),
}


@styled()
def mining() -> Figure:
    """Draw the hard negatives of both images of a positive pair.

    The mined negative is the one that the gradient of `structured_hinge_loss` pushes. The third panel compares the push on
    each negative edge with the push by `lifted_struct_loss`, the loss used in training.
    """
    D = torch.cdist(POINTS[list(PAIR)], POINTS)  #                                                    (2, m)
    weights = [push_weights(loss, POINTS, PAIR, NEGATIVES, markers.MARGIN) for loss, _, _ in LOSSES.values()]
    kept = weights[0].any(dim=1)  # the image whose negative Eq. 3 keeps                               (2,)
    mined = weights[1].argmax(dim=1)  #                                                               (2,)
    figure, axes = new_figure(10.5, 3.7, 1, 3, width_ratios=[1, 1, 0.95])
    for side, (ax, a, b) in enumerate(zip(axes, PAIR, PAIR[::-1], strict=False)):
        hardest = NEGATIVES[int(mined[side])]
        _draw(ax, a, b, hardest)
        ax.set_title(f"({'ab'[side]}) {markers.point_name(a)} and all its negatives")
        nearest = f"Mined: {markers.point_name(hardest)}, the nearest negative, at distance {D[side, hardest]:.2f}."
        markers.write_caption(ax, [nearest, "Eq. 3 keeps it." if kept[side] else "Eq. 3 keeps the other one."], 54)
    _draw_bars(axes[2], weights)
    handles = markers.edge_handles(f"positive pair, D = {D[0, PAIR[1]]:.2f}", "negative, with its distance")
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def push_weights(loss: Loss, X: Tensor, pair: tuple[int, int], negatives: list[int], margin: float) -> Tensor:
    """Return the push on every negative edge of a pair per unit of pull between the two, (2, len(negatives)).

    The pull is the gradient of J_ij² / 2 with respect to D_ij, which is J_ij.
    """
    J, gradients = pair_gradients(loss, X, pair, negatives, margin)
    return -gradients / J if J > 0 else torch.zeros_like(gradients)


def _draw(ax: Axes, a: int, b: int, hardest: int) -> None:
    ax.plot(*POINTS[[a, b]].T, zorder=3, **markers.edge_style(True, 2.4))
    for k in NEGATIVES:
        mined = k == hardest
        name = f"{'mined' if mined else 'seen'} {a} {k}"
        ax.plot(*POINTS[[a, k]].T, zorder=4 if mined else 2, gid=name, **markers.edge_style(False, 3.4 if mined else 1.1))
        difference = POINTS[k] - POINTS[a]
        x, y = (POINTS[a] + difference * (0.5 if mined else 0.6)).tolist()
        text = ax.text(x, y, f"{difference.norm():.2f}", fontsize=8, ha="center", va="center", zorder=5)
        text.set(color=markers.DISSIMILAR, fontweight="bold" if mined else "normal")
        text.set_bbox({"boxstyle": "round,pad=0.15", "fc": PAPER, "ec": "none"})
    center, radius = tuple(POINTS[a].tolist()), (POINTS[a] - POINTS[hardest]).norm().item()
    ax.add_artist(Circle(center, radius, fill=False, ls=":", lw=1, ec=FAINT, zorder=1))
    ax.plot(*POINTS[hardest].tolist(), "o", ms=29, mfc="none", mec=markers.DISSIMILAR, mew=1.8, zorder=5)
    for row, (point, label) in enumerate(zip(POINTS.tolist(), LABELS, strict=True)):
        markers.draw_marker(ax, point, label, 21, markers.point_name(row))
    markers.fit_axes(ax, POINTS, room=0.13)


def _draw_bars(ax: Axes, weights: list[Tensor]) -> None:
    names = [f"{markers.point_name(a)}–{markers.point_name(k)}" for a in PAIR for k in NEGATIVES]
    for shift, (name, (_, color, hatch)), weight in zip((-0.27, 0, 0.27), LOSSES.items(), weights, strict=True):
        places = [place + shift for place in range(len(names))]
        ax.barh(places, weight.flatten().tolist(), 0.25, color=color, hatch=hatch, ec=INK, lw=0.7, label=name)
    ax.set_xlim(0, 1.02)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(title="(c) Push on each negative", xlabel="push on the edge / pull on the pair")
    ax.legend(fontsize=8, loc="best")

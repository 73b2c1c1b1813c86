"""Mining: each image of a positive pair finds its own hardest negative (Figure 4 of the paper)."""

from functools import partial

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

from liftedstruct.figures.canvas import FAINT, INK, PAPER, drawing, new_figure
from liftedstruct.figures.ideas.marks import (
    DISSIMILAR,
    bare,
    caption,
    edge_key,
    edge_style,
    extent,
    frame,
    mark,
    plane,
    spot,
    subscript,
)
from liftedstruct.figures.ideas.slopes import Loss, pair_slopes
from liftedstruct.losses.lifted_struct import lifted_struct_loss, structured_hinge_loss
from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, check_count, check_margin

__all__ = ["LABELS", "POINTS", "mining", "push_weights"]

POINTS = torch.tensor([[-0.95, 0.75], [-0.55, -0.65], [0.0, 0.0], [0.9, 0.25], [1.35, -0.6], [1.85, 1.0]], dtype=torch.float64)
LABELS = ("green", "green", "brown", "brown", "purple", "purple")
plus: Loss = partial(structured_hinge_loss, plus=True)  # the paper's footnote: keeps the hardest negative of each image
LOSSES: dict[str, Loss] = {
    "Eq. 3, hardest of both": structured_hinge_loss,
    "with plus, hardest of each": plus,
    "Eq. 4, all": lifted_struct_loss,
}
BARS = ((INK, ""), (PAPER, "/////"), (FAINT, ""))


def mining(
    points: EmbeddingsLike = POINTS, labels: LabelsLike = LABELS, pair: tuple[int, int] = (2, 3), margin: float = 1.0
) -> Figure:
    r"""The negatives that both images of a positive pair compare with, and the ones they mine.

    Which negative was mined is read off the gradient of :func:`~liftedstruct.structured_hinge_loss`: it is the one that is
    pushed. The third panel sets the push of each negative edge beside that of the loss that is trained with.

    Args:
        points: (m, 2), real points of the plane.
        labels: (m,), their classes.
        pair: the rows of two points of one class.
        margin: the paper's :math:`\alpha`.

    """
    X, y = plane(points, labels)
    alpha = check_margin(margin)
    i, j = _check_pair(X, y, pair)
    negatives = (y != y[i]).nonzero()[:, 0].tolist()
    D = torch.cdist(X[[i, j]], X)  #                                                                  (2, m)
    weights = {name: push_weights(loss, X, (i, j), negatives, alpha) for name, loss in LOSSES.items()}
    kept = next(iter(weights.values())).any(dim=1)  # the side of which Eq. 3 keeps the negative       (2,)
    # Who is hardest does not depend on the margin; with this one no hinge is closed.
    mined = push_weights(plus, X, (i, j), negatives, alpha + D.max().item()).argmax(dim=1)
    with drawing():
        figure, axes = new_figure(10.5, 3.7, 1, 3, width_ratios=[1, 1, 0.95])
        for side, (ax, a, b) in enumerate(zip(axes, (i, j), (j, i), strict=False)):
            hardest = negatives[int(mined[side])]
            _draw(ax, X, y, (a, b), negatives, hardest)
            ax.set_title(f"({'ab'[side]}) {subscript(a)} compares with all its negatives")
            fate = "Eq. 3 keeps it" if kept[side] else "Eq. 3 keeps the other one"
            if not kept.any():
                fate = "J is not above 0, and so there is no gradient"
            caption(ax, [f"Mined: {subscript(hardest)}, the nearest, at {D[side, hardest]:.2f}.", f"{fate}."], 54)
        _bars(axes[2], weights, (i, j), negatives)
        figure.legend(
            handles=edge_key(f"positive pair, D = {D[0, j]:.2f}", "negative, with its distance"),
            loc="outside upper center",
            ncols=2,
        )
        return figure


def push_weights(loss: Loss, X: Tensor, pair: tuple[int, int], negatives: list[int], margin: float) -> Tensor:
    """The push on every negative edge of a pair for each unit of pull between the two, (2, len(negatives)).

    The pull is the slope of J_ij² / 2 with respect to D_ij, which is J_ij.
    """
    J, slopes = pair_slopes(loss, X, pair, negatives, margin)
    return -slopes / J if J > 0 else torch.zeros_like(slopes)


def _check_pair(X: Tensor, y: Tensor, pair: tuple[int, int]) -> tuple[int, int]:
    if len(pair) != 2:
        raise ValueError(f"pair must be two rows of one class, got {pair!r}. Pass the rows of two points with equal labels.")
    i, j = (check_count("a row of the pair", row, 0) for row in pair)
    if not (0 <= i < len(y) and 0 <= j < len(y)) or i == j or y[i] != y[j]:
        raise ValueError(f"pair must be two rows of one class, got {pair!r}. Pass the rows of two points with equal labels.")
    if not (y != y[i]).any():
        raise ValueError("a pair needs negatives to mine, got points of one class. Add points of another class.")
    u = (X[j] - X[i]) / (X[j] - X[i]).norm()
    off = ((X - X[i])[:, 0] * u[1] - (X - X[i])[:, 1] * u[0]).abs()  # distance to the line through the pair
    on = ((off < 1e-3 * (X[j] - X[i]).norm()) & (y != y[i])).nonzero()
    if len(on):
        raise ValueError(
            f"no negative may lie on the line through the pair, where its gradient does not tell which image pushes it, "
            f"got row {int(on[0])}. Move it aside."
        )
    return i, j


def _draw(ax: Axes, X: Tensor, y: Tensor, pair: tuple[int, int], negatives: list[int], hardest: int) -> None:
    a, b = pair
    ax.plot(*X[[a, b]].T, zorder=3, **edge_style(True, 2.4))
    for k in negatives:
        mined = k == hardest
        name = f"mined {a} {k}" if mined else f"seen {a} {k}"
        ax.plot(*X[[a, k]].T, zorder=4 if mined else 2, gid=name, **edge_style(False, 3.4 if mined else 1.1))
        D = (X[a] - X[k]).norm().item()
        at = X[a] + (X[k] - X[a]) * (0.5 if mined else 0.6)
        ax.text(
            *spot(at),
            f"{D:.2f}",
            color=DISSIMILAR,
            fontsize=8,
            fontweight="bold" if mined else "normal",
            ha="center",
            va="center",
            zorder=5,
            bbox={"boxstyle": "round,pad=0.15", "fc": PAPER, "ec": "none"},
        )
    radius = (X[a] - X[hardest]).norm().item()
    ax.add_artist(Circle(spot(X[a]), radius, fill=False, ls=":", lw=1, ec=FAINT, zorder=1))
    ax.plot(*spot(X[hardest]), "o", ms=29, mfc="none", mec=DISSIMILAR, mew=1.8, zorder=5)
    for k in range(len(X)):
        mark(ax, spot(X[k]), int(y[k]), 21, subscript(k))
    bare(ax)
    room = 0.13 * extent(X)
    frame(ax, X.min(dim=0).values - room, X.max(dim=0).values + room)


def _bars(ax: Axes, weights: dict[str, Tensor], pair: tuple[int, int], negatives: list[int]) -> None:
    names = [f"{subscript(a)}–{subscript(k)}" for a in pair for k in negatives]
    step = torch.arange(len(names), dtype=torch.float64)
    for number, (name, weight) in enumerate(weights.items()):
        colour, hatch = BARS[number]
        ax.barh(
            (step + 0.27 * (number - 1)).tolist(),
            weight.flatten().tolist(),
            0.25,
            color=colour,
            hatch=hatch,
            ec=INK,
            lw=0.7,
            label=name,
        )
    ax.set_xlim(0, max(1.02, *(1.02 * weight.max().item() for weight in weights.values())))
    ax.set_yticks(step.tolist(), names)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(title="(c) How hard each is pushed", xlabel="push on the edge / pull on the pair")
    ax.legend(fontsize=8, loc="best")

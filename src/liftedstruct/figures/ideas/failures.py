"""Where contrastive and triplet samples push a point the wrong way, and the whole batch the right way (Figure 5)."""

import math
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from torch import Tensor

from liftedstruct.figures.canvas import FAINT, INK, PAPER, drawing, new_figure
from liftedstruct.figures.ideas.marks import (
    ARROW,
    MARK_NAMES,
    bare,
    caption,
    class_key,
    edge_key,
    edge_style,
    extent,
    frame,
    mark,
    plane,
    spot,
)
from liftedstruct.figures.ideas.slopes import Loss, contrastive_rows, descent, triplet_rows
from liftedstruct.losses import lifted_struct_loss
from liftedstruct.runtime.checks import Embeddings, Labels, check_count, check_margin

__all__ = ["LABELS", "POINTS", "Move", "angle_between", "failure_modes", "move", "moves"]

# x_i between a square and the diamonds, almost on one line; its own class is above.
POINTS = torch.tensor(
    [[0, 0], [0.4, 0.45], [-0.4, 0.6], [-0.75, -0.05], [-1.1, -0.2], [-0.85, -0.45], [0.7, -0.1], [1.1, -0.2], [0.8, -0.45]],
    dtype=torch.float64,
)
LABELS = ("brown",) * 3 + ("green",) * 3 + ("purple",) * 3
LENGTH = 0.25  # of a panel's longest arrow, as a part of the extent of the points


@dataclass(frozen=True)
class Move:
    """What a loss does to the points of its batch, and to x_i, which is the first of them."""

    rows: tuple[int, ...]  # the points that the loss has, x_i first
    arrows: Tensor  # -∂J/∂x of each of these                                                         (len(rows), 2)
    rates: Tensor  # of D_ik, for all points k, when x_i goes one unit along its arrow; 0 if it has none    (m,)

    @property
    def norm(self) -> float:
        """Of x_i's gradient."""
        return float(self.arrows[0].norm())

    def nearer(self, among: Tensor) -> int:
        """How many of these points x_i comes nearer to."""
        return int((self.rates[among] < 0).sum())


def move(loss: Loss, X: Tensor, y: Tensor, rows: tuple[int, ...], margin: float) -> Move:
    """Ask one loss about the points in these rows."""
    arrows = descent(loss, X[list(rows)], y[list(rows)], margin)
    u = torch.nn.functional.normalize(arrows[0], dim=0)
    away = torch.nn.functional.normalize(X[rows[0]] - X, dim=1)  # 0 for x_i itself                   (m, 2)
    return Move(rows, arrows, away @ u)


def moves(X: Tensor, y: Tensor, i: int, positive: int, negative: int, margin: float) -> tuple[Move, Move, Move]:
    """The contrastive loss has one negative pair, the triplet loss one triplet, the lifted structured loss all points."""
    everything = (i, *(k for k in range(len(X)) if k != i))
    return (
        move(contrastive_rows, X, y, (i, negative), margin),
        move(triplet_rows, X, y, (i, positive, negative), margin),
        move(lifted_struct_loss, X, y, everything, margin),
    )


def angle_between(a: Tensor, b: Tensor) -> float:
    """In degrees, 0 to 180."""
    (ax, ay), (bx, by) = a.tolist(), b.tolist()
    return math.degrees(abs(math.atan2(ax * by - ay * bx, ax * bx + ay * by)))


def failure_modes(
    points: Embeddings = POINTS,
    labels: Labels = LABELS,
    margin: float = 1.0,
    *,
    i: int = 0,
    positive: int = 1,
    negative: int = 3,
) -> Figure:
    r"""The same points under three losses; arrows are their negative gradients for x_i and its class.

    Args:
        points: (m, 2), real points of the plane.
        labels: (m,), of three classes.
        margin: the paper's :math:`\alpha`.
        i: the row of x_i, the anchor.
        positive: the row of the positive that the triplet drew.
        negative: the row of the negative that the pair and the triplet drew.

    """
    X, y = plane(points, labels)
    alpha = check_margin(margin)
    _check_roles(y, i, positive, negative)
    contrastive, triplet, lifted = moves(X, y, i, positive, negative, alpha)
    D_ip = (X[i] - X[positive]).norm().item()
    others = (y != y[i]).nonzero()[:, 0]
    mates = [k for k in (y == y[i]).nonzero()[:, 0].tolist() if k != i]
    pairs = [move(contrastive_rows, X, y, (i, n), alpha) for n in others.tolist()]
    triplets = [move(triplet_rows, X, y, (i, p, n), alpha) for p in mates for n in others.tolist()]
    third = next(number for number in y.unique().tolist() if number not in (int(y[i]), int(y[negative])))
    with drawing():
        figure, axes = new_figure(10.5, 4.6, 1, 3)
        names = dict.fromkeys(others.tolist(), "xₖ")
        panels = (
            ("(a) Contrastive embedding", contrastive, alpha, "D = α", {i: "xᵢ", negative: "xⱼ"}),
            (
                "(b) Triplet embedding",
                triplet,
                math.hypot(D_ip, alpha**0.5),
                "D² = Dₐₚ² + α",
                {i: "xₐ", positive: "xₚ", negative: "xₙ"},
            ),
            ("(c) Lifted structured embedding", lifted, D_ip + alpha, "D = Dᵢⱼ + α", {**names, i: "xᵢ", positive: "xⱼ"}),
        )
        chances = _draws(pairs, others, "pairs"), _draws(triplets, others, "triplets"), ""
        for ax, (title, seen, bound, rule, names), draws in zip(axes, panels, chances, strict=True):
            _draw(ax, X, y, seen, bound, rule, names)
            ax.set_title(title)
            caption(ax, [*_sentences(X, y, seen, third, names[i]), draws], 58)
        numbers = [int(y[i]), int(y[negative]), third]
        figure.legend(
            handles=[
                *class_key(numbers, [f"{MARK_NAMES[number]}s" for number in numbers]),
                Line2D([], [], ls="", marker="o", mfc=PAPER, mec=INK, ms=8, label="not in the loss's batch"),
                Line2D([], [], color=ARROW, lw=3, label="negative gradient"),
                Line2D([], [], color=FAINT, lw=1.2, ls=":", label="margin bound"),
                *edge_key("pull", "push"),
            ],
            loc="outside upper center",
            ncols=8,
            columnspacing=1.4,
        )
        return figure


def _check_roles(y: Tensor, i: int, positive: int, negative: int) -> None:
    for name, row in (("i", i), ("positive", positive), ("negative", negative)):
        if check_count(name, row, 0) >= len(y):
            raise ValueError(f"{name} must be a row of the points, 0 to {len(y) - 1}, got {row}. Rows count from 0.")
    if i == positive or y[i] != y[positive] or y[i] == y[negative]:
        raise ValueError(
            f"positive must be another row of i's class and negative a row of another class, got rows {i}, {positive}, "
            f"{negative} of classes {y[[i, positive, negative]].tolist()}. Choose rows by their labels."
        )
    if len(y.unique()) != 3:
        raise ValueError(f"failure_modes needs three classes, got {len(y.unique())}. The failures are about the third.")


def _sentences(X: Tensor, y: Tensor, seen: Move, third: int, name: str) -> list[str]:
    """What the panel shows, in numbers."""
    i, m = seen.rows[0], len(X)
    batch = f"{len(seen.rows)} of {m} points in the batch"
    if seen.norm == 0:
        return [f"{batch}, none that counts within the margin: ∂J/∂{name} is 0."]
    others, mates = y != y[i], (y == y[i]) & (torch.arange(m) != i)
    angle = angle_between(seen.arrows[0], X[y == third].mean(dim=0) - X[i])
    return [
        f"{batch}. ∂J/∂{name} has norm {seen.norm:.2f}; the arrow is {angle:.0f}° off the way to the {MARK_NAMES[third]}s.",
        f"{name} comes nearer to {seen.nearer(mates)} of {int(mates.sum())} of its own class and to {seen.nearer(others)} "
        f"of {int(others.sum())} of the other classes.",
    ]


def _draws(draws: list[Move], others: Tensor, noun: str) -> str:
    """What all draws do that this one was taken from."""
    wrong, still = sum(draw.nearer(others) > 0 for draw in draws), sum(draw.norm == 0 for draw in draws)
    rest = f"; {still} do not move it" if still else ""
    return f"{wrong} of the {len(draws)} {noun} that can be drawn for it bring it nearer to a point of another class{rest}."


def _draw(ax: Axes, X: Tensor, y: Tensor, seen: Move, bound: float, rule: str, names: dict[int, str]) -> None:
    i = seen.rows[0]
    ax.add_artist(Circle(spot(X[i]), bound, fill=False, ls=(0, (1, 2)), lw=1.2, ec=FAINT, zorder=1))  # not to be framed
    at = X[i] + bound * torch.tensor([-math.sqrt(0.5), math.sqrt(0.5)])
    box = {"boxstyle": "round,pad=0.2", "fc": PAPER, "ec": "none"}
    ax.text(*spot(at), rule, fontsize=8, rotation=45, ha="center", va="center", bbox=box, zorder=1.5, clip_on=True)
    for k in seen.rows[1:]:
        ax.plot(*X[[i, k]].T, zorder=2, **edge_style(bool(y[k] == y[i]), 1.4))
    for k in range(len(X)):
        mark(ax, spot(X[k]), int(y[k]), 13, filled=k in seen.rows)
    own = [at for at, k in enumerate(seen.rows) if y[k] == y[i]]
    arrows = seen.arrows[own]
    if seen.norm:
        scale = arrows.norm(dim=1).max().item() / (LENGTH * extent(X))
        at = X[[seen.rows[k] for k in own]]
        ax.quiver(
            *at.T, *arrows.T, angles="xy", scale_units="xy", scale=scale, color=ARROW, ec=PAPER, lw=0.6, width=0.017, zorder=4
        )
    for k, name in names.items():
        offset = (0, 15) if y[k] == y[i] and k != i else (0, -15)
        ax.annotate(name, spot(X[k]), offset, textcoords="offset points", ha="center", va="center", fontsize=10, zorder=7)
    bare(ax)
    room = 0.16 * extent(X)
    frame(ax, X.min(dim=0).values - room, X.max(dim=0).values + room)

"""Failure modes: contrastive and triplet losses move a point the wrong way, the lifted structured loss does not (Figure 5)."""

import math
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from liftedstruct.figures.illustrations import markers
from liftedstruct.figures.illustrations.gradients import Loss, contrastive_rows, negative_gradient, triplet_rows
from liftedstruct.figures.style import FAINT, INK, PAPER, new_figure, styled
from liftedstruct.losses import lifted_struct_loss

__all__ = ["POINTS", "Move", "compute_move", "failure_modes", "paper_moves"]

# x_i, the first point, lies between a square and the diamonds, almost on one line; its own class is above.
POINTS = torch.tensor(
    [[0, 0], [0.4, 0.45], [-0.4, 0.6], [-0.75, -0.05], [-1.1, -0.2], [-0.85, -0.45], [0.7, -0.1], [1.1, -0.2], [0.8, -0.45]],
    dtype=torch.float64,
)
LABELS = torch.arange(9) // 3  # circles, squares, diamonds
POSITIVE, NEGATIVE = 1, 3  # the rows sampled with x_i for the pair and the triplet
OWN, OTHERS = [1, 2], [3, 4, 5, 6, 7, 8]  # all rows of its class, and of the other classes
LENGTH = 0.25  # of a panel's longest arrow, relative to the extent of the points
ARROW = "#d4007a"  # magenta, as in the paper


@dataclass(frozen=True)
class Move:
    """Effect of a loss on the points of its batch; x_i is the first of them."""

    rows: list[int]  # the points in the batch, x_i first
    arrows: Tensor  # -∂J/∂x of each point in the batch                                               (len(rows), 2)
    rates: Tensor  # change of D_ik, for all points k, per unit along x_i's arrow; 0 if it has none         (m,)

    @property
    def norm(self) -> float:
        """Norm of x_i's gradient."""
        return float(self.arrows[0].norm())

    def nearer(self, among: list[int]) -> int:
        """Return how many of these points x_i moves closer to."""
        return int((self.rates[among] < 0).sum())


def compute_move(loss: Loss, rows: list[int]) -> Move:
    """Compute the effect of a loss on a batch of these points."""
    arrows = negative_gradient(loss, POINTS[rows], LABELS[rows], markers.MARGIN)
    away = normalize(POINTS[rows[0]] - POINTS, dim=1)  # 0 for x_i itself                             (m, 2)
    return Move(rows, arrows, away @ normalize(arrows[0], dim=0))


def paper_moves() -> tuple[Move, Move, Move]:
    """Return the moves by one negative pair (contrastive), one triplet, and all points (lifted structured)."""
    return (
        compute_move(contrastive_rows, [0, NEGATIVE]),
        compute_move(triplet_rows, [0, POSITIVE, NEGATIVE]),
        compute_move(lifted_struct_loss, [0, *OWN, *OTHERS]),
    )


@styled()
def failure_modes() -> Figure:
    """Draw points in the plane for which contrastive and triplet losses fail, with negative gradients as arrows.

    The three panels show the same points under three losses, with arrows for x_i and its class.
    """
    D_ip = (POINTS[0] - POINTS[POSITIVE]).norm().item()
    pairs = [compute_move(contrastive_rows, [0, n]) for n in OTHERS]
    triplets = [compute_move(triplet_rows, [0, p, n]) for p in OWN for n in OTHERS]
    panels = (  # radius and rule of the margin, names of points, summary of all possible pairs or triplets
        (markers.MARGIN, "D = α", {0: "xᵢ", NEGATIVE: "xⱼ"}, _describe_draws(pairs, "pairs")),
        (
            math.hypot(D_ip, markers.MARGIN**0.5),
            "D² = Dₐₚ² + α",
            {0: "xₐ", POSITIVE: "xₚ", NEGATIVE: "xₙ"},
            _describe_draws(triplets, "triplets"),
        ),
        (D_ip + markers.MARGIN, "D = Dᵢⱼ + α", {**dict.fromkeys(OTHERS, "xₖ"), 0: "xᵢ", POSITIVE: "xⱼ"}, ""),
    )
    figure, axes = new_figure(10.5, 4.6, 1, 3)
    for ax, title, move, (bound, rule, names, draws) in zip(axes, markers.TITLES, paper_moves(), panels, strict=True):
        _draw(ax, move, bound, rule, names)
        ax.set_title(title)
        markers.write_caption(ax, [*_describe(move, names[0]), draws], 58)
    figure.legend(
        handles=[
            *markers.class_handles([marker.plural for marker in markers.MARKERS]),
            Line2D([], [], ls="", marker="o", mfc=PAPER, mec=INK, ms=8, label="not in the batch"),
            Line2D([], [], color=ARROW, lw=3, label="negative gradient"),
            Line2D([], [], color=FAINT, lw=1.2, ls=":", label="margin bound"),
            *markers.edge_handles("pull", "push"),
        ],
        loc="outside upper center",
        ncols=8,
        columnspacing=1.4,
    )
    return figure


def _describe(move: Move, name: str) -> list[str]:
    """Return the panel's numbers as sentences."""
    to_diamonds = POINTS[LABELS == 2].mean(dim=0) - POINTS[0]
    angle = math.degrees(math.acos(cosine_similarity(move.arrows[0], to_diamonds, dim=0)))
    return [
        f"{len(move.rows)} of {len(POINTS)} points in the batch. ∂J/∂{name} has norm {move.norm:.2f}; "
        f"the arrow is {angle:.0f}° off the direction to the diamonds.",
        f"{name} moves closer to {move.nearer(OWN)} of {len(OWN)} points of its own class and to {move.nearer(OTHERS)} "
        f"of {len(OTHERS)} points of other classes.",
    ]


def _describe_draws(draws: list[Move], noun: str) -> str:
    """Summarize the effect of all pairs or triplets that could have been sampled for the panel."""
    wrong, still = sum(draw.nearer(OTHERS) > 0 for draw in draws), sum(draw.norm == 0 for draw in draws)
    rest = f"; {still} do not move it" if still else ""
    return f"{wrong} of the {len(draws)} possible {noun} move it closer to a point of another class{rest}."


def _draw(ax: Axes, move: Move, bound: float, rule: str, names: dict[int, str]) -> None:
    center = tuple(POINTS[0].tolist())
    ax.add_artist(Circle(center, bound, fill=False, ls=(0, (1, 2)), lw=1.2, ec=FAINT, zorder=1))  # outside the data limits
    place, box = math.sqrt(0.5) * bound, {"boxstyle": "round,pad=0.2", "fc": PAPER, "ec": "none"}
    ax.text(-place, place, rule, fontsize=8, rotation=45, ha="center", va="center", bbox=box, zorder=1.5, clip_on=True)
    for k in move.rows[1:]:
        ax.plot(*POINTS[[0, k]].T, zorder=2, **markers.edge_style(k in OWN, 1.4))
    for k, (point, label) in enumerate(zip(POINTS.tolist(), LABELS.tolist(), strict=True)):
        markers.draw_marker(ax, point, label, 13, filled=k in move.rows)
    own = [place for place, k in enumerate(move.rows) if k not in OTHERS]
    tails, arrows = POINTS[[move.rows[place] for place in own]], move.arrows[own]
    scale = arrows.norm(dim=1).max().item() / (LENGTH * markers.extent(POINTS))
    ax.quiver(
        *tails.T, *arrows.T, angles="xy", scale_units="xy", scale=scale, color=ARROW, ec=PAPER, lw=0.6, width=0.017, zorder=4
    )
    for k, name in names.items():
        offset, point = (0, 15 if k in OWN else -15), tuple(POINTS[k].tolist())
        ax.annotate(name, point, offset, textcoords="offset points", ha="center", va="center", fontsize=10, zorder=7)
    markers.fit_axes(ax, POINTS, room=0.16)

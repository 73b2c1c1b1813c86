"""A problem small enough to see the whole of it: learn which direction of the plane tells classes apart.

Every class is a cloud of points in the plane. One hidden direction says which class a point is of; across it lies noise, much
wider than the gap between classes, so the nearest point is often of a wrong class. A 2 x 2 matrix, trained on half of the
classes by each loss, has to find that direction, and is measured on the other half, which it has never seen.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from rich.progress import track
from torch import Tensor, nn

from liftedstruct.batches import Batches, PairBatches, TripletBatches
from liftedstruct.checks import check_count
from liftedstruct.losses import contrastive_loss, lifted_struct_loss, loss_microscope, triplet_loss
from liftedstruct.neighbours import precision_at_1

__all__ = ["Learned", "demo"]

ANGLE = 0.6  # of the hidden direction, in radians
METHODS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], type[PairBatches] | type[TripletBatches], int]] = {
    "contrastive": (contrastive_loss, PairBatches, 128),
    "triplet": (triplet_loss, TripletBatches, 120),
    "lifted structured": (lifted_struct_loss, PairBatches, 128),
}


@dataclass(frozen=True)
class Learned:
    """What one loss made of the plane."""

    method: str
    recall_at_1: float  # on the unseen classes
    stretch: float  # how much more the matrix stretches its favourite direction than the other
    error: float  # angle between that direction and the hidden one, in degrees
    matrix: Tensor  # (2, 2)


def demo(steps: int = 300, seed: int = 0) -> list[Learned]:
    """Learn a direction of the plane by each loss, and print what was learned.

    Args:
        steps: training steps of each loss.
        seed: of the data, the batches and the start.

    """
    check_count("steps", steps)
    points, labels = hidden_direction(np.random.default_rng(check_count("seed", seed, 0)))
    train, test = labels < 10, labels >= 10
    X, y = points[test], labels[test]
    print(__doc__.split("\n\n")[1].strip() if __doc__ else "")
    print(f"\n20 classes of 30 points, 10 to train on and 10 unseen; {steps} steps of Adam for each loss; seed {seed}.\n")
    print("The unseen classes as they come:\n" + plot(X, y))
    before = precision_at_1(X, y)
    results = [learn(method, points[train], labels[train], X, y, steps, seed) for method in METHODS]
    lifted = results[-1].matrix
    print("\nand as seen through the matrix that the lifted structured loss learned:\n" + plot(X @ lifted.T, y))
    print("\nRecall@1 on the unseen classes (share of points whose nearest neighbour is of their class):")
    print(f"  {'as they come':<18} {before:6.1%}")
    for result in results:
        print(f"  {result.method:<18} {result.recall_at_1:6.1%}   {result.error:.1f}° off, stretched {result.stretch:.1f} x")
    print(f"\nThe hidden direction lies at {np.degrees(ANGLE):.1f}°. The unseen classes under the loss microscope:")
    print(loss_microscope(X @ lifted.T, y))
    return results


def hidden_direction(rng: np.random.Generator, classes: int = 20, images: int = 30) -> tuple[Tensor, Tensor]:
    """Points of the plane and their labels; the order of classes along the direction is random."""
    labels = np.repeat(np.arange(classes), images)
    along = rng.permutation(classes)[labels] + rng.normal(0, 0.2, len(labels))
    across = rng.normal(0, 60.0, len(labels))
    turn = np.array([[np.cos(ANGLE), -np.sin(ANGLE)], [np.sin(ANGLE), np.cos(ANGLE)]])
    return torch.tensor(np.stack((along, across), axis=1) @ turn.T, dtype=torch.float32), torch.tensor(labels)


def learn(method: str, X: Tensor, y: Tensor, X_test: Tensor, y_test: Tensor, steps: int, seed: int) -> Learned:
    """Train a 2 x 2 matrix from the identity."""
    loss, sampler, batch_size = METHODS[method]
    batches: Batches = sampler(y, batch_size, seed=seed)
    matrix = nn.Parameter(torch.eye(2))
    optimizer = torch.optim.Adam([matrix], lr=0.03)
    for _ in track(range(steps), method, transient=True, disable=not sys.stdout.isatty()):
        rows = torch.from_numpy(next(batches))
        optimizer.zero_grad()
        loss(X[rows] @ matrix.T, y[rows]).backward()
        optimizer.step()
    learned = matrix.detach()
    _, stretches, directions = torch.linalg.svd(learned)
    angle = np.degrees(torch.atan2(directions[0, 1], directions[0, 0]).item() - ANGLE)
    return Learned(
        method=method,
        recall_at_1=precision_at_1(X_test @ learned.T, y_test),
        stretch=(stretches[0] / stretches[1]).item(),
        error=abs((angle + 90) % 180 - 90),
        matrix=learned,
    )


def plot(X: Tensor, y: Tensor, width: int = 72, height: int = 18) -> str:
    """The points as letters, one letter for each class."""
    low, high = X.amin(dim=0), X.amax(dim=0)
    cells = ((X - low) / (high - low).clamp_min(1e-9) * torch.tensor([width - 1, height - 1])).round().long()
    page = np.full((height, width), " ")
    for (column, row), label in zip(cells.tolist(), y.tolist(), strict=True):
        page[height - 1 - row, column] = "abcdefghijklmnopqrstuvwxyz"[label % 26]
    return "\n".join("  |" + "".join(row) for row in page) + "\n  +" + "-" * width

"""Batch statistics for the training log, detection of collapse, and the progress display."""

import time
from datetime import datetime, timedelta
from typing import Any

import torch
from torch import Tensor

from liftedstruct.distances import SortedBatch, full_precision, workspace
from liftedstruct.losses import effective_rank
from liftedstruct.runtime.checks import as_embeddings
from liftedstruct.runtime.progress import say, stderr_console

__all__ = ["TrainingProgress", "summarize_batch"]

SAMPLE = 1024  # rows of a larger batch whose distances to all rows are computed
MAX_BYTES = 1 << 25  # per block of distances
LINE_SECONDS = 5.0


def summarize_batch(embeddings: Tensor, gradient: Tensor, labels: Tensor, scale: float = 1.0) -> dict[str, Any]:
    """Compute the batch statistics for the log: fraction of active images, mean distances, and whether the embedding collapsed.

    An image is active if the gradient of the loss with respect to its embedding is not zero. An embedding has collapsed if the
    mean distance between images of different classes is below a tenth of `scale`, or if its effective rank is below 2 (only
    checked with more than 2 dimensions and at least 8 images). For more than 1,024 rows, the distances are computed from 1,024
    sampled rows to all rows, and the result includes `sampled_rows`. The sample consists of whole classes, drawn with a fixed
    seed (the last class may be truncated).

    Args:
        embeddings: (m, d).
        gradient: gradient of the loss with respect to the embeddings, (m, d).
        labels: (m,).
        scale: distance at which the loss separates two images, margin times temperature.

    """
    X = as_embeddings(embeddings).detach()
    m, n = len(X), min(len(X), SAMPLE)
    positive, negative, positives, negatives = 0.0, 0.0, 0, 0
    with full_precision(X.device):
        _, classes = labels.unique(return_inverse=True)
        drawn = torch.randperm(m, generator=torch.Generator().manual_seed(0)).to(X.device)[classes]
        batch = SortedBatch.of(X, drawn)
        y = drawn[batch.order]  # the first n rows are the sample                                     (m,)
        blocks = [slice(rows.start, min(rows.stop, n)) for rows in batch.blocks(MAX_BYTES) if rows.start < n]
        (space,) = workspace(X, (blocks[0].stop, m))
        for rows in blocks:
            D = batch.products(rows, out=space[: rows.stop - rows.start])  #                          (b, m)
            batch.distances(D, rows)
            D.diagonal(rows.start).zero_()  # the losses ignore the diagonal
            same = y[rows, None] == y
            positives += int(same[:, :n].sum()) - len(D)
            negatives += same.numel() - int(same.sum())
            positive += D[:, :n].masked_fill(~same[:, :n], 0).sum(dtype=torch.float64).item()
            negative += D.masked_fill_(same, 0).sum(dtype=torch.float64).item()
    rank = effective_rank(X)
    negative_distance = negative / negatives if negatives else float("nan")
    flat = rank < 2 and X.shape[1] > 2 and m >= 8
    return {
        "active_images": (gradient.abs().amax(dim=1) > 0).double().mean().item(),
        "positive_distance": positive / positives if positives else float("nan"),
        "negative_distance": negative_distance,
        "mean_norm": X.norm(dim=1).mean().item(),
        "effective_rank": rank,
        "collapsed": negative_distance < 0.1 * (scale or 1.0) or flat,
        **({"sampled_rows": n} if n < m else {}),
    }


class TrainingProgress:
    """Progress bar on a terminal, or a line every few seconds elsewhere; only warnings if `wanted` is False."""

    def __init__(self, steps: int, done: int, batch_size: int, wanted: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self.steps, self.batch_size = steps, batch_size
        self.mark = (time.monotonic(), done)  # time and step of the last speed measurement
        self.shown, self.warned = 0.0, False
        console = stderr_console()
        self.plain, self.bar = wanted, None
        if wanted and console.is_terminal:
            columns = (TextColumn("train"), BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"))
            self.plain, self.bar = False, RichProgress(*columns, console=console)
            self.task = self.bar.add_task("", total=steps, completed=done)
            self.bar.start()

    def advance(self, step: int) -> None:
        """Update the bar to `step` finished steps."""
        if self.bar:
            self.bar.update(self.task, completed=step)

    def pace(self, step: int) -> float:
        """Return the images per second since the last call."""
        now = time.monotonic()
        (then, before), self.mark = self.mark, (now, step)
        return round((step - before) * self.batch_size / max(now - then, 1e-9), 1)

    def pause(self, step: int) -> None:
        """Exclude the time since the last step (validation, hard-negative mining) from the speed."""
        self.mark = (time.monotonic(), step)

    def show(self, line: dict[str, Any]) -> None:
        """Show a logged step, and warn when the embedding collapses."""
        step, now = line["step"], time.monotonic()
        left = min((self.steps - step) * self.batch_size / max(line["images_per_second"], 0.1), 1e9)  # seconds
        end = datetime.now() + timedelta(seconds=left)
        active = "" if line["active_images"] != line["active_images"] else f", {line['active_images']:.0%} of images active"
        text = (
            f"loss {line['loss']:.4g}{active}, "
            f"distances {line['positive_distance']:.3g} (positive) and {line['negative_distance']:.3g} (negative), "
            f"rank {line['effective_rank']:.1f}, {line['images_per_second']:.0f} images/s"
        )
        if step < self.steps:
            text += f", ends {end:%H:%M}" + (f" on {end:%d %b}" if left > 80_000 else "")
        if self.bar:
            self.bar.update(self.task, completed=step, description=text)
        elif self.plain and (now - self.shown > LINE_SECONDS or step == self.steps):
            self.shown = now
            say(f"step {step:,} of {self.steps:,}: {text}")
        if line["collapsed"] and not self.warned:
            say(
                f"warning: the embedding is collapsed at step {step:,}: images of different classes are "
                f"{line['negative_distance']:.2g} apart on average, and the effective rank is {line['effective_rank']:.1f}. "
                "Lower lr, raise head.scale, or, with normalize, lower loss.temperature."
            )
        self.warned = line["collapsed"]

    def close(self) -> None:
        if self.bar:
            self.bar.stop()

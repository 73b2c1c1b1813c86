"""What a person sees of a run while it lasts, and the signs of collapse."""

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

SAMPLE = 1024  # rows of a larger batch that are compared with all others
MAX_BYTES = 1 << 25  # for a block of distances
LINE_SECONDS = 5.0


def summarize_batch(embeddings: Tensor, gradient: Tensor, labels: Tensor, scale: float = 1.0) -> dict[str, Any]:
    """What the log has of a batch: the share of active images, distances, and whether the embedding has collapsed.

    An image is active if the loss has a gradient at its embedding. An embedding has collapsed if images of different classes
    are within a tenth of ``scale`` of each other on average, or if it uses less than two dimensions (which a batch of few
    images always does). Of more than 1,024 rows, distances are those of 1,024 sampled rows to all rows, and ``sampled_rows``
    says so: whole classes, drawn by a fixed seed (the last one may be cut off).

    Args:
        embeddings: (m, d).
        gradient: of the loss at the embeddings, (m, d).
        labels: (m,).
        scale: the distance at which the loss tells two images apart, its margin.

    """
    X = as_embeddings(embeddings).detach()
    m, n = len(X), min(len(X), SAMPLE)
    positive, negative, positives, negatives = 0.0, 0.0, 0, 0
    with full_precision(X.device):
        _, classes = labels.unique(return_inverse=True)
        drawn = torch.randperm(m, generator=torch.Generator().manual_seed(0)).to(X.device)[classes]
        batch = SortedBatch.of(X, drawn)
        y = drawn[batch.order]  # the sample are the first n rows                                     (m,)
        blocks = [slice(rows.start, min(rows.stop, n)) for rows in batch.blocks(MAX_BYTES) if rows.start < n]
        (space,) = workspace(X, (blocks[0].stop, m))
        for rows in blocks:
            D = batch.products(rows, out=space[: rows.stop - rows.start])  #                          (b, m)
            batch.distances(D, rows)
            D.diagonal(rows.start).zero_()  # which the losses never read
            same = y[rows, None] == y
            positives += int(same[:, :n].sum()) - len(D)
            negatives += same.numel() - int(same.sum())
            positive += D[:, :n].masked_fill(~same[:, :n], 0).sum(dtype=torch.float64).item()
            negative += D.masked_fill_(same, 0).sum(dtype=torch.float64).item()
    rank = effective_rank(X)
    negative_distance = negative / negatives if negatives else float("nan")
    flat = rank < 2 and X.shape[1] > 2 and m >= 8
    return {
        "active_share": (gradient.abs().amax(dim=1) > 0).double().mean().item(),
        "positive_distance": positive / positives if positives else float("nan"),
        "negative_distance": negative_distance,
        "mean_norm": X.norm(dim=1).mean().item(),
        "effective_rank": rank,
        "collapsed": negative_distance < 0.1 * (scale or 1.0) or flat,
        **({"sampled_rows": n} if n < m else {}),
    }


class TrainingProgress:
    """A bar on a terminal, a line every few seconds elsewhere, nothing if not wanted; warnings in any case."""

    def __init__(self, steps: int, done: int, batch_size: int, wanted: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self.steps, self.batch_size = steps, batch_size
        self.mark = (time.monotonic(), done)  # when the rate was last taken
        self.shown, self.warned = 0.0, False
        console = stderr_console()
        self.plain, self.bar = wanted, None
        if wanted and console.is_terminal:
            columns = (TextColumn("train"), BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"))
            self.plain, self.bar = False, RichProgress(*columns, console=console)
            self.task = self.bar.add_task("", total=steps, completed=done)
            self.bar.start()

    def advance(self, step: int) -> None:
        """So many steps are done."""
        if self.bar:
            self.bar.update(self.task, completed=step)

    def pace(self, step: int) -> float:
        """Images per second since the last time that this was asked."""
        now = time.monotonic()
        (then, before), self.mark = self.mark, (now, step)
        return round((step - before) * self.batch_size / max(now - then, 1e-9), 1)

    def pause(self, step: int) -> None:
        """What was done since the last step (a validation, mining) is no part of the pace."""
        self.mark = (time.monotonic(), step)

    def show(self, line: dict[str, Any]) -> None:
        """A logged step."""
        step, now = line["step"], time.monotonic()
        left = min((self.steps - step) * self.batch_size / max(line["images_per_second"], 0.1), 1e9)  # seconds
        end = datetime.now() + timedelta(seconds=left)
        active = "" if line["active_share"] != line["active_share"] else f", {line['active_share']:.0%} of images active"
        text = (
            f"loss {line['loss']:.4g}{active}, distances {line['positive_distance']:.3g} and {line['negative_distance']:.3g}, "
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
                f"warning: the embedding has collapsed at step {step:,}: images of different classes are "
                f"{line['negative_distance']:.2g} apart on average, {line['effective_rank']:.1f} dimensions are in use. "
                "Lower lr, raise head_scale, or with normalize lower temperature."
            )
        self.warned = line["collapsed"]

    def close(self) -> None:
        if self.bar:
            self.bar.stop()

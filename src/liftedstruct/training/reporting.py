"""What a person sees of a run while it lasts, and the signs of collapse."""

import time
from datetime import datetime, timedelta
from typing import Any

from torch import Tensor

from liftedstruct.losses import loss_microscope
from liftedstruct.progress import say

__all__ = ["Progress", "look"]

UNITS = {"contrastive": 2, "triplet": 3}  # rows that make one term of these losses; its first row has a gradient if it has
LINE_SECONDS = 5.0


def look(loss: str, margin: float, X: Tensor, dX: Tensor, labels: Tensor) -> dict[str, Any]:
    """What the log has of a batch as the loss sees it: share of active pairs, distances, and whether it has collapsed.

    A pair of the lifted losses is active if :math:`J_{ij} > 0`; a pair or triplet of the others if it has a gradient. An
    embedding has collapsed if other classes are within a tenth of the margin (or of length 1 for a margin of 0) of each
    other, or if it uses less than two dimensions (which a batch of few images always does).
    """
    seen = loss_microscope(X, labels, margin)
    active = seen.active_share
    if loss in UNITS:
        active = (dX[:: UNITS[loss]].abs().amax(dim=1) > 0).float().mean().item()
    flat = seen.effective_rank < 2 and X.shape[1] > 2 and len(X) >= 8
    collapsed = seen.negative_distance < 0.1 * (margin or 1.0) or flat
    return {
        "active_share": active,
        "positive_distance": seen.positive_distance,
        "negative_distance": seen.negative_distance,
        "mean_norm": seen.mean_norm,
        "effective_rank": seen.effective_rank,
        "collapsed": bool(collapsed),
    }


class Progress:
    """A bar on a terminal, a line every few seconds elsewhere, nothing if not wanted; warnings in any case."""

    def __init__(self, steps: int, done: int, batch_size: int, wanted: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self.steps, self.batch_size = steps, batch_size
        self.mark = (time.monotonic(), done)  # when the rate was last taken
        self.shown, self.warned = 0.0, False
        console = Console(stderr=True)
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
        """What was done since the last step (a validation, a search for neighbours) is no part of the pace."""
        self.mark = (time.monotonic(), step)

    def show(self, line: dict[str, Any]) -> None:
        """A logged step."""
        step, now = line["step"], time.monotonic()
        left = min((self.steps - step) * self.batch_size / max(line["images_per_second"], 0.1), 1e9)  # seconds
        end = datetime.now() + timedelta(seconds=left)
        active = "" if line["active_share"] != line["active_share"] else f", {line['active_share']:.0%} of pairs active"
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

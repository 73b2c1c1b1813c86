"""The loop: from a prepared data set and a trunk to an embedding, exact, watched, and never lost.

Step t is a function of the settings, the data and t alone: batch, crops and dropout are drawn by (seed, t). So a state is the
weights, the optimizer and t, and a run that goes on from any state writes the same bytes as one that was never stopped, on
the CPU of the same machine with the same number of threads (on CUDA, as far as its kernels repeat themselves).
"""

import contextlib
import math
import time
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from liftedstruct.data import PackedImages
from liftedstruct.data.image_set import Indices
from liftedstruct.embedder import EMBEDDER, Embedder, TrainedOn, embed_rows
from liftedstruct.losses import LOSSES
from liftedstruct.retrieval import recall_at_k
from liftedstruct.runtime.progress import say
from liftedstruct.samplers import HardNegativeSampler
from liftedstruct.training.caching import batch_gradient, check_exact
from liftedstruct.training.config import TrainConfig
from liftedstruct.training.heads import FROM_FEATURES, HEADS, narrowed
from liftedstruct.training.inputs import (
    BLOCK,
    Ahead,
    Batch,
    Features,
    Pixels,
    Source,
    difficult_neighbours,
    make_batches,
    split,
)
from liftedstruct.training.machine import computing, seed_torch, stop_signals
from liftedstruct.training.optimizers import (
    OPTIMIZERS,
    fixed_copy,
    follow,
    freeze,
    gather,
    group_parameters,
    rate,
    spread,
    training_mode,
)
from liftedstruct.training.reporting import Progress, summarize_batch
from liftedstruct.training.run_folder import RunFolder

__all__ = ["TRAINED", "WEIGHTS", "Training"]

WEIGHTS, DROPOUT, SAMPLE = 5, 6, 7  # last words of seeds, after those of sources.py
TRAINED = "trained from "  # before the name of the weights that a trunk started from
HEAD_IMAGES = 4096  # at most so many training images go through the trunk for a head that starts from features
NARROW_IMAGES = 1024  # and for one that is reduced, which may be often
AVERAGE, START = "average.", "start."  # before the names of the tensors of the moving average and of the start in a state


class Training:
    """All that a run has in memory."""

    def __init__(
        self, config: TrainConfig, folder: RunFolder, packed: PackedImages, embedder: Embedder, progress: bool
    ) -> None:
        self.config, self.folder, self.packed, self.embedder, self.wanted = config, folder, packed, embedder, progress
        self.train_rows, self.validation_rows = split(packed, config.validation, config.seed)
        self.labels = packed.labels[self.train_rows]
        self.batches = make_batches(config, self.labels)
        self.device = next(embedder.parameters()).device
        options = {"negative": config.negative} if config.loss == "triplet" else {}
        self.loss: nn.Module = LOSSES[config.loss](config.margin, **options)
        self.started_from = embedder.trunk.describe()
        freeze(embedder, config.freeze)
        if not any(parameter.requires_grad for parameter in embedder.parameters()):
            raise ValueError(
                f"something must be left to train, got freeze {config.freeze} with dim 0. Lower it, or pass a dim."
            )
        if any(parameter.requires_grad for parameter in embedder.trunk.parameters()):
            embedder.trunk.weights = TRAINED + embedder.trunk.weights.removeprefix(TRAINED)
        training_mode(embedder, config.batch_norm == "frozen")
        if config.cache_chunk:
            check_exact(embedder)
        groups = group_parameters(
            embedder,
            weight_decay=config.weight_decay,
            head_lr=config.head_lr,
            head_bias_lr=config.head_bias_lr,
            bias_lr=config.bias_lr,
        )
        self.optimizer = OPTIMIZERS[config.optimizer](groups, config.momentum)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "float16")
        self.average = fixed_copy(embedder) if config.average else None
        self.beginning = fixed_copy(embedder) if config.start_share else None
        self.validates = bool(config.validate_every) and self._can_validate()
        self.step, self.best_step, self.best = 0, 0, -1.0
        self.last_rows = self.train_rows[:0]  # of the batch that the weights were changed by last

    @torch.no_grad()
    def check(self) -> None:
        """Raise for what would fail at the first step only, before anything is written."""
        self.embedder.eval()
        for side in {self.embedder.crop, self.config.train_crop or self.embedder.crop}:
            self.embedder.features(torch.zeros(1, side, side, 3, dtype=torch.uint8))

    def _can_validate(self) -> bool:
        sizes = np.unique(self.packed.labels[self.validation_rows], return_counts=True)[1]
        if len(sizes) >= 2 and sizes.max() >= 2:
            return True
        why = "there are no validation classes" if not len(sizes) else "the validation classes are too few or too small"
        if self.wanted:
            say(f"{why}, so the last embedding is kept, not the best. Pass validation 0.1 to hold out a tenth of the classes.")
        return False

    def start(self, state: tuple[dict[str, Tensor], dict[str, Any]] | None) -> None:
        """The state that was saved, or the first one."""
        if state is not None:
            self._restore(*state)
        self.folder.cut_log(self.step if state is not None else -1)
        self.source = self._source()  # of a trunk that is as it was
        if state is not None:
            return
        if isinstance(self.embedder.linear, nn.Linear):
            seed_torch(self.config.seed, 1, WEIGHTS)
            sample = (
                self._sample(self.embedder, HEAD_IMAGES, self.wanted) if self.config.head in FROM_FEATURES else (None, None)
            )
            HEADS[self.config.head](self.embedder.linear, self.config.head_scale, *sample)
        for copied in (self.average, self.beginning):
            if copied is not None:
                copied.load_state_dict(self.embedder.state_dict())
        if self.validates:
            self._validate()
        self._save()

    def _source(self) -> Source:
        if self.config.freeze != "trunk":
            return Pixels(self.config, self.embedder, self.packed)
        rows = np.concatenate((self.train_rows, self.validation_rows))
        return Features(self.config, self.embedder, self.packed, rows, self.folder, self.wanted)

    def _sample(self, embedder: Embedder, most: int, progress: bool = False) -> tuple[Tensor, Tensor]:
        """Features that the trunk makes of training images, and their labels."""
        if isinstance(self.source, Features):
            return self.source.of_centres(self.train_rows), torch.from_numpy(self.labels)
        rng, n = np.random.default_rng([self.config.seed, 0, SAMPLE]), len(self.train_rows)
        rows = np.sort(rng.choice(self.train_rows, min(n, most), replace=False))
        pooled = Embedder(embedder.trunk, 0, crop=embedder.crop)
        found = embed_rows(pooled, self.packed, rows, BLOCK, pooled.crop, progress)
        return torch.from_numpy(self._checked(found)), torch.from_numpy(self.packed.labels[rows])

    def run(self) -> None:
        """All steps that are left."""
        config, last = self.config, time.monotonic()
        assert config.batch_size is not None
        if self.step < config.steps:
            self.progress = Progress(config.steps, self.step, config.batch_size, self.wanted)
            ahead = Ahead(self._make_batch)
            with contextlib.closing(self.progress), contextlib.closing(ahead), stop_signals() as stopped:
                training_mode(self.embedder, config.batch_norm == "frozen")
                while self.step < config.steps:
                    if self._refresh_due(self.step):
                        self._refresh()
                    more = self.step + 1 < config.steps and not self._refresh_due(self.step + 1)
                    self._take_step(ahead.take(self.step, more))
                    if self.validates and (self.step % config.validate_every == 0 or self.step == config.steps):
                        self._validate()
                        self.progress.pause(self.step)
                    if self.step == config.steps or stopped or time.monotonic() - last >= 60 * config.checkpoint_minutes:
                        self._embed(self.train_rows[:2], self.embedder)  # no state of a spoiled one replaces a good one
                        if self.step == config.steps and not self.validates:
                            self._keep()
                        self._save()
                        last = time.monotonic()
                    if stopped and self.step < config.steps:
                        self._stop(stopped[0])
        elif not (self.folder / EMBEDDER).exists():  # of a state that was taken over, or it was removed
            kept = self._kept()
            self.best_step, self.best = self.step, self._recall(kept) if self.validates else self.best
            self._keep(kept)
            self._save()
        elif self.wanted:
            say(f"{self.folder.path} has all its {config.steps:,} steps, nothing to do")

    def _make_batch(self, step: int) -> Batch:
        rows = self.train_rows[self.batches.batch(step)]
        inputs = self.source.inputs(rows, step)
        if self.device.type == "cuda":
            inputs = inputs.pin_memory()
        return Batch(rows, torch.from_numpy(self.packed.labels[rows]), inputs)

    def _take_step(self, batch: Batch) -> None:
        config, step = self.config, self.step
        factor = rate(
            config.schedule, step, config.steps, warmup=config.warmup, decays=config.decays, factor=config.decay_factor
        )
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr * group["multiplier"] * factor
        self.optimizer.zero_grad(set_to_none=True)
        labels = batch.labels.to(self.device)
        due = (step + 1) % config.log_every == 0 or step + 1 in (1, config.steps)

        def objective(X: Tensor) -> Tensor:
            try:
                J: Tensor = self.loss(X / config.temperature, labels)
            except ValueError as error:  # of embeddings that are not finite
                self._fail(batch.rows, str(error))
            return J

        loss, X, dX = batch_gradient(
            self._forward,
            batch.inputs.to(self.device, non_blocking=True),
            objective,
            chunk=config.cache_chunk,
            seed=(config.seed, step, DROPOUT),
            scale=self.scaler.scale(torch.ones((), device=self.device)).item(),
        )
        if not math.isfinite(loss):
            self._fail(batch.rows, f"the loss must stay finite, it is {loss}.")
        seen = summarize_batch(config.loss, config.margin, X / config.temperature, dX, labels) if due else {}
        norm = self._update(batch.rows, loss)
        self.last_rows = batch.rows
        self.step += 1
        if self.average is not None:
            follow(self.average, self.embedder, min(config.average, self.step / (self.step + 10)))
        self.progress.advance(self.step)
        if due:
            line = {"step": self.step, "loss": loss, "lr": config.lr * factor, "gradient_norm": norm}
            line |= seen | {"images_per_second": self.progress.pace(self.step)}
            self.folder.log(line)
            self.progress.show(line)

    def _update(self, rows: Indices, loss: float) -> float:
        """A step of the optimizer; the norm of the gradient before it was clipped."""
        self.scaler.unscale_(self.optimizer)
        trained = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        total = nn.utils.get_total_norm([p.grad for p in trained])
        norm = total.item()
        if not math.isfinite(norm) and self.scaler.get_scale() <= 1:  # float16 goes on with a smaller scale
            self._fail(rows, f"the gradient must stay finite, its norm is {norm} (the loss is {loss:.4g}).")
        if self.config.clip:
            nn.utils.clip_grads_with_norm_(trained, self.config.clip, total)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return norm

    def _forward(self, inputs: Tensor) -> Tensor:
        with computing(self.device, self.config.precision):
            return self.source.forward(inputs)

    def _fail(self, rows: Indices, what: str) -> NoReturn:
        """Stop at a batch that no training goes on from; the state on the disk stays."""
        self.folder.log({"step": self.step + 1, "failed": what, "images": rows.tolist()})
        batch = f"Its batch is in the log, the first image is {self.packed.paths[rows[0]]!r}; the " if len(rows) else "The "
        raise ValueError(
            f"step {self.step + 1}: {what} {batch}state of step {self.folder.saved_step} is kept. "
            "Begin again with a lower lr, with clip, or with a higher temperature."
        )

    def _embed(self, rows: Indices, embedder: Embedder) -> NDArray[np.float32]:
        """Embeddings of centre crops."""
        return self._checked(self.source.embed(rows, embedder))

    def _checked(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """What a network made of images; if it is spoiled, the batch before is to blame."""
        if not np.isfinite(X).all():
            self.step = max(0, self.step - 1)
            self._fail(self.last_rows, "the embeddings must stay finite, its update made them overflow.")
        return X

    def _kept(self) -> Embedder:
        """What is measured and kept: the embedder or the average of its weights, mixed with the start, of the dim asked for."""
        kept, config = self.embedder if self.average is None else self.average, self.config
        if self.beginning is not None:
            latest, kept = kept, fixed_copy(self.beginning)
            follow(kept, latest, config.start_share)
        if config.dim == kept.dim:
            return kept
        assert isinstance(kept.linear, nn.Linear)
        narrow = Embedder(kept.trunk, config.dim, config.dropout, config.normalize, config.crop)
        narrow.linear = narrowed(kept.linear, config.dim, self._sample(kept, NARROW_IMAGES)[0])
        return narrow

    def _refresh_due(self, step: int) -> bool:
        return isinstance(self.batches, HardNegativeSampler) and step % self.config.refresh_every == 0

    def _refresh(self) -> None:
        """Difficult neighbours as the embedding that is trained has them now."""
        assert isinstance(self.batches, HardNegativeSampler)
        embeddings = self._embed(self.train_rows, self.embedder)
        self.batches.set_hard_negatives(difficult_neighbours(embeddings, self.labels, self.config.difficult))
        self.progress.pause(self.step)

    def _validate(self) -> None:
        """Recall@1 on the held-out training classes; the best embedder is kept."""
        rows, kept = self.validation_rows, self._kept()
        recall = self._recall(kept)
        better = recall > self.best
        if better:
            self.best, self.best_step = recall, self.step
            self._keep(kept)
        self.folder.log({"step": self.step, "recall_at_1": recall, "validation_images": len(rows)})
        if self.wanted:
            mark = ", the best so far" if better and self.step else ""
            say(f"step {self.step:,}: Recall@1 {recall:.1%} on {len(rows):,} images of held-out training classes{mark}")

    def _recall(self, kept: Embedder) -> float:
        rows = self.validation_rows
        return recall_at_k(self._embed(rows, kept), self.packed.labels[rows], (1,))[1]

    def _keep(self, kept: Embedder | None = None) -> None:
        if not self.validates:
            self.best_step = self.step
        kept = kept or self._kept()
        chosen_by = self.validation_rows if self.validates else self.validation_rows[:0]
        kept.trained_on = TrainedOn.of(self.packed, self.train_rows, chosen_by, self.step)
        self.folder.save_embedder(kept)

    def _stop(self, what: str) -> NoReturn:
        if not self.validates:
            self._keep()
        say(f"stopped by {what} after step {self.step:,}. Go on with: liftedstruct train --resume {self.folder.path}")
        raise KeyboardInterrupt

    def _save(self) -> None:
        """All that a run goes on from."""
        tensors = gather(self.embedder, self.optimizer)
        for prefix, copied in ((AVERAGE, self.average), (START, self.beginning)):
            if copied is not None:
                tensors |= {prefix + name: tensor for name, tensor in copied.state_dict().items()}
        if isinstance(self.batches, HardNegativeSampler):
            tensors["difficult"] = torch.from_numpy(self.batches.hard_negatives)
        trunk = self.embedder.trunk
        best = {"best": self.best, "best_step": self.best_step}
        state = {"step": self.step, **best, "form": trunk.form, "weights": trunk.weights, "scaler": self.scaler.state_dict()}
        self.folder.save_state(tensors, state)

    def _restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        spread(tensors, self.embedder, self.optimizer)
        for prefix, copied in ((AVERAGE, self.average), (START, self.beginning)):
            if copied is not None:
                copied.load_state_dict({name: tensors[prefix + name] for name in copied.state_dict()})
        if isinstance(self.batches, HardNegativeSampler):
            self.batches.set_hard_negatives(tensors["difficult"].numpy())
        self.scaler.load_state_dict(state["scaler"])
        self.step, self.best, self.best_step = state["step"], state["best"], state["best_step"]

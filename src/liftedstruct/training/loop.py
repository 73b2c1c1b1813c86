"""The training loop, reproducible and exactly resumable.

The random choices of step t (batch, crops and dropout) are seeded with (seed, t), so a checkpoint needs no generator state: it
holds the weights with their EMA and initial values, the state of the optimizer, the gradient scaler and the sampler, and t. A
run resumed from any checkpoint writes the same bytes as an uninterrupted run, on the CPU of the same machine with the same
number of threads (on CUDA, as far as its kernels are deterministic).
"""

import contextlib
import time
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from liftedstruct.data import Indices, PackedImages
from liftedstruct.embedder import EMBEDDER, Embedder, TrainedOn
from liftedstruct.embeddings import embed_rows
from liftedstruct.retrieval import map_at_r, recall_at_k
from liftedstruct.runtime import seeds
from liftedstruct.runtime.progress import say
from liftedstruct.training.caching import check_exact
from liftedstruct.training.config import TrainConfig, takes_prefixes
from liftedstruct.training.inputs import Batch, Prefetcher, can_validate, split_rows
from liftedstruct.training.learner import DivergedError, Learner, distance_scale
from liftedstruct.training.machine import computing, seed_torch, stop_signals
from liftedstruct.training.monitor import TrainingProgress, summarize_batch
from liftedstruct.training.optimizers import (
    freeze,
    frozen_copy,
    load_state_tensors,
    state_tensors,
    training_mode,
    update_ema,
)
from liftedstruct.training.run_folder import RunFolder, is_finished

__all__ = ["TRAINED", "Training"]

TRAINED = "trained from "  # prefix of the name of the initial weights
BLOCK = 64  # images per forward pass without gradients
HEAD_IMAGES = 1024, 2048  # training images whose features initialize the head: three per feature, between these limits
EMA, START, SAMPLER = "ema.", "start.", "sampler."  # prefixes of tensor names in a checkpoint


def nested_dims(width: int, least: int) -> tuple[int, ...]:
    """Return `least`, `2 least`, `4 least`, ... below `width`: the prefixes of an embedding that are trained with it.

    Examples:
        >>> nested_dims(512, 64), nested_dims(384, 64), nested_dims(64, 64), nested_dims(512, 0)
        ((64, 128, 256), (64, 128, 256), (), ())
    """
    return tuple(least << i for i in range(width.bit_length()) if 0 < least << i < width)


class Training:
    """Training run in memory: network, learner, data and progress."""

    def __init__(
        self, config: TrainConfig, folder: RunFolder, packed: PackedImages, embedder: Embedder, progress: bool
    ) -> None:
        self.config, self.folder, self.packed, self.embedder, self.wanted = config, folder, packed, embedder, progress
        self.train_rows, self.validation_rows = split_rows(packed, config.validation, config.seed)
        self.labels = packed.labels[self.train_rows]
        self.device = next(embedder.parameters()).device
        self.started_from = embedder.trunk.describe()
        freeze(embedder, config.freeze or 0)
        if not any(parameter.requires_grad for parameter in embedder.parameters()):
            raise ValueError(
                f"at least one parameter must be trainable, got freeze {config.freeze} with dim 0. Lower freeze, or pass a dim."
            )
        if any(parameter.requires_grad for parameter in embedder.trunk.parameters()):
            embedder.trunk.weights = TRAINED + embedder.trunk.weights.removeprefix(TRAINED)
        training_mode(embedder, config.freeze_batch_norm)
        if config.cache_chunk:
            check_exact(embedder)
        prefixes = {*nested_dims(embedder.width, config.min_dim), config.dim} - {embedder.width}
        dims = prefixes if config.dim and takes_prefixes(config) else ()
        self.learner = Learner(config, embedder, self.labels, self._forward, sorted(dims))
        self.ema = frozen_copy(embedder) if config.ema_decay else None
        self.beginning = frozen_copy(embedder.trunk) if config.pretrained_mix else None
        self.validates = bool(config.validate_every) and self._can_validate()
        self.step, self.best_step, self.best, self.best_recall = 0, 0, -1.0, -1.0
        self.ended = False  # early, whatever the best step is now
        self.last_rows = self.train_rows[:0]  # rows of the batch of the last update

    @torch.no_grad()
    def check(self) -> None:
        """Run a forward pass, so that errors of the first step are raised before anything is written."""
        self.embedder.eval()
        for side in {self.embedder.crop, self.config.train_crop or self.embedder.crop}:
            self.embedder.features(torch.zeros(1, side, side, 3, dtype=torch.uint8))

    def _can_validate(self) -> bool:
        if can_validate(self.packed.labels[self.validation_rows]):
            return True
        why = "no validation classes" if not len(self.validation_rows) else "too few validation classes or images"
        if self.wanted:
            say(f"{why}, so the last embedder is saved, not the best. Pass validation 0.1 to hold out 10% of the classes.")
        return False

    def start(self, state: tuple[dict[str, Tensor], dict[str, Any]] | None) -> None:
        """Restore a checkpoint, or initialize the run and save the first checkpoint."""
        self.folder.cut_log(state[1]["step"] if state is not None else -1)
        if state is not None:
            self._restore(*state)
            return
        if isinstance(self.embedder.linear, nn.Linear):
            seed_torch(self.config.seed, 1, seeds.WEIGHTS)
            count = min(max(HEAD_IMAGES[0], 3 * self.embedder.trunk.num_features), HEAD_IMAGES[1])
            self.config.head.make(self.embedder.linear, lambda: self._features(self.embedder, count, self.wanted))
        if self.ema is not None:
            self.ema.load_state_dict(self.embedder.state_dict())
        if self.validates:
            self._validate()
        self._save()

    def _features(self, embedder: Embedder, most: int, progress: bool = False) -> Tensor:
        """Compute the features of at most `most` training images.                                    (n, width)"""
        rng, n = np.random.default_rng([self.config.seed, 0, seeds.SAMPLE]), len(self.train_rows)
        rows = np.sort(rng.choice(self.train_rows, min(n, most), replace=False))
        pooled = Embedder(embedder.trunk, 0, crop=embedder.crop)
        return torch.from_numpy(self._checked(embed_rows(pooled, self.packed, rows, BLOCK, pooled.crop, progress)))

    def finished(self) -> bool:
        """Return whether there is no step left to run."""
        return self.ended or is_finished(self.config, self.step, self.best_step, self.best)

    def run(self) -> None:
        """Run the remaining steps."""
        config, last = self.config, time.monotonic()
        if not self.finished():
            self.progress = TrainingProgress(config.steps, self.step, self.learner.sampler.batch_size, self.wanted)
            prefetcher = Prefetcher(self._make_batch)
            with contextlib.closing(self.progress), contextlib.closing(prefetcher), stop_signals() as stopped:
                training_mode(self.embedder, config.freeze_batch_norm)
                self.embedder.trunk.fold_frozen()
                while not self.finished():
                    if self.learner.refresh_due(self.step):
                        self.learner.refresh(self._embed(self.train_rows, self.embedder))
                        self.progress.pause(self.step)
                    more = self.step + 1 < config.steps and not self.learner.refresh_due(self.step + 1)
                    self._take_step(prefetcher.take(self.step, more))
                    if self.validates and (self.step % config.validate_every == 0 or self.step == config.steps):
                        self._validate()
                        self.progress.pause(self.step)
                    if self.finished() or stopped or time.monotonic() - last >= 60 * config.checkpoint_minutes:
                        self._embed(self.train_rows[:2], self.embedder)  # fails before a good checkpoint is overwritten
                        if self.finished() and not self.validates:
                            self._keep()
                        self._save()
                        last = time.monotonic()
                    if stopped:
                        self._stop(stopped[0])
        elif not (self.folder / EMBEDDER).exists():  # the file was deleted
            kept = self._kept()
            if self.validates:
                self.best_recall, self.best = self._scores(kept)
            self.best_step, self.ended = self.step, True
            self._keep(kept)
            self._save()
        elif self.wanted:
            say(f"{self.folder.path} has finished all {self.step:,} steps, nothing to do")

    def _make_batch(self, step: int) -> Batch:
        rows = self.train_rows[self.learner.sampler.batch(step)]
        rng = np.random.default_rng([self.config.seed, step, seeds.CROPS])
        inputs = self.config.augmentation.make(self.packed, rows, self.config.train_crop, rng)
        if self.device.type == "cuda":
            inputs = inputs.pin_memory()
        return Batch(rows, torch.from_numpy(self.packed.labels[rows]), inputs)

    def _take_step(self, batch: Batch) -> None:
        config, loss = self.config, self.learner.loss
        try:
            done = self.learner.take_step(self.step, batch.inputs, batch.labels)
        except DivergedError as error:
            self._fail(batch.rows, str(error))
        self.last_rows = batch.rows
        self.step += 1
        if self.ema is not None:
            update_ema(self.ema, self.embedder, min(config.ema_decay, self.step / (self.step + 10)))
        self.progress.advance(self.step)
        if self.step % config.log_every == 0 or self.step in (1, config.steps):
            line = {"step": self.step, "loss": done.loss, "lr": done.lr, "gradient_norm": done.gradient_norm}
            line |= summarize_batch(done.embeddings, done.gradient, batch.labels.to(self.device), distance_scale(loss))
            line["images_per_second"] = self.progress.pace(self.step)
            self.folder.log(line)
            self.progress.show(line)

    def _forward(self, inputs: Tensor) -> Tensor:
        with computing(self.device, self.config.precision):
            y: Tensor = self.embedder(inputs)
            return y

    def _fail(self, rows: Indices, what: str) -> NoReturn:
        """Log the batch that made training diverge and raise an error; the last checkpoint is kept."""
        self.folder.log({"step": self.step + 1, "failed": what, "images": rows.tolist()})
        batch = f"Its batch is in the log (first image {self.packed.paths[rows[0]]!r}); the " if len(rows) else "The "
        raise ValueError(
            f"step {self.step + 1}: {what} {batch}checkpoint of step {self.folder.saved_step} is kept. "
            "Start a new run with a lower lr, or with clip_norm."
        )

    def _embed(self, rows: Indices, embedder: Embedder) -> NDArray[np.float32]:
        """Embed the center crops of the rows."""
        return self._checked(embed_rows(embedder, self.packed, rows, BLOCK, embedder.crop))

    def _checked(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return `X` if it is finite; otherwise report the batch of the last update and fail."""
        if not np.isfinite(X).all():
            self.step = max(0, self.step - 1)
            self._fail(self.last_rows, "the embeddings must be finite, but the update made them overflow.")
        return X

    def _kept(self) -> Embedder:
        """Return the embedder to evaluate and save: weights or EMA, the trunk mixed with its start, truncated to dim."""
        kept = self.embedder if self.ema is None else self.ema
        if self.beginning is not None and self.config.pretrained_mix:
            kept = frozen_copy(kept)
            update_ema(kept.trunk, self.beginning, 1 - self.config.pretrained_mix)
        return kept if self.config.dim in (0, kept.dim) else kept.truncated(self.config.dim)

    def _validate(self) -> None:
        """Evaluate Recall@1 and MAP@R on the validation classes and save the embedder if its MAP@R is the best."""
        rows, kept = self.validation_rows, self._kept()
        recall, score = self._scores(kept)
        better = score > self.best
        if better:
            self.best, self.best_recall, self.best_step = score, recall, self.step
            self._keep(kept)
        self.folder.log({"step": self.step, "recall_at_1": recall, "map_at_r": score, "validation_images": len(rows)})
        if self.wanted:
            mark = ", best so far" if better and self.step else ""
            scores = f"Recall@1 {recall:.1%}, MAP@R {score:.1%}"
            say(f"step {self.step:,}: {scores} on {len(rows):,} images of validation classes{mark}")

    def _scores(self, kept: Embedder) -> tuple[float, float]:
        """Return Recall@1 and MAP@R on the validation classes. MAP@R chooses, since Recall@1 is noisy and may reach 100 %."""
        rows = self.validation_rows
        X, labels = self._embed(rows, kept), self.packed.labels[rows]
        return recall_at_k(X, labels, (1,))[1], map_at_r(X, labels)

    def _keep(self, kept: Embedder | None = None) -> None:
        if not self.validates:
            self.best_step = self.step
        kept = kept or self._kept()
        chosen_by = self.validation_rows if self.validates else self.validation_rows[:0]
        kept.trained_on = TrainedOn.of(self.packed, self.train_rows, chosen_by, self.step)
        self.folder.save_embedder(kept)

    def _stop(self, what: str) -> NoReturn:
        if self.finished():
            say(f"stopped by {what} after the last step, {self.step:,}. The run is saved.")
        else:
            if not self.validates:
                self._keep()
            say(f"stopped by {what} after step {self.step:,}. Run the same command to resume.")
        raise KeyboardInterrupt

    def _modules(self) -> dict[str, nn.Module]:
        """Return the trained modules."""
        return {"embedder": self.embedder, "loss": self.learner.loss}

    def _save(self) -> None:
        """Save a checkpoint."""
        tensors = state_tensors(self._modules(), self.learner.optimizer)
        for prefix, copied in ((EMA, self.ema), (START, self.beginning)):
            if copied is not None:
                tensors |= {prefix + name: tensor for name, tensor in copied.state_dict().items()}
        tensors |= {SAMPLER + name: torch.from_numpy(array) for name, array in self.learner.sampler.arrays().items()}
        trunk = self.embedder.trunk
        best = {"best": self.best, "best_recall": self.best_recall, "best_step": self.best_step}
        state = {
            "step": self.step,
            "ended": self.ended,
            **best,
            "options": trunk.options,
            "weights": trunk.weights,
            "scaler": self.learner.scaler.state_dict(),
        }
        self.folder.save_state(tensors, state)

    def _restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        load_state_tensors(tensors, self._modules(), self.learner.optimizer)
        for prefix, copied in ((EMA, self.ema), (START, self.beginning)):
            if copied is not None:
                copied.load_state_dict({name: tensors[prefix + name] for name in copied.state_dict()})
        self.learner.sampler.load_arrays(
            {name.removeprefix(SAMPLER): tensor.numpy() for name, tensor in tensors.items() if name.startswith(SAMPLER)}
        )
        self.learner.scaler.load_state_dict(state["scaler"])
        self.step, self.best_step, self.ended = state["step"], state["best_step"], state.get("ended", False)
        self.best, self.best_recall = state["best"], state["best_recall"]

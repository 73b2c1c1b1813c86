"""Measure the training and embedding speed of this machine on noise, to estimate the time of an experiment."""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from liftedstruct.embedder import Embedder
from liftedstruct.training.config import TrainConfig
from liftedstruct.training.machine import computing, find_device, find_threads, prepared
from liftedstruct.training.optimizers import freeze, training_mode
from liftedstruct.trunks import Trunk, make_trunk

__all__ = ["Pace", "measure_pace", "resolve_crops"]

IMAGES, ROUNDS = 32, 2  # images per round, and timed rounds after one warm-up round


class Pace(NamedTuple):
    """Training and embedding speed in images per second."""

    train: float
    embed: float


def resolve_crops(config: TrainConfig, trunk: Trunk, size: int = sys.maxsize) -> tuple[int, int]:
    """Return the sizes of the crops for inference and training; their defaults are those of the trunk, at most `size`."""
    crop = config.crop or min(trunk.suggested["crop"], size)
    return crop, config.train_crop or (crop if config.crop else min(trunk.suggested.get("train_crop", crop), crop))


def measure_pace(config: TrainConfig) -> Pace:
    """Time forward and backward passes on noise. Excludes the loss and the optimizer, which take a few percent of a step."""
    device = find_device(config.device)
    with prepared(device, config.threads or find_threads()):
        trunk = make_trunk(config.trunk.name, pretrained=False, **config.trunk.options)  # as fast as with other weights
        crop, train_crop = resolve_crops(config, trunk)
        embedder = Embedder(trunk, config.dim, config.dropout, config.normalize, crop)
        freeze(embedder.to(device), trunk.suggested["freeze"] if config.freeze is None else config.freeze)
        training_mode(embedder, config.freeze_batch_norm)
        trunk.fold_frozen()
        sides = train_crop, crop
        shown, noise = (torch.randint(256, (IMAGES, side, side, 3), dtype=torch.uint8) for side in sides)

        def step() -> None:
            with computing(device, config.precision):
                embeddings = embedder(shown)
            embeddings.sum().backward()

        @torch.inference_mode()
        def forward() -> None:
            embedder(noise)

        return Pace(_rate(step, device), _rate(forward, device))


def _rate(work: Callable[[], None], device: torch.device) -> float:
    """Return the images per second of a function that processes one round. Waits for CUDA to finish."""
    start = 0.0
    for number in range(ROUNDS + 1):
        if number == 1:
            start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return ROUNDS * IMAGES / (time.perf_counter() - start)

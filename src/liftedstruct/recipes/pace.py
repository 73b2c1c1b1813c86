"""How fast this machine trains and embeds, by a few rounds on noise, for an estimate before hours of work."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from liftedstruct.embedder import Embedder
from liftedstruct.training import TrainConfig, starting_trunk
from liftedstruct.training.machine import computing, find_device, find_threads, prepared
from liftedstruct.training.optimizers import freeze, training_mode

__all__ = ["Pace", "measure_pace"]

IMAGES, ROUNDS = 32, 2  # of a round, and rounds that count; one before them warms up


class Pace(NamedTuple):
    """Images per second."""

    train: float
    embed: float


def measure_pace(config: TrainConfig) -> Pace:
    """Send noise through the network, forward and back; loss and optimizer, some hundredths of a step, are left out."""
    device = find_device(config.device)
    with prepared(device, config.threads or find_threads()):
        trunk = starting_trunk(config)
        crop = config.crop or trunk.suggested["crop"]
        embedder = Embedder(trunk, config.dim, config.dropout, config.normalize, crop)
        freeze(embedder.to(device), trunk.suggested["freeze"] if config.freeze is None else config.freeze)
        training_mode(embedder, config.freeze_batch_norm)
        train_crop = config.train_crop or (crop if config.crop else trunk.suggested.get("train_crop", crop))
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
    """Images per second; what a device has not done yet is waited for."""
    start = 0.0
    for number in range(ROUNDS + 1):
        if number == 1:
            start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return ROUNDS * IMAGES / (time.perf_counter() - start)

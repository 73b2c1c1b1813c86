"""Train in child processes that are killed. They are forked, since importing and compiling takes longer than the runs.

    python killing.py DATA OUT KILLS SEED

It uses one thread, since a forked child has only one. It prints, for each run, the number of kills and a digest of its
embedder and checkpoint; the first run is not killed.
"""

import hashlib
import random
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from faults import finish, fork
from liftedstruct.data import PackedImages
from liftedstruct.embedder import EMBEDDER
from liftedstruct.retrieval import nearest_neighbors, recall_at_k
from liftedstruct.training import train
from liftedstruct.training.run_folder import STATE
from training.sets import settings


def work(data: Path, out: Path) -> None:
    """Start or resume, as a user would after a crash."""
    sampler = {"name": "hard_negatives", "refresh_every": 9}
    hard = {"sampler": sampler, "dropout": 0.3, "cache_chunk": 12, "clip_norm": 5.0, "validate_every": 10, "ema_decay": 0.9}
    train(settings(PackedImages(data), out, steps=40, checkpoint_minutes=0.001, **hard), progress=False)


def digest(run: Path) -> str:
    """Return a digest of the embedder and the checkpoint."""
    return hashlib.sha256((run / EMBEDDER).read_bytes() + (run / STATE).read_bytes()).hexdigest()


def main(data: Path, out: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    X = np.eye(8, dtype=np.float32)
    nearest_neighbors(X, 1)
    recall_at_k(X, np.arange(8) // 2, (1,))
    dice = random.Random(seed)
    begin = time.monotonic()
    finish(partial(fork, partial(work, data, out / "0")), ())
    whole = time.monotonic() - begin
    print(0, digest(out / "0"))
    run, total = 0, 0
    while total < kills:
        folder = out / str(run := run + 1)
        lives = (dice.uniform(0, 0.3 * whole) for _ in range(kills - total))
        mine = finish(partial(fork, partial(work, data, folder)), lives)
        total += mine
        print(mine, digest(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

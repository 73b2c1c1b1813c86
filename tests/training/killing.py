"""Trains in children that are killed. Imports and compiles once, forks often: that takes longer than the runs themselves.

    python killing.py DATA OUT KILLS SEED

With one thread, so that there are no others that a child would miss. Prints, for each run, its kills and a digest of its
embedder and state; the first has no kills.
"""

import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

from liftedstruct.data import PackedImages
from liftedstruct.embedder import EMBEDDER
from liftedstruct.retrieval import nearest_neighbors, recall_at_k
from liftedstruct.training import resume, train
from liftedstruct.training.run_folder import CONFIG, STATE
from training.sets import settings


def work(data: Path, out: Path) -> None:
    """Begin, or go on: what a person would do after a crash."""
    if (out / CONFIG).exists():
        resume(out, progress=False)
    else:
        hard = {"batches": "mined", "refresh_every": 9, "dropout": 0.3, "cache_chunk": 12, "clip": 5.0, "validate_every": 10}
        train(settings(PackedImages(data), out, steps=40, checkpoint_minutes=0.001, **hard), progress=False)


def child(data: Path, out: Path, life: float | None) -> bool:
    """Whether a child finished its work before it was killed."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work(data, out)
            code = 0
        finally:
            os._exit(code)
    if life is not None:
        time.sleep(life)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.WEXITSTATUS(status):
        sys.exit("a child failed")
    return True


def digest(run: Path) -> str:
    """Of what was learned, and of all that a longer run would go on from."""
    return hashlib.sha256((run / EMBEDDER).read_bytes() + (run / STATE).read_bytes()).hexdigest()


def main(data: Path, out: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    X = np.eye(8, dtype=np.float32)
    nearest_neighbors(X, 1)
    recall_at_k(X, np.arange(8) // 2, (1,))
    dice = random.Random(seed)
    begin = time.monotonic()
    child(data, out / "0", None)
    whole = time.monotonic() - begin
    print(0, digest(out / "0"))
    run, total = 0, 0
    while total < kills:
        run, mine = run + 1, 0
        while not child(data, out / str(run), dice.uniform(0, 0.3 * whole) if total < kills else None):
            mine, total = mine + 1, total + 1
        print(mine, digest(out / str(run)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

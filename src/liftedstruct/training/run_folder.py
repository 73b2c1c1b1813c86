"""Run folders, whose files survive a killed process and a full disk.

`config.yaml` holds all settings, `state.json` what the run was started with (data, versions), and `state.safetensors` the
checkpoint: weights, optimizer state, step and best score, in one file, so they are of the same step. `log.jsonl` has one line
per logged step (with `sampled_rows`, distances are from that many rows of a larger batch), and `embedder.safetensors` is
the trained embedder. Nothing is pickled.
"""

import contextlib
import errno
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from liftedstruct.embedder import EMBEDDER, Embedder
from liftedstruct.runtime.atomic import is_temporary, locked, replacing
from liftedstruct.training.config import TrainConfig, as_yaml, load_config

__all__ = ["CONFIG", "LOG", "RECORD", "STATE", "TRIAL", "RunFolder", "is_finished"]

CONFIG, LOG, STATE, RECORD = "config.yaml", "log.jsonl", "state.safetensors", "state.json"
TRIAL = "trial"  # folder of the run that chooses the number of steps
LOCK = "train.lock"  # present while training runs
VERSION = 4
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_finished(config: TrainConfig, step: int, best_step: int, best: float) -> bool:
    """Return whether a run at this step has no step left: it ran all steps, or validation at this step shows no improvement.

    `best` is the best MAP@R on the validation classes, or negative if there is none.
    """
    if not config.patience or best < 0 or step % config.validate_every:
        return step >= config.steps
    since = step - best_step
    return step >= config.steps or (since >= config.patience and 3 * since >= best_step)


class RunFolder:
    """Files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.saved_step: int | None = None  # of the checkpoint on disk

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def check_new(self) -> None:
        """Raise an error if the folder holds files that do not belong to a run."""
        ours = {LOCK, RECORD, TRIAL, LOG, STATE}  # left by a run that was killed before it wrote its settings
        others = sorted(each.name for each in self.path.iterdir() if each.name not in ours and not is_temporary(each.name))
        if others:
            raise ValueError(f"{self.path} must be empty to start a run, but it contains {others[0]!r}. Choose another folder.")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder if absent and lock it for one training process."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} must be a folder, but it is a file. Choose another path.")
        made = not self.path.exists()
        with self._room():
            self.path.mkdir(parents=True, exist_ok=True)
        try:
            with contextlib.ExitStack() as stack:
                with self._room():
                    stack.enter_context(locked(self / LOCK, "training"))
                yield
        finally:
            if made and not any(self.path.iterdir()):  # no run was started
                self.path.rmdir()

    def begin(self, config: TrainConfig, record: dict[str, Any]) -> None:
        """Write the files that do not change. The settings come last: a folder that has them is complete."""
        content = {"format": "liftedstruct run", "version": VERSION, **record}
        self._write(RECORD, (json.dumps(content, indent=1) + "\n").encode("ascii"))
        self._write(CONFIG, as_yaml(config).encode("utf-8"))

    def config(self) -> TrainConfig:
        """Load the settings of the run."""
        if not self.has_run():
            raise ValueError(f"{self.path} must be a run folder, but it has no {CONFIG}. Start a run with liftedstruct train.")
        self.record()  # checks the version
        try:
            return load_config(self / CONFIG)
        except ValueError as error:
            raise ValueError(f"{self / CONFIG}: {error} If a plugin defines it, pass --plugin FILE.") from error

    def has_run(self) -> bool:
        """Return whether the folder holds a run."""
        return (self / CONFIG).exists()

    def record(self) -> dict[str, Any]:
        """Load the record that `begin` wrote."""
        try:
            record: dict[str, Any] = json.loads((self / RECORD).read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{self / RECORD} must be a file written by train, got: {error}. Start a new run.") from error
        if record.get("version") != VERSION:
            raise ValueError(
                f"{self.path} must be a run of format {VERSION}, got format {record.get('version')} of another "
                "release. Train again, or use the release that wrote it."
            )
        return record

    def save_state(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Replace the checkpoint atomically."""
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        self._write(STATE, save(plain, {"liftedstruct": json.dumps(state)}))
        self.saved_step = state["step"]

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Load the checkpoint, or return None if there is none."""
        return self._read_state(lambda content: {name: content.get_tensor(name) for name in content.keys()})  # noqa: SIM118, not a mapping

    def progress(self) -> dict[str, Any] | None:
        """Load the metadata of the checkpoint, such as step and best score, or return None if there is none."""
        state = self._read_state(lambda _: {})
        return state and state[1]

    def is_finished(self) -> bool:
        """Return whether the folder holds a run with no step left."""
        state = self.progress() if self.has_run() else None
        if state is None or state.get("ended"):
            return state is not None
        return is_finished(self.config(), state["step"], state["best_step"], state["best"])

    def _read_state(self, tensors_of: Callable[[Any], dict[str, Tensor]]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        if not (self / STATE).exists():
            return None
        try:
            with safe_open(self / STATE, "pt") as content:
                state: dict[str, Any] = json.loads(content.metadata()["liftedstruct"])
                tensors = tensors_of(content)
        except (SafetensorError, OSError, TypeError, KeyError, ValueError, MemoryError) as error:
            raise ValueError(f"{self / STATE} must be a file written by train, got: {error}. Start a new run.") from error
        self.saved_step = state["step"]
        return tensors, state

    def copy_progress(self, other: "RunFolder") -> None:
        """Copy the log and the checkpoint of another run."""
        for name in (LOG, STATE):
            self._write(name, (other / name).read_bytes())

    def save_embedder(self, embedder: Embedder) -> None:
        """Replace the saved embedder."""
        with self._room():
            embedder.save(self / EMBEDDER)

    def log(self, line: dict[str, Any]) -> None:
        """Append a line to the log; numbers that are not finite become null."""
        plain = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in line.items()}
        with self._room(), (self / LOG).open("a", encoding="ascii") as stream:
            stream.write(json.dumps(plain) + "\n")

    def read_log(self) -> list[dict[str, Any]]:
        """Read the lines of the log, skipping a line that was cut off when the process was killed."""
        lines = []
        if (self / LOG).exists():
            for text in (self / LOG).read_text(encoding="ascii").splitlines():
                with contextlib.suppress(ValueError):
                    lines.append(json.loads(text))
        return lines

    def cut_log(self, step: int) -> None:
        """Remove the lines after `step`, the step of the checkpoint; those steps run again."""
        kept = [line for line in self.read_log() if line["step"] <= step]
        self._write(LOG, "".join(json.dumps(line) + "\n" for line in kept).encode("ascii"))

    def _write(self, name: str, content: bytes) -> None:
        with self._room(), replacing(self / name) as stream:
            stream.write(content)

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Turn the error of a full disk into a one-line message."""
        try:
            yield
        except OSError as error:
            if error.errno not in FULL:
                raise
            kept = "nothing is saved yet" if self.saved_step is None else f"the checkpoint of step {self.saved_step} is kept"
            raise OSError(f"the disk of {self.path} is full; {kept}. Free space and run the same command again.") from error

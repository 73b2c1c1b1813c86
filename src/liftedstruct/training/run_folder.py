"""The folder of a run, and files in it that a kill or a full disk cannot harm.

``config.yaml`` has all settings, ``state.json`` what the run was begun with (data, versions), and ``state.safetensors`` all
that moves: weights, optimizer, step and best score, in one file and so of one moment. ``log.jsonl`` has a line per logged
step (where it says ``sampled_rows``, distances are of so many rows of a larger batch), and
``embedder.safetensors`` what was learned. Nothing is pickled.
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

__all__ = ["CONFIG", "LOG", "RECORD", "STATE", "RunFolder"]

CONFIG, LOG, STATE, RECORD = "config.yaml", "log.jsonl", "state.safetensors", "state.json"
LOCK = "train.lock"  # there while a training runs
VERSION = 2
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.saved_step: int | None = None  # of the state on the disk

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def check_new(self) -> None:
        """Raise if anything is here that a new run would be mixed up with."""
        ours = {LOCK, RECORD}  # of a run that was killed before its settings were there
        others = sorted(each.name for each in self.path.iterdir() if each.name not in ours and not is_temporary(each.name))
        if others:
            raise ValueError(f"{self.path} must be empty to begin a run, it holds {others[0]!r}. Choose another.")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One training at a time in a folder, created if absent."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} must be a folder, there is a file of that name. Choose another.")
        made = not self.path.exists()
        with self._room():
            self.path.mkdir(parents=True, exist_ok=True)
        try:
            with contextlib.ExitStack() as stack:
                with self._room():
                    stack.enter_context(locked(self / LOCK, "training"))
                yield
        finally:
            if made and not any(self.path.iterdir()):  # nothing was begun
                self.path.rmdir()

    def begin(self, config: TrainConfig, record: dict[str, Any]) -> None:
        """Write what does not change; the settings last, so that a folder that has them has it all."""
        content = {"format": "liftedstruct run", "version": VERSION, **record}
        self._write(RECORD, (json.dumps(content, indent=1) + "\n").encode("ascii"))
        self._write(CONFIG, as_yaml(config).encode("utf-8"))

    def config(self) -> TrainConfig:
        """The settings that the run was begun with."""
        if not self.has_run():
            raise ValueError(f"{self.path} must be the folder of a run, it has no {CONFIG}. Start one with liftedstruct train.")
        self.record()  # of a version that can be read
        try:
            return load_config(self / CONFIG)
        except ValueError as error:
            raise ValueError(f"{self / CONFIG}: {error} If a plugin adds it, pass --plugin FILE.") from error

    def has_run(self) -> bool:
        """Whether a run was started here."""
        return (self / CONFIG).exists()

    def record(self) -> dict[str, Any]:
        """What :meth:`begin` was given."""
        try:
            record: dict[str, Any] = json.loads((self / RECORD).read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{self / RECORD} must be as train left it, got: {error}. Start another run.") from error
        if record.get("version") != VERSION:
            raise ValueError(
                f"{self.path} must be a run of format {VERSION}, it is of format {record.get('version')}, whose settings have "
                "other names. Train again, or use the release that wrote it."
            )
        return record

    def save_state(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Replace the state, in one rename."""
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        self._write(STATE, save(plain, {"liftedstruct": json.dumps(state)}))
        self.saved_step = state["step"]

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last state that was saved, or None."""
        return self._read_state(lambda content: {name: content.get_tensor(name) for name in content.keys()})  # noqa: SIM118, it is no mapping

    def progress(self) -> dict[str, Any] | None:
        """What the last state knows beside its tensors, step and best score among it, or None."""
        state = self._read_state(lambda _: {})
        return state and state[1]

    def _read_state(self, tensors_of: Callable[[Any], dict[str, Tensor]]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        if not (self / STATE).exists():
            return None
        try:
            with safe_open(self / STATE, "pt") as content:
                state: dict[str, Any] = json.loads(content.metadata()["liftedstruct"])
                tensors = tensors_of(content)
        except (SafetensorError, OSError, TypeError, KeyError, ValueError, MemoryError) as error:
            raise ValueError(f"{self / STATE} must be as train left it, got: {error}. Start another run.") from error
        self.saved_step = state["step"]
        return tensors, state

    def save_embedder(self, embedder: Embedder) -> None:
        """Replace what was learned."""
        with self._room():
            embedder.save(self / EMBEDDER)

    def log(self, line: dict[str, Any]) -> None:
        """Add a line to the log; what is not a number is null."""
        plain = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in line.items()}
        with self._room(), (self / LOG).open("a", encoding="ascii") as stream:
            stream.write(json.dumps(plain) + "\n")

    def read_log(self) -> list[dict[str, Any]]:
        """The lines of the log; one that a kill cut off is left out."""
        lines = []
        if (self / LOG).exists():
            for text in (self / LOG).read_text(encoding="ascii").splitlines():
                with contextlib.suppress(ValueError):
                    lines.append(json.loads(text))
        return lines

    def cut_log(self, step: int) -> None:
        """Leave out what is after the state: those steps come again."""
        kept = [line for line in self.read_log() if line["step"] <= step]
        self._write(LOG, "".join(json.dumps(line) + "\n" for line in kept).encode("ascii"))

    def _write(self, name: str, content: bytes) -> None:
        with self._room(), replacing(self / name) as stream:
            stream.write(content)

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Say a full disk in one line."""
        try:
            yield
        except OSError as error:
            if error.errno not in FULL:
                raise
            kept = "nothing is kept yet" if self.saved_step is None else f"the state of step {self.saved_step} is kept"
            raise OSError(f"the disk of {self.path} is full, {kept}. Make room and run the same command again.") from error

"""Faults for tests: a command that is killed, has a second one beside it or a full disk; and damaged files."""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import liftedstruct

__all__ = ["DAMAGES", "Result", "damaged", "fill", "finish", "fork", "run", "small_disk", "start", "wait"]

ROOTS = (Path(liftedstruct.__file__).parents[1], Path(__file__).parent)
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, ROOTS))}
PAGE = 4096


class Result(NamedTuple):
    """Result of a command: its exit code, or None if it was killed, and what it wrote."""

    code: int | None
    out: str
    err: str


# --- processes -----------------------------------------------------------------------------------------------------------


def start(*arguments: object, log: Path | None = None) -> int:
    """Start `python -m liftedstruct` and return its process ID. Its output is added to a file, or dropped."""
    command = [sys.executable, "-m", "liftedstruct", *map(str, arguments)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    into = [(os.POSIX_SPAWN_OPEN, 1, str(log or os.devnull), flags, 0o644), (os.POSIX_SPAWN_DUP2, 1, 2)]
    return os.posix_spawn(sys.executable, command, ENVIRONMENT, file_actions=into)


def fork(work: Callable[[], object]) -> int:
    """Start a function in a copy of this process, which must have a single thread, and return its process ID."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def wait(pid: int, life: float | None = None, ready: Callable[[int], bool] = lambda pid: True) -> int | None:
    """Return the exit code of a process, or None if it was killed: `life` seconds after `ready`, unless it has ended."""
    while life is not None:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
        if ready(pid):
            time.sleep(life)
            os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.002)
    _, status = os.waitpid(pid, 0)
    return None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def finish(
    begin: Callable[[], int],
    lives: Iterable[float],
    ready: Callable[[int], bool] = lambda pid: True,
    killed: Callable[[], object] = lambda: None,
) -> int:
    """Start a process again and again until it ends well, and return how often it was killed.

    Args:
        begin: function that starts the process and returns its ID.
        lives: seconds after which each process is killed; once they are used up, it may run to its end.
        ready: function that says whether a process has begun its work; its life counts from then on.
        killed: function to call after each kill.

    """
    kills = 0
    for life in itertools.chain(lives, [None]):
        code = wait(begin(), life, ready)
        if code is not None:
            assert code == 0, f"the exit code is {code}"
            break
        kills += 1
        killed()
    return kills


def run(*arguments: object) -> Result:
    """Run `python -m liftedstruct` to its end."""
    command = [sys.executable, "-m", "liftedstruct", *map(str, arguments)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    return Result(done.returncode, done.stdout, done.stderr)


# --- disks ---------------------------------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """Mount an empty disk of `size` bytes on a new folder. Skip the test if this user may not."""
    folder.mkdir()
    if shutil.which("mount") is None or os.getuid():
        pytest.skip("only root may mount a small disk")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, free: int = 0) -> Path:
    """Fill a disk but for `free` bytes, and return the file to remove to make room again."""
    file = folder / "filler"
    with suppress(OSError), file.open("wb", buffering=0) as stream:
        while stream.write(bytes(PAGE)):
            pass
    os.truncate(file, max(0, file.stat().st_size - free))
    return file


# --- damage --------------------------------------------------------------------------------------------------------------


def damaged(content: bytes, dice: random.Random, kind: str) -> bytes:
    """Return the content of a file after an accident of this kind, at a random place."""
    return DAMAGES[kind](content, dice)


def _flip(content: bytes, dice: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 3, 30))):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _pages(content: bytes, dice: random.Random, page: Callable[[bytes], bytes]) -> bytes:
    at = dice.randrange(0, len(content), PAGE)
    return content[:at] + page(content[at : at + PAGE]) + content[at + PAGE :]


def _swap(content: bytes, dice: random.Random) -> bytes:
    other = dice.randrange(0, len(content), PAGE)
    return _pages(content, dice, lambda page: content[other : other + PAGE][: len(page)].ljust(len(page), b"\0"))


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flip": _flip,  # a few bits
    "cut": lambda content, dice: content[: dice.randrange(len(content))],
    "zeros": lambda content, dice: _pages(content, dice, lambda page: bytes(len(page))),
    "noise": lambda content, dice: _pages(content, dice, lambda page: dice.randbytes(len(page))),
    "swap": _swap,  # a page is a copy of another one
    "other": lambda content, dice: dice.choice((b"", b"text\n" * 99, dice.randbytes(len(content)))),
}

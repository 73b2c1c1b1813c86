"""The machine as a run needs it: device, threads, memory, signals, and random numbers of its own."""

import contextlib
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator

import numpy as np
import torch

from liftedstruct.runtime.limits import available_cores, cpu_quota
from liftedstruct.runtime.memory import kept_memory
from liftedstruct.runtime.progress import say

__all__ = ["computing", "find_device", "find_threads", "prepared", "seed_torch", "stop_signals", "warn_of_emulation"]


def find_device(name: str | None) -> torch.device:
    """The device of that name, or cuda if there is one."""
    cuda = torch.cuda.is_available()
    try:
        device = torch.device(name or ("cuda" if cuda else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {name!r}. Leave it out to take what there is.") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {name!r}. Leave it out to take what there is.")
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count() if cuda else 0
    if (device.index or 0) >= count:
        raise ValueError(f"device must be one that this machine has, {count} of CUDA, got {name!r}. Pass cpu.")
    if count > 1 and name in (None, "cuda"):
        say(
            f"{count} CUDA devices: a run uses one of them, cuda:0 here. For larger batches pass cache_chunk; "
            "to use all, train a run on each with device cuda:1 and so on."
        )
    return torch.device("cuda", device.index or 0)


def find_threads() -> int:
    """As many as this process may use: no more than torch would take, its cores allow, or a container's quota leaves."""
    return max(1, math.ceil(min(available_cores(), cpu_quota(), torch.get_num_threads())))


@contextlib.contextmanager
def prepared(device: torch.device, threads: int) -> Iterator[None]:
    """While a run lasts; its random numbers and threads are no one else's."""
    before = torch.get_num_threads(), torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    with kept_memory(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False  # the same bytes every time
        try:
            yield
        finally:
            torch.set_num_threads(before[0])
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before[1:]


def computing(device: torch.device, precision: str) -> torch.autocast:
    """While a network computes: in float32, or in a half type where torch finds it safe."""
    half = precision != "float32"
    return torch.autocast(device.type, getattr(torch, precision) if half else None, enabled=half)


def warn_of_emulation(device: torch.device, precision: str) -> None:
    """Say that a half type is slower than float32, where the processor cannot compute with it."""
    asked = device.type == "cpu" and precision == "bfloat16" and torch.backends.mkldnn.is_available()
    if asked and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        say("warning: this processor has no quick bfloat16, so it is many times slower than float32 here")


def seed_torch(*words: int) -> None:
    """Let torch's generators, of the CPU and of CUDA if it is in use, start from here."""
    seed = int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # where it is not, torch.manual_seed would keep every call for later, with its stack
        torch.cuda.manual_seed_all(seed)


@contextlib.contextmanager
def stop_signals() -> Iterator[list[str]]:
    """The name of the signal that came, if one did; the same again ends at once. Only the main thread hears signals."""
    came: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def hear(number: int, frame: object) -> None:
        name = {signal.SIGINT: "Ctrl-C"}.get(signal.Signals(number), signal.Signals(number).name)
        if name in came:
            raise KeyboardInterrupt
        came.append(name)  # systemd sends SIGTERM and SIGHUP together
        with contextlib.suppress(OSError):  # nobody may be reading; and print may be at work
            os.write(2, b"stopping after this step; again to stop at once, without a state of it\n")

    heard = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        heard.append(signal.SIGHUP)
    before = {number: signal.signal(number, hear) for number in heard}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Machine setup of a run: device, threads, memory, precision, signals and random seeds."""

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
    """Return the named device, or by default CUDA if available."""
    cuda = torch.cuda.is_available()
    try:
        device = torch.device(name or ("cuda" if cuda else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {name!r}. Omit it to use the default.") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {name!r}. Omit it to use the default.")
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count() if cuda else 0
    if (device.index or 0) >= count:
        raise ValueError(f"device must be available, got {name!r} with {count} CUDA devices. Pass cpu.")
    if count > 1 and name in (None, "cuda"):
        say(
            f"found {count} CUDA devices, using cuda:0, since a run uses one device. For larger batches, pass cache_chunk; "
            "to use all devices, start one run per device (device cuda:1, ...)."
        )
    return torch.device("cuda", device.index or 0)


def find_threads() -> int:
    """Return the number of threads for this process: the minimum of torch's default, the available cores and the CPU quota."""
    return max(1, math.ceil(min(available_cores(), cpu_quota(), torch.get_num_threads())))


@contextlib.contextmanager
def prepared(device: torch.device, threads: int) -> Iterator[None]:
    """Set up threads, memory and cuDNN for a run; restore the caller's threads and random state afterwards."""
    before = torch.get_num_threads(), torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    with kept_memory(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False  # for reproducible results
        try:
            yield
        finally:
            torch.set_num_threads(before[0])
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before[1:]


def computing(device: torch.device, precision: str) -> torch.autocast:
    """Return the autocast context for a precision; with float32, autocast is disabled."""
    half = precision != "float32"
    return torch.autocast(device.type, getattr(torch, precision) if half else None, enabled=half)


def warn_of_emulation(device: torch.device, precision: str) -> None:
    """Warn if the processor does not support bfloat16, which is then slower than float32."""
    asked = device.type == "cpu" and precision == "bfloat16" and torch.backends.mkldnn.is_available()
    if asked and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        say("warning: this processor does not support bfloat16 natively, so bfloat16 is many times slower than float32")


def seed_torch(*words: int) -> None:
    """Seed torch's generators, on the CPU and, if initialized, on CUDA."""
    seed = int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # otherwise torch.manual_seed would queue each call, with its stack trace
        torch.cuda.manual_seed_all(seed)


@contextlib.contextmanager
def stop_signals() -> Iterator[list[str]]:
    """Yield a list that collects the names of stop signals; a repeated signal interrupts at once. Main thread only."""
    received: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(number: int, frame: object) -> None:
        name = {signal.SIGINT: "Ctrl-C"}.get(signal.Signals(number), signal.Signals(number).name)
        if name in received:
            raise KeyboardInterrupt
        received.append(name)  # systemd sends SIGTERM and SIGHUP together, which is not a repeat
        with contextlib.suppress(OSError):  # stderr may be closed; os.write, as print is not reentrant
            os.write(2, b"stopping after this step; repeat to stop at once, without saving the step\n")

    handled = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored under nohup
        handled.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

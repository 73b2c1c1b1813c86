import os
import subprocess
import sys

import pytest

from liftedstruct.runtime.memory import keep_memory

CODE = """
import resource, sys, torch
from liftedstruct.runtime.memory import keep_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        a, b = torch.ones(10_000_000), torch.ones(20_000_000)
        del a, b
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
default = faults()
assert keep_memory() and keep_memory()
faults()
print(default, faults())
"""


def is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError):
        return False


@pytest.mark.skipif(not is_glibc(), reason="there is no glibc here, whose settings are the point")
def test_pages_are_kept() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=environment)
    default, kept = map(int, done.stdout.split())
    assert kept < default / 10


def test_elsewhere_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_memory() is False

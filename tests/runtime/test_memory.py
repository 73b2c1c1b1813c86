import os
import subprocess
import sys

import pytest

from liftedstruct.runtime import memory
from liftedstruct.runtime.memory import kept_memory

RELEASE = """
from liftedstruct.runtime.memory import kept_memory, release_memory
def size():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
with kept_memory():
    blocks = [bytearray(1 << 16) for _ in range(4000)]
    blocks = blocks[::40]  # the rest is free, in between
    before = size()
    release_memory()
    print(before - size())
"""
CODE = """
import resource, sys, torch
from liftedstruct.runtime.memory import kept_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        a, b = torch.ones(10_000_000), torch.ones(20_000_000)
        del a, b
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
found = [faults()]
with kept_memory() as outer, kept_memory() as inner:
    faults()
    found.append(faults())
print(*found, faults(), outer, inner)
"""


def is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError):
        return False


def page_faults(**variables: str) -> tuple[int, int, int, str]:
    """Return the page faults before, inside and after the block, and what the block yields."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | variables
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=environment)
    before, inside, after, *said = done.stdout.split()
    return int(before), int(inside), int(after), " ".join(said)


@pytest.mark.skipif(not is_glibc(), reason="requires glibc")
def test_pages_are_kept_inside_the_block() -> None:
    before, inside, after, said = page_faults()
    assert said == "True True"
    assert inside < before / 10
    assert after > before / 2


@pytest.mark.skipif(not is_glibc(), reason="requires glibc")
@pytest.mark.parametrize("variables", [{"LIFTEDSTRUCT_KEEP_MEMORY": "0"}, {"MALLOC_TOP_PAD_": "131072"}])
def test_it_can_be_turned_off(variables: dict[str, str]) -> None:
    before, inside, _, said = page_faults(**variables)
    assert said == "False False"
    assert inside > before / 2


def test_no_effect_on_other_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    memory._glibc.cache_clear()
    try:
        with kept_memory() as kept:
            assert kept is False
    finally:
        memory._glibc.cache_clear()


@pytest.mark.skipif(not is_glibc() or not os.path.exists("/proc/self/statm"), reason="requires glibc and Linux")  # noqa: PTH110
def test_free_memory_is_released() -> None:
    done = subprocess.run([sys.executable, "-c", RELEASE], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 200e6

import os
import subprocess
import sys

import pytest

from liftedstruct.runtime import memory
from liftedstruct.runtime.memory import kept_memory

HEAPS = """
import re, sys, threading
from liftedstruct.runtime.memory import limit_heaps
if sys.argv[1] == "limited":
    limit_heaps()
barrier, kept = threading.Barrier(12), []
def work():
    kept.append([bytearray(5000) for _ in range(200)])  # from a heap, not of the interpreter's own
    barrier.wait(20)
threads = [threading.Thread(target=work) for _ in range(12)]
for each in threads:
    each.start()
for each in threads:
    each.join()
maps = open("/proc/self/maps").read()
print(len(re.findall(r"^[0-9a-f]+[048c]000000-[0-9a-f]+ rw-p 00000000 00:00 0 *$", maps, flags=re.M)))
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


@pytest.mark.skipif(not is_glibc() or sys.platform != "linux", reason="requires glibc and Linux")
def test_threads_share_a_few_heaps() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    counts = [
        int(
            subprocess.run(
                [sys.executable, "-c", HEAPS, each], capture_output=True, text=True, check=True, env=environment
            ).stdout
        )
        for each in ("limited", "free")
    ]
    assert counts[0] < counts[1] - 5

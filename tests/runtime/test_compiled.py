import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import liftedstruct

HELP_AND_RECALL = """
import sys
import numpy as np
import liftedstruct
from liftedstruct.cli import main
assert liftedstruct.__file__.startswith(sys.argv[1])
try:
    main(["--help"])
except SystemExit as leaving:
    assert leaving.code == 0
kernels = [each for each in vars(sys.modules["liftedstruct.retrieval.rank_kernels"]).values() if hasattr(each, "signatures")]
assert kernels and not any(each.signatures for each in kernels), "--help has compiled something"
print(liftedstruct.recall_at_k(np.array([[0.0], [1.0], [3.0], [3.5]]), list("aabb"), (1,)))
"""
DOUBLE = """
import os, resource
from pathlib import Path
from liftedstruct.runtime.compiled import compiled

def double(x):
    return 2 * x

limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # no file can grow, as on a full disk
print(compiled()(double)(4))
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
print(compiled()(double)(4))
files = list(Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.nb[ic]"))
print(len(files))  # the index and the machine code
for file in files:
    whole = file.read_bytes()
    for cut in (0, len(whole) // 2):
        file.write_bytes(whole[:cut])
        print(compiled()(double)(4))
        again = compiled()(double)
        print(again(4) + sum(again.stats.cache_hits.values()))  # the corrupt file has been written again
"""


def run(script: Path, *arguments: str, **environment: str) -> str:
    """Run a script in a process with this environment and return its output."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**kept, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_no_writable_folder(tmp_path: Path) -> None:
    """Neither the source folder nor the home folder is writable: files exist where numba would create folders."""
    site, script = tmp_path / "site", tmp_path / "script.py"
    source = Path(liftedstruct.__file__).parent
    shutil.copytree(source, site / "liftedstruct", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [site, *(each for each in site.rglob("*") if each.is_dir())]:
        (folder / "__pycache__").touch()
    (tmp_path / "home").touch()
    script.write_text(HELP_AND_RECALL)
    printed = run(script, str(site), HOME=str(tmp_path / "home"), PYTHONPATH=str(site))
    assert printed.endswith("{1: 1.0}\n")


def test_a_full_disk_and_a_corrupt_cache(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(DOUBLE)
    assert run(script, NUMBA_CACHE_DIR=str(tmp_path / "cache")).split() == ["8", "8", "2", *(["8", "9"] * 4)]

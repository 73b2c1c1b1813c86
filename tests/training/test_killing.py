import os
import subprocess
import sys
from pathlib import Path

import pytest

import liftedstruct
from training import killing
from training.sets import products


@pytest.mark.slow
def test_killed_at_twenty_random_moments(tmp_path: Path) -> None:
    packed = products(tmp_path / "products")
    roots = (Path(liftedstruct.__file__).parents[1], Path(killing.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, killing.__file__, packed.folder, tmp_path / "runs", "20", "0"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert sum(int(kills) for kills, _ in lines) >= 20
    assert len({digest for _, digest in lines}) == 1, done.stdout
    assert not list((tmp_path / "runs").glob("*/*.tmp"))

"""The built wheel: its metadata is valid, it contains every file, and README's Python runs with it in an empty environment."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from documents import README, ROOT, few_steps, python_blocks


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_environment(folder: Path, *requirements: object) -> Path:
    """Create a virtual environment and return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", *requirements, cwd=folder)
    return python


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="virtual environments have other paths on Windows")
def test_wheel(tmp_path: Path) -> None:
    tools = make_environment(tmp_path / "tools", "build", "twine")
    run(tools, "-m", "build", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path)
    run(tools, "-m", "twine", "check", "--strict", *(tmp_path / "dist").iterdir(), cwd=tmp_path)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    source = ROOT / "src"
    files = {str(file.relative_to(source)) for file in source.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if not name.startswith("liftedstruct-")} == files

    python = make_environment(tmp_path / "empty", wheel)  # no extras
    command = python.with_name("liftedstruct")
    run(command, "products", "--out", "photos/", "--n-classes", 20, "--images-per-class", 4, cwd=tmp_path)
    (tmp_path / "photo.jpg").write_bytes(next((tmp_path / "photos").rglob("*.png")).read_bytes())
    (tmp_path / "readme.py").write_text("\n".join(few_steps(block.text) for block in python_blocks(README)))
    assert "Recall@1" in run(python, "-W", "error", "readme.py", cwd=tmp_path)

"""What the documents say is true: their code runs, their commands exist, their examples do what they promise."""

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from liftedstruct.cli import COMMANDS, Command, main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def flags_of(command: Command) -> set[str]:
    return {f"--{name.replace('_', '-')}" for name in inspect.signature(command.function).parameters}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_code_and_commands_of_the_readme_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    found = re.findall(r"```(python|console)\n(.*?)```", README, flags=re.DOTALL)
    commands = [line for language, block in found if language == "console" for line in block.splitlines()]
    assert sum(line.startswith("liftedstruct ") for line in commands) >= 4
    assert len(blocks("python")) >= 4
    for language, block in found:
        if language == "python":
            exec(block, names)
        for line in block.splitlines() if language == "console" else ():
            if line.startswith("liftedstruct "):
                assert main(line.split()[1:]) == 0, line
    printed = capsys.readouterr().out
    assert "effective rank" in printed
    shown = re.findall(r"```\n((?:Recall|NMI|F1).*?)```", README, flags=re.DOTALL)
    assert shown
    assert all(block in printed for block in shown)


def test_commands_of_the_readme_are_the_commands() -> None:
    assert set(re.findall(r"`liftedstruct (\w+)", README)) == set(COMMANDS)
    flags = set(re.findall(r"(--[a-z][a-z-]+)", README)) - {"--constraint", "--help"}
    assert flags <= {flag for command in COMMANDS.values() for flag in flags_of(command)}
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {line.split()[1] for block in blocks("console") for line in block.splitlines() if line.startswith("make")} <= targets


def test_contact_sheet(tmp_path: Path) -> None:
    load(ROOT / "examples" / "contact_sheet.py").main(tmp_path / "sheet.jpg", columns=2, size=16)
    with Image.open(tmp_path / "sheet.jpg") as sheet:
        assert sheet.size == (32, 12 * 16)


def test_own_loop() -> None:
    before, after = load(ROOT / "examples" / "own_loop.py").main()
    assert f"{before:.0%}".replace("%", " %") in README
    assert f"of {after:.0%}".replace("%", " %") in README
    assert before < 0.1 < 0.99 < after

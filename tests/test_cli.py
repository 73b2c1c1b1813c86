import subprocess
import sys

import pytest

from liftedstruct import __version__
from liftedstruct.batches import BATCHES
from liftedstruct.cli import COMMANDS, main
from liftedstruct.losses import LOSSES


@pytest.mark.parametrize(("what", "registry"), [("losses", LOSSES), ("batches", BATCHES)])
def test_list(what: str, registry: dict[str, type], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(registry)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    example = capsys.readouterr().out.rsplit("example: ", 1)[1].split()
    assert example[:2] == ["liftedstruct", command]
    assert main(example[1:]) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["list", "loses"],
            "liftedstruct list: what must be one of 'batches', 'losses', got 'loses'. See 'liftedstruct list --help'.\n",
        ),
        (["nothing"], "liftedstruct: argument subcommand: invalid choice: 'nothing'"),
        (["demo", "--steps", "many"], "liftedstruct demo: "),
        ([], "liftedstruct: expected"),
    ],
)
def test_wrong_usage_is_one_line_and_2(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(text)
    assert error.count("\n") == 1


def test_a_failure_is_one_line_and_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--steps", "0"]) == 1
    assert capsys.readouterr().err == "liftedstruct demo: steps must be a whole number >= 1, got 0. Pass 1 or more.\n"
    with pytest.raises(ValueError, match="steps must be"):
        main(["--debug", "demo", "--steps", "0"])


def test_it_is_a_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "liftedstruct", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(__version__)

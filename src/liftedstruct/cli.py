"""The command line: a table of commands, each of which is one call that a notebook could make too."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from jsonargparse import ArgumentParser

from liftedstruct import __version__
from liftedstruct.batches import BATCHES
from liftedstruct.demo import demo
from liftedstruct.losses import LOSSES

__all__ = ["COMMANDS", "main"]


def list_registry(what: Literal["batches", "losses"]) -> None:
    """List what there is to choose from.

    Args:
        what: the kind of thing to list.

    """
    registry: Mapping[str, type] = BATCHES if what == "batches" else LOSSES
    for name, entry in registry.items():
        print(f"{name:<18} {entry.__module__}.{entry.__name__}")


# name -> (function, its positional arguments, an example)
COMMANDS: dict[str, tuple[Callable[..., Any], bool, str]] = {
    "demo": (demo, False, "liftedstruct demo --steps 300 --seed 0"),
    "list": (list_registry, True, "liftedstruct list losses"),
}


class _Parser(ArgumentParser):
    """Says what was wrong in one line, and leaves with exit code 2."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        text = " ".join(str(message).split())
        text = re.sub(
            r'Parser key "(\w+)": Expected a typing\.Literal\[(.*)\]\. Got value: (.*)',
            r"\1 must be one of \2, got '\3'.",
            text,
        )
        command = self.prog.replace(" [options]", "")
        print(f"{command}: {text} See '{command} --help'.", file=sys.stderr)
        sys.exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 failed, 2 wrong usage."""
    parser = _Parser(prog="liftedstruct", description="Deep metric learning, done right.", version=__version__)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    subcommands = parser.add_subcommands()
    for name, (function, positional, example) in COMMANDS.items():
        summary = (function.__doc__ or "").split("\n", 1)[0]
        command = _Parser(description=summary, epilog=f"example: {example}")
        command.add_function_arguments(function, as_positional=positional)
        subcommands.add_subcommand(name, command, help=summary)
    config = parser.parse_args(None if argv is None else list(argv))
    function = COMMANDS[config.subcommand][0]
    try:
        function(**config[config.subcommand].as_dict())
    except (ValueError, OSError) as error:
        if config.debug:
            raise
        print(f"liftedstruct {config.subcommand}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0

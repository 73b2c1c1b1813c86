"""Table of commands, and the program: parse the arguments, run a command, and print errors on one line."""

import argparse
import contextlib
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from liftedstruct import __version__
from liftedstruct.cli import catalog_commands, commands, service_commands
from liftedstruct.cli.flags import add_config_flags, add_flags
from liftedstruct.runtime.memory import kept_memory
from liftedstruct.runtime.progress import say

__all__ = ["COMMANDS", "Command", "main"]


@dataclass(frozen=True)
class Command:
    """Entry of the table of commands: function, example, positional arguments, and exit code on failure."""

    function: Callable[..., Any]
    example: str
    positional: tuple[str, ...] = ()
    failed: int = 1


SEARCH = Command(
    catalog_commands.search,
    "liftedstruct search catalog/ photo.jpg -k 5 --where 'price < 100' --group-by product",
    ("store", "photos"),
)
COMMANDS: dict[str, Command] = {
    "catalog add": Command(catalog_commands.add, "liftedstruct catalog add catalog/ photos/ --run run/", ("store", "images")),
    "catalog calibrate": Command(
        catalog_commands.calibrate, "liftedstruct catalog calibrate catalog/ --false-match-rate 0.01", ("store",)
    ),
    "catalog measure": Command(catalog_commands.measure, "liftedstruct catalog measure catalog/ --index hnsw", ("store",)),
    "catalog remove": Command(catalog_commands.remove, "liftedstruct catalog remove catalog/ chairs/12.jpg", ("store", "ids")),
    "catalog search": SEARCH,
    "catalog status": Command(catalog_commands.status, "liftedstruct catalog status catalog/", ("store",)),
    "check": Command(
        commands.check, "liftedstruct check photos/ --fix photos-fixed.csv", ("data",), failed=2
    ),  # exit code 1 means serious issues
    "demo": Command(commands.demo, "liftedstruct demo"),
    "embed": Command(commands.embed, "liftedstruct embed run/ prepared/ --out test.npz --part test", ("source", "images")),
    "evaluate": Command(commands.evaluate, "liftedstruct evaluate embeddings.npz --ks 1,2,4,8 --clustering both", ("file",)),
    "explore": Command(service_commands.explore, "liftedstruct explore catalog/ --decisions decisions.csv", ("store",)),
    "export": Command(commands.export, "liftedstruct export run/ --out model/ --license apache-2.0", ("run",)),
    "figure": Command(commands.figure, "liftedstruct figure failures run/ --out failures.pdf --count 6", ("kind", "runs")),
    "fit": Command(commands.fit, "liftedstruct fit photos/ --out fitted/", ("data",)),
    "list": Command(commands.list_entries, "liftedstruct list losses", ("what",)),
    "prepare": Command(commands.prepare, "liftedstruct prepare photos/ --out prepared/ --resize-mode letterbox", ("data",)),
    "products": Command(commands.products, "liftedstruct products --out photos/ --n-classes 20 --images-per-class 4"),
    "report": Command(commands.report, "liftedstruct report run/ pool5.npz --out report.html", ("runs",)),
    "reproduce": Command(
        commands.reproduce, "liftedstruct reproduce cub --data CUB_200_2011.tgz --preset quick --sizes 64", ("name",)
    ),
    "search": SEARCH,
    "serve": Command(service_commands.serve, "liftedstruct serve catalog/ --port 8000", ("store",)),
    "train": Command(commands.train, "liftedstruct train prepared/ --out run/ --loss triplet --loss.margin 0.5", ("data",)),
}


GROUPS = {"catalog": "Keep a catalog of products and search it: add, search, remove, status, calibrate, measure."}


class _Parser(argparse.ArgumentParser):
    """Parser that prints errors on one line and exits with 2."""

    def error(self, message: str) -> NoReturn:
        say(f"{self.prog}: {' '.join(message.split())} (see '{self.prog} --help')")
        sys.exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Return 0 on success, 1 on failure, 2 on wrong usage and 130 if interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # escape names that the terminal cannot show
    try:
        with kept_memory():  # once for the whole command
            code = _run(sys.argv[1:] if argv is None else list(argv))
    finally:  # also after --help, wrong usage and --debug errors
        lost = _drop_unwritten()
    return code or lost


def _drop_unwritten() -> int:
    """Flush stdout and stderr. Return 1 if stdout cannot be written; drop its buffer, or Python reports it again at exit."""
    failed = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            failed |= stream is sys.stdout
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return failed


def _run(argv: list[str]) -> int:
    anywhere = _Parser(prog="liftedstruct", add_help=False, allow_abbrev=False)
    _add_global_flags(anywhere)
    given, rest = anywhere.parse_known_args(argv)
    name, failed = "liftedstruct", 2
    try:
        for plugin in given.plugin:  # before the parser is created, which adds flags for registered entries
            _load(plugin)
        flags = vars(_parser(rest).parse_args(rest))
        name = f"liftedstruct {flags['command']}"
        command = COMMANDS[flags.pop("command")]
        failed = command.failed
        result = command.function(**{key: value for key, value in flags.items() if key not in ("plugin", "debug")})
        if sys.stdout is not None:
            sys.stdout.flush()  # so that a full disk is reported
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except BrokenPipeError:  # as with "| head"
        return failed
    except Exception as error:
        if given.debug:
            raise
        known = isinstance(error, ValueError | OSError)
        kind = "" if known else f"{type(error).__name__}: "
        where = "" if known else " (pass --debug for the traceback)"
        say(f"{name}: {kind}{' '.join(str(error).split())}{where}")
        return failed
    return result if isinstance(result, int) else 0


def _load(plugin: str) -> None:
    """Import a module or Python file that adds entries to registries."""
    file, name = Path(plugin), f"liftedstruct_plugin_{Path(plugin).stem}"
    if file.suffix == ".py" and not file.is_file():
        raise ValueError(f"--plugin must be an existing Python file or a module, got {plugin}. Check the path.")
    try:
        if file.suffix != ".py":
            importlib.import_module(plugin)
            return
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise ValueError(f"--plugin must be importable, got {plugin}: {error}. Install what it imports.") from error


def _add_global_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--debug", action="store_true", help="show the traceback of errors")
    text = "Python file or module to import first, which registers losses, samplers, trunks, presets, ...; can be repeated"
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help=text)


def _parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="liftedstruct",
        description="Deep metric learning with the lifted structured loss: train, evaluate and compare image embeddings.",
        epilog="Run 'liftedstruct COMMAND --help' for the options of a command and an example. Start with 'liftedstruct demo'.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    _add_global_flags(parser)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    groups: dict[str, Any] = {}
    for name, command in COMMANDS.items():
        summary = (command.function.__doc__ or "").partition("\n")[0]
        example = f"example: {command.example}"
        group, _, last = name.rpartition(" ")
        if group and group not in groups:
            text = GROUPS[group]
            whole = subparsers.add_parser(group, help=text, description=text, allow_abbrev=False)
            groups[group] = whole.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
        sub = groups.get(group, subparsers).add_parser(
            last, help=summary.replace("%", "%%"), description=summary, epilog=example, allow_abbrev=False
        )
        sub.set_defaults(command=name)
        add_flags(sub, command.function, command.positional)
        if name == "train":
            add_config_flags(sub, argv)
    return parser

"""The command line: a table of commands, each of which is one call that a notebook could make too."""

from liftedstruct.cli.main import COMMANDS, Command, main

__all__ = ["COMMANDS", "Command", "main"]

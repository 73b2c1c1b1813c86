"""Command line. Every command is a thin wrapper around a Python function."""

from liftedstruct.cli.main import COMMANDS, Command, main

__all__ = ["COMMANDS", "Command", "main"]

"""The command `avuc`. Each command has one file, which parses its arguments, calls the library and prints."""

from avuc.cli.app import COMMANDS as COMMANDS
from avuc.cli.app import main

__all__ = ["main"]

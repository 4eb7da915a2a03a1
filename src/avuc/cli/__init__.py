"""The command `avuc`: parse, call, print."""

from avuc.cli.app import COMMANDS, main

__all__ = ["COMMANDS", "main"]

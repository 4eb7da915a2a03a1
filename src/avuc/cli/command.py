"""Command: the type of one command of the program."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

Namespace = argparse.Namespace
Parser = argparse.ArgumentParser


@dataclass(frozen=True)
class Command:
    """One command: its help texts, a function that adds its arguments, and a function that runs it."""

    summary: str  # one line in `avuc --help`
    text: str  # description in `avuc COMMAND --help`
    examples: str  # at the end of that help
    arguments: Callable[[Parser], None]
    run: Callable[[Namespace], int]  # returns the exit code

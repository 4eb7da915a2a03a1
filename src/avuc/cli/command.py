"""What one command is; each has its own file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Command", "Namespace", "Parser"]

Namespace = argparse.Namespace
Parser = argparse.ArgumentParser


@dataclass(frozen=True)
class Command:
    """A name's meaning: one line of help, a longer text, examples, its arguments, and what it does."""

    summary: str
    text: str
    examples: str
    arguments: Callable[[Parser], None]
    run: Callable[[Namespace], int]

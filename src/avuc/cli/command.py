"""Command: the type of one command of the program."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

Namespace = argparse.Namespace
Parser = argparse.ArgumentParser
# at the end of the help of commands that read predictions
SAMPLE_FILES = """

no file at hand? this makes validation.npz and test.npz:
  python -c "import numpy as np; r = np.random.default_rng(0); [np.savez(f, logits=3 * (r.normal(size=(2000, 10))
  + 2 * np.eye(10)[y]), labels=y) for f in ('validation.npz', 'test.npz') for y in [r.integers(0, 10, 2000)]]\""""


@dataclass(frozen=True)
class Command:
    """One command: its help texts, a function that adds its arguments, and a function that runs it."""

    summary: str  # one line in `avuc --help`
    text: str  # description in `avuc COMMAND --help`
    examples: str  # at the end of that help
    arguments: Callable[[Parser], None]
    run: Callable[[Namespace], int]  # returns the exit code

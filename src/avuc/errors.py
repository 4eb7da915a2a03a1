"""Errors that a person can act on. The command prints them as one line and exits with code 2."""

from __future__ import annotations

import importlib
import stat
from pathlib import Path
from types import ModuleType

__all__ = ["InputError", "MissingExtra", "check_regular", "require"]


class InputError(ValueError):
    """A file or an argument from outside is not what was expected; the message says where, what and the remedy."""


class MissingExtra(ImportError):
    """An optional package is not installed; the message says what to install."""


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional module, or say in one line which extra brings it.

    >>> require("json", "cli", "reading JSON").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{purpose} needs {module!r} ({error}): pip install 'avuc[{extra}]'") from error


def check_regular(path: Path) -> None:
    """Refuse what is not a plain file: opening a pipe would wait for ever."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); restore or remove it") from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: not a regular file (a folder, pipe or device); remove it or point to a file")

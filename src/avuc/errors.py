"""Errors that a person can act on. The command prints them as one line and exits with code 2."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["InputError", "MissingExtra", "out_of_memory", "require"]


class InputError(ValueError):
    """A file or an argument from outside is not what was expected; the message says where, what and the remedy."""


class MissingExtra(ImportError):
    """An optional package is not installed; the message says what to install."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: torch raises a RuntimeError for that.

    >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    """
    words = ("allocate memory", "out of memory", "not enough memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(some in str(error).lower() for some in words)
    )


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional module, or say in one line which extra brings it.

    >>> require("json", "cli", "reading JSON").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{purpose} needs {module!r} ({error}): pip install 'avuc[{extra}]'") from error

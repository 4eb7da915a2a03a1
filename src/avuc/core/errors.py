"""Errors that a person can act on. The command prints them as one line and exits with code 2."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["InputError", "MissingExtra", "explained", "out_of_memory", "require"]

NO_MEMORY = ("not enough memory", "out of memory", "allocate memory", "bad_alloc", "bad allocation")


class InputError(ValueError):
    """A file or an argument from outside is not what was expected; the message says where, what and the remedy."""


class MissingExtra(ImportError):
    """An optional package is not installed; the message says what to install."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: torch raises a RuntimeError for that.

    >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    """
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in text for word in NO_MEMORY)
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


def explained(error: BaseException) -> str | None:
    """One line for a failure that no programmer can mend: no memory left, a killed process; None for any other.

    >>> explained(MemoryError())
    'there is not enough memory; use smaller batches or files, fewer workers or --replicates, or a larger machine'
    >>> explained(ZeroDivisionError()) is None
    True
    """
    text = " ".join(str(error).split())
    # torch's own class and words, without importing torch
    if type(error).__name__ == "OutOfMemoryError" or (isinstance(error, RuntimeError) and "CUDA out of memory" in text):
        return "the GPU has not enough memory; use smaller batches, fewer models at once, or --device cpu"
    if out_of_memory(error):
        remedy = "use smaller batches or files, fewer workers or --replicates, or a larger machine"
        return f"there is not enough memory; {remedy}"
    if isinstance(error, RuntimeError) and "DataLoader worker" in text:
        return f"a process that loads data was killed ({text[:160]}); use fewer workers, or a machine with more memory"
    if isinstance(error, RecursionError):
        return "the input is nested too deeply; check the file for damage"
    if isinstance(error, UnicodeError):
        encoding = getattr(error, "encoding", "text")
        return f"a name or a text cannot be written or read as {encoding}; rename the file, or set PYTHONUTF8=1"
    return None

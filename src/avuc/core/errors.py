"""Errors that a user can act on. The command prints them as one line and exits with code 2.

Code that handles one kind of error differently gets a subclass here; it never reads the message to decide.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Literal, NoReturn


class InputError(ValueError):
    """A file or an argument is not what was expected. The message is one line: where, the problem, the remedy."""


class NonFiniteError(InputError):
    """Logits, probabilities or a loss contain NaN or infinity. A training run that raises it has diverged."""


class BatchError(InputError):
    """A batch is not an input of the network and its labels.

    Args:
        problem: what is wrong.
        remedy: what a caller of `predict` can do about it; other functions name their own remedy.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem: str = problem


class NoExamplesError(InputError):
    """A loader or a dataset yields no examples."""


class NoColumnError(InputError):
    """A file has no column or array of the given name."""


class MissingExtra(ImportError):
    """An optional package is not installed. The message says what to install."""


def run_script(main: Callable[[], int | None]) -> NoReturn:
    """Run the `main` of a script and exit with its code. An `InputError` is one line on stderr and code 2."""
    try:
        sys.exit(main())
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def out_of_memory(error: BaseException) -> bool:
    """Return whether the error says that memory ran out, of this machine or of its GPU.

    >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    """
    return _exhausted_memory(error) is not None


def loader_process_died(error: BaseException) -> bool:
    """Return whether a worker process of a torch DataLoader died, for example because memory ran out.

    >>> loader_process_died(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."))
    True
    """
    # torch raises a plain RuntimeError, so only the text tells
    return isinstance(error, RuntimeError) and "DataLoader worker" in str(error)


def _exhausted_memory(error: BaseException) -> Literal["GPU", "machine"] | None:
    """Return which memory ran out, or None for any other error.

    Only this function reads texts about memory. On the CPU torch raises a plain RuntimeError, and so do C++ libraries
    behind Python packages: no class tells these errors from others. On a GPU torch has a class of its own, compared by
    name here because torch is not imported for an error message.
    """
    if isinstance(error, MemoryError):
        return "machine"
    if not isinstance(error, RuntimeError):
        return None
    text = str(error).lower()
    if type(error).__name__ == "OutOfMemoryError" or "cuda out of memory" in text:
        return "GPU"
    words = ("not enough memory", "out of memory", "allocate memory", "bad_alloc", "bad allocation")
    return "machine" if any(word in text for word in words) else None


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import and return an optional module, or raise `MissingExtra` with the extra that installs it.

    Args:
        module: name of the module.
        extra: the extra of this package that installs it, as in `pip install 'avuc[extra]'`.
        purpose: what needs the module, as the beginning of the message.

    >>> require("json", "cli", "reading JSON").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{purpose} needs {module!r} ({error}): pip install 'avuc[{extra}]'") from error


def explained(error: BaseException) -> str | None:
    """Return one line on a failure that is not a programming error, such as no memory left; None for any other error.

    >>> explained(MemoryError())
    'there is not enough memory; use smaller batches or files, fewer workers or --replicates, or a larger machine'
    >>> explained(ZeroDivisionError()) is None
    True
    """
    text = " ".join(str(error).split())
    memory = _exhausted_memory(error)
    if memory == "GPU":
        return "the GPU has not enough memory; use smaller batches, fewer models at once, or --device cpu"
    if memory == "machine":
        remedy = "use smaller batches or files, fewer workers or --replicates, or a larger machine"
        return f"there is not enough memory; {remedy}"
    if loader_process_died(error):
        return f"a process that loads data was killed ({text[:160]}); use fewer workers, or a machine with more memory"
    if isinstance(error, RecursionError):
        return "the input is nested too deeply; check the file for damage"
    if isinstance(error, UnicodeError):
        encoding = getattr(error, "encoding", "text")
        return f"a name or a text cannot be written or read as {encoding}; rename the file, or set PYTHONUTF8=1"
    return None

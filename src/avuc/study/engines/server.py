"""The process from which the processes of a study are forked."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

SAFE = "PYTHONSAFEPATH"


def context_for(module: str) -> Any:
    """Return the context of multiprocessing in which the processes of a study start.

    Args:
        module: imported once, before the processes are forked.
    """
    kind = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(kind)
    context.set_forkserver_preload([module])
    if kind == "forkserver":
        _start_server()
    return context


def _start_server() -> None:
    """Start the server without the working directory: there, a random.py of the user would hide Python's own.

    The processes themselves search the working directory again; by then the modules of torch are imported.
    """
    from multiprocessing import forkserver

    path, safe, here = list(sys.path), os.environ.get(SAFE), Path.cwd()
    sys.path[:] = [folder for folder in path if folder and Path(folder) != here]
    os.environ[SAFE] = "1"
    try:
        forkserver.ensure_running()
    finally:
        sys.path[:] = path
        del os.environ[SAFE]
        if safe is not None:
            os.environ[SAFE] = safe

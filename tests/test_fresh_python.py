"""The fixture `fresh_python` runs code as `python -c` does; `run_ranks` ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CODES = {
    "a name that the server has": "print(json, torch)",
    "an exit code": "raise SystemExit(3)",
    "a sentence instead of an exit code": "raise SystemExit('no such file')",
    "at the end": "import atexit; atexit.register(print, 'ended'); print('begun')",
    "an error at the end": "class A:\n    def __del__(self): raise ValueError('late')\nkept = A()",
    "a thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('done'))).start()",
    "input": "import sys, subprocess; print([sys.stdin.read()], subprocess.run('cat', capture_output=True).stdout)",
    "arguments": "import os, sys; print(sys.argv, sys.path[0], os.getcwd(), os.environ['ONE'])",
    "a kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("name", CODES)
def test_it_ends_as_python_does(name: str, fresh_python: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "1")
    found = fresh_python(CODES[name], "a", 2, cwd=tmp_path)
    command = [sys.executable, "-c", CODES[name], "a", "2"]
    expected = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert found.returncode == expected.returncode
    assert found.stdout == expected.stdout
    # Python 3.12 itself ends a hint with "?", and its module `traceback` does not
    assert found.stderr.rstrip("?\n").splitlines()[-1:] == expected.stderr.rstrip("?\n").splitlines()[-1:]


def hanging_rank(rank: int, port: int) -> None:
    time.sleep(600)


def test_ranks_that_hang_fail_their_test(run_ranks: Callable[..., None]) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"^hanging_rank: of 2 ranks, \[0, 1\] still ran after 0.1 s$"):
        run_ranks(hanging_rank, 2, seconds=0.1)

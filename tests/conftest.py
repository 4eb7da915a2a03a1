"""Shared by all tests: one thread, so that runs repeat exactly; the reason a GPU test or a slow one skips; ranks."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start: other tests run at the same time
torch.set_num_threads(1)
# processes of tests fork from a server that has imported these once
multiprocessing.set_forkserver_preload(["avuc.study", "hypothesis", "pytest", "torch._dynamo"])
settings.register_profile("avuc", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("avuc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that take minutes, too")


# files with few tests that take long: begun last, one of them would keep a process busy while the other has ended
LONG = {
    *("test_camvid", "test_code", "test_committed", "test_conv3x3", "test_damage", "test_demo", "test_faults"),
    *("test_fuzz", "test_imagenet", "test_local", "test_newcomer", "test_ranks", "test_ray", "test_site"),
    *("test_study_browser", "test_text_studies", "test_tiny_imagenet"),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        tests = Counter(item.path for item in items)
        items.sort(key=lambda item: (item.path.stem not in LONG, -tests[item.path], item.path))
    if not config.getoption("--slow"):
        later = pytest.mark.skip(reason="takes minutes; give --slow to run it")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(later)
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device and this machine has none")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def guide_code() -> Callable[[str, str], str]:
    """Return a function of a page of docs/ and a reason; it gives the one block of Python marked with that reason."""

    def code(page: str, reason: str) -> str:
        text = (Path(__file__).parents[1] / "docs" / f"{page}.md").read_text(encoding="utf-8")
        pattern = rf"^<!-- not run: {re.escape(reason)} -->\n```python\n(.*?)^```$"
        (found,) = re.findall(pattern, text, re.DOTALL | re.MULTILINE)
        return found

    return code


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., None]:
    """Call `function(rank, port, *arguments)` in each of `ranks` processes, with a free port for their group.

    Ranks that wait for each other forever are ended after `seconds`, and the test fails.
    """

    def run(function: Callable[..., None], ranks: int, *arguments: Any, seconds: float = 300) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = int(listener.getsockname()[1])
        started = mp.start_processes(function, (port, *arguments), nprocs=ranks, join=False, start_method="forkserver")
        end = time.monotonic() + seconds
        while not started.join(max(0.0, end - time.monotonic())):
            if time.monotonic() >= end:
                waiting = [rank for rank, process in enumerate(started.processes) if process.is_alive()]
                for process in started.processes:
                    process.kill()
                pytest.fail(f"{function.__name__}: of {ranks} ranks, {waiting} still ran after {seconds:g} s")

    return run


# Reads one request a line, forks, and answers with the exit code. Nothing of avuc is imported before the fork. At its
# end a child waits for its threads, runs the functions of `atexit` and forgets its own objects, as Python does; to take
# torch apart, too, would take half a second.
FORKS = """
import atexit, json, os, signal, sys, threading, traceback, types
import numpy, torch

for line in sys.stdin:
    code, arguments, folder, environment, files = json.loads(line)
    if not (pid := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
signal.alarm(300)
for stream, file in enumerate([os.devnull, *files]):
    os.dup2(os.open(file, os.O_CREAT | os.O_RDWR), stream)
os.chdir(folder)
os.environ.clear()
os.environ.update(environment)
sys.argv = ["-c", *arguments]
main = sys.modules["__main__"] = types.ModuleType("__main__")
status = 0
try:
    exec(compile(code, "<string>", "exec"), vars(main))
except SystemExit as end:
    status = end.code if isinstance(end.code, int) else int(end.code is not None)
    if not isinstance(end.code, (int, type(None))):
        print(end.code, file=sys.stderr)
except BaseException:
    status = 1
    traceback.print_exc()
threading._shutdown()
atexit._run_exitfuncs()
vars(main).clear()
sys.stdout.flush()
sys.stderr.flush()
os._exit(status)
"""


class FreshPython:
    """Runs code as `python -c` does, in a process that has imported torch but nothing of avuc: it saves two seconds.

    Not for tests of how Python starts: encodings, warnings, imports of torch.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: subprocess.Popen[str] | None = None

    def __call__(
        self, code: str, *arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        if self.server is None:
            command = [sys.executable, "-c", FORKS]
            self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        files = [self.folder / name for name in ("stdout", "stderr")]
        for file in files:
            file.write_bytes(b"")
        words = [str(argument) for argument in arguments]
        request = (code, words, str(cwd or Path.cwd()), {**os.environ, **(env or {})}, [str(file) for file in files])
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        status = int(self.server.stdout.readline())
        out, err = (file.read_text(encoding="utf-8") for file in files)
        return subprocess.CompletedProcess(words, status, out, err)

    def close(self) -> None:
        if self.server is not None:
            self.server.communicate()


@pytest.fixture(scope="session")
def fresh_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshPython]:
    fresh = FreshPython(tmp_path_factory.mktemp("fresh_python"))
    yield fresh
    fresh.close()

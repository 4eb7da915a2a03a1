"""Damaged files of every format end in the right figures or in one line; see fuzz.py for what is damaged and how."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fuzz.py")
pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits memory by /proc, as Linux has it")


def judged(first: int, count: int) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "", done.stdout[:4000]


def test_three_hundred_damaged_files():
    judged(0, 300)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 6000, 500))
def test_five_thousand_damaged_files(first):
    judged(first, 500)

"""`avuc evaluate` and `calibrate` on files of many rows, in a process of its own where memory is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from avuc.cli import main


def save(folder: Path, rows: int, classes: int) -> Path:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, rows).astype(np.int16)
    logits = rng.standard_normal((rows, classes), np.float32)
    logits[np.arange(rows), labels] += 2
    path = folder / "logits.npy"
    np.save(path, logits)
    np.save(folder / "labels.npy", labels)
    return path


def test_five_million_rows(tmp_path, capsys):
    """An IndexError from 4.9 million rows on, when intervals were drawn row by row."""
    path = save(tmp_path, 5_000_000, 2)
    assert main(["evaluate", str(path), "--json", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["n"], found["replicates"], found["bootstrap"]) == (5_000_000, 1000, "cells")
    low, high = found["intervals"]["accuracy"]
    # right where the label's logit is the larger: Φ(2 / √2)
    assert low < 0.92135 < high
    width = 2 * 1.96 * (0.92135 * 0.07865 / 5e6) ** 0.5
    assert high - low == pytest.approx(width, rel=0.15)
    said = " ".join(capsys.readouterr().out.split())
    assert "1,000 bootstrap replicates of groups of similar rows (there are many rows)" in said


def test_calibrate_with_more_than_100_000_rows(tmp_path, capsys):
    path, out = save(tmp_path, 100_001, 2), tmp_path / "out.json"
    words = ["--method", "temperature", "--out", str(tmp_path / "cal.json"), "--json", str(out)]
    assert main(["calibrate", str(path), *words]) == 0
    found = json.loads(out.read_text())
    assert (found["n"], found["replicates"], found["bootstrap"]) == (100_001, 1000, "random cells")
    said = " ".join(capsys.readouterr().out.split())
    assert "1,000 bootstrap replicates of random groups of rows (there are many rows)" in said


PROGRAM = """
import contextlib, io, re, sys
from avuc.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["evaluate", sys.argv[1], "--replicates", "100"]) == 0
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]))
"""


def peak(path: Path) -> int:
    """Peak memory in bytes of `avuc evaluate` on a file."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells a process its own peak memory")
def test_memory_stays_below_the_size_of_the_file(tmp_path):
    """Held in memory, such a file took almost three times its size."""
    (tmp_path / "small").mkdir()
    base = peak(save(tmp_path / "small", 1000, 50))
    path = save(tmp_path, 800_000, 50)
    assert peak(path) - base < path.stat().st_size

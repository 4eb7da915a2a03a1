"""`multilabel` works on a few labels at a time: same figures, same messages, and little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import avuc.metrics.multilabel  # noqa: F401  # the module, which the package's function of that name hides
from avuc.core.errors import InputError
from avuc.metrics import METRICS, evaluate, multilabel

MODULE = sys.modules["avuc.metrics.multilabel"]


@pytest.mark.parametrize("block", [1, 90, 10**6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_of_labels_equal_a_loop(block, dtype, monkeypatch):
    """30 rows: a block of 90 has three of the seven labels; one label has no known decision."""
    rng = np.random.default_rng(0)
    probs = rng.beta(0.7, 0.7, (30, 7)).round(2).astype(dtype)
    labels = (rng.random((30, 7)) < probs).astype(np.int64)
    labels[rng.random((30, 7)) < 0.2] = -100
    labels[:, 4] = -100
    monkeypatch.setattr(MODULE, "BLOCK", block)
    found = multilabel(probs, labels, threshold=0.4, bins=9)
    for label in range(7):
        known = labels[:, label] >= 0
        assert found.rows[label] == known.sum()
        one = evaluate(probs[known, label], labels[known, label], threshold=0.4, bins=9) if known.any() else {}
        for name in METRICS:
            assert found.per_label[name][label] == pytest.approx(one.get(name, np.nan), abs=1e-12, nan_ok=True)
    every = labels >= 0
    assert found.micro == pytest.approx(evaluate(probs[every], labels[every], threshold=0.4, bins=9), abs=1e-12)


def test_blocks_do_not_change_messages(monkeypatch):
    probs, labels = np.full((4, 6), 0.5), np.zeros((4, 6))
    probs[2, 5], labels[1, 3] = 1.5, 2
    messages = []
    for block in (1, 10**6):
        monkeypatch.setattr(MODULE, "BLOCK", block)
        with pytest.raises(InputError) as of_labels:
            multilabel(np.full((4, 6), 0.5), labels)
        with pytest.raises(InputError) as of_probs:
            multilabel(probs, np.zeros((4, 6)))
        messages.append((str(of_labels.value), str(of_probs.value)))
    assert messages[0] == messages[1]
    assert "0…2" in messages[0][0]
    assert "found 1.5 in row 17" in messages[0][1]


PROGRAM = """
import re
import numpy as np
from avuc.metrics import multilabel
def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
rng = np.random.default_rng(0)
probs = rng.random((60_000, 100), dtype=np.float32)
labels = (rng.random((60_000, 100), dtype=np.float32) < probs).astype(np.int8)
multilabel(probs[:50], labels[:50])
before = peak()
multilabel(probs, labels)
print((peak() - before) / (probs.nbytes + labels.nbytes))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells a process its own peak memory")
def test_memory_is_a_small_multiple_of_the_input():
    """24 times the probabilities and labels, when all were reduced at once; 6 now, and 3 of four times the rows."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 10

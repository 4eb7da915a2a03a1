"""Logits for the calibration tests."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest


def _make_logits(rows: int = 300, classes: int = 5, temperature: float = 1.7, seed: int = 0, scale: float = 2.0):
    """Random logits with labels drawn from softmax(z/temperature)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * scale
    probs = np.exp(logits / temperature - (logits / temperature).max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    labels = (probs.cumsum(1) > rng.random((rows, 1))).argmax(1)
    return logits, labels


@pytest.fixture(scope="session")
def make_logits():
    """The function above; session-wide, so that property tests may use it."""
    return _make_logits


@pytest.fixture
def logits_and_labels():
    return _make_logits()


@pytest.fixture
def draws_and_labels():
    logits, labels = _make_logits(rows=200)
    noise = np.random.default_rng(1).normal(size=(4, *logits.shape))
    return logits + noise, labels


@pytest.fixture(scope="session")
def reference():
    """Logits and labels to fit on, logits to predict, and what another library predicts (`make_reference.py`)."""
    script = Path(__file__).with_name("make_reference.py")
    logits, labels, fresh, _ = runpy.run_path(str(script))["reference_data"]()
    recorded = json.loads(script.with_name("reference.json").read_text())
    return lambda name: (logits, labels, fresh, np.array(recorded[name]))

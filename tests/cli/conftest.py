"""Saved predictions of a model that is too sure of itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def overconfident(rows: int, seed: int, scale: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, rows)
    logits = rng.normal(size=(rows, 4))
    logits[np.arange(rows), labels] += 2
    return (scale * logits).astype(np.float32), labels


@pytest.fixture
def validation(tmp_path: Path) -> Path:
    logits, labels = overconfident(400, 0)
    path = tmp_path / "validation.npz"
    np.savez(path, logits=logits, labels=labels)
    return path


@pytest.fixture
def probs(tmp_path: Path) -> Path:
    """Probabilities under other names."""
    logits, labels = overconfident(300, 1)
    e = np.exp(logits - logits.max(1, keepdims=True))
    path = tmp_path / "test.npz"
    np.savez(path, predictions=e / e.sum(1, keepdims=True), ground_truth=labels)
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside.npz"
    np.savez(path, logits=np.random.default_rng(2).normal(size=(200, 4)).astype(np.float32))
    return path

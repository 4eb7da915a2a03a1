"""Predictions to measure: a world whose labels follow known probabilities, and awkward rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

World = Callable[..., tuple[np.ndarray, np.ndarray]]


def make_world(
    n: int, c: int, seed: int = 0, sharpen: float = 1.0, scale: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn from softmax(z); stated probabilities softmax(sharpen · z), calibrated when sharpen is 1."""
    rng = np.random.default_rng(seed)
    z = scale * rng.standard_normal((n, c))
    truth, stated = (np.exp(t * z - (t * z).max(1, keepdims=True)) for t in (1.0, sharpen))
    truth, stated = truth / truth.sum(1, keepdims=True), stated / stated.sum(1, keepdims=True)
    labels = (rng.random((n, 1)) > truth.cumsum(1)).sum(1).clip(max=c - 1)
    return stated, labels


def make_awkward(n: int, c: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Equal confidences, probabilities of exactly 0 and 1, and values on bin edges, shuffled among ordinary rows."""
    rng = np.random.default_rng(seed)
    probs, labels = make_world(n, c, seed, sharpen=1.5)
    kind = rng.integers(0, 4, n)
    probs[kind == 0] = np.eye(c)[rng.integers(0, c, int((kind == 0).sum()))]
    probs[kind == 1] = 1 / c
    if c > 1:
        edge = np.zeros(c)
        edge[0], edge[1] = 0.8, 0.2
        probs[kind == 2] = rng.permuted(np.tile(edge, (int((kind == 2).sum()), 1)), axis=1)
    return probs, labels


@pytest.fixture
def world() -> World:
    return make_world


@pytest.fixture
def awkward() -> World:
    return make_awkward

"""Predictions counted by distinct score: the same counts whichever sort is used."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import avuc.metrics.ties as ties
from avuc.metrics.ties import group_ties


def slow_groups(values: np.ndarray, correct: np.ndarray) -> tuple[list[float], list[int], list[int]]:
    counts: dict[float, list[int]] = {}
    for value, right in zip(values.tolist(), correct.tolist(), strict=True):
        counts.setdefault(value + 0.0, [0, 0])[0 if right else 1] += 1
    ordered = sorted(counts)
    return ordered, [counts[value][0] for value in ordered], [counts[value][1] for value in ordered]


@pytest.mark.parametrize("sort", ["torch", "numpy"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_groups_equal_a_plain_count(monkeypatch: pytest.MonkeyPatch, sort: str, dtype: type) -> None:
    """Scores below and above 2 (the top bit of a key), ties, 0 and −0, the smallest and the largest numbers."""
    monkeypatch.setattr(ties, "RADIX_SORT", 1)
    if sort == "numpy":
        monkeypatch.delitem(sys.modules, "torch")
    generator = np.random.default_rng(0)
    wide = np.exp(generator.normal(0, 30, 3000).clip(-80, 80)).astype(np.float32)
    edges = [0.0, -0.0, 1.0, 2.0, np.nextafter(np.float32(2), np.float32(0)), np.finfo(np.float32).max, 1e-45]
    values = np.concatenate([wide, wide[:500], np.asarray(edges, np.float32)]).astype(dtype)
    correct = generator.random(len(values)) < 0.6
    groups = group_ties(values, correct)
    expected = slow_groups(values.astype(np.float64), correct)
    for found, wanted in zip(groups, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_both_sorts_agree_on_a_large_set(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    values, correct = generator.random(200_000, dtype=np.float32) * 7, generator.random(200_000) < 0.5
    by_torch = group_ties(values, correct)
    monkeypatch.delitem(sys.modules, "torch")
    for found, wanted in zip(by_torch, group_ties(values, correct), strict=True):
        np.testing.assert_array_equal(found, wanted)

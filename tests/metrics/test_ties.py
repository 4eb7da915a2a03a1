"""Predictions counted by distinct score."""

from __future__ import annotations

import numpy as np
import pytest

from avuc.metrics.ties import group_ties


def slow_groups(values: np.ndarray, correct: np.ndarray) -> tuple[list[float], list[int], list[int]]:
    counts: dict[float, list[int]] = {}
    for value, right in zip(values.tolist(), correct.tolist(), strict=True):
        counts.setdefault(value + 0.0, [0, 0])[0 if right else 1] += 1
    ordered = sorted(counts)
    return ordered, [counts[value][0] for value in ordered], [counts[value][1] for value in ordered]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_groups_equal_a_plain_count(dtype: type) -> None:
    """Scores below and above 2 (the top bit of a key), ties, 0 and −0, the smallest and the largest numbers."""
    generator = np.random.default_rng(0)
    wide = np.exp(generator.normal(0, 30, 3000).clip(-80, 80)).astype(np.float32)
    edges = [0.0, -0.0, 1.0, 2.0, np.nextafter(np.float32(2), np.float32(0)), np.finfo(np.float32).max, 1e-45]
    values = np.concatenate([wide, wide[:500], np.asarray(edges, np.float32)]).astype(dtype)
    correct = generator.random(len(values)) < 0.6
    groups = group_ties(values, correct)
    expected = slow_groups(values.astype(np.float64), correct)
    for found, wanted in zip(groups, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)

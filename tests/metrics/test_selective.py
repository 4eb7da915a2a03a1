from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from avuc.core.errors import InputError
from avuc.metrics import aurc, risk_coverage_curve, selective
from avuc.metrics.selective import harmonic_difference

World = Callable[..., tuple[np.ndarray, np.ndarray]]


def slow_aurc(wrong: list[bool]) -> float:
    """Mean of the error rates of the n surest, for rows in the order of falling confidence."""
    return sum(sum(wrong[:n]) / n for n in range(1, len(wrong) + 1)) / len(wrong)


@pytest.mark.parametrize("score", ["confidence", "entropy"])
def test_against_a_loop(score: str, world: World) -> None:
    probs, labels = world(150, 4, sharpen=1.5)
    sure = probs.max(1) if score == "confidence" else (probs * np.log(probs)).sum(1)
    order = np.argsort(-sure)
    wrong = (probs.argmax(1) != labels)[order]
    assert aurc(probs, labels, score=score) == pytest.approx(slow_aurc(wrong.tolist()), abs=1e-12)
    curve = risk_coverage_curve(probs, labels, score=score)
    np.testing.assert_allclose(curve.risk, np.cumsum(wrong) / np.arange(1, 151))
    np.testing.assert_allclose(curve.coverage, np.arange(1, 151) / 150)
    np.testing.assert_allclose(curve.score, np.abs(sure[order]))


def test_equal_scores_are_the_mean_over_all_orders() -> None:
    probs = np.array([[0.9, 0.1]] + [[0.7, 0.3]] * 4 + [[0.6, 0.4]] * 2)
    labels = np.array([0, 0, 1, 1, 0, 1, 0])
    wrong = labels.tolist()
    orders = [
        slow_aurc([bool(x) for x in (wrong[0], *middle, *last)])
        for middle in itertools.permutations(wrong[1:5])
        for last in itertools.permutations(wrong[5:])
    ]
    assert aurc(probs, labels) == pytest.approx(np.mean(orders), abs=1e-12)
    assert risk_coverage_curve(probs, labels).coverage.tolist() == pytest.approx([1 / 7, 5 / 7, 1])


def test_table_and_digamma_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selective, "TABLE", 10**6)
    n = np.array([0.0, 1, 5, 1000, 10**6])
    m = np.array([3.0, 0, 1, 50, 10**6])
    table = harmonic_difference(n, m)
    assert table[:3].tolist() == pytest.approx([1 + 1 / 2 + 1 / 3, 0, 1 / 6])
    monkeypatch.setattr(selective, "TABLE", 0)
    np.testing.assert_allclose(harmonic_difference(n, m), table, atol=1e-12)


def test_bad_score() -> None:
    with pytest.raises(InputError, match="'confidence' or 'entropy'"):
        aurc(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), score="margin")

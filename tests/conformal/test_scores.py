"""Scores and sets against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avuc.conformal import scores as module
from avuc.conformal.scores import METHODS, Score


def slow_scores(score: Score, probs: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The score of every class, by the formula."""
    out = np.zeros(probs.shape)
    for i, row in enumerate(probs.astype(float)):
        total = 0.0
        for place, k in enumerate(sorted(range(len(row)), key=lambda k: (-row[k], k)), start=1):
            total += row[k]
            out[i, k] = total - uniform[i] * row[k] + score.penalty * max(0, place - score.k_reg)
            if score.method == "threshold":
                out[i, k] = 1 - row[k]
    return out


def make(rows: int, classes: int, seed: int, *, ties: bool, dtype: type = np.float64):
    rng = np.random.default_rng(seed)
    if ties:  # quarters, and zeros
        probs = rng.multinomial(4, np.full(classes, 1 / classes), rows) / 4
    else:
        probs = rng.dirichlet(np.ones(classes), rows)
    return torch.from_numpy(probs.astype(dtype)), rng.integers(0, classes, rows), rng.random(rows)


@given(st.integers(1, 6), st.integers(1, 7), st.integers(0, 99), st.booleans(), st.sampled_from(METHODS), st.data())
def test_scores_and_sets_are_those_of_a_loop(
    rows: int, classes: int, seed: int, ties: bool, method: str, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    probs, labels, uniform = make(rows, classes, seed, ties=ties, dtype=dtype)
    penalty = data.draw(st.sampled_from([0.0, 0.3])) if method == "raps" else 0.0
    score = Score(method, penalty, data.draw(st.integers(0, 3)))
    slow = slow_scores(score, probs.numpy(), uniform)
    own = score.of_labels(probs, labels, uniform)
    assert own == pytest.approx(slow[np.arange(rows), labels], abs=1e-12)
    # one threshold: that of a label, so that equality matters
    assert score.sets(probs, own[:1], uniform).tolist() == (slow <= own[0]).tolist()
    many = np.linspace(0, 1.2, classes) + 1e-3
    if classes > 1:
        assert score.sets(probs, many, uniform).tolist() == (slow <= many).tolist()


@pytest.mark.parametrize("method", METHODS)
def test_blocks_change_nothing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels, uniform = make(50, 4, 3, ties=False)
    score = Score(method, 0.1, 1)
    whole = score.of_labels(probs, labels, uniform), score.sets(probs, np.array([0.6]), uniform)
    monkeypatch.setattr(module, "BLOCK", 12)
    assert score.of_labels(probs, labels, uniform).tolist() == whole[0].tolist()
    assert score.sets(probs, np.array([0.6]), uniform).tolist() == whole[1].tolist()


@pytest.mark.parametrize("method", METHODS)
def test_a_label_is_in_the_set_of_its_own_score(method: str) -> None:
    """Sets and labels' scores are computed in two ways; both must round alike."""
    probs, labels, uniform = make(300, 1000, 1, ties=False, dtype=np.float32)
    score = Score(method, 0.01, 5)
    own = score.of_labels(probs, labels, uniform)
    for row in range(0, 300, 13):
        assert score.sets(probs[row : row + 1], own[row : row + 1], uniform[row : row + 1])[0, labels[row]]

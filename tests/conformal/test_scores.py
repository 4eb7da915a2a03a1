"""Scores and sets against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avuc.conformal import ConformalClassifier
from avuc.conformal import scores as module
from avuc.conformal.scores import LEAST, METHODS, Score


def slow_scores(score: Score, probs: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The score of every class, by the formula: the sum of the larger probabilities is 1 minus that of the others."""
    out = np.zeros(probs.shape)
    for i, row in enumerate(probs.astype(float)):
        rest = 0.0
        ranked = sorted(range(len(row)), key=lambda k: (-row[k], k))
        for place, k in reversed([*enumerate(ranked, start=1)]):
            assert sum(row[ranked[:place]]) == pytest.approx(1 - rest, abs=1e-6)  # up to the rounding of float32
            out[i, k] = 1 - rest - uniform[i] * max(row[k], LEAST) + score.penalty * max(0, place - score.k_reg)
            rest += row[k]
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


@pytest.mark.parametrize("coverage", [0.9, 0.95])
def test_the_precision_of_votes_changes_no_set_and_the_coverage_is_exact(coverage: float) -> None:
    """Votes of ten trees: one label in six has the probability 0, so the threshold is among the scores of 1."""
    rng, covered = np.random.default_rng(0), []

    def votes(rows: int):
        logits = 1.5 * rng.normal(size=(rows, 10))
        truth, said = (np.exp(each) / np.exp(each).sum(1, keepdims=True) for each in (logits, 1.3 * logits))
        labels = (truth.cumsum(1) > rng.random((rows, 1))).argmax(1)
        return np.stack([rng.multinomial(10, row) for row in said]) / 10, labels

    for _ in range(30):
        (probs, labels), (new, new_labels) = votes(300), votes(300)
        fitted = [ConformalClassifier("aps", coverage).fit(probs.astype(kind), labels) for kind in (float, np.float32)]
        sets = [each.predict_sets(new.astype(kind)) for each in fitted for kind in (float, np.float32)]
        assert all(torch.equal(each, sets[0]) for each in sets[1:])
        assert fitted[0].is_exact
        covered.append(sets[0].numpy()[np.arange(300), new_labels].mean())
    assert abs(np.mean(covered) - coverage) < 0.015


@pytest.mark.parametrize("randomized", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [30, 300])
def test_the_precision_of_large_logits_changes_no_set(scale: int, method: str, randomized: bool) -> None:
    """Float32 has no probabilities below 1e-45: RAPS then ranked most classes by their number."""
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(600, 100, generator=generator)
    labels = (logits + scale * torch.randn(600, 100, generator=generator)).argmax(1)
    sets = []
    for kind in (torch.float32, torch.float64):
        conformal = ConformalClassifier(method, randomized=randomized).fit(
            logits[:300].to(kind), labels[:300], logits=True
        )
        sets.append(conformal.predict_sets(logits[300:].to(kind), logits=True))
    assert torch.equal(*sets)


@pytest.mark.parametrize("small", [5.420688897803244e-10, 8.510525144172308e-09, 1e-9, 1e-12, 0.3])
@pytest.mark.parametrize("kinds", [(float, float), (float, np.float32), (np.float32, np.float32)])
def test_rows_with_the_score_of_the_threshold_are_covered(small: float, kinds: tuple[type, type]) -> None:
    """Many labels have the same tiny probability, as after clipping. Near 0, float32 is finer than 1 − p in float64."""
    probs, labels = np.array([[small, 1 - small]] * 20), [0] * 10 + [1] * 10
    conformal = ConformalClassifier(coverage=0.8).fit(probs.astype(kinds[0]), labels)
    assert bool(conformal.predict_sets(probs.astype(kinds[1]))[:, 0].all())

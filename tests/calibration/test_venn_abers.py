"""Venn–Abers calibration against its definition with scikit-learn's isotonic regression, and against venn-abers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.isotonic import IsotonicRegression

from avuc.calibration import logits_from_probs
from avuc.calibration.venn_abers import VennAbersCalibration, venn_abers_bounds
from avuc.core.errors import InputError


def slow_bounds(x, y, weight, at):
    """p₀ and p₁ by their definition: the regression is fitted again with the new row."""
    found = []
    for label in (0, 1):
        fitted = IsotonicRegression().fit(np.append(x, at), np.append(y, label), np.append(weight, 1.0))
        found.append(fitted.predict([at])[0])
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 25), st.integers(0, 9999), st.integers(1, 20))
def test_bounds_equal_their_definition_with_ties_and_weights(rows, seed, distinct):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, distinct, rows) / distinct, rng.integers(0, 2, rows)
    weight = rng.integers(1, 4, rows).astype(float)
    places, number = np.unique(x, return_inverse=True)
    lower, upper = venn_abers_bounds(np.bincount(number, weight), np.bincount(number, weight * y))
    assert (np.diff(lower) >= -1e-12).all()
    assert (np.diff(upper) >= -1e-12).all()
    for at in (*places, -0.1, 1.1, *(places[1:] + places[:-1]) / 2):
        wanted = slow_bounds(x, y, weight, at)
        found = lower[np.searchsorted(places, at, "right")], upper[np.searchsorted(places, at)]
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_equal_to_the_library(reference):
    logits, labels, fresh, probs = reference("venn-abers one_vs_all")
    np.testing.assert_allclose(
        VennAbersCalibration().fit(logits, labels).predict_proba(fresh), probs, rtol=1e-12, atol=1e-12
    )


def test_rows_with_equal_scores_count_as_one_place():
    """The votes of ten trees: the softmax of their logarithms differs in the last digits, and the shares are equal."""
    rng = np.random.default_rng(0)
    votes = rng.integers(1, 9, (500, 3)).astype(float)
    probs = votes / votes.sum(1, keepdims=True)
    labels = (probs.cumsum(1) > rng.random((500, 1))).argmax(1)
    logits = logits_from_probs(probs)
    found = VennAbersCalibration().fit(logits, labels)
    for k in range(3):
        q = np.round(probs[:, k], 9)
        lower, upper = slow_bounds(q, labels == k, np.ones(500), q[7])
        lengths, places, values = (part[k] for part in found.table())
        mapped = values[max(np.searchsorted(places[:lengths], probs[7, k]) - 1, 0)]
        assert mapped == pytest.approx(upper / (1 - lower + upper), abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_result_does_not_depend_on_the_float_type(seed):
    """The softmax of float32 logits breaks ties of equal votes: probabilities differed by up to 0.5."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, 300)
    votes = rng.multinomial(10, 0.5 * np.eye(4)[labels] + 0.125) / 10
    logits = logits_from_probs(votes)
    one = VennAbersCalibration().fit(logits, labels)
    probs = one.predict_proba(logits)
    for k in range(4):
        q = np.round(votes[:, k], 9)
        lower, upper = np.array([slow_bounds(q, labels == k, np.ones(300), at) for at in (0.2, 0.3)]).T
        wanted = upper / (1 - lower + upper)
        lengths, places, values = (part[k] for part in one.table())
        found = values[np.searchsorted(places[:lengths], [0.2, 0.3]) - 1]
        np.testing.assert_allclose(found, wanted, atol=1e-9)
    for short in (logits_from_probs(votes.astype(np.float32)), logits.astype(np.float32)):
        other = VennAbersCalibration().fit(short, labels)
        assert other.lengths_.tolist() == one.lengths_.tolist()
        for fitted, rows in ((other, short), (other, logits), (one, short)):
            np.testing.assert_allclose(fitted.predict_proba(rows), probs, rtol=0, atol=1e-6)


def test_many_close_probabilities_are_not_one_place():
    """Each of them is within the rounding of float32 of the next one."""
    rng = np.random.default_rng(0)
    logits = np.stack((np.zeros(20_000), np.linspace(0, 0.05, 20_000)), 1).astype(np.float32)
    labels = (rng.random(20_000) < np.linspace(0.1, 0.9, 20_000)).astype(int)
    short, exact = (VennAbersCalibration().fit(rows, labels) for rows in (logits, logits.astype(np.float64)))
    assert abs(short.predict_proba(logits) - exact.predict_proba(logits)).mean() < 2e-3
    assert np.ptp(short.predict_proba(logits)[:, 1]) > 0.7


def test_two_classes_are_one_problem(make_logits):
    logits, labels = make_logits(rows=150, classes=2)
    one = logits[:, 1] - logits[:, 0]
    scaler = VennAbersCalibration().fit(one, labels)
    found = scaler.predict_proba(np.array([-1.0, 0.3, 2.0]))[:, 1]
    q = softmax(logits, axis=1)[:, 1]
    for at, p in zip((-1.0, 0.3, 2.0), found, strict=True):
        lower, upper = slow_bounds(q, labels, np.ones(150), 1 / (1 + np.exp(-at)))
        assert p == pytest.approx(upper / (1 - lower + upper), abs=1e-9)


def test_rounding_changes_little(make_logits, monkeypatch):
    logits, labels = make_logits(rows=3000, classes=4)
    fresh, fresh_labels = make_logits(rows=500, classes=4, seed=1)
    exact = VennAbersCalibration(spacing=0).fit(logits, labels)
    rounded = VennAbersCalibration(spacing=1 / 32).fit(logits, labels)
    assert rounded.lengths_.sum() < 0.5 * exact.lengths_.sum()
    assert abs(exact.predict_proba(fresh) - rounded.predict_proba(fresh)).mean() < 5e-3
    assert rounded.score(fresh, fresh_labels) == pytest.approx(exact.score(fresh, fresh_labels), abs=5e-3)
    monkeypatch.setattr("avuc.calibration.venn_abers.EXACT_ELEMENTS", 100)
    assert VennAbersCalibration().fit(logits, labels).places_.tolist() == rounded.places_.tolist()


@pytest.mark.parametrize("spacing", [0, 1 / 32])
def test_probabilities_of_zero_and_one(spacing):
    probs = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.5]] * 5)
    labels = np.array([0, 1, 1, 0] * 5)
    found = VennAbersCalibration(spacing=spacing).fit(logits_from_probs(probs), labels)
    calibrated = found.predict_proba(logits_from_probs(np.array([[1.0, 0.0], [0.0, 1.0]])))
    # of the rows with q₁ = 0, five of ten have the label 1; pooled with those of q₁ = 0.5, five of fifteen
    assert calibrated[0, 1] == pytest.approx(0.35, abs=0.03)
    assert calibrated[1, 1] > 0.85


def test_draws_and_impossible_classes(draws_and_labels):
    draws, labels = draws_and_labels
    together = VennAbersCalibration().fit(draws, labels)
    rows = VennAbersCalibration().fit(draws.reshape(-1, 5), np.tile(labels, len(draws)))
    np.testing.assert_allclose(together.transform(draws).reshape(-1, 5), rows.transform(draws.reshape(-1, 5)))
    impossible = together.predict_proba(np.array([[1.0, -np.inf, 0.0, -np.inf, 3.0]]))
    assert impossible[0, [1, 3]].tolist() == [0, 0]


def test_extremes(make_logits):
    one = VennAbersCalibration().fit(np.array([[3.0, 0.0, 1.0]]), [2]).predict_proba(np.array([[3.0, 0.0, 1.0]]))
    # with a row of the class: p₀ = 1/2, p₁ = 1; with a row of the rest: p₀ = 0, p₁ = 1/2
    np.testing.assert_allclose(one, np.array([[1 / 3, 1 / 3, 2 / 3]]) / (4 / 3), atol=1e-12)
    many = make_logits(rows=80, classes=1000)
    half = torch.as_tensor(many[0]).half()
    probs = VennAbersCalibration().fit(half, many[1]).predict_proba(half)
    assert bool((probs > 0).all())  # never 0, unlike isotonic regression
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("spacing", [-1, 2, "x", True])
def test_wrong_spacing(spacing, logits_and_labels):
    with pytest.raises(InputError, match="spacing must be"):
        VennAbersCalibration(spacing=spacing).fit(*logits_and_labels)

"""Isotonic regression and histogram binning against scikit-learn and their definitions."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV, calibration_curve
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression

from avuc.calibration import check_calibrator, logits_from_probs
from avuc.calibration.one_vs_rest import HistogramBinning, IsotonicCalibration
from avuc.calibration.pooling import isotonic_regression, isotonic_shares
from avuc.core.errors import InputError
from avuc.core.ties import without_floor, without_last_bits

BOTH = pytest.mark.parametrize("kind", [IsotonicCalibration, HistogramBinning])


class Softmax(ClassifierMixin, BaseEstimator):
    """A trained classifier whose features are logits."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        return softmax(X, axis=1)

    def predict(self, X):
        return self.classes_[X.argmax(1)]


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("weighted", [False, True])
def test_isotonic_equals_scikit_learn(classes, weighted, make_logits):
    logits, labels = make_logits(rows=500, classes=classes)
    weight = np.random.default_rng(0).random(500) + 0.1 if weighted else None
    other = CalibratedClassifierCV(FrozenEstimator(Softmax().fit(logits, labels)), method="isotonic")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a frozen estimator takes no weights, the calibrators do
        other.fit(logits, labels, sample_weight=weight)
    fresh = make_logits(rows=400, classes=classes, seed=1)[0]
    ours = IsotonicCalibration().fit(logits, labels, weight).predict_proba(fresh)
    np.testing.assert_allclose(ours, other.predict_proba(fresh), atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 9999), st.integers(1, 30))
def test_pooling_equals_scikit_learn_with_ties(rows, seed, distinct):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, distinct, rows) / distinct, rng.integers(0, 2, rows)
    weight = rng.integers(1, 4, rows).astype(float)
    places, values = isotonic_regression(x, y, weight)
    assert (np.diff(places) > 0).all()
    assert (np.diff(values) >= 0).all()
    at = np.linspace(-0.2, 1.2, 57)
    wanted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(x, y, sample_weight=weight).predict(at)
    np.testing.assert_allclose(np.interp(at, places, values), wanted, atol=1e-9)
    places, values = isotonic_shares(x, np.sort(x[y == 1]))
    assert (np.diff(places) > 0).all()
    plain = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(x, y).predict(at)
    np.testing.assert_allclose(np.interp(at, places, values), plain, atol=1e-12)


def slow_histogram(probs, labels, fresh, bins):
    """Uniform bins; every figure from its definition."""
    result = np.empty_like(fresh)
    for k in range(fresh.shape[1]):
        for row, p in enumerate(fresh[:, k]):
            index = max(int(np.ceil(p * bins)) - 1, 0)
            inside = [
                label == k
                for q, label in zip(probs[:, k], labels, strict=True)
                if max(int(np.ceil(q * bins)) - 1, 0) == index
            ]
            result[row, k] = sum(inside) / len(inside) if inside else (index + 0.5) / bins
    return result / result.sum(1, keepdims=True)


def test_uniform_bins_equal_their_definition_and_scikit_learn(make_logits):
    logits, labels = make_logits(rows=300)
    fresh = make_logits(rows=40, seed=1)[0]
    binning = HistogramBinning(10, strategy="uniform").fit(logits, labels)
    wanted = slow_histogram(softmax(logits, axis=1), labels, softmax(fresh, axis=1), 10)
    np.testing.assert_allclose(binning.predict_proba(fresh), wanted, atol=1e-9)
    for k, values in enumerate(binning.table()[2]):
        p = softmax(logits, axis=1)[:, k]
        shares, _ = calibration_curve(labels == k, p, n_bins=10, strategy="uniform")
        full = np.unique(np.ceil(p * 10).astype(int) - 1)
        np.testing.assert_allclose(values[full], shares, atol=1e-12)


def test_quantile_bins_hold_equally_many_rows(make_logits):
    logits, labels = make_logits(rows=300)
    binning = HistogramBinning(6).fit(logits, labels)
    lengths, places, values = binning.table()
    assert lengths.tolist() == [6] * 5
    for k in range(5):
        p = softmax(logits, axis=1)[:, k]
        inside = np.searchsorted(places[k], p) - 1
        assert np.bincount(inside).tolist() == [50] * 6
        for b in range(6):
            assert values[k, b] == pytest.approx((labels[inside == b] == k).mean())


@BOTH
def test_each_posterior_sample_is_a_row(kind, draws_and_labels):
    draws, labels = draws_and_labels
    together = kind().fit(draws, labels)
    rows = kind().fit(draws.reshape(-1, 5), np.tile(labels, len(draws)))
    np.testing.assert_allclose(together.transform(draws).reshape(-1, 5), rows.transform(draws.reshape(-1, 5)))
    wanted = np.mean([together.predict_proba(one) for one in draws], axis=0)
    np.testing.assert_allclose(together.predict_proba(draws), wanted, atol=1e-12)


@BOTH
def test_enough_rows_are_calibrated_and_judged(kind, make_logits):
    logits, labels = make_logits(rows=6000, classes=3, temperature=3.0)
    check = check_calibrator(kind(), logits, labels)
    assert check.figures["ece"].after < 0.2 * check.figures["ece"].before


@BOTH
def test_extremes(kind, make_logits):
    one = kind().fit(np.array([[3.0, 0.0, 1.0]]), [2])
    np.testing.assert_allclose(one.predict_proba(np.zeros((1, 3))), [[0, 0, 1]], atol=1e-11)
    impossible = kind().fit(*make_logits()).predict_proba(np.array([[1.0, -np.inf, 0.0, -np.inf, 3.0]]))
    assert impossible[0, [1, 3]].tolist() == [0, 0]
    assert impossible.sum() == pytest.approx(1)
    many = make_logits(rows=80, classes=1000)
    half = torch.as_tensor(many[0]).half()
    probs = kind().fit(half, many[1]).predict_proba(half)
    assert bool(torch.isfinite(probs).all())
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-5)


def test_no_class_left_is_uniform():
    """Class 0 has a share of 0 below q = 0.9, and so has class 1: nothing is known about a row between."""
    logits, labels = np.array([[4.0, 0, 0], [0, 4.0, 0], [0, 0, 4.0]] * 5), np.array([0, 1, 2] * 5)
    binning = HistogramBinning(2, strategy="uniform").fit(logits, labels)
    np.testing.assert_allclose(binning.predict_proba(np.zeros((1, 3))), 1 / 3)


@pytest.mark.parametrize(("bins", "strategy"), [(0, "uniform"), (2.5, "uniform"), (True, "uniform"), (5, "equal")])
def test_wrong_parameters(bins, strategy, logits_and_labels):
    with pytest.raises(InputError, match=r"bins must be|strategy must be"):
        HistogramBinning(bins, strategy=strategy).fit(*logits_and_labels)


@BOTH
def test_near_ties_do_not_depend_on_the_layout_in_memory(kind):
    """Probabilities at the floor of 1e-12 differ in the last digit; that must not matter in fit or transform."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 700)
    probs = torch.softmax(torch.tensor(40 * (rng.normal(size=(700, 10)) + np.eye(10)[labels])), -1)
    logits = probs.clamp(min=1e-12).log().numpy()
    one, other = (kind().fit(rows, labels) for rows in (logits, np.asfortranarray(logits)))
    np.testing.assert_array_equal(one.places_, other.places_)
    np.testing.assert_array_equal(one.predict_proba(logits), other.predict_proba(np.asfortranarray(logits)))
    if kind is IsotonicCalibration:
        softmax = torch.softmax(torch.tensor(logits), -1)
        assert np.isin(one.places_, without_last_bits(without_floor(softmax)).numpy()).all()


@BOTH
def test_equal_probabilities_are_one_point(kind):
    """Forests have few distinct probabilities; the order of the other classes changes their last digit."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 300)
    votes = rng.multinomial(10, 0.5 * np.eye(4)[labels] + 0.125) / 10
    logits, order = logits_from_probs(votes), [3, 1, 0, 2]
    one, other = kind().fit(logits, labels), kind().fit(logits[:, order], np.argsort(order)[labels])
    first, second = one.predict_proba(logits), other.predict_proba(logits[:, order])
    np.testing.assert_allclose(first[:, order], second, rtol=0, atol=1e-12)
    assert (np.diff(one.places_[: int(one.lengths_[0])]) > 1e-3).all()
    short = logits_from_probs(votes.astype(np.float32))
    for each in (kind().fit(short, labels), one):
        np.testing.assert_allclose(each.predict_proba(short), first, rtol=0, atol=3e-5)
        np.testing.assert_allclose(each.predict_proba(logits), first, rtol=0, atol=3e-5)


def test_votes_of_a_forest_with_zeros_equal_scikit_learn():
    """Zeros become 1e-12, so the softmax divides 0.3 by another sum in rows with more of them."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 1000)
    votes = rng.multinomial(100, softmax(1.5 * rng.normal(size=(1000, 10)) + 2 * np.eye(10)[labels], axis=1)) / 100
    assert (votes == 0).mean() > 0.15
    wanted = np.empty((500, 10))
    for k in range(10):
        one = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(votes[:500, k], labels[:500] == k)
        wanted[:, k] = one.predict(votes[500:, k])
    fitted = IsotonicCalibration().fit(logits_from_probs(votes[:500]), labels[:500])
    ours = fitted.predict_proba(logits_from_probs(votes[500:]))
    np.testing.assert_allclose(ours, wanted / wanted.sum(1, keepdims=True), atol=1e-9)

"""Dirichlet calibration against its formula in loops, a general solver, and scikit-learn's logistic regression."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression

from avuc.calibration import CalibrationWarning, TemperatureScaling, logits_from_probs
from avuc.calibration.dirichlet import DirichletCalibration
from avuc.core.errors import InputError


def objective(matrix, bias, x, labels, strength):
    """One term at a time."""
    classes, total = len(bias), 0.0
    for one, label in zip(x, labels, strict=True):
        out = [bias[i] + sum(matrix[i, j] * one[j] for j in range(classes)) for i in range(classes)]
        total += (math.log(sum(math.exp(z) for z in out)) - out[label]) / len(labels)
    off = [matrix[i, j] ** 2 for i in range(classes) for j in range(classes) if i != j]
    return total + strength * (sum(off) + sum(b * b for b in bias))


@pytest.mark.parametrize("strength", [0.3, 0.003])
def test_the_minimum_is_that_of_a_general_solver(strength, make_logits):
    logits, labels = make_logits(rows=200, classes=3)
    labels[(labels == 0) & (logits[:, 1] > 1)] = 1
    scaler = DirichletCalibration(strength=strength, tolerance=1e-7).fit(logits, labels)
    x, off = log_softmax(logits, axis=1), 1 - np.eye(3)

    def penalised(theta):
        matrix, bias = theta[:9].reshape(3, 3), theta[9:]
        nll = -log_softmax(x @ matrix.T + bias, axis=1)[np.arange(200), labels].mean()
        return nll + strength * ((off * matrix**2).sum() + bias @ bias)

    best = minimize(penalised, np.append(np.eye(3).ravel(), np.zeros(3)), method="BFGS", options={"gtol": 1e-8})
    ours = np.append(scaler.matrix_, scaler.bias_)
    assert scaler.converged_
    assert scaler.strength_ == strength
    assert objective(ours[:9].reshape(3, 3), ours[9:], x, labels, strength) == pytest.approx(best.fun, abs=1e-10)
    np.testing.assert_allclose(ours, best.x, atol=5e-4)
    probs = softmax(x @ ours[:9].reshape(3, 3).T + ours[9:], axis=1)
    np.testing.assert_allclose(scaler.predict_proba(logits), probs, atol=1e-12)
    assert scaler.loss_ == pytest.approx(-np.log(probs[np.arange(200), labels]).mean(), abs=1e-12)


@pytest.mark.parametrize("classes", [2, 4])
def test_without_regularisation_it_is_logistic_regression(classes, make_logits):
    logits, labels = make_logits(rows=600, classes=classes)
    weight = np.random.default_rng(0).random(600) + 0.5
    x = log_softmax(logits, axis=1)
    other = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(x, labels, weight)
    ours = DirichletCalibration(strength=1e-10, tolerance=1e-7).fit(logits, labels, weight)
    np.testing.assert_allclose(ours.predict_proba(logits), other.predict_proba(x), atol=2e-5)


def test_it_finds_a_map_of_its_own_form():
    """Probabilities of each class from a Dirichlet distribution: the right map is linear in their logarithms."""
    rng = np.random.default_rng(0)
    alphas = np.array([[4.0, 1.0, 2.0], [1.0, 3.0, 1.0], [2.0, 2.0, 5.0]])
    labels = rng.integers(0, 3, 6000)
    probs = np.stack([rng.dirichlet(alphas[label]) for label in labels])
    logits = logits_from_probs(probs)
    scaler = DirichletCalibration().fit(logits[:3000], labels[:3000])
    normaliser = [math.lgamma(a.sum()) - sum(math.lgamma(each) for each in a) for a in alphas]
    truth = softmax(np.log(probs) @ (alphas - 1).T + normaliser, axis=1)
    assert abs(scaler.predict_proba(logits[3000:]) - truth[3000:]).mean() < 0.01
    assert scaler.strength_ < 0.1
    strong = DirichletCalibration(strength=1e3).fit(logits[:3000], labels[:3000])
    assert scaler.score(logits[3000:], labels[3000:]) > strong.score(logits[3000:], labels[3000:]) + 0.01


def test_few_rows_of_many_classes_choose_a_strong_regularisation(make_logits):
    logits, labels = make_logits(rows=60, classes=12)
    assert DirichletCalibration().fit(logits, labels).strength_ >= 0.1


def test_the_choice_depends_on_neither_the_order_of_rows_nor_that_of_classes(make_logits):
    logits, labels = make_logits()
    order, classes = np.random.default_rng(0).permutation(300), np.random.default_rng(1).permutation(5)
    one = DirichletCalibration().fit(logits, labels)
    rows = DirichletCalibration().fit(logits[order], labels[order])
    assert one.strength_ == rows.strength_
    np.testing.assert_allclose(one.predict_proba(logits), rows.predict_proba(logits), atol=1e-5)
    other = DirichletCalibration(strength=one.strength_).fit(logits[:, classes], np.argsort(classes)[labels])
    np.testing.assert_allclose(
        one.predict_proba(logits)[:, classes], other.predict_proba(logits[:, classes]), atol=1e-5
    )


def test_draws_a_class_never_seen_and_half_precision(draws_and_labels):
    draws, labels = draws_and_labels
    scaler = DirichletCalibration().fit(draws, labels)
    wanted = np.mean([scaler.predict_proba(one) for one in draws], axis=0)
    np.testing.assert_allclose(scaler.predict_proba(draws), wanted, atol=1e-12)
    half = torch.as_tensor(draws[0]).half()
    with pytest.warns(CalibrationWarning, match="DirichletCalibration: no row is labelled class 4"):
        fewer = DirichletCalibration().fit(half, labels % 4)
    matrix = fewer.matrix_.reshape(5, 5)
    assert matrix[4, :4].tolist() == [0] * 4
    assert 0 < matrix[4, 4] < 1  # 1/T
    assert bool(torch.isfinite(fewer.predict_proba(half)).all())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("rows", "classes"), [(3, 3), (5, 5), (10, 10), (8, 30)])
def test_few_rows_with_classes_never_seen_are_never_worse_than_temperature_scaling(rows, classes, seed):
    """The map of the seen classes says nothing about its size beside the others: NLL was up to 27."""
    rng = np.random.default_rng(seed)
    true = 2 * rng.normal(size=(rows, classes))
    labels = np.array([rng.choice(classes, p=p) for p in softmax(true, axis=1)])
    logits = 2 * true if seed % 2 else true
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scaler = DirichletCalibration().fit(logits, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        temperature = TemperatureScaling().fit(logits, labels)
    losses = [
        -np.log(np.maximum(one.predict_proba(logits)[np.arange(rows), labels], 1e-12)).mean()
        for one in (scaler, temperature)
    ]
    assert losses[0] <= losses[1] + 2e-5
    assert scaler.loss_ == pytest.approx(losses[0], abs=1e-9)
    about = [str(warning.message) for warning in caught if "DirichletCalibration:" in str(warning.message)]
    assert len(about) == (len(set(labels.tolist())) < classes)
    kept = bool((scaler.matrix_.reshape(classes, classes) == np.eye(classes) * scaler.matrix_[0]).all())
    assert kept or not any("which is kept" in text for text in about)
    copy = DirichletCalibration.from_json(scaler.to_json())
    np.testing.assert_array_equal(copy.transform(logits), scaler.transform(logits))


@pytest.mark.parametrize("wrong", [{"strength": -1}, {"strength": "x"}, {"tolerance": 0}, {"max_iterations": 0}])
def test_wrong_parameters(wrong, logits_and_labels):
    with pytest.raises(InputError, match="must be"):
        DirichletCalibration(**wrong).fit(*logits_and_labels)

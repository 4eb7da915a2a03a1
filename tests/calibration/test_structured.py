"""Structured vector and matrix scaling against their formulas in loops, a general solver, and probmetrics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from avuc.calibration import CalibrationWarning, TemperatureScaling
from avuc.calibration.linear_maps import LinearNLL, Rows
from avuc.calibration.minimise import minimised
from avuc.calibration.structured import MatrixScaling, StructuredVectorScaling
from avuc.core.errors import InputError

BOTH = pytest.mark.parametrize("kind", [StructuredVectorScaling, MatrixScaling])


def weights_of(scaler):
    """The matrix minus the identity, and the bias, of either calibrator."""
    classes = scaler.num_classes_
    matrix = scaler.matrix_.reshape(classes, classes) if hasattr(scaler, "matrix_") else np.diag(scaler.scale_)
    return matrix - np.eye(classes), scaler.bias_


def objective(matrix, bias, x, labels, ridge=1.0):
    """One term at a time."""
    rows, classes = x.shape
    total = 0.0
    for one, label in zip(x, labels, strict=True):
        out = [one[i] + bias[i] + sum(matrix[i, j] * one[j] for j in range(classes)) for i in range(classes)]
        total += (math.log(sum(math.exp(z) for z in out)) - out[label]) / rows
    for i in range(classes):
        total += ridge * classes / rows * bias[i] ** 2
        for j in range(classes):
            total += ridge * (classes if i == j else classes * (classes - 1)) / rows * matrix[i, j] ** 2
    return total


def smoothed(logits, labels):
    temperature = TemperatureScaling().fit(logits, labels).temperature_
    share = 1 / (len(labels) + 1)
    return np.log((1 - share) * softmax(logits / temperature, axis=1) + share / logits.shape[1])


@BOTH
@pytest.mark.parametrize("ridge", [1.0, 0.01])
def test_the_minimum_is_that_of_a_general_solver(kind, ridge, make_logits):
    logits, labels = make_logits(rows=200, classes=3)
    labels[(labels == 0) & (logits[:, 1] > 1)] = 1
    scaler = kind(ridge=ridge, tolerance=1e-7).fit(logits, labels)
    x, at = smoothed(logits, labels), (np.arange(200), labels)
    diagonal = kind is StructuredVectorScaling

    def penalised(theta):
        bias, matrix = theta[:3], np.diag(theta[3:]) if diagonal else theta[3:].reshape(3, 3)
        strength = np.where(np.eye(3) > 0, 3, 6) * ridge / 200
        nll = -log_softmax(x + x @ matrix.T + bias, axis=1)[at].mean()
        return nll + 3 * ridge / 200 * bias @ bias + (strength * matrix**2).sum()

    best = minimize(penalised, np.zeros(6 if diagonal else 12), method="BFGS", options={"gtol": 1e-8})
    matrix, bias = weights_of(scaler)
    assert scaler.converged_
    assert objective(matrix, bias, x, labels, ridge) == pytest.approx(best.fun, abs=1e-10)
    np.testing.assert_allclose(bias, best.x[:3], atol=2e-4)
    np.testing.assert_allclose(np.diag(matrix) if diagonal else matrix.ravel(), best.x[3:], atol=2e-4)
    probs = softmax(x + x @ matrix.T + bias, axis=1)
    np.testing.assert_allclose(scaler.predict_proba(logits), probs, atol=1e-12)
    assert scaler.loss_ == pytest.approx(-np.log(probs[at]).mean(), abs=1e-12)


@pytest.mark.parametrize(("kind", "name"), [(StructuredVectorScaling, "svs"), (MatrixScaling, "sms")])
def test_equal_to_probmetrics(kind, name, reference):
    logits, labels, fresh, probs = reference(name)
    np.testing.assert_allclose(kind().fit(logits, labels).predict_proba(fresh), probs, atol=5e-4)


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("matrix", [True, False])
def test_gradient_equals_autograd(draws, matrix):
    rng = np.random.default_rng(draws)
    x = torch.log_softmax(torch.tensor(rng.normal(size=(draws, 30, 4))), -1)
    labels, weight = torch.tensor(rng.integers(0, 4, 30)), torch.tensor(rng.dirichlet(np.ones(30)))
    lost = torch.tensor(rng.random((draws, 30, 4)) < 0.2)
    lost.scatter_(-1, labels.expand(draws, -1).unsqueeze(-1), False)
    theta = torch.tensor(rng.normal(size=(4, 5) if matrix else (2, 4)) * 0.3, requires_grad=True)
    strength = torch.tensor(rng.random(theta.shape))
    out = x + x @ theta[:, :-1].T + theta[:, -1] if matrix else x * (1 + theta[0]) + theta[1]
    probs = out.masked_fill(lost, -math.inf).softmax(-1).mean(0)
    loss = -(probs[torch.arange(30), labels].log() * weight).sum() + (strength * theta**2).sum()
    loss.backward()
    value, gradient = LinearNLL(Rows(x, labels, weight, lost), strength)(theta.detach())
    assert value == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(gradient, theta.grad, rtol=1e-10, atol=1e-12)


def test_the_search_finds_the_minimum_of_a_badly_scaled_function_and_says_how_far_it_is():
    scales = torch.logspace(-4, 4, 9, dtype=torch.float64)

    def function(x):
        return float((scales * (x - 1) ** 2).sum() + ((x - 1) ** 4).sum()), 2 * scales * (x - 1) + 4 * (x - 1) ** 3

    start = torch.full((9,), -5.0, dtype=torch.float64)
    found = minimised(function, start, lambda g: g, 1e-9, 500)
    torch.testing.assert_close(found.theta, torch.ones(9, dtype=torch.float64), atol=1e-3, rtol=0)
    assert found.length <= 1e-9
    assert minimised(function, start, lambda g: g, 1e-9, 2).length > 1e-3


@BOTH
def test_class_order_and_draws(kind, make_logits, draws_and_labels):
    logits, labels = make_logits()
    order = np.random.default_rng(0).permutation(5)
    one, other = kind().fit(logits, labels), kind().fit(logits[:, order], np.argsort(order)[labels])
    np.testing.assert_allclose(one.predict_proba(logits)[:, order], other.predict_proba(logits[:, order]), atol=1e-5)
    copies = np.stack([logits] * 3)
    np.testing.assert_allclose(kind().fit(copies, labels).bias_, one.bias_, atol=1e-5)
    draws, labels = draws_and_labels
    scaler = kind().fit(draws, labels)
    wanted = np.mean([scaler.predict_proba(each) for each in draws], axis=0)
    np.testing.assert_allclose(scaler.predict_proba(draws), wanted, atol=1e-12)
    assert scaler.loss_ == pytest.approx(-np.log(wanted[np.arange(200), labels]).mean(), abs=1e-12)


@BOTH
def test_binary_impossible_and_many_classes(kind, make_logits):
    probs = kind().fit(*make_logits()).predict_proba(np.array([[1.0, -np.inf, 0.0, -np.inf, 3.0]]))
    assert probs[0, [1, 3]].tolist() == [0, 0]
    two = make_logits(rows=200, classes=2)
    one = two[0][:, 1] - two[0][:, 0]
    np.testing.assert_allclose(
        kind().fit(one, two[1]).predict_proba(one), kind().fit(*two).predict_proba(two[0]), atol=1e-6
    )
    many = make_logits(rows=40, classes=300)
    half = torch.as_tensor(many[0]).half()
    with pytest.warns(CalibrationWarning, match="no row is labelled class"):
        scaler = kind().fit(half, many[1])
    assert bool(torch.isfinite(scaler.predict_proba(half)).all())


@BOTH
def test_a_class_never_seen_keeps_temperature_scaling(kind, make_logits):
    logits, labels = make_logits(rows=300)
    seen = labels != 2
    with pytest.warns(CalibrationWarning, match=f"{kind.__name__}: no row is labelled class 2, so plain temperature"):
        scaler = kind().fit(logits[seen], labels[seen])
    matrix, bias = weights_of(scaler)
    assert abs(matrix[2]).max() == 0
    assert bias[2] == 0
    assert abs(bias).max() > 0.01


def test_many_rows_in_float32_give_the_minimum_of_float64(make_logits, monkeypatch):
    logits, labels = make_logits(rows=6000, classes=5)
    exact = MatrixScaling().fit(logits, labels)
    monkeypatch.setattr("avuc.calibration.linear_maps.EXACT_ELEMENTS", 1)
    monkeypatch.setattr("avuc.calibration.linear_maps.LEAST_ELEMENTS", 10_000)
    large = MatrixScaling().fit(logits.astype(np.float32), labels)
    np.testing.assert_allclose(large.matrix_, exact.matrix_, atol=2e-3)
    assert large.loss_ == pytest.approx(exact.loss_, abs=1e-6)


@BOTH
def test_too_few_iterations_are_said(kind, make_logits):
    with pytest.warns(CalibrationWarning, match="raise max_iterations"):
        assert not kind(max_iterations=1).fit(*make_logits()).converged_


@BOTH
@pytest.mark.parametrize("wrong", [{"ridge": -1}, {"ridge": "x"}, {"tolerance": 0}, {"max_iterations": 0}])
def test_wrong_parameters(kind, wrong, logits_and_labels):
    with pytest.raises(InputError, match="must be"):
        kind(**wrong).fit(*logits_and_labels)


@pytest.mark.parametrize("kind", [StructuredVectorScaling, MatrixScaling])
def test_nearly_uniform_probabilities(kind):
    """Logits that hardly differ, as those of boosted stumps, are the same up to a temperature far below 0.05."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 600)
    logits = 3 * (rng.normal(size=(600, 4)) + np.eye(4)[labels])
    one, other = (kind(tolerance=1e-7).fit(factor * logits, labels) for factor in (1.0, 1e-3))
    assert other.temperature_ == pytest.approx(one.temperature_ * 1e-3, rel=1e-4)
    np.testing.assert_allclose(other.predict_proba(1e-3 * logits), one.predict_proba(logits), atol=1e-5)

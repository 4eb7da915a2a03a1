"""Structured matrix scaling against its formula in loops and a general solver."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from avuc.calibration import TemperatureScaling
from avuc.calibration.matrix import MatrixScaling
from avuc.core.errors import InputError


def objective(theta, x, labels, ridge=1.0):
    """One term at a time."""
    rows, classes = x.shape
    matrix, bias = theta[: classes**2].reshape(classes, classes), theta[classes**2 :]
    out = log_softmax(x + x @ matrix.T + bias, axis=1)
    total = -out[np.arange(rows), labels].mean()
    for i in range(classes):
        total += ridge * classes / rows * bias[i] ** 2
        for j in range(classes):
            total += ridge * (classes if i == j else classes * (classes - 1)) / rows * matrix[i, j] ** 2
    return total


@pytest.mark.parametrize("ridge", [1.0, 0.01])
def test_the_minimum_is_that_of_a_general_solver(ridge, make_logits):
    logits, labels = make_logits(rows=200, classes=3)
    labels[(labels == 0) & (logits[:, 1] > 1)] = 1
    scaler = MatrixScaling(ridge=ridge).fit(logits, labels)
    x = log_softmax(logits / TemperatureScaling().fit(logits, labels).temperature_, axis=1)
    best = minimize(objective, np.zeros(12), (x, labels, ridge), method="BFGS", options={"gtol": 1e-7})
    ours = np.append(scaler.matrix_ - np.eye(3).ravel(), scaler.bias_)
    assert scaler.converged_
    assert objective(ours, x, labels, ridge) == pytest.approx(best.fun, abs=1e-9)
    np.testing.assert_allclose(ours, best.x, atol=2e-4)


def test_draws_binary_impossible_and_many_classes(make_logits, draws_and_labels):
    draws, labels = draws_and_labels
    scaler = MatrixScaling().fit(draws, labels)
    wanted = np.mean([scaler.predict_proba(one) for one in draws], axis=0)
    np.testing.assert_allclose(scaler.predict_proba(draws), wanted, atol=1e-12)
    probs = scaler.predict_proba(np.array([[1.0, -np.inf, 0.0, -np.inf, 3.0]]))
    assert probs[0, [1, 3]].tolist() == [0, 0]
    two = make_logits(rows=200, classes=2)
    one = two[0][:, 1] - two[0][:, 0]
    np.testing.assert_allclose(
        MatrixScaling().fit(one, two[1]).predict_proba(one), MatrixScaling().fit(*two).predict_proba(two[0]), atol=1e-6
    )
    many = make_logits(rows=40, classes=300)
    half = torch.as_tensor(many[0]).half()
    assert bool(torch.isfinite(MatrixScaling().fit(half, many[1]).predict_proba(half)).all())


@pytest.mark.parametrize("wrong", [{"ridge": -1}, {"tolerance": 0}, {"max_iterations": 0}])
def test_wrong_parameters(wrong, logits_and_labels):
    with pytest.raises(InputError, match="must be"):
        MatrixScaling(**wrong).fit(*logits_and_labels)

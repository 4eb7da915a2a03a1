"""VectorScaling against autograd, SciPy and scikit-learn; its properties; its extremes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from avuc.calibration import CalibrationWarning, TemperatureScaling, VectorScaling, logits_from_probs
from avuc.core.errors import InputError
from avuc.metrics import nll


def test_equals_scipy(make_logits):
    logits, labels = make_logits(rows=150, classes=4)
    scaler = VectorScaling(tolerance=1e-7).fit(logits, labels)
    base, t = log_softmax(logits, axis=1), scaler.temperature_

    def penalised(theta):
        v, b = theta.reshape(2, -1)
        nll = -log_softmax(base / t * (1 + v) + b, axis=1)[np.arange(len(labels)), labels].mean()
        return nll + (theta @ theta) / (2 * len(labels))

    expected = minimize(penalised, np.zeros(8), method="BFGS", options={"gtol": 1e-9})
    ours = np.concatenate([scaler.scale_ * t - 1, scaler.bias_])
    assert penalised(ours) == pytest.approx(expected.fun, abs=1e-10)
    np.testing.assert_allclose(ours, expected.x, atol=1e-5)
    nll = -log_softmax(scaler.transform(logits), axis=1)[np.arange(len(labels)), labels].mean()
    assert nll == pytest.approx(scaler.loss_, rel=1e-12)
    assert scaler.loss_ <= TemperatureScaling().fit(logits, labels).loss_
    assert scaler.converged_


def test_without_ridge_it_repairs_a_shifted_bias(make_logits):
    logits, labels = make_logits(rows=4000, classes=3, temperature=1.0, scale=1.5)
    shift = np.array([1.0, -0.5, 0.0])
    scaler = VectorScaling(ridge=0.0).fit(logits + shift, labels)
    bias = scaler.bias_ - scaler.bias_.mean() + shift.mean()
    assert TemperatureScaling().fit(logits, labels).loss_ - 5e-3 < scaler.loss_
    assert scaler.loss_ < TemperatureScaling().fit(logits + shift, labels).loss_ - 0.01
    assert np.corrcoef(bias, -shift)[0, 1] > 0.9


def test_logits_and_log_probabilities_give_the_same(make_logits):
    logits, labels = make_logits()
    one, other = VectorScaling().fit(logits, labels), VectorScaling().fit(log_softmax(logits, axis=1), labels)
    np.testing.assert_allclose(one.scale_, other.scale_, rtol=1e-6)
    np.testing.assert_allclose(one.transform(logits), other.transform(log_softmax(logits, axis=1)), atol=1e-6)


def test_class_order_and_draws(make_logits):
    logits, labels = make_logits()
    order = np.random.default_rng(0).permutation(5)
    one = VectorScaling().fit(logits, labels)
    other = VectorScaling().fit(logits[:, order], np.argsort(order)[labels])
    np.testing.assert_allclose(one.scale_[order], other.scale_, atol=1e-5)
    many = VectorScaling().fit(np.stack([logits] * 3), labels)
    np.testing.assert_allclose(many.scale_, one.scale_, atol=1e-5)
    assert many.transform(np.stack([logits] * 3)).shape == (3, *logits.shape)


def test_a_class_never_seen_and_separable_data_stay_finite(make_logits):
    logits, labels = make_logits(rows=50)
    with pytest.warns(CalibrationWarning, match="no row is labelled"):
        scaler = VectorScaling().fit(logits, labels % 4)
    assert np.isfinite(scaler.scale_).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        separable = VectorScaling().fit(logits, logits.argmax(1))
    assert separable.at_bound_
    assert np.abs(separable.bias_).max() < 10


@pytest.mark.parametrize("draws", [1, 3])
def test_a_class_never_seen_keeps_its_share(draws):
    """Against SciPy: the other classes are fitted on p(y | y is not the class without rows), which stays neutral."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, 400)
    logits = rng.normal(size=(draws, 400, 4)) * 2
    logits[:, np.arange(400), labels] += 3
    few = labels != 2
    kept, seen = [0, 1, 3], np.searchsorted([0, 1, 3], labels[few])
    fit = (logits if draws > 1 else logits[0])[..., few, :]
    with pytest.warns(CalibrationWarning, match="no row is labelled class 2, so plain temperature scaling is kept"):
        scaler = VectorScaling(tolerance=1e-7).fit(fit, labels[few])
    temperature = scaler.temperature_
    assert scaler.scale_[2] == pytest.approx(1 / temperature)
    assert scaler.bias_[2] == 0

    def objective(theta: np.ndarray) -> float:
        scale, bias = theta[:3], theta[3:]
        base = log_softmax(logits[:, few], axis=-1)[..., kept] / temperature
        share = np.exp(log_softmax(base * (1 + scale) + bias, axis=-1)).mean(0)
        return -np.log(share[np.arange(few.sum()), seen]).mean() + (theta @ theta) / (2 * few.sum())

    # with several samples there are several minima: ours is one of them, and not the worse one
    ours = np.append(scaler.scale_[kept] * temperature - 1, scaler.bias_[kept])
    near = minimize(objective, ours, method="BFGS", options={"gtol": 1e-9})
    assert near.fun <= minimize(objective, np.zeros(6), method="BFGS", options={"gtol": 1e-9}).fun + 1e-9
    best = near.x
    np.testing.assert_allclose(scaler.scale_[kept] * temperature - 1, best[:3], atol=1e-4)
    np.testing.assert_allclose(scaler.bias_[kept], best[3:], atol=1e-4)
    # what all four classes are worth, on all rows
    after = scaler.transform(logits[0]).argmax(-1) == labels
    assert after.mean() >= (logits[0].argmax(-1) == labels).mean() - 0.01
    assert after[~few].mean() >= (logits[0].argmax(-1) == labels)[~few].mean() - 0.02
    shares = np.exp(log_softmax(np.asarray(scaler.transform(fit)).reshape(-1, few.sum(), 4), axis=-1)).mean(0)
    assert scaler.loss_ == pytest.approx(-np.log(shares[np.arange(few.sum()), labels[few]]).mean(), rel=1e-6)


def test_one_class_alone_leaves_temperature_scaling(make_logits):
    logits, _ = make_logits(rows=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        scaler = VectorScaling().fit(logits, np.zeros(40, int))
    np.testing.assert_allclose(scaler.scale_, 1 / scaler.temperature_, rtol=1e-6)
    np.testing.assert_allclose(scaler.bias_, 0, atol=1e-12)


def test_classes_ruled_out_stay_so(make_logits):
    logits, labels = make_logits(rows=80, classes=4)
    padded = np.concatenate([logits, np.full((80, 1), -np.inf)], axis=1)
    one, other = VectorScaling().fit(logits, labels), VectorScaling().fit(padded, labels)
    np.testing.assert_allclose(other.scale_[:4], one.scale_, atol=1e-6)
    assert np.isneginf(other.transform(padded)[:, 4]).all()


def test_an_impossible_label_warns(make_logits):
    logits, labels = make_logits(rows=80, classes=4)
    logits[0, labels[0]] = -np.inf
    with pytest.warns(CalibrationWarning, match="−inf"):
        assert np.isfinite(VectorScaling().fit(logits, labels).loss_)


@pytest.mark.filterwarnings("ignore::avuc.calibration.CalibrationWarning")
@pytest.mark.parametrize("draws", [1, 2])
def test_zeros_do_not_decide_the_scales(make_logits, draws):
    """Rows that give the true class a probability of 0 count as 1e-12, in the fit as in avuc.metrics.nll."""
    logits, labels = make_logits(rows=400, classes=4, temperature=0.6)
    probs = np.exp(log_softmax(logits, axis=1))
    probs[:6] = np.eye(4)[(labels[:6] + 1) % 4]
    z = logits_from_probs(probs) if draws == 1 else np.stack([logits_from_probs(probs)] * draws)
    scaler = VectorScaling().fit(z, labels)
    calibrated = np.exp(log_softmax(scaler.transform(z), axis=-1))
    figure = nll(calibrated if draws == 1 else calibrated.mean(0), labels)
    assert figure == pytest.approx(scaler.loss_, rel=1e-9)
    assert figure < TemperatureScaling().fit(z, labels).loss_ < nll(probs, labels)
    # the six rows have no say: without them the scales are the same, but for the weight of the ridge
    rest = VectorScaling(ridge=394 / 400).fit(z[..., 6:, :], labels[6:])
    np.testing.assert_allclose(scaler.scale_, rest.scale_, atol=0.02)
    assert scaler.converged_


def test_too_few_iterations_are_said(make_logits):
    with pytest.warns(CalibrationWarning, match="raise max_iterations"):
        assert not VectorScaling(max_iterations=1).fit(*make_logits()).converged_


@pytest.mark.parametrize("params", [{"ridge": -1.0}, {"tolerance": 0.0}, {"ridge": "small"}, {"max_iterations": 0}])
def test_bad_parameters(params):
    with pytest.raises(InputError, match="found"):
        VectorScaling(**params).fit([[1.0, 0.0]], [0])

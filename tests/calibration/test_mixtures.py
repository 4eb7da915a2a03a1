"""Laplace smoothing and the ensemble of temperatures against their formulas, in loops, and against general solvers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import softmax

from avuc.calibration import Calibrator, TemperatureScaling
from avuc.calibration.mixtures import (
    EnsembleTemperatureScaling,
    SmoothedTemperatureScaling,
    best_smoothing,
    mixture_weights,
)
from avuc.calibration.scaled_logits import ScaledLogits
from avuc.core.errors import InputError

KINDS = pytest.mark.parametrize("kind", [SmoothedTemperatureScaling, EnsembleTemperatureScaling])


def slow_mixture(logits, temperature, weights):
    rows = []
    for z in logits:
        hot, plain = ([math.exp((one - max(z)) / t) for one in z] for t in (temperature, 1.0))
        rows.append(
            [
                weights[0] * a / sum(hot) + weights[1] * b / sum(plain) + weights[2] / len(z)
                for a, b in zip(hot, plain, strict=True)
            ]
        )
    return np.array(rows)


@KINDS
def test_probabilities_are_the_mixture_also_of_draws(kind, logits_and_labels, draws_and_labels):
    for logits, labels in (logits_and_labels, draws_and_labels):
        scaler = kind().fit(logits, labels)
        assert scaler.temperature_ == TemperatureScaling().fit(logits, labels).temperature_
        draws = logits if logits.ndim == 3 else logits[None]
        wanted = np.mean([slow_mixture(one, scaler.temperature_, scaler.mixture()) for one in draws], axis=0)
        np.testing.assert_allclose(scaler.predict_proba(logits), wanted, atol=1e-12)
        assert scaler.loss_ == pytest.approx(-np.log(wanted[np.arange(len(labels)), labels]).mean(), abs=1e-12)


def test_smoothing_counts_the_uniform_distribution_as_rows(logits_and_labels):
    logits, labels = logits_and_labels
    assert SmoothedTemperatureScaling().fit(logits, labels).smoothing_ == 1 / 301
    assert SmoothedTemperatureScaling(3.0).fit(logits, labels, np.full(300, 0.5)).smoothing_ == 3 / 153
    plain = SmoothedTemperatureScaling(0.0).fit(logits, labels)
    np.testing.assert_allclose(
        plain.predict_proba(logits), TemperatureScaling().fit(logits, labels).predict_proba(logits), atol=1e-12
    )


@pytest.mark.filterwarnings("ignore::avuc.calibration.CalibrationWarning")
def test_smoothing_limits_the_loss_of_a_confident_mistake():
    labels = np.arange(40) % 4
    scaler = SmoothedTemperatureScaling().fit(5 * np.eye(4)[labels], labels)  # all right
    wrong = scaler.predict_proba(100 * np.eye(4)[[0]])[0, 1]
    assert wrong == pytest.approx(1 / 41 / 4)
    assert not scaler.is_identity


@pytest.mark.parametrize("seed", range(4))
def test_the_weights_are_those_of_a_general_solver(seed, make_logits):
    logits, labels = make_logits(rows=400, temperature=[0.5, 1.0, 2.0, 4.0][seed], seed=seed)
    labels[:: 7 + seed] = (labels[:: 7 + seed] + 1) % 5  # wrong labels need the uniform part
    scaler = EnsembleTemperatureScaling().fit(logits, labels)
    at = np.arange(len(labels)), labels
    parts = np.stack([softmax(logits / t, axis=1)[at] for t in (scaler.temperature_, 1.0, np.inf)], 1)
    other = minimize(
        lambda w: -np.log(parts @ w).mean(),
        np.full(3, 1 / 3),
        bounds=[(0, 1)] * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-12},
    )
    assert scaler.loss_ == pytest.approx(other.fun, abs=1e-7)
    assert scaler.loss_ <= TemperatureScaling().fit(logits, labels).loss_ + 1e-9


@pytest.mark.parametrize(
    ("kind", "name"), [(SmoothedTemperatureScaling, "ts-mix"), (EnsembleTemperatureScaling, "ets")]
)
def test_equal_to_probmetrics(kind, name, reference):
    logits, labels, fresh, probs = reference(name)
    np.testing.assert_allclose(kind().fit(logits, labels).predict_proba(fresh), probs, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 999), st.booleans())
def test_no_other_weights_are_better(rows, parts, seed, weighted):
    rng = np.random.default_rng(seed)
    likelihoods = rng.random((rows, parts)) ** 4
    likelihoods[:, -1] += 1e-3
    weight = rng.random(rows) + 0.01 if weighted else None
    found = mixture_weights(likelihoods, weight)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    best = np.average(np.log(likelihoods @ found), weights=weight)
    for other in (*np.eye(parts), *rng.dirichlet(np.ones(parts), 20)):
        with np.errstate(divide="ignore"):
            assert best >= np.average(np.log(likelihoods @ other), weights=weight) - 1e-6


@KINDS
def test_impossible_classes_binary_and_many_classes(kind, make_logits):
    logits, labels = make_logits(rows=200)
    scaler = kind().fit(logits, labels)
    probs = scaler.predict_proba(np.array([[1.0, -np.inf, 0.0, -np.inf, 3.0]]))
    assert (probs > 0).tolist() == [[True, False, True, False, True]]
    assert probs.sum() == pytest.approx(1)
    one = make_logits(rows=200, classes=2)
    difference = one[0][:, 1] - one[0][:, 0]
    np.testing.assert_allclose(
        kind().fit(difference, one[1]).predict_proba(difference), kind().fit(*one).predict_proba(one[0]), atol=1e-9
    )
    many = make_logits(rows=60, classes=1000, temperature=1.2)
    half = torch.as_tensor(many[0]).half()
    assert bool(torch.isfinite(kind().fit(half, many[1]).predict_proba(half)).all())


@pytest.mark.parametrize("count", [-1, math.nan, "1", None])
def test_a_wrong_pseudo_count(count, logits_and_labels):
    with pytest.raises(InputError, match="pseudo_count must be a number of rows"):
        SmoothedTemperatureScaling(count).fit(*logits_and_labels)


def joint_loss(logits, labels, weight, pseudo_count, x):
    """−Σ w log p − pseudo_count · log ε for x = log T, log ε, in plain loops."""
    temperature, smoothing = math.exp(x[0]), math.exp(x[1])
    total = -pseudo_count * x[1]
    for z, label, w in zip(logits, labels, weight, strict=True):
        top = max(z)
        hot = [math.exp((one - top) / temperature) for one in z]
        total -= w * math.log((1 - smoothing) * hot[label] / sum(hot) + smoothing / len(z))
    return total


@pytest.mark.parametrize("weighted", [False, True])
def test_temperature_and_smoothing_together_are_those_of_a_general_solver(weighted):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 80)
    logits = rng.normal(size=(80, 3)) + 4 * np.eye(3)[labels]
    logits[:4] = 20 * np.eye(3)[(labels[:4] + 1) % 3]  # wrong, and very sure
    weight = rng.random(80) + 0.5 if weighted else np.ones(80)
    scaler = SmoothedTemperatureScaling(2.0, joint=True).fit(logits, labels, weight if weighted else None)

    def loss(x):
        return joint_loss(logits.tolist(), labels.tolist(), weight.tolist(), 2.0, x)

    found = minimize(loss, [0.0, -3.0], method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-8})
    assert np.log([scaler.temperature_, scaler.smoothing_]) == pytest.approx(found.x, abs=1e-3)
    assert scaler.smoothing_ > 0.03
    near = SmoothedTemperatureScaling(2.0, joint=True)
    near._fit_near(ScaledLogits.read(logits, labels, weight if weighted else None), 1.3 * scaler.temperature_)
    assert math.log(near.temperature_ / scaler.temperature_) == pytest.approx(0, abs=0.03)


def test_files_without_joint_are_read(logits_and_labels):
    """Files that were saved before there was this parameter."""
    logits, labels = logits_and_labels
    fitted = SmoothedTemperatureScaling().fit(logits, labels)
    content = json.loads(fitted.to_json())
    del content["params"]["joint"]
    old = Calibrator.from_json(json.dumps(content))
    assert old.get_params() == fitted.get_params()
    np.testing.assert_array_equal(old.transform(logits), fitted.transform(logits))
    del content["params"]["pseudo_count"]
    with pytest.raises(InputError, match="missing \\['pseudo_count'\\]"):
        Calibrator.from_json(json.dumps(content))


def test_joint_smoothing_of_draws_and_its_json(draws_and_labels):
    draws, labels = draws_and_labels
    scaler = SmoothedTemperatureScaling(joint=True).fit(draws, labels)
    plain = SmoothedTemperatureScaling().fit(draws, labels)
    both = [one.loss_ - math.log(one.smoothing_) / len(labels) for one in (scaler, plain)]
    assert both[0] <= both[1]
    again = Calibrator.from_json(scaler.to_json())
    assert again.joint is True
    np.testing.assert_array_equal(again.transform(draws), scaler.transform(draws))
    with pytest.raises(InputError, match="joint must be True or False"):
        SmoothedTemperatureScaling(joint=1).fit(draws, labels)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(2, 5), st.sampled_from([0.0, 0.5, 3.0]))
def test_no_other_smoothing_is_better(chosen, classes, pseudo_count):
    p = np.array(chosen)
    found, value = best_smoothing(p, classes, pseudo_count)
    assert 0 < found < 1
    grid = np.linspace(1e-6, 1 - 1e-6, 400)
    mixed = (1 - grid) * p[:, None] + grid / classes
    losses = -np.log(np.maximum(mixed, 1e-12)).mean(0) - pseudo_count / len(p) * np.log(grid)
    assert value <= losses.min() + 1e-3

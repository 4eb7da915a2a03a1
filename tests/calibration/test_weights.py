"""sample_weight in the fit of every calibrator: a weight of k is the same as k copies of the row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from avuc.calibration import (
    CALIBRATORS,
    AvUTemperatureScaling,
    CalibrationWarning,
    CautiousTemperatureScaling,
    TemperatureScaling,
)
from avuc.core.errors import InputError

EVERY = pytest.mark.parametrize("name", CALIBRATORS)


@pytest.fixture(scope="module")
def weighted(make_logits):
    logits, labels = make_logits(rows=240, temperature=2.5)
    return logits, labels, np.random.default_rng(3).integers(0, 4, len(labels))


@EVERY
@pytest.mark.parametrize("samples", [1, 3])
def test_a_weight_is_the_number_of_copies(name, samples, weighted):
    logits, labels, counts = weighted
    if samples > 1:
        logits = logits + np.random.default_rng(4).normal(size=(samples, *logits.shape))
    one = CALIBRATORS[name]().fit(logits, labels, sample_weight=counts)
    other = CALIBRATORS[name]().fit(np.repeat(logits, counts, axis=-2), np.repeat(labels, counts))
    np.testing.assert_allclose(one.transform(logits), other.transform(logits), rtol=1e-4, atol=1e-4)
    assert one.loss_ == pytest.approx(other.loss_, abs=1e-6)
    # the weights matter: a fit without them is another one
    plain = CALIBRATORS[name]().fit(logits, labels)
    assert np.abs(plain.transform(logits) - one.transform(logits)).max() > 1e-3


@EVERY
def test_equal_weights_change_nothing(name, weighted):
    logits, labels, _ = weighted
    with_ones = CALIBRATORS[name]().fit(logits, labels, np.ones(len(labels)))
    np.testing.assert_allclose(with_ones.transform(logits), CALIBRATORS[name]().fit(logits, labels).transform(logits))


def test_the_temperature_minimises_the_weighted_likelihood(weighted):
    logits, labels, _ = weighted
    weight = np.random.default_rng(5).random(len(labels))

    def loss(log_t):
        z = logits / np.exp(log_t)
        return np.average(logsumexp(z, axis=1) - z[np.arange(len(labels)), labels], weights=weight)

    best = minimize_scalar(loss, bounds=(np.log(0.05), np.log(20)), method="bounded", options={"xatol": 1e-9})
    scaler = TemperatureScaling().fit(torch.as_tensor(logits), torch.as_tensor(labels), torch.as_tensor(weight))
    assert np.log(scaler.temperature_) == pytest.approx(best.x, abs=1e-5)
    assert scaler.loss_ == pytest.approx(best.fun, abs=1e-9)


def test_caution_is_about_the_weighted_confidence(weighted):
    logits, labels, counts = weighted
    scaler = CautiousTemperatureScaling(caution=0.05).fit(logits, labels, counts)
    probs = scaler.predict_proba(logits)
    gap = np.average((probs.argmax(1) == labels) - probs.max(1), weights=counts)
    assert gap == pytest.approx(0.05, abs=1e-4)


def test_rows_of_weight_zero_may_be_anything_finite(weighted):
    logits, labels, _ = weighted
    weight = np.ones(len(labels))
    weight[:40] = 0
    spoiled = logits.copy()
    spoiled[:40] = 1e3 * np.eye(logits.shape[1])[(labels[:40] + 1) % logits.shape[1]]
    one = TemperatureScaling().fit(spoiled, labels, weight)
    assert one.temperature_ == pytest.approx(TemperatureScaling().fit(logits[40:], labels[40:]).temperature_, rel=1e-6)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.ones(3), r"one number for each of 240 rows; found \(3,\)"),
        (np.ones((240, 1)), "one number for each"),
        (np.zeros(240), "not all 0"),
        (-np.ones(240), "not negative"),
        (np.full(240, np.nan), "finite"),
        (np.full(240, np.inf), "finite"),
        (["a"] * 240, "must be numbers"),
    ],
)
def test_wrong_weights(weight, message, weighted):
    with pytest.raises(InputError, match=message):
        TemperatureScaling().fit(weighted[0], weighted[1], weight)


def test_the_procedure_of_the_authors_has_no_weights(weighted):
    with pytest.raises(InputError, match="use procedure='search'"):
        AvUTemperatureScaling(procedure="authors").fit(*weighted)


@pytest.mark.parametrize("name", ["smoothed", "vector", "structured-vector", "matrix"])
def test_weights_with_the_sum_1_are_one_row(name):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (60,), generator=generator)
    logits = torch.randn(60, 3, generator=generator) + torch.eye(3)[labels]
    weight = torch.full((60,), 1 / 60)
    with pytest.warns(CalibrationWarning, match="sum 1, so they count as that many rows.*multiply them by 60"):
        CALIBRATORS[name]().fit(logits, labels, weight)
    CALIBRATORS[name]().fit(logits, labels, 60 * weight)  # no warning
    CALIBRATORS["temperature"]().fit(logits, labels, weight)  # T does not depend on the sum

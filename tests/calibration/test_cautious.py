"""The cautious temperature: mean confidence a stated amount below the accuracy, never surer than by likelihood."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from avuc.calibration import CalibrationWarning, Calibrator, CautiousTemperatureScaling, TemperatureScaling
from avuc.calibration.scalar_search import decreasing_root
from avuc.core.errors import InputError


def made(seed: int = 0, rows: int = 400, classes: int = 5, draws: int = 0, sharp: float = 3.0):
    """Logits of a network that is often right, and too sure for large `sharp`."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=rows)
    shape = (draws, rows, classes) if draws else (rows, classes)
    return sharp * (rng.normal(size=shape) + 1.5 * np.eye(classes)[labels]), labels


def slow(logits, labels, temperature):
    """Mean confidence and accuracy, in plain loops."""
    draws = logits if logits.ndim == 3 else logits[None]
    confidence = right = 0.0
    for row in range(draws.shape[1]):
        mean = [0.0] * draws.shape[2]
        for draw in draws:
            scaled = [math.exp((z - max(draw[row])) / temperature) for z in draw[row]]
            mean = [m + s / sum(scaled) / len(draws) for m, s in zip(mean, scaled, strict=True)]
        confidence += max(mean) / draws.shape[1]
        right += (mean.index(max(mean)) == labels[row]) / draws.shape[1]
    return confidence, right


@pytest.mark.parametrize("draws", [0, 4])
@pytest.mark.parametrize("caution", [0.0, 0.01, 0.1])
def test_confidence_is_below_accuracy_by_the_caution(draws, caution):
    logits, labels = made(draws=draws)
    scaler = CautiousTemperatureScaling(caution).fit(logits, labels)
    plain = TemperatureScaling().fit(logits, labels)
    assert scaler.likeliest_ == plain.temperature_
    confidence, right = slow(logits, labels, scaler.temperature_)
    if scaler.temperature_ > plain.temperature_:
        assert confidence == pytest.approx(right - caution, abs=1e-5)
    else:
        assert confidence <= right - caution
    assert scaler.loss_ == pytest.approx(
        -np.log(np.take_along_axis(_probs(logits, scaler.temperature_), labels[:, None], 1)).mean(), rel=1e-6
    )
    assert scaler.loss_ >= plain.loss_


def _probs(logits, temperature):
    scaled = logits / temperature
    scaled = np.exp(scaled - scaled.max(-1, keepdims=True))
    probs = scaled / scaled.sum(-1, keepdims=True)
    return probs.mean(0) if probs.ndim == 3 else probs


@given(seed=st.integers(0, 10_000), sharp=st.floats(0.5, 5.0), more=st.floats(0.0, 0.1))
def test_more_caution_is_a_higher_temperature(seed, sharp, more):
    logits, labels = made(seed, rows=60, sharp=sharp)
    found = [CautiousTemperatureScaling(caution).fit(logits, labels).temperature_ for caution in (0.01, 0.01 + more)]
    assert TemperatureScaling().fit(logits, labels).temperature_ <= found[0] <= found[1] + 1e-9


def test_a_network_that_doubts_enough_keeps_the_temperature_of_likelihood():
    kept = []
    for seed in range(8):
        logits, labels = made(seed, rows=200)
        scaler, plain = (kind().fit(logits, labels) for kind in (CautiousTemperatureScaling, TemperatureScaling))
        confidence, right = slow(logits, labels, plain.temperature_)
        kept.append(scaler.temperature_ == plain.temperature_)
        assert kept[-1] == (confidence <= right - 0.01)
    assert set(kept) == {True, False}


def test_what_no_temperature_reaches_is_said():
    logits, labels = np.array([[2.0, 0.0]] * 10), np.array([0] * 5 + [1] * 5)  # no better than chance
    with pytest.warns(CalibrationWarning) as told:
        scaler = CautiousTemperatureScaling(0.1).fit(logits, labels)
    assert any("makes the mean confidence 0.1 less than the accuracy" in str(one.message) for one in told)
    assert scaler.temperature_ == scaler.likeliest_


@pytest.mark.filterwarnings("ignore::avuc.calibration.CalibrationWarning")
@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        ([[2.0, 1.0]], [0]),  # one row
        ([[2.0, 1.0]] * 4, [0] * 4),  # all right, one class present
        ([[2.0, 1.0]] * 4, [1] * 4),  # all wrong
        ([[0.0, -math.inf]] * 3 + [[-math.inf, 0.0]], [0, 0, 0, 0]),  # probabilities of 0 and 1
        (np.full((3, 1000), 0.5, np.float16), [0, 1, 999]),
        ([[1.0]] * 3, [0] * 3),  # a single class
    ],
    ids=["one row", "all right", "all wrong", "certain", "flat half precision", "one class"],
)
def test_extremes(logits, labels):
    scaler = CautiousTemperatureScaling().fit(np.array(logits), np.array(labels))
    assert math.isfinite(scaler.temperature_)
    assert scaler.bounds[0] <= scaler.likeliest_ <= scaler.temperature_ <= scaler.bounds[1]
    assert math.isfinite(scaler.loss_)


@pytest.mark.parametrize("caution", [-0.1, 1.0, math.nan, "much", None, True])
def test_a_caution_that_is_none(caution):
    with pytest.raises(InputError, match="caution must be a share of 1"):
        CautiousTemperatureScaling(caution).fit(*made(rows=10))


def test_json_keeps_both_temperatures(tmp_path):
    logits, labels = made()
    scaler = CautiousTemperatureScaling(0.05).fit(logits, labels)
    scaler.save(tmp_path / "c.json")
    again = Calibrator.load(tmp_path / "c.json")
    assert isinstance(again, CautiousTemperatureScaling)
    assert (again.caution, again.temperature_, again.likeliest_) == (0.05, scaler.temperature_, scaler.likeliest_)
    np.testing.assert_array_equal(again.transform(logits), scaler.transform(logits))
    content = json.loads(scaler.to_json())
    content["learned"]["likeliest"] = 2 * scaler.temperature_
    with pytest.raises(InputError, match="likeliest must be above 0 and at most temperature"):
        Calibrator.from_json(json.dumps(content))


@given(root=st.floats(-3.0, 3.0), power=st.sampled_from([1, 3, 5]), jump=st.floats(0.0, 2.0))
def test_the_root_of_a_falling_function(root, power, jump):
    def f(x: float) -> float:
        return (root - x) ** power + (jump if x < root else -jump)

    found = decreasing_root(f, -4.0, 4.0, f(-4.0), f(4.0), 1e-9)
    assert f(found) <= 0
    if power == 1 or jump > 0:
        assert found == pytest.approx(root, abs=2e-9)
    assert f(found - 1e-8) >= 0 or found - 1e-8 < -4


def test_few_readings_are_enough():
    seen = []

    def f(x: float) -> float:
        seen.append(x)
        return math.exp(-x) - 0.3

    assert decreasing_root(f, 0.0, 3.0, f(0.0), f(3.0), 1e-6) == pytest.approx(-math.log(0.3), abs=1e-6)
    assert len(seen) <= 16

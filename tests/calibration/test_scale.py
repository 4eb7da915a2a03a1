"""Logits times c get the temperature c T and the same probabilities; what depends on the scale is documented."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avuc.calibration import CALIBRATORS, AutoCalibrator, CalibrationWarning, Calibrator, MultiLabelCalibrator
from avuc.calibration.mixtures import SmoothedTemperatureScaling

FACTORS = (1e-3, 1e-2, 0.1, 12.0, 1e2, 1e4, 1e6)
# the temperature scales, and the probabilities, too
SAME = {name: CALIBRATORS[name] for name in ("temperature", "cautious", "smoothed", "matrix", "structured-vector")}
SAME |= {"joint": lambda: SmoothedTemperatureScaling(joint=True), "auto": AutoCalibrator}
SAME |= {"auto of few": lambda: AutoCalibrator(blend=False)}
# the temperature scales, and the probabilities nearly; see their docstrings
NEARLY = {"vector": 0.04, "ets": 2e-3}
# they have no temperature that scales, and depend on the scale
OTHERS = ("isotonic", "histogram", "venn-abers", "dirichlet", "avuts", "auavuts")


def sample(rows=600, classes=4, right=1.2, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=rows)
    logits = 2 * (rng.normal(size=(rows, classes)) + right * np.eye(classes)[labels])
    return logits, logits + 0.5 * rng.normal(size=(5, rows, classes)), labels


def probabilities(calibrator, logits):
    found = torch.as_tensor(calibrator.transform(logits)).double().softmax(-1)
    return (found.mean(0) if found.ndim == 3 else found).numpy()


def check(make, logits, labels, factors, close=1e-6):
    first = make().fit(logits, labels)
    for factor in factors:
        with warnings.catch_warnings():
            warnings.simplefilter("error", CalibrationWarning)
            other = make().fit(logits * factor, labels)
        assert other.temperature_ / factor == pytest.approx(first.temperature_, rel=1e-5)
        np.testing.assert_allclose(probabilities(other, logits * factor), probabilities(first, logits), atol=close)
        again = Calibrator.from_json(other.to_json())
        assert np.array_equal(again.transform(logits * factor), other.transform(logits * factor))


def test_every_calibrator_is_one_or_the_other():
    assert {*SAME, *NEARLY, *OTHERS} - {"joint", "auto", "auto of few"} == {*CALIBRATORS}


@pytest.mark.parametrize("kind", ["single", "draws"])
@pytest.mark.parametrize("name", [*SAME, *NEARLY])
def test_temperature_goes_with_the_scale(name, kind):
    single, draws, labels = sample()
    make = SAME[name] if name in SAME else CALIBRATORS[name]
    logits = single if kind == "single" else draws
    close = NEARLY.get(name, 1e-6)
    if name == "vector":
        logits = 4 * logits  # of which log softmax is nearly proportional to the logits
        check(make, logits, labels, FACTORS[3:], close)
    else:
        check(make, logits, labels, FACTORS, close)


@pytest.mark.parametrize("name", ["avuts", "auavuts"])
@pytest.mark.parametrize("kind", ["single", "draws"])
def test_avu_scalers_without_a_guard(name, kind):
    single, draws, labels = sample(rows=1500)
    logits = single if kind == "single" else draws
    first = CALIBRATORS[name](guard=False).fit(logits, labels)
    for factor in FACTORS:
        other = CALIBRATORS[name](guard=False).fit(logits * factor, labels)
        assert other.temperature_ / factor == pytest.approx(first.temperature_, rel=0.05)  # the loss has jumps
        guarded = CALIBRATORS[name]().fit(logits * factor, labels)
        assert guarded.unguarded_temperature_ == pytest.approx(other.temperature_, rel=1e-6)
        assert guarded.temperature_ == pytest.approx(other.temperature_, rel=1e-6) or guarded.guarded_


@pytest.mark.parametrize("name", ["temperature", "cautious", "smoothed", "matrix"])
@pytest.mark.parametrize("seed", range(3))
def test_few_mistakes(name, seed):
    """Of logits that hardly differ, too few mistakes keep the range; see test_few_wrong_rows_do_not_leave_the_range."""
    single, draws, labels = sample(rows=30 + 20 * seed, classes=3, right=2, seed=seed)
    for logits in (single, draws):
        assert 1 <= (logits.reshape(-1, *single.shape)[0].argmax(-1) != labels).sum() < 10
        check(CALIBRATORS[name], logits, labels, (0.2, 10.0, 1e4, 1e6))


def test_labels_of_a_multi_label_model():
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=(400, 3))
    logits = 3 * (rng.normal(size=(400, 3)) + labels - 0.5)
    first = MultiLabelCalibrator().fit(logits, labels)
    for factor in (1e-3, 1e2, 1e4, 1e6):
        other = MultiLabelCalibrator().fit(logits * factor, labels)
        np.testing.assert_allclose(other.transform(logits * factor), first.transform(logits), rtol=1e-5)


@pytest.mark.parametrize("name", ["temperature", "smoothed", "ets", "cautious"])
@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e4])
def test_without_mistakes_the_range_decides(name, factor):
    single, draws, _ = sample()
    for logits in (single * factor, draws[:, :1] * factor):
        labels = logits.reshape(-1, *logits.shape[-2:])[0].argmax(-1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            assert 0.05 <= CALIBRATORS[name]().fit(logits, labels).temperature_ <= 20


@pytest.mark.parametrize("name", ["temperature", "smoothed", "avuts"])
def test_without_mistakes_no_other_range_is_searched(name):
    """Separable rows are common, and a search that cannot find anything would double the time of their fit."""
    _, draws, _ = sample()
    logits, labels, passes = draws[:1], draws[0].argmax(-1), []
    for bounds in ((0.05, 20.0), (0.05, 20.0001)):  # bounds of the user are never left
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            passes.append(CALIBRATORS[name](bounds=bounds).fit(logits, labels).n_evaluations_)
    assert passes[0] == pytest.approx(passes[1], rel=0.2)


@pytest.mark.parametrize("name", ["smoothed", "ets", "cautious"])
def test_bounds_of_the_user_stay(name):
    single, _, labels = sample()
    with pytest.warns(CalibrationWarning, match=r"no minimum inside 0\.05 … 19|no temperature up to 19"):
        scaler = CALIBRATORS[name](bounds=(0.05, 19.0)).fit(single * 1e4, labels)
    assert scaler.temperature_ <= 19


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(-3, 6), st.booleans(), st.integers(2, 5), st.floats(0.8, 2.5))
def test_any_rows_at_any_scale(seed, power, several, classes, right):
    single, draws, labels = sample(150, classes, right, seed)
    logits = draws if several else single
    first = SmoothedTemperatureScaling().fit(logits, labels)
    mistakes = (single.argmax(-1) != labels).sum()
    if first.at_bound_ or not 0.06 < first.temperature_ < 19 or (mistakes < 10 and power < -0.5):
        return
    check(SmoothedTemperatureScaling, logits, labels, [10**power])

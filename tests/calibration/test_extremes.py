"""Every calibrator on input that is odd, degenerate or wrong: a right figure, or one line that says what is wrong."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from avuc.calibration import (
    CALIBRATORS,
    CalibrationWarning,
    Calibrator,
    CautiousTemperatureScaling,
    TemperatureScaling,
    VectorScaling,
    logits_from_probs,
)
from avuc.calibration.structured import LEAST_DISTANCE
from avuc.core.errors import InputError

RNG = np.random.default_rng(0)
ROWS, CLASSES = 60, 4
LOGITS = RNG.normal(size=(ROWS, CLASSES)) * 2
RIGHT = LOGITS.argmax(1)
LABELS = np.where(RNG.random(ROWS) < 0.6, RIGHT, RNG.integers(0, CLASSES, ROWS))
TRUE = np.eye(CLASSES, dtype=bool)[LABELS]
DRAWS = LOGITS + RNG.normal(size=(3, ROWS, CLASSES))
PROBS = np.exp(log_softmax(LOGITS, axis=1))

# name -> logits, labels, and the end of the range where a temperature by likelihood stops (None: inside)
DEGENERATE = {
    "one class in the labels": (LOGITS, np.zeros(ROWS, int), "any"),
    "all right": (LOGITS, RIGHT, 0.05),
    "all wrong": (LOGITS, (RIGHT + 1) % CLASSES, 20.0),
    "one row, right": (LOGITS[:1], RIGHT[:1], 0.05),
    "one row, wrong": (LOGITS[:1], RIGHT[:1] - 1, 20.0),
    "two rows": (LOGITS[:2], np.array([RIGHT[0], RIGHT[1] - 1]), "any"),
    "all scores equal": (np.ones((ROWS, CLASSES)), LABELS, None),
    "1,000 classes": (RNG.normal(size=(50, 1000)) + 8 * np.eye(1000)[np.arange(50)], np.arange(50), "any"),
    "a class that never occurs": (LOGITS, np.minimum(LABELS, CLASSES - 2), None),
    "float16": (LOGITS.astype(np.float16), LABELS, None),
    "float32": (LOGITS.astype(np.float32), LABELS, None),
    "int64": (np.round(LOGITS).astype(int), LABELS, None),
    "int8": (np.round(LOGITS).astype(np.int8), LABELS, None),
    "a large offset": (LOGITS + 1e6, LABELS, None),
    "−inf for wrong classes": (np.where((LOGITS < -2) & ~TRUE, -np.inf, LOGITS), LABELS, None),
    "−inf for true classes": (np.where((np.arange(ROWS) < 5)[:, None] & TRUE, -np.inf, LOGITS), LABELS, None),
    "−inf in some draws": (
        np.where(np.arange(3)[:, None, None] == 1, np.where(TRUE, -np.inf, DRAWS), DRAWS),
        LABELS,
        None,
    ),
    "every other class −inf": (np.where(TRUE, LOGITS, -np.inf), LABELS, None),
    "draws": (DRAWS, LABELS, None),
    "one draw": (DRAWS[:1], LABELS, None),
    "draws of one row": (DRAWS[:, :1], LABELS[:1], "any"),
    "huge float32": ((LOGITS * 1e37).astype(np.float32), LABELS, None),
    "huge float64": (LOGITS * 1e306, LABELS, None),
    "rounded to one-hot": (
        logits_from_probs(np.eye(CLASSES)[np.where(np.arange(ROWS) < 54, LABELS, LABELS - 1)]),
        LABELS,
        None,
    ),
}


def slow_nll(logits, labels):
    """From logits as `transform` gives them, one row at a time, with the floor of avuc.metrics.nll."""
    draws = logits if logits.ndim == 3 else logits[None]
    total = 0.0
    for row, label in enumerate(labels):
        mean = 0.0
        for one in draws:
            top = max(one[row])
            mean += math.exp(one[row][label] - top) / sum(math.exp(z - top) for z in one[row]) / len(draws)
        total -= math.log(max(mean, 1e-12))
    return total / len(labels)


@pytest.mark.parametrize("name", CALIBRATORS)
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_input_gives_a_finite_calibrator_whose_loss_is_its_figure(name, case):
    logits, labels, end = DEGENERATE[case]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scaler = CALIBRATORS[name]().fit(logits, labels)
        tensor = CALIBRATORS[name]().fit(torch.tensor(logits), torch.tensor(labels))
    assert all(issubclass(one.category, CalibrationWarning) for one in caught)
    said = " ".join(str(one.message) for one in caught)
    assert tensor.to_json() == scaler.to_json()
    # structured scaling also tries lower temperatures where the logits hardly differ
    lowest = 0.05 * LEAST_DISTANCE if name in ("matrix", "structured-vector") else 0.05
    assert lowest <= scaler.temperature_ <= 20
    if scaler.at_bound_:
        assert "no minimum inside" in said
    if name == "temperature" and end != "any":
        assert scaler.temperature_ == pytest.approx(end) if end else not scaler.at_bound_
    # finite where the logits were, and ruled out where they were
    out = scaler.transform(logits)
    assert np.array_equal(np.isfinite(out), np.isfinite(logits))
    assert torch.equal(torch.tensor(out), scaler.transform(torch.tensor(logits)))
    if name not in ("avuts", "auavuts"):  # their loss has further terms
        assert slow_nll(out.astype(np.float64), labels) == pytest.approx(scaler.loss_, rel=2e-4, abs=1e-6)
    again = Calibrator.from_json(scaler.to_json())
    assert np.array_equal(again.transform(logits), out)


WRONG = {
    "NaN": (np.where(np.arange(ROWS)[:, None] == 3, np.nan, LOGITS), LABELS, "NaN in 1 of 60 rows .first: row 3"),
    "+inf": (np.where(np.arange(ROWS)[:, None] == 5, np.inf, LOGITS), LABELS, r"\+inf in 1 of 60 rows"),
    "a row of −inf": (np.where(np.arange(ROWS)[:, None] == 7, -np.inf, LOGITS), LABELS, "every class of row 7"),
    "NaN in a draw": (np.where(np.arange(3)[:, None, None] == 2, np.nan, DRAWS), LABELS, "NaN in 60 of 60 rows"),
    "(N, C, 1)": (LOGITS[..., None], LABELS, r"read as \(samples, rows, classes\): pass logits\[..., 0\]"),
    "(N, S, C)": (DRAWS.swapaxes(0, 1), LABELS, r"pass logits.swapaxes\(0, 1\)"),
    "one dimension": (LOGITS[0], LABELS, r"labels must have shape \(4,\)"),
    "no rows": (LOGITS[:0], LABELS[:0], "logits are empty"),
    "booleans": (LOGITS > 0, LABELS, "real numbers; found torch.bool"),
    "complex": (LOGITS + 1j, LABELS, "logits must be"),
    "text": (LOGITS.astype(str), LABELS, "logits must be numbers"),
    "no logits": (None, LABELS, "logits are missing"),
    "no labels": (LOGITS, None, "labels are missing"),
    "one-hot labels": (LOGITS, np.eye(CLASSES)[LABELS], r"found \(60, 4\): one-hot labels need"),
    "too few labels": (LOGITS, LABELS[:-1], r"found shape \(59,\)"),
    "label −1": (LOGITS, np.where(LABELS == 0, -1, LABELS), "labels must be 0 … 3"),
    "label C": (LOGITS, LABELS + 1, "labels must be 0 … 3 .*found 1 … 4; labels that start at 1 need labels - 1"),
    "fractions": (LOGITS, LABELS + 0.5, "whole class numbers"),
    "names": (LOGITS, np.array(list("abcd"))[LABELS], "labels must be numbers"),
    "probabilities": (PROBS, LABELS, "look like probabilities"),
    "probabilities that sum to 0.999": (PROBS * 0.999, LABELS, "look like probabilities"),
    "probabilities that sum to 1.001": (PROBS * 1.001, LABELS, "look like probabilities"),
    "probabilities rounded to 3 digits": (PROBS.round(3), LABELS, "look like probabilities"),
    "probabilities rounded to 2 digits": (
        PROBS.round(2),
        LABELS,
        r"look like (rounded )?probabilities .*logits_from_probs\(probs",
    ),
    "percentages": (100 * PROBS, LABELS, r"look like percentages .*logits_from_probs\(percentages / 100\)"),
    "whole percentages": ((100 * PROBS).round(), LABELS, r"look like percentages .*--kind percent"),
    "masked rows": (np.ma.masked_array(LOGITS, LOGITS > 1), LABELS, "logits hold masked entries"),
}


@pytest.mark.parametrize("name", CALIBRATORS)
@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line(name, case):
    logits, labels, message = WRONG[case]
    with pytest.raises(InputError, match=message) as caught:
        CALIBRATORS[name]().fit(logits, labels)
    assert "\n" not in str(caught.value)


def test_labels_in_one_column():
    for labels in (LABELS[:, None], torch.tensor(LABELS)[:, None]):
        one, other = (CALIBRATORS["temperature"]().fit(LOGITS, given) for given in (LABELS, labels))
        assert one.temperature_ == other.temperature_


def test_one_row_of_small_logits_is_no_evidence_of_probabilities():
    """Two logits sum to 1 within 0.01 in about one row of a thousand; a service that sends them one by one failed."""
    labels = (LOGITS[:, 1] > LOGITS[:, 0]) ^ (np.arange(len(LOGITS)) % 4 == 0)
    scaler = CALIBRATORS["temperature"]().fit(LOGITS[:, :2], labels.astype(int))
    row = np.array([[0.3, 0.7051]])
    np.testing.assert_allclose(scaler.transform(row), row / scaler.temperature_)
    with pytest.raises(InputError, match="look like probabilities"):
        scaler.transform(np.array([[0.3, 0.7]]))


@pytest.mark.parametrize("name", CALIBRATORS)
@pytest.mark.parametrize(
    "case", ["NaN", "+inf", "a row of −inf", "(N, C, 1)", "one dimension", "booleans", "probabilities"]
)
def test_transform_refuses_it_too(name, case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        scaler = CALIBRATORS[name]().fit(LOGITS, LABELS)
    with pytest.raises(InputError):
        scaler.transform(WRONG[case][0])
    with pytest.raises(InputError, match="fitted on 4 classes; found 3"):
        scaler.transform(LOGITS[:, :3])


@pytest.mark.parametrize("total", [0.995, 1.005])
def test_probabilities_that_do_not_quite_sum_to_one(total):
    found, exact = (TemperatureScaling().fit(logits_from_probs(p), LABELS).temperature_ for p in (PROBS * total, PROBS))
    assert found == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("probs", [PROBS * 0.9, PROBS * 100, LOGITS])
def test_what_is_not_normalised_is_refused(probs):
    with pytest.raises(InputError, match="must sum to 1"):
        logits_from_probs(probs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("draws", [False, True])
def test_overflow_keeps_the_probabilities(dtype, draws):
    """At T = 0.05 logits near the largest number of their type are beyond it; their softmax is not."""
    most = np.finfo(dtype).max
    logits = np.array([[0.9, 0.8, -0.9], [0.5, 0.5, 0.1], [1e-38, 0.0, -1e-38], [-0.9, -0.8, -0.85]]) * most
    logits = logits.astype(dtype)
    logits[3, 0] = -np.inf
    logits = np.stack([logits, logits]) if draws else logits
    scaler = TemperatureScaling.identity(3)
    scaler.temperature_ = 0.05
    with np.errstate(all="ignore"):
        out = scaler.transform(logits)
        assert np.array_equal(np.isfinite(out), np.isfinite(logits))
        probs = np.exp(log_softmax(out.astype(np.longdouble), axis=-1))
    rows = probs[0] if draws else probs
    np.testing.assert_allclose(rows[[0, 1, 3]], [[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]], atol=1e-12)


def test_vector_scaling_stays_finite_too():
    vector = VectorScaling().fit(LOGITS, LABELS)
    vector.scale_ = np.array([5.0, -5.0, 1e30, 1.0])
    most = np.finfo(np.float32).max
    out = vector.transform(np.array([[most, -most, 0.0, -np.inf], [0.0, -most, -most, 1.0]], np.float32))
    assert np.isfinite(out).sum() == 7
    assert np.isneginf(out[0, 3])


def test_a_cautious_temperature_says_the_temperature_it_ends_at():
    """One right row: the likelihood stops at 0.05, and caution raises it from there."""
    with pytest.warns(CalibrationWarning, match="temperature_ = 0.307") as caught:
        scaler = CautiousTemperatureScaling().fit(LOGITS[:1] / LOGITS[:1].max() * 2, RIGHT[:1])
    assert len(caught) == 1
    assert scaler.temperature_ > scaler.likeliest_ == 0.05


# ---- calibrators from hostile files

HOSTILE = [
    ("temperature", "temperature", 1e300, "inside its bounds"),
    ("temperature", "temperature", 1e-300, "inside its bounds"),
    ("temperature", "temperature", -1.0, "above 0"),
    ("temperature", "temperature", 0, "above 0"),
    ("temperature", "temperature", math.nan, "finite number"),
    ("temperature", "temperature", math.inf, "finite number"),
    ("temperature", "temperature", 10**400, "finite number"),
    ("temperature", "temperature", None, "finite number"),
    ("temperature", "temperature", [1.0], "finite number"),
    ("temperature", "num_classes", 0, "at least 1"),
    ("temperature", "num_classes", 2.5, "whole number"),
    ("cautious", "likeliest", 19.0, "likeliest"),
    ("avuts", "temperature", 1e20, "inside its bounds"),
    ("auavuts", "guarded", "yes", "true or false"),
    ("smoothed", "smoothing", 1.0, "at least 0 and below 1"),
    ("ets", "weights", [0.5, 0.5], "three numbers"),
    ("ets", "weights", [1.5, -0.5, 0.0], "three numbers"),
    ("isotonic", "lengths", [0.5] * 4, "whole numbers above 0"),
    ("isotonic", "lengths", [10**9] * 4, "as many as lengths says"),
    ("histogram", "places", [0.0], "as many as lengths says"),
    ("histogram", "values", "x", "list of numbers"),
    ("vector", "scale", [1.0] * 3, "one entry for each of 4 classes"),
    ("vector", "scale", [1e300] * 4, "must fit float32"),
    ("vector", "bias", [math.nan] * 4, "finite number"),
    ("vector", "bias", [10**400] * 4, "finite number"),
    ("vector", "bias", "0000", "list of numbers"),
]


@pytest.fixture(scope="module")
def documents():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return {name: kind().fit(LOGITS, LABELS).to_json() for name, kind in CALIBRATORS.items()}


@pytest.mark.parametrize(("name", "key", "value", "message"), HOSTILE)
def test_a_hostile_file_is_refused(documents, tmp_path, name, key, value, message):
    content = json.loads(documents[name])
    content["learned"][key] = value
    path = tmp_path / "c.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message) as caught:
        Calibrator.load(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("bounds", [[10**400, 1], [0, 1], ["a", "b"], [1.0], None, [20, 0.05]])
def test_hostile_parameters_are_refused(documents, bounds):
    content = json.loads(documents["temperature"])
    content["params"]["bounds"] = bounds
    with pytest.raises(InputError, match="bounds must be two temperatures"):
        Calibrator.from_json(json.dumps(content))


def test_a_file_too_large_to_be_a_calibrator_is_not_read_whole(tmp_path):
    path = tmp_path / "c.json"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(InputError, match="larger than 64 MiB"):
        Calibrator.load(path)


@pytest.mark.parametrize("names", [["a"], "abcd", [1, 2, 3, 4], {"a": 1}, ["a", "b", "c", None]])
def test_class_names_must_be_names(documents, names):
    content = json.loads(documents["vector"]) | {"class_names": names}
    with pytest.raises(InputError, match="class_names must be a list of 4 names"):
        Calibrator.from_json(json.dumps(content))


def test_class_names_survive_and_a_new_fit_forgets_them(documents):
    scaler = Calibrator.from_json(documents["vector"])
    assert scaler.class_names_ is None
    scaler.class_names_ = ("ant", "bee", "cat", "dog")
    assert Calibrator.from_json(scaler.to_json()).class_names_ == scaler.class_names_
    assert scaler.fit(LOGITS, LABELS).class_names_ is None

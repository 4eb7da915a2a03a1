"""load_calibrator: NumPy alone, equal to the torch calibrators, strict about its file."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from avuc.calibration import (
    CALIBRATORS,
    AutoCalibrator,
    Calibrator,
    MultiLabelCalibrator,
    TemperatureScaling,
    logits_from_probs,
)
from avuc.core.errors import InputError
from avuc.deploy import load_calibrator
from avuc.deploy.calibrator import METHODS
from avuc.deploy.rescaling import rescaling_of


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 150)
    return 3 * (rng.normal(size=(150, 4)) + np.eye(4)[labels]), labels


EVERY = {**CALIBRATORS, "blend": partial(AutoCalibrator, blend=True)}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_equal_to_the_calibrator_itself(name, dtype, rows, tmp_path):
    logits, labels = rows[0].astype(dtype), rows[1]
    calibrator = EVERY[name]().fit(*rows)
    calibrator.save(tmp_path / "cal.json")
    light = load_calibrator(tmp_path / "cal.json")
    assert (light.method, light.num_classes, light.class_names) == (name, 4, None)
    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    found, wanted = light.transform(logits), calibrator.transform(logits)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(light.probs(logits), calibrator.predict_proba(logits), rtol=tolerance, atol=tolerance)
    draws = np.stack([logits, logits[::-1], 2 * logits])
    np.testing.assert_allclose(light.probs(draws), calibrator.predict_proba(draws), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(light.transform(draws), calibrator.transform(draws), rtol=tolerance, atol=tolerance)
    assert len(labels) == len(found)


@pytest.mark.parametrize("name", EVERY)
def test_equal_probabilities(name, tmp_path):
    """Rounding, which is another one in NumPy, must not decide on which side of a step a probability is."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 300)
    logits = logits_from_probs(rng.multinomial(10, 0.5 * np.eye(4)[labels] + 0.125) / 10)
    calibrator = EVERY[name]().fit(logits, labels)
    calibrator.save(tmp_path / "cal.json")
    light = load_calibrator(tmp_path / "cal.json")
    np.testing.assert_allclose(light.probs(logits), calibrator.predict_proba(logits), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["isotonic", "histogram", "venn-abers"])
@pytest.mark.parametrize("factor", [1e-6, 1e-3, 300.0, 1e3, 1e4, 1e6])
def test_logits_of_any_scale(name, factor, tmp_path):
    """Probabilities near 1e-308 have few digits, and torch and NumPy rounded them differently."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 5, 200)
        logits = factor * (rng.normal(size=(200, 5)) + np.eye(5)[labels])
        fresh = np.concatenate([logits, factor * rng.normal(size=(100, 5))])
        calibrator = CALIBRATORS[name]().fit(logits, labels)
        calibrator.save(tmp_path / "cal.json")
        again = Calibrator.load(tmp_path / "cal.json")
        assert again.to_json() == calibrator.to_json()
        np.testing.assert_array_equal(again.transform(fresh), calibrator.transform(fresh))
        wanted = calibrator.predict_proba(fresh)
        light = load_calibrator(tmp_path / "cal.json")
        np.testing.assert_allclose(light.probs(fresh), wanted, rtol=0, atol=1e-9)
        module = rescaling_of(calibrator)(torch.as_tensor(fresh)).softmax(-1)
        np.testing.assert_allclose(module, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_extreme_logits(name, rows, tmp_path):
    calibrator = EVERY[name]().fit(*rows)
    if isinstance(calibrator, TemperatureScaling):
        calibrator.temperature_ = 0.5
        calibrator.bounds = (0.05, 20.0)
    calibrator.likeliest_ = 0.5
    calibrator.save(tmp_path / "cal.json")
    light = load_calibrator(tmp_path / "cal.json")
    logits = np.array([[1e308, -1e308, 0, 0], [-np.inf, 0, 1, -np.inf], [-1e4, -2e4, 0, 1e4]])
    probs = light.probs(logits)
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs, calibrator.predict_proba(torch.as_tensor(logits)).numpy(), atol=1e-12)


def test_one_logit_for_two_classes(tmp_path):
    scaler = TemperatureScaling.identity(2)
    scaler.temperature_ = 2.0
    scaler.class_names_ = ("no", "yes")
    scaler.save(tmp_path / "cal.json")
    light = load_calibrator(str(tmp_path / "cal.json"))
    z = np.array([-1.0, 0.0, 3.0])
    np.testing.assert_allclose(light.transform(z), z / 2)
    np.testing.assert_allclose(light.transform(z[:, None]), z[:, None] / 2)
    np.testing.assert_allclose(light.probs(z)[:, 1], 1 / (1 + np.exp(-z / 2)))
    assert light.class_names == ("no", "yes")


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (np.zeros((2, 3)), r"logits must be \(rows, 4\)"),
        (np.zeros(4), r"logits must be \(rows, 4\)"),
        (np.zeros((0, 4)), "logits must be"),
        (np.array([[np.nan, 0, 0, 0]]), "NaN"),
        (np.array([[np.inf, 0, 0, 0]]), r"\+inf"),
        (np.full((1, 4), -np.inf), "all −inf"),
        ([["a", "b", "c", "d"]], "must be real numbers"),
    ],
)
def test_wrong_logits(logits, message, rows, tmp_path):
    TemperatureScaling().fit(*rows).save(tmp_path / "cal.json")
    with pytest.raises(InputError, match=message):
        load_calibrator(tmp_path / "cal.json").transform(logits)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("format", "other", "not a calibrator"),
        ("version", 2, "version 1 is needed; found 2"),
        ("extra", 1, "unknown key 'extra'"),
        ("calibrator", "unknown", "calibrator must be one of temperature"),
        ("learned", [], "before it was fitted"),
        ("learned", {}, "before it was fitted"),
        ("learned.num_classes", 0, "num_classes must be a whole number"),
        ("learned.num_classes", True, "num_classes must be a whole number"),
        ("learned.scale", [1.0], "scale must be a list of 4 numbers"),
        ("learned.bias", [1.0, 2.0, 3.0, "x"], "bias must be a finite number; found x"),
        ("learned.bias", [1.0, 2.0, 3.0, float("nan")], "bias must be a finite number"),
        ("learned.bias", [1.0, 2.0, 3.0, 10**400], "bias must be a finite number"),
        ("class_names", ["a"], "class_names must be a list of 4 names"),
    ],
)
def test_spoiled_files(place, value, message, rows, tmp_path):
    content = json.loads(CALIBRATORS["vector"]().fit(*rows).to_json())
    *parents, key = place.split(".")
    target = content[parents[0]] if parents else content
    target[key] = value
    (tmp_path / "cal.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=rf"cal\.json: .*{message}"):
        load_calibrator(tmp_path / "cal.json")


@pytest.mark.parametrize("value", [0, -1.0, "1", None, float("inf")])
def test_spoiled_temperatures(value, rows, tmp_path):
    content = json.loads(TemperatureScaling().fit(*rows).to_json())
    content["learned"]["temperature"] = value
    (tmp_path / "cal.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"temperature must be (a finite number|above 0)"):
        load_calibrator(tmp_path / "cal.json")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_calibrator(text, tmp_path):
    (tmp_path / "cal.json").write_bytes(text)
    with pytest.raises(InputError, match=r"cal\.json: .*not a calibrator"):
        load_calibrator(tmp_path / "cal.json")
    with pytest.raises(InputError, match=r"nothing\.json: cannot read"):
        load_calibrator(tmp_path / "nothing.json")


def test_the_methods_are_all_calibrators():
    assert set(Calibrator.calibrators) == set(METHODS)


def test_independent_labels(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (80, 3))
    logits = 3 * (rng.normal(size=(80, 3)) + 2 * labels - 1)
    calibrator = MultiLabelCalibrator().fit(logits, labels)
    calibrator.save(tmp_path / "cal.json")
    light = load_calibrator(tmp_path / "cal.json")
    np.testing.assert_allclose(light.transform(logits), calibrator.transform(logits))
    np.testing.assert_allclose(light.probs(logits), calibrator.predict_proba(logits))
    draws = np.stack([logits, -logits])
    np.testing.assert_allclose(light.probs(draws), calibrator.predict_proba(draws))
    assert light.probs(np.array([[1e308, -1e308, np.inf]])).tolist() == [[1.0, 0.0, 1.0]]
    content = json.loads(calibrator.to_json())
    content["learned"]["temperature"] = [1.0, 0.0, 1.0]
    (tmp_path / "cal.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="every temperature must be above 0"):
        load_calibrator(tmp_path / "cal.json")


def test_without_torch(rows, tmp_path):
    calibrator = CALIBRATORS["vector"]().fit(*rows)
    calibrator.save(tmp_path / "cal.json")
    np.save(tmp_path / "logits.npy", rows[0])
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import numpy as np\n"
        "from avuc.deploy import load_calibrator\n"
        "np.save('probs.npy', load_calibrator('cal.json').probs(np.load('logits.npy')))\n"
        "assert not any(name.startswith('torch.') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "probs.npy"), calibrator.predict_proba(rows[0]), atol=1e-12)


def test_matrices_of_the_first_version_are_read(tmp_path):
    """They have no smoothing: W max(log softmax(z/T), −87.3) + b."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    logits = 3 * (rng.normal(size=(300, 3)) + np.eye(3)[labels])
    content = json.loads(CALIBRATORS["matrix"]().fit(logits, labels).to_json())
    del content["learned"]["smoothing"]
    (tmp_path / "first.json").write_text(json.dumps(content))
    learned = content["learned"]
    logits = np.concatenate((logits, [[0.0, 1000.0, -1000.0]]))
    x = np.maximum(log_softmax(logits / learned["temperature"], axis=1), -87.33654475)
    wanted = x @ np.reshape(learned["matrix"], (3, 3)).T + learned["bias"]
    calibrator = Calibrator.load(tmp_path / "first.json")
    np.testing.assert_allclose(calibrator.transform(logits), wanted, rtol=1e-12)
    np.testing.assert_allclose(load_calibrator(tmp_path / "first.json").transform(logits), wanted, rtol=1e-12)
    calibrator.save(tmp_path / "again.json")
    np.testing.assert_allclose(load_calibrator(tmp_path / "again.json").transform(logits), wanted, rtol=1e-12)
    found = rescaling_of(calibrator)(torch.tensor(logits, dtype=torch.float32))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-3, atol=1e-4)


def test_a_file_that_a_windows_editor_saved_again(tmp_path):
    """It begins with a mark of UTF-8, and its lines end in two characters."""
    text = TemperatureScaling.identity(3).to_json().replace("\n", "\r\n")
    (tmp_path / "cal.json").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load_calibrator(tmp_path / "cal.json").num_classes == 3
    assert Calibrator.load(tmp_path / "cal.json").num_classes_ == 3

"""Calibrators of dense, binary and multi-label models: the same fits as on rows made by hand, and the shape back."""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import expit

from avuc.calibration import (
    CALIBRATORS,
    CalibrationWarning,
    Calibrator,
    MultiLabelCalibrator,
    TemperatureScaling,
    VectorScaling,
    check_calibrator,
    logits_from_probs,
)
from avuc.core.errors import InputError

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, (5, 6, 7))
DENSE = 3 * (RNG.normal(size=(5, 3, 6, 7)) + np.moveaxis(np.eye(3)[LABELS], -1, 1))
LABELS[RNG.random(LABELS.shape) < 0.2] = -100
KEPT = LABELS != -100
ROWS, TARGETS = np.moveaxis(DENSE, 1, -1)[KEPT], LABELS[KEPT]
BINARY = 4 * RNG.normal(size=400)
ANSWERS = (RNG.random(400) < expit(BINARY / 3)).astype(int)


def quiet(make: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return make()


@pytest.mark.parametrize("name", CALIBRATORS)
def test_dense(name: str) -> None:
    plain = quiet(lambda: CALIBRATORS[name]().fit(ROWS, TARGETS))
    expected = np.full(np.moveaxis(DENSE, 1, -1).shape, np.nan)
    expected[KEPT] = plain.transform(ROWS)
    last = np.moveaxis(DENSE, 1, -1)
    for logits, dim in ((DENSE, None), (last, -1), (torch.from_numpy(DENSE), 1)):
        fitted = quiet(partial(CALIBRATORS[name]().fit, logits, LABELS, class_dim=dim))
        assert fitted.temperature_ == pytest.approx(plain.temperature_, rel=1e-9)
        out = fitted.transform(logits, class_dim=dim)
        assert type(out) is type(logits)
        assert out.shape == logits.shape
        found = np.asarray(out) if dim == -1 else np.moveaxis(np.asarray(out), 1, -1)
        np.testing.assert_allclose(found[KEPT], expected[KEPT], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CALIBRATORS)
@pytest.mark.parametrize("shape", [(400,), (400, 1)])
def test_binary(name: str, shape: tuple[int, ...]) -> None:
    both = np.stack([np.zeros(400), BINARY], 1)
    plain = quiet(lambda: CALIBRATORS[name]().fit(both, ANSWERS))
    expected = np.diff(plain.transform(both))[:, 0]
    for kind in (np.asarray, torch.tensor):
        logits = kind(BINARY.reshape(shape))
        fitted = quiet(partial(CALIBRATORS[name]().fit, logits, ANSWERS.astype(bool)))
        assert fitted.num_classes_ == 2
        out = fitted.transform(logits)
        assert out.shape == shape
        assert type(out) is type(logits)
        np.testing.assert_allclose(np.asarray(out).reshape(-1), expected, rtol=1e-9, atol=1e-9)
    again = Calibrator.from_json(fitted.to_json())
    assert np.array_equal(again.transform(BINARY), fitted.transform(BINARY))


def test_binary_temperature_is_that_of_the_log_loss() -> None:
    def loss(x: float) -> float:
        z = BINARY / np.exp(x)
        return float(np.logaddexp(0, np.where(ANSWERS == 1, -z, z)).mean())

    best = np.exp(minimize_scalar(loss, bounds=(-2, 3), method="bounded", options={"xatol": 1e-9}).x)
    assert TemperatureScaling().fit(BINARY, ANSWERS).temperature_ == pytest.approx(best, rel=1e-5)


def test_draws() -> None:
    draws = np.stack([DENSE, 0.7 * DENSE])
    fitted = TemperatureScaling().fit(draws, LABELS)
    plain = TemperatureScaling().fit(np.stack([ROWS, 0.7 * ROWS]), TARGETS)
    assert fitted.temperature_ == pytest.approx(plain.temperature_)
    np.testing.assert_allclose(fitted.transform(draws, class_dim=2), draws / fitted.temperature_)
    with pytest.raises(InputError, match="give class_dim=2"):
        fitted.transform(draws)
    one = np.stack([BINARY, BINARY / 2])[..., None]
    binary = TemperatureScaling().fit(one, ANSWERS)
    np.testing.assert_allclose(binary.transform(one), one / binary.temperature_)


def test_ignored_rows_and_weights() -> None:
    labels = np.where(np.arange(len(TARGETS)) % 3 == 0, -100, TARGETS)
    few = TemperatureScaling().fit(ROWS[labels != -100], TARGETS[labels != -100])
    assert TemperatureScaling().fit(ROWS, labels).temperature_ == pytest.approx(few.temperature_)
    assert TemperatureScaling().fit(ROWS, labels[:, None]).temperature_ == pytest.approx(few.temperature_)
    weight = RNG.integers(1, 4, LABELS.shape)
    weighted = TemperatureScaling().fit(DENSE, LABELS, weight)
    assert weighted.temperature_ == pytest.approx(TemperatureScaling().fit(ROWS, TARGETS, weight[KEPT]).temperature_)
    with pytest.raises(InputError, match="shape of the labels"):
        TemperatureScaling().fit(DENSE, LABELS, weight[0])
    with pytest.raises(InputError, match="nothing to fit on"):
        TemperatureScaling().fit(DENSE, np.full(LABELS.shape, -100))
    with pytest.raises(InputError, match="found -100"):
        TemperatureScaling().fit(ROWS, labels, ignore_index=None)


def test_what_does_not_fit_is_one_line() -> None:
    scaler = TemperatureScaling().fit(ROWS, TARGETS)
    for logits, options in (
        (BINARY, {}),
        (np.ones((4, 1)), {}),
        (np.ones((4, 5)), {}),
        (np.moveaxis(DENSE, 1, -1), {}),
        (DENSE, {"class_dim": 7}),
        (np.ones((2, 4, 5, 6)), {}),
    ):
        with pytest.raises(InputError, match=r"class_dim|3 classes") as error:
            scaler.transform(logits, **options)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"logits_from_probs\(probs\)"):
        TemperatureScaling().fit(expit(BINARY), ANSWERS)
    with pytest.raises(InputError, match="regression"):
        TemperatureScaling().fit(BINARY, BINARY)
    # a logit of exactly 1 is a logit
    assert TemperatureScaling.identity(2).transform(np.ones(3)).tolist() == [1, 1, 1]


def test_binary_logits_from_probs() -> None:
    p = expit(BINARY)
    np.testing.assert_allclose(logits_from_probs(p), BINARY, atol=1e-6)
    np.testing.assert_allclose(logits_from_probs(torch.tensor(p)[:, None])[:, 0], BINARY, atol=1e-6)
    assert np.isfinite(logits_from_probs([0.0, 1.0])).all()
    with pytest.raises(InputError, match="from 0 to 1"):
        logits_from_probs([0.5, 1.5])


def test_check_calibrator_of_dense_logits() -> None:
    names = np.array(list("abcde"))[np.nonzero(KEPT)[0]]
    flat = check_calibrator(TemperatureScaling(), ROWS, TARGETS, groups=names)
    dense = check_calibrator(TemperatureScaling(), DENSE, LABELS)
    for name, figure in flat.figures.items():
        assert dense.figures[name] == pytest.approx(figure)
    few = check_calibrator(TemperatureScaling(), DENSE, LABELS, elements=300)
    assert (few.rows, few.folds) == (100, 5)
    assert check_calibrator(TemperatureScaling(), BINARY, ANSWERS).figures["nll"].high < 0


# ---- multi-label

LOGITS = np.stack([4 * BINARY, BINARY, BINARY / 2], 1)
MANY = np.stack([ANSWERS, (RNG.random(400) < expit(BINARY / 2)).astype(int), (BINARY > 0).astype(int)], 1)
MANY[::7, 1] = -100


@pytest.mark.parametrize("method", ["temperature", "cautious", "avuts", "auavuts"])
def test_a_temperature_for_each_label(method: str) -> None:
    fitted = quiet(lambda: MultiLabelCalibrator(method).fit(LOGITS, MANY))
    for label in range(3):
        one = quiet(partial(CALIBRATORS[method]().fit, LOGITS[:, label], MANY[:, label]))
        assert fitted.temperature_[label] == pytest.approx(one.temperature_)
    np.testing.assert_allclose(fitted.transform(LOGITS), LOGITS / fitted.temperature_)
    shared = quiet(lambda: MultiLabelCalibrator(method, shared=True).fit(torch.tensor(LOGITS), torch.tensor(MANY)))
    one = quiet(lambda: CALIBRATORS[method]().fit(LOGITS.ravel(), MANY.ravel()))
    assert shared.temperature_ == pytest.approx([one.temperature_] * 3)
    assert isinstance(shared.transform(torch.tensor(LOGITS)), torch.Tensor)


def test_a_label_of_one_kind_keeps_its_logits(tmp_path: Path) -> None:
    labels = MANY.copy()
    labels[:, 0] = 1
    labels[:, 2] = -100
    with pytest.warns(CalibrationWarning, match="label 0, 2 is never seen as both"):
        fitted = MultiLabelCalibrator().fit(LOGITS, labels)
    assert fitted.temperature_[[0, 2]].tolist() == [1, 1]
    assert fitted.fitted_.tolist() == [0, 1, 0]
    fitted.save(tmp_path / "c.json")
    for kind in (Calibrator, MultiLabelCalibrator):
        again = kind.load(tmp_path / "c.json")
        assert isinstance(again, MultiLabelCalibrator)
        assert np.array_equal(again.transform(LOGITS), fitted.transform(LOGITS))
    with pytest.raises(InputError, match="calibrator must be one of"):
        TemperatureScaling.load(tmp_path / "c.json")
    for key, value in (
        ("temperature", [1.0]),
        ("temperature", [1.0, 0.0, 1.0]),
        ("fitted", [0, 1, 2]),
        ("fitted", "x"),
    ):
        content = json.loads(fitted.to_json())
        content["learned"][key] = value
        with pytest.raises(InputError, match="calibrator JSON"):
            Calibrator.from_json(json.dumps(content))


def test_multilabel_draws_dense_and_extremes() -> None:
    draws = np.stack([LOGITS, LOGITS / 2])
    fitted = quiet(lambda: MultiLabelCalibrator().fit(draws, MANY))
    one = quiet(lambda: TemperatureScaling().fit(draws[..., :1], MANY[:, 0]))
    assert fitted.temperature_[0] == pytest.approx(one.temperature_)
    assert fitted.transform(draws).shape == draws.shape
    probs = fitted.predict_proba(draws)
    np.testing.assert_allclose(probs, expit(draws / fitted.temperature_).mean(0), atol=1e-6)
    assert set(np.unique(fitted.predict(draws))) <= {0, 1}
    images = LOGITS.reshape(20, 20, 3).swapaxes(1, 2)
    dense = quiet(lambda: MultiLabelCalibrator().fit(images, MANY.reshape(20, 20, 3).swapaxes(1, 2)))
    flat = quiet(lambda: MultiLabelCalibrator().fit(LOGITS, MANY))
    assert dense.temperature_ == pytest.approx(flat.temperature_)
    np.testing.assert_allclose(dense.transform(images, class_dim=1), images / dense.temperature_[:, None])
    assert np.isfinite(flat.transform(np.full((1, 3), np.finfo(np.float64).max))).all()
    assert flat.score(LOGITS, MANY) >= MultiLabelCalibrator.score(flat, 2 * LOGITS, MANY)


def test_multilabel_refusals() -> None:
    fitted = quiet(lambda: MultiLabelCalibrator().fit(LOGITS, MANY))
    for make, message in (
        (lambda: MultiLabelCalibrator("multilabel").fit(LOGITS, MANY), "method must be one of"),
        (lambda: MultiLabelCalibrator(shared=1).fit(LOGITS, MANY), "True or False"),  # type: ignore[arg-type]
        (lambda: MultiLabelCalibrator().transform(LOGITS), "not fitted"),
        (lambda: MultiLabelCalibrator().fit(expit(LOGITS), MANY), "look like probabilities"),
        (lambda: MultiLabelCalibrator().fit(LOGITS, ANSWERS), r"\(N, L\)"),
        (lambda: MultiLabelCalibrator().fit(LOGITS, MANY + 5), "0 or 1"),
        (lambda: MultiLabelCalibrator().fit(LOGITS, np.full(MANY.shape, -100)), "no known decision"),
        (lambda: MultiLabelCalibrator().fit(np.where(LOGITS > 3, np.nan, LOGITS), MANY), "NaN"),
        (lambda: fitted.transform(LOGITS[:, :2]), "3 labels"),
        (lambda: fitted.transform(BINARY), "3 labels"),
        (lambda: fitted.transform(LOGITS * np.nan), "NaN"),
    ):
        with pytest.raises(InputError, match=message) as error:
            quiet(make)
        assert "\n" not in str(error.value)


def test_check_calibrator_of_a_multilabel_model() -> None:
    check = check_calibrator(MultiLabelCalibrator(), LOGITS, MANY)
    assert not check.worse
    assert check.figures["nll"].high < 0
    assert check.rows == int((MANY >= 0).sum())
    shared = check_calibrator(MultiLabelCalibrator(shared=True), np.stack([LOGITS, LOGITS]), MANY)
    assert shared.figures["nll"].after > check.figures["nll"].after
    with pytest.raises(InputError, match="without weights"):
        check_calibrator(MultiLabelCalibrator(), LOGITS, MANY, sample_weight=np.ones(MANY.shape))


@pytest.mark.parametrize("draws", [0, 2])
def test_fit_transform_finds_the_classes_as_fit_does(draws: int) -> None:
    # as many positions, rows and classes: the shape alone does not tell where the classes are
    front = (draws,) if draws else ()
    logits, labels = 3 * RNG.normal(size=(*front, 3, 3, 3)), RNG.integers(0, 3, (3, 3))
    rows = np.moveaxis(logits, -2, -1).reshape(*front, 9, 3)
    plain = quiet(lambda: VectorScaling().fit(rows, labels.reshape(-1)))
    found = quiet(lambda: VectorScaling().fit_transform(logits, labels))
    expected = np.moveaxis(plain.transform(rows).reshape(*front, 3, 3, 3), -1, -2)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    several = RNG.integers(0, 2, (3, 3, 3))
    scaler = quiet(lambda: MultiLabelCalibrator().fit(logits, several))
    found = quiet(lambda: MultiLabelCalibrator().fit_transform(logits, several))
    np.testing.assert_allclose(found, logits / scaler.temperature_[:, None])


def test_the_ignored_label_is_not_wrapped_to_the_type_of_the_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(160, (80,), generator=generator)
    labels[:40] = 156  # −100 as a byte
    logits = torch.randn(80, 160, generator=generator)
    expected = TemperatureScaling().fit(logits, labels).temperature_
    assert TemperatureScaling().fit(logits, labels.to(torch.uint8), ignore_index=-100).temperature_ == expected

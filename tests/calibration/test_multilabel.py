"""A calibrator of two classes for each label of a multi-label model, without torch and as a module, too."""

from __future__ import annotations

import json
import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit

from avuc.calibration import CALIBRATORS, Calibrator, MultiLabelCalibrator
from avuc.calibration.multilabel import TEMPERATURES
from avuc.core.errors import InputError
from avuc.deploy import load_calibrator
from avuc.deploy.rescaling import rescaling_of

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.normal(size=(200, 3))
MANY = (RNG.random((200, 3)) < expit(LOGITS / [3, 1, 0.6] + [0.5, 0, 0])).astype(int)
MANY[::7, 1] = -100


def quiet(make: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


@pytest.mark.parametrize("method", [name for name in CALIBRATORS if name not in TEMPERATURES])
def test_any_calibrator_for_each_label(method: str, tmp_path: Path) -> None:
    draws = np.stack([LOGITS, LOGITS / 2])
    for logits in (LOGITS, draws):
        fitted = quiet(partial(MultiLabelCalibrator(method).fit, logits, MANY))
        for label in range(3):
            known = MANY[:, label] != -100
            column = logits[..., label, None]
            one = quiet(partial(CALIBRATORS[method]().fit, column[..., known, :], MANY[known, label]))
            wanted = one.predict_proba(column)[:, 1]
            np.testing.assert_allclose(fitted.predict_proba(logits)[:, label], wanted, atol=1e-6)
    fitted.save(tmp_path / "c.json")
    again, light = Calibrator.load(tmp_path / "c.json"), load_calibrator(tmp_path / "c.json")
    assert np.array_equal(again.transform(draws), fitted.transform(draws))
    np.testing.assert_allclose(light.probs(draws), fitted.predict_proba(draws), atol=1e-9)
    module = rescaling_of(fitted)
    np.testing.assert_allclose(module(torch.tensor(draws)), fitted.transform(draws), rtol=1e-3, atol=1e-3)
    odd = np.array([[np.inf, -np.inf, 0.0], [1e300, -1e300, 1.0]])
    assert np.array_equal(np.isinf(fitted.transform(odd)), np.isinf(odd))
    np.testing.assert_allclose(light.transform(odd[:1]), fitted.transform(odd[:1]))
    shared = quiet(lambda: MultiLabelCalibrator(method, shared=True).fit(LOGITS, MANY))
    assert shared.each_ is not None
    assert len(shared.each_) == 1
    alone = quiet(lambda: CALIBRATORS[method]().fit(LOGITS.ravel(), MANY.ravel()))
    np.testing.assert_allclose(
        shared.predict_proba(LOGITS).ravel(), alone.predict_proba(LOGITS.ravel())[:, 1], atol=1e-6
    )


def test_spoiled_calibrators_of_labels(tmp_path: Path) -> None:
    fitted = quiet(lambda: MultiLabelCalibrator("isotonic").fit(LOGITS, MANY))
    for value in ("x", [], [1], [{}], fitted.to_json(), json.loads(fitted.to_json())["learned"]["each"][:2]):
        content = json.loads(fitted.to_json())
        content["learned"]["each"] = value
        (tmp_path / "c.json").write_text(json.dumps(content))
        for load in (Calibrator.load, load_calibrator):
            with pytest.raises(InputError, match=r"c\.json"):
                load(tmp_path / "c.json")


@pytest.mark.parametrize("method", ["temperature", "isotonic", "histogram", "venn-abers"])
def test_a_label_whose_ones_have_weight_0_stays_as_it_is(method: str) -> None:
    """Isotonic regression of zeros alone gave every row a probability of 0."""
    weights = np.ones(MANY.shape)
    weights[:, 0] = MANY[:, 0] == 0
    weights[:, 2] = 0
    with pytest.warns(UserWarning, match="label 0, 2 is never seen as both 0 and 1"):
        fitted = MultiLabelCalibrator(method).fit(LOGITS, MANY, weights)
    assert fitted.fitted_.tolist() == [0, 1, 0]
    np.testing.assert_array_equal(fitted.transform(LOGITS)[:, [0, 2]], LOGITS[:, [0, 2]])
    other = quiet(lambda: MultiLabelCalibrator(method).fit(LOGITS, np.where(weights > 0, MANY, -100)))
    np.testing.assert_array_equal(fitted.transform(LOGITS), other.transform(LOGITS))
    for wrong in (-1.0, math.nan):
        weights[3, 0] = wrong
        with pytest.raises(InputError, match="sample_weight must be finite, not negative"):
            MultiLabelCalibrator(method).fit(LOGITS, MANY, weights)

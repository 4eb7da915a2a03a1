"""Warnings name the line of the caller, not one of this package."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import avuc
from avuc.calibration import (
    AutoCalibrator,
    CalibrationWarning,
    DirichletCalibration,
    MatrixScaling,
    MultiLabelCalibrator,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
)
from avuc.sklearn import CalibratedClassifier


def own_lines(caught):
    return [warning for warning in caught if warning.filename == __file__]


@pytest.mark.parametrize(
    "calibrator",
    [
        AutoCalibrator(),
        AutoCalibrator(["structured-vector"], standard_errors=0),
        AutoCalibrator(["dirichlet"], standard_errors=0),
        DirichletCalibration(),
        MatrixScaling(),
        StructuredVectorScaling(),
        VectorScaling(),
        MatrixScaling(max_iterations=1, tolerance=1e-9),
    ],
    ids=repr,
)
def test_a_class_without_rows(calibrator, make_overconfident):
    logits, labels = make_overconfident()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrator.fit(logits, labels)
    assert any("class 4" in str(warning.message) for warning in caught)
    assert own_lines(caught) == caught
    assert {warning.category for warning in caught} == {CalibrationWarning}


@pytest.fixture
def make_overconfident():
    def made(rows=400):
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 4, rows)
        return 4 * (rng.normal(size=(rows, 5)) + np.eye(5)[labels]), labels

    return made


def test_temperatures_and_labels():
    separable = np.array([[9.0, 0.0], [0.0, 9.0]] * 20)
    with pytest.warns(CalibrationWarning, match="has no minimum") as caught:
        TemperatureScaling().fit(separable, [0, 1] * 20)
    assert own_lines(caught.list) == caught.list
    scores = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.warns(CalibrationWarning, match="label 1 is never seen") as caught:
        MultiLabelCalibrator().fit(scores, np.stack(((scores[:, 0] > 1).astype(int), np.zeros(40, dtype=int)), 1))
    assert own_lines(caught.list) == caught.list


def test_through_scikit_learn():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(60, 3)), rng.integers(0, 2, 60)
    with pytest.warns(CalibrationWarning, match="takes no sample_weight") as caught:
        CalibratedClassifier(LinearDiscriminantAnalysis()).fit(features, labels, sample_weight=np.ones(60))
    assert own_lines(caught.list) == caught.list


def test_predict():
    """Some of the functions in between are decorated with torch.no_grad."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 1), torch.nn.Sigmoid())
    images = torch.randint(256, (64, 3, 2, 2), generator=torch.Generator().manual_seed(0)).float()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        avuc.predict(net, images, torch.arange(64) % 2)
    assert len(caught) == 2  # images that look like bytes, outputs that look like probabilities
    assert own_lines(caught) == caught

"""scikit-learn's own checks of an estimator, all of them, without exceptions."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from avuc.sklearn import CalibratedClassifier


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([CalibratedClassifier()])
def test_every_check_passes(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([CalibratedClassifier(method="vector", cv=3), CalibratedClassifier(method="avuts", cv=2)])
def test_every_check_passes_with_other_methods(estimator, check):
    check(estimator)

"""Scorers in cross_val_score, cross_validate and GridSearchCV."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score, cross_validate
from sklearn.naive_bayes import GaussianNB

from avuc import metrics
from avuc.core.errors import InputError
from avuc.sklearn import SCORERS, CalibratedClassifier


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("data", ["digits", "cancer"])
def test_a_score_is_the_metric_of_the_held_out_rows(name, data, request):
    X, _, y, _ = request.getfixturevalue(data)
    parts = StratifiedKFold(3)
    found = cross_val_score(GaussianNB(), X, y, cv=parts, scoring=SCORERS[name])
    expected = []
    for train, test in parts.split(X, y):
        model = GaussianNB().fit(X[train], y[train])
        numbers = np.array([list(model.classes_).index(label) for label in y[test]])
        value = getattr(metrics, name.removeprefix("neg_"))(model.predict_proba(X[test]), numbers)
        expected.append(-value if name.startswith("neg_") else value)
    np.testing.assert_allclose(found, expected)


def test_the_likelihood_is_that_of_scikit_learn(cancer):
    X, X_test, y, y_test = cancer
    model = CalibratedClassifier(GaussianNB()).fit(X, y)
    found = SCORERS["neg_nll"](model, X_test, y_test)
    assert found == pytest.approx(-log_loss(y_test, model.predict_proba(X_test)))


def test_all_scores_at_once_and_a_search_that_refits(digits):
    X, X_test, y, _ = digits
    result = cross_validate(GaussianNB(), X, y, cv=3, scoring=SCORERS)
    assert {f"test_{name}" for name in SCORERS} <= set(result)
    scoring = {name: SCORERS[name] for name in ("neg_ece", "neg_uce")}
    grid = {"var_smoothing": [1e-9, 1e-3, 1e-1]}
    search = GridSearchCV(GaussianNB(), grid, scoring=scoring, refit="neg_ece", cv=3).fit(X, y)
    assert search.best_index_ == int(np.argmax(search.cv_results_["mean_test_neg_ece"]))
    assert (search.cv_results_["mean_test_neg_ece"] < 0).all()
    assert search.predict_proba(X_test).shape[1] == 10


def test_calibration_is_what_the_score_shows(digits):
    X, _, y, _ = digits
    plain = cross_val_score(GaussianNB(), X, y, cv=3, scoring=SCORERS["neg_ece"]).mean()
    ours = cross_val_score(CalibratedClassifier(GaussianNB(), cv=3), X, y, cv=3, scoring=SCORERS["neg_ece"]).mean()
    assert ours > plain + 0.05


def test_scorers_can_be_sent_to_other_processes():
    assert pickle.loads(pickle.dumps(SCORERS["neg_ece"])) == SCORERS["neg_ece"]


def test_what_cannot_be_scored(cancer):
    X, _, y, _ = cancer
    with pytest.raises(InputError, match="RidgeClassifier has no predict_proba"):
        SCORERS["neg_ece"](RidgeClassifier().fit(X, y), X, y)
    model = GaussianNB().fit(X, y)
    with pytest.raises(InputError, match="'healthy' is not a class of the estimator"):
        SCORERS["neg_ece"](model, X[:1], ["healthy"])
    with pytest.raises(InputError):
        SCORERS["neg_ece"](model, X[:1], [1])

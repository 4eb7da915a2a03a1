"""The calibrators themselves as scikit-learn estimators: clone, Pipeline, GridSearchCV."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

from avuc.calibration import CALIBRATORS, AvUTemperatureScaling, TemperatureScaling, VectorScaling, logits_from_probs
from avuc.core.errors import InputError

EVERY = pytest.mark.parametrize("name", CALIBRATORS)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    return 3 * (rng.normal(size=(200, 3)) + np.eye(3)[labels]), labels


@EVERY
def test_clone_keeps_parameters_and_drops_what_was_learned(name, rows):
    changed = {"ridge": 0.01, "tolerance": 0.01, "bins": 7}
    fitted = CALIBRATORS[name](**{k: v for k, v in changed.items() if k in CALIBRATORS[name]().get_params()}).fit(*rows)
    twin = clone(fitted)
    assert twin.get_params() == fitted.get_params()
    assert is_classifier(twin)
    with pytest.raises(NotFittedError):
        check_is_fitted(twin)
    check_is_fitted(fitted)
    assert not hasattr(twin, "classes_")
    np.testing.assert_array_equal(twin.fit(*rows).transform(rows[0]), fitted.transform(rows[0]))


@EVERY
def test_last_step_of_a_pipeline(name, rows):
    logits, labels = rows
    probs = torch.as_tensor(logits).softmax(-1).numpy()
    pipe = make_pipeline(FunctionTransformer(logits_from_probs), CALIBRATORS[name]()).fit(probs, labels)
    alone = CALIBRATORS[name]().fit(logits_from_probs(probs), labels)
    found = pipe.predict_proba(probs)
    np.testing.assert_allclose(found.sum(1), 1)
    np.testing.assert_array_equal(found, alone.predict_proba(logits_from_probs(probs)))
    np.testing.assert_array_equal(pipe.predict(probs), found.argmax(1))
    np.testing.assert_array_equal(pipe.transform(probs), alone.transform(logits_from_probs(probs)))
    assert pipe.score(probs, labels) == pytest.approx(-log_loss(labels, found))
    assert list(pipe.classes_) == [0, 1, 2]


def test_a_step_before_another_one(rows):
    logits, labels = rows
    pipe = make_pipeline(TemperatureScaling(), VectorScaling()).fit(logits, labels)
    assert pipe[0].temperature_ > 1
    np.testing.assert_allclose(pipe[1].predict_proba(pipe[0].transform(logits)), pipe.predict_proba(logits))


def test_weights_reach_the_fit_through_a_pipeline(rows):
    logits, labels = rows
    weight = np.linspace(0, 1, len(labels))
    pipe = make_pipeline(TemperatureScaling()).fit(logits, labels, temperaturescaling__sample_weight=weight)
    assert pipe[0].temperature_ == TemperatureScaling().fit(logits, labels, weight).temperature_


def test_grid_search_selects_by_likelihood(rows):
    logits, labels = rows
    search = GridSearchCV(VectorScaling(), {"ridge": [1e-3, 1.0, 1e9]}, cv=4).fit(logits, labels)
    scores = [cross_val_score(VectorScaling(ridge=r), logits, labels, cv=4).mean() for r in (1e-3, 1.0, 1e9)]
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], scores)
    assert search.best_score_ == max(scores)
    assert search.predict_proba(logits).shape == (200, 3)
    named = GridSearchCV(AvUTemperatureScaling(), {"weight": [0.0, 3.0]}, scoring="neg_log_loss", cv=3)
    assert named.fit(logits, labels).best_params_ == {"weight": 0.0}


def test_samples_are_averaged_and_tensors_stay_tensors(rows):
    logits, labels = rows
    draws = torch.as_tensor(logits) + torch.randn(4, 200, 3, generator=torch.Generator().manual_seed(0))
    scaler = TemperatureScaling().fit(draws, labels)
    found = scaler.predict_proba(draws)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, (draws / scaler.temperature_).softmax(-1).mean(0))
    assert torch.equal(scaler.predict(draws), found.argmax(-1))


def test_dense_logits_are_refused_instead_of_a_softmax_over_pixels():
    with pytest.raises(InputError, match="softmax of transform"):
        TemperatureScaling.identity(3).predict_proba(np.random.default_rng(0).normal(size=(2, 3, 4, 5)))


def test_one_logit_for_two_classes():
    scaler = TemperatureScaling.identity(2)
    scaler.temperature_ = 2.0
    for shape in ((3,), (3, 1)):
        probs = scaler.predict_proba(np.array([-2.0, 0.0, 4.0]).reshape(shape))
        np.testing.assert_allclose(probs[:, 1], 1 / (1 + np.exp([1.0, 0.0, -2.0])))
        assert probs.shape == (3, 2)


def test_the_calibrators_do_not_need_scikit_learn(fresh_python):
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from avuc.calibration import TemperatureScaling\n"
        "scaler = TemperatureScaling().fit([[3., 0.], [0., 3.], [3., 0.]], [0, 1, 1])\n"
        "print(scaler.predict([[3., 0.]]), scaler.classes_, scaler.score([[3., 0.]], [0]) < 0)\n"
    )
    ran = fresh_python(code)
    assert (ran.returncode, ran.stdout) == (0, "[0] [0 1] True\n"), ran.stderr

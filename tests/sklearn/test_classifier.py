"""CalibratedClassifier: the calibration itself, labels, splits, weights, frozen estimators, the guard, routing."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, load_wine, make_classification
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    RepeatedStratifiedKFold,
    ShuffleSplit,
    StratifiedGroupKFold,
    StratifiedKFold,
    cross_val_predict,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading
from sklearn.svm import SVC, LinearSVC

from avuc import metrics
from avuc.calibration import (
    CALIBRATORS,
    AutoCalibrator,
    CalibrationWarning,
    Calibrator,
    TemperatureScaling,
    logits_from_probs,
)
from avuc.cli import main
from avuc.conformal import ConformalClassifier
from avuc.core.errors import InputError
from avuc.sklearn import CalibratedClassifier

FOREST = RandomForestClassifier(40, random_state=0)


def test_a_forest_on_digits_is_better_calibrated_beside_scikit_learns_own(digits):
    pytest.importorskip("sklearn", "1.8", reason="scikit-learn has temperature scaling since 1.8")
    X, X_test, y, y_test = digits
    plain = clone(FOREST).fit(X, y).predict_proba(X_test)
    ours = CalibratedClassifier(FOREST, cv=3).fit(X, y)
    found = ours.predict_proba(X_test)
    peer, sigmoid = (
        CalibratedClassifierCV(FOREST, method=method, cv=3, ensemble=False).fit(X, y).predict_proba(X_test)
        for method in ("temperature", "sigmoid")
    )
    assert log_loss(y_test, found) < 0.8 * log_loss(y_test, plain)
    assert metrics.ece(found, y_test) < 0.4 * metrics.ece(plain, y_test)
    # the same method there, up to the floor of probabilities that are 0; the default there has a larger ECE
    assert log_loss(y_test, found) == pytest.approx(log_loss(y_test, peer), rel=0.05)
    assert metrics.ece(found, y_test) < metrics.ece(sigmoid, y_test)
    # the estimator is the one trained on all rows, so its accuracy stays
    np.testing.assert_array_equal(ours.predict(X_test), plain.argmax(1))


def test_naive_bayes_on_tabular_data_with_text_labels(cancer):
    X, X_test, y, y_test = cancer
    model = CalibratedClassifier(GaussianNB()).fit(X, y)
    plain = GaussianNB().fit(X, y)
    assert list(model.classes_) == ["benign", "malignant"]
    assert set(model.predict(X_test)) <= {"benign", "malignant"}
    assert model.calibrator_.class_names_ == ("benign", "malignant")
    assert model.calibrator_.temperature_ > 2  # naive Bayes is overconfident
    assert log_loss(y_test, model.predict_proba(X_test)) < 0.6 * log_loss(y_test, plain.predict_proba(X_test))
    assert model.score(X_test, y_test) == plain.score(X_test, y_test)
    assert model.check_.figures["nll"].high < 0
    assert model.n_features_in_ == 30


EVERY = {**CALIBRATORS, "auto": AutoCalibrator}


@pytest.mark.parametrize("name", EVERY)
def test_every_method_is_the_calibrator_fitted_on_held_out_scores(name, digits):
    X, X_test, y, _ = digits
    model = CalibratedClassifier(GaussianNB(), name, cv=3, keep_worse=True).fit(X, y)
    parts = StratifiedKFold(3)
    probs = cross_val_predict(GaussianNB(), X, y, cv=parts, method="predict_proba")
    order = np.concatenate([test for _, test in parts.split(X, y)])
    alone = EVERY[name]().fit(logits_from_probs(probs[order]), y[order])
    expected = alone.predict_proba(logits_from_probs(GaussianNB().fit(X, y).predict_proba(X_test)))
    np.testing.assert_allclose(model.predict_proba(X_test), expected, atol=1e-9)


@pytest.mark.parametrize("estimator", [LinearSVC(), RidgeClassifier(), SVC()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("data", ["digits", "cancer"])
def test_estimators_with_a_decision_function_only(estimator, data, request):
    X, X_test, y, y_test = request.getfixturevalue(data)
    pipe = make_pipeline(StandardScaler(), estimator)
    model = CalibratedClassifier(pipe, cv=3).fit(X[:400], y[:400])
    probs = model.predict_proba(X_test)
    margins = model.estimator_.decision_function(X_test)
    if margins.ndim == 1:
        margins = np.stack([np.zeros(len(margins)), margins], axis=1)
    np.testing.assert_allclose(probs, softmax(margins / model.calibrator_.temperature_, axis=1))
    assert log_loss(y_test, probs) < log_loss(y_test, softmax(margins, axis=1))


def test_one_against_one_margins_are_refused(digits):
    X, _, y, _ = digits
    with pytest.raises(InputError, match=r"decision_function has 45 columns for 10 classes; .*ovr"):
        CalibratedClassifier(SVC(decision_function_shape="ovo"), cv=2).fit(X[:200], y[:200])


@pytest.mark.parametrize("cv", [3, "prefit"])
def test_three_columns_for_three_pairs_of_classes_are_refused(cv):
    """Three classes have three pairs: the number of columns does not show it, but no column is a class."""
    X, y = load_wine(return_X_y=True)
    model = make_pipeline(StandardScaler(), SVC(decision_function_shape="ovo")).fit(X[::2], y[::2])
    with pytest.raises(InputError, match=r"columns are pairs of classes; .*ovr"):
        CalibratedClassifier(model, cv=cv).fit(X[1::2], y[1::2])
    classes = make_pipeline(StandardScaler(), SVC()).fit(X[::2], y[::2])
    assert CalibratedClassifier(classes, cv=cv).fit(X[1::2], y[1::2]).score(X, y) > 0.95


def test_the_label_minus_one_of_semi_supervised_estimators_is_no_class():
    X, y = load_wine(return_X_y=True)
    some = np.where(np.random.default_rng(0).random(len(y)) < 0.3, -1, y)
    spreading = make_pipeline(StandardScaler(), LabelSpreading())
    model = CalibratedClassifier(spreading, cv=3).fit(X, some)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.predict_proba(X).shape == (len(X), 3)
    assert model.score(X, y) > 0.9
    assert model.calibrator_.class_names_ == ("0", "1", "2")


def test_a_trained_estimator_keeps_its_weights(cancer):
    X, X_test, y, y_test = cancer
    trained = GaussianNB().fit(X, y)
    frozen = CalibratedClassifier(FrozenEstimator(trained)).fit(X_test, y_test)
    prefit = CalibratedClassifier(trained, cv="prefit").fit(X_test, y_test)
    np.testing.assert_array_equal(frozen.predict_proba(X), prefit.predict_proba(X))
    numbers = (y_test == "malignant").astype(int)
    alone = TemperatureScaling().fit(logits_from_probs(trained.predict_proba(X_test)), numbers)
    assert frozen.calibrator_.temperature_ == alone.temperature_
    with pytest.raises(InputError, match="label 'other' is not a class of the estimator"):
        CalibratedClassifier(FrozenEstimator(trained)).fit(X_test[:3], ["other", "benign", "malignant"])
    with pytest.raises(InputError, match="cv must be a number, a splitter, pairs of rows or 'prefit'"):
        CalibratedClassifier(trained, cv="prefitted").fit(X_test, y_test)
    with pytest.raises(NotFittedError, match=r"GaussianNB|FrozenEstimator"):
        CalibratedClassifier(GaussianNB(), cv="prefit").fit(X_test, y_test)


@pytest.mark.parametrize(
    "cv",
    [
        KFold(3, shuffle=True, random_state=0),
        ShuffleSplit(2, test_size=0.3, random_state=0),
        [(np.arange(0, 200), np.arange(200, 284)), (np.arange(84, 284), np.arange(0, 84))],
        None,
    ],
    ids=["KFold", "ShuffleSplit", "pairs", "None"],
)
def test_splitters(cv, cancer):
    X, _, y, _ = cancer
    model = CalibratedClassifier(GaussianNB(), cv=cv).fit(X, y)
    assert model.calibrator_.temperature_ > 1


def test_few_rows_of_a_class_mean_fewer_parts_and_one_row_is_refused(digits):
    X, _, y, _ = digits
    rows = np.concatenate([np.flatnonzero(y != 3)[:300], np.flatnonzero(y == 3)[:2]])
    model = CalibratedClassifier(GaussianNB(), method="temperature").fit(X[rows], y[rows])
    assert model.predict_proba(X).shape == (len(X), 10)
    with pytest.raises(InputError, match="a class with one sample"):
        CalibratedClassifier().fit(X[rows[:-1]], y[rows[:-1]])


def test_a_class_that_a_part_does_not_know(digits):
    X, _, y, _ = digits
    order = np.argsort(y, kind="stable")[:500]  # sorted by class: parts without shuffling miss classes
    model = CalibratedClassifier(GaussianNB(), cv=KFold(6)).fit(X[order], y[order])
    probs = model.predict_proba(X[order])
    np.testing.assert_allclose(probs.sum(1), 1)
    assert probs.shape == (500, len(np.unique(y[order])))
    halves = [(np.arange(0, 20), np.arange(20, 40))]
    with pytest.raises(InputError, match="holds out no row of a class that it trains on"):
        CalibratedClassifier(GaussianNB(), cv=halves).fit(X[:40], np.repeat([0, 1], 20))


class Honest(ClassifierMixin, BaseEstimator):
    """Returns its input as probabilities: they are calibrated by construction."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        return np.asarray(X)


class Harmful(TemperatureScaling):
    """A calibrator that makes everything far too certain."""

    def _fit(self, logits, labels, sample_weight=None):
        super()._fit(logits, labels, sample_weight)
        self.temperature_ = 0.1


@pytest.mark.parametrize("weighted", [False, True])
def test_a_calibrator_that_does_harm_is_not_used(weighted):
    rng = np.random.default_rng(0)
    probs = softmax(rng.normal(size=(600, 3)), axis=1)
    y = (probs.cumsum(1) > rng.random((600, 1))).argmax(1)
    weight = {"sample_weight": rng.random(600)} if weighted else {}
    with pytest.warns(CalibrationWarning) as caught:
        model = CalibratedClassifier(Honest(), Harmful()).fit(probs, y, **weight)
    assert any("worse than leaving the scores alone: NLL rises" in str(each.message) for each in caught)
    assert any("(keep_worse=True keeps it; method='auto' looks for one" in str(each.message) for each in caught)
    assert model.check_.worse
    np.testing.assert_allclose(model.predict_proba(probs), probs, atol=1e-9)
    kept = CalibratedClassifier(Honest(), Harmful(), keep_worse=True)
    if not weighted:
        kept = kept.fit(probs, y)
        assert kept.calibrator_.temperature_ == 0.1


def test_class_weights_are_found_and_repaired():
    """A logistic regression with balanced weights expects the rare class six times as often as it occurs."""
    X, y = make_classification(6000, n_informative=6, weights=[0.95], class_sep=0.8, random_state=0)
    balanced = LogisticRegression(class_weight="balanced")
    said = r"expect class 1 in (29\.\d|3\d\.\d) % .* and 5\.38 % have it.*'vector' can"
    with pytest.warns(CalibrationWarning, match=said):
        shifted = CalibratedClassifier(balanced, cv=3).fit(X, y)
    assert shifted.predict_proba(X)[:, 1].mean() > 5 * y.mean()
    repaired = CalibratedClassifier(balanced, method="vector", cv=3).fit(X, y)  # a warning would be an error
    assert abs(repaired.predict_proba(X)[:, 1].mean() - y.mean()) < 0.01
    # weights of the rows are those of the population that the probabilities are for
    CalibratedClassifier(method="vector", cv=3).fit(X, y, sample_weight=np.where(y == 1, 10.0, 1.0))


def test_weights_are_those_of_the_estimator_and_of_the_calibrator(cancer):
    X, X_test, y, _ = cancer
    weight = np.random.default_rng(0).integers(1, 4, len(y)).astype(float)
    parts = [(np.arange(140, 284), np.arange(0, 140)), (np.arange(0, 140), np.arange(140, 284))]
    model = CalibratedClassifier(GaussianNB(), cv=parts).fit(X, y, sample_weight=weight)
    scores = [GaussianNB().fit(X[a], y[a], sample_weight=weight[a]).predict_proba(X[b])[:, [0, 1]] for a, b in parts]
    numbers = (y == "malignant").astype(int)
    alone = TemperatureScaling().fit(logits_from_probs(np.concatenate(scores)), numbers, weight)
    assert model.calibrator_.temperature_ == pytest.approx(alone.temperature_, rel=1e-6)
    whole = GaussianNB().fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(model.estimator_.predict_proba(X_test), whole.predict_proba(X_test))
    with pytest.warns(CalibrationWarning, match=r"LinearDiscriminantAnalysis\.fit takes no sample_weight"):
        CalibratedClassifier(LinearDiscriminantAnalysis(), cv=2).fit(X, y, sample_weight=weight)


def test_metadata_routing_of_weights_and_groups(cancer):
    X, _, y, _ = cancer
    weight, groups = np.linspace(0.5, 1.5, len(y)), np.arange(len(y)) % 4
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = LogisticRegression(max_iter=1).set_fit_request(sample_weight=True)
        model = CalibratedClassifier(make_pipeline(GaussianNB().set_fit_request(sample_weight=True)), cv=GroupKFold(4))
        model.set_fit_request(sample_weight=True).fit(X, y, sample_weight=weight, groups=groups)
        assert model.calibrator_.temperature_ > 1
        routing = CalibratedClassifier(estimator).get_metadata_routing()
        assert routing.consumes("fit", ["sample_weight"]) == {"sample_weight"}
        with pytest.raises(TypeError, match="unexpected argument"):
            CalibratedClassifier(GaussianNB()).fit(X, y, colour=1)


def test_groups_are_held_out_together_and_judged_together():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(60, 4))
    kinds = np.where(means[:, 0] + 0.7 * rng.normal(size=60) > 0.5, "ill", "well")
    numbers = rng.permutation(480) // 8
    patients = np.array([f"P{k}" for k in numbers])
    X, y = means[numbers] + 0.01 * rng.normal(size=(480, 4)), kinds[numbers]  # rows of a patient are almost copies
    near = KNeighborsClassifier(3)  # knows every patient that it has seen
    with pytest.warns(CalibrationWarning, match="no minimum"):  # rows of known patients are all right
        alone = CalibratedClassifier(near, cv=4).fit(X, y)
    groups = CalibratedClassifier(near, cv=4).fit(X, y, groups=pd.Series(patients, dtype=object))
    parts = StratifiedGroupKFold(4).split(X, y, patients)
    by_hand = CalibratedClassifier(near, cv=[*parts], keep_worse=True).fit(X, y)
    same = CalibratedClassifier(near, cv=StratifiedGroupKFold(4), keep_worse=True).fit(X, y, groups=patients)
    assert same.calibrator_.temperature_ == by_hand.calibrator_.temperature_
    assert alone.check_.figures["nll"].before < 0.01 < 0.3 < groups.check_.figures["nll"].before
    assert groups.check_.figures["nll"].before == by_hand.check_.figures["nll"].before
    wide, narrow = (each.check_.figures["nll"] for each in (same, by_hand))
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)  # 60 patients, not 480 rows

    known = numbers < 30
    trained = GaussianNB().fit(X[known], y[known])
    frozen = CalibratedClassifier(FrozenEstimator(trained), "auto", keep_worse=True)
    by_patient, by_row = (frozen.fit(X[~known], y[~known], groups=g).check_ for g in (patients[~known], None))
    assert by_patient.figures["nll"].after != by_row.figures["nll"].after
    for bad, message in (
        (patients[:5], r"groups must have shape \(480,\)"),
        (np.zeros(480), "all rows are of one group"),
    ):
        with pytest.raises(InputError, match=message):
            CalibratedClassifier(near).fit(X, y, groups=bad)


@pytest.mark.parametrize(
    "missing",
    [
        pd.Series(["a", "b", pd.NA] * 20, dtype="string"),
        pd.Series(["a", "b", pd.NA] * 20, dtype=object),
        pd.Series(["a", "b", None] * 20, dtype="category"),
        pd.Series(pd.to_datetime(["2026-01-01", "2026-01-02", None] * 20)),
        np.array([0, 1, np.nan] * 20),
        ["a", "b", None] * 20,
    ],
)
def test_missing_groups_are_refused(missing):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    with pytest.raises(InputError, match="groups: some are missing"):
        CalibratedClassifier(LogisticRegression()).fit(X, y, groups=missing)
    with pytest.raises(InputError, match="groups: some are missing"):
        ConformalClassifier().fit(np.full((60, 2), 0.5), y, groups=missing)


def test_a_row_that_is_held_out_several_times_is_one_row():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    X = rng.normal(size=(60, 2)) + 0.8 * y[:, None]
    often = [*RepeatedStratifiedKFold(n_splits=5, n_repeats=8, random_state=0).split(X, y)]
    for method in ("isotonic", "auto"):
        model = CalibratedClassifier(LogisticRegression(), method, cv=often, keep_worse=True)
        by_row = model.fit(X, y, groups=np.arange(60)).check_
        assert model.fit(X, y).check_ == by_row
        assert model.check_.rows == 480
    # 8 copies of 60 rows know each other's labels, and seem to prove that isotonic regression helps
    model = CalibratedClassifier(LogisticRegression(), "isotonic", cv=often, keep_worse=True).fit(X, y)
    ece = model.check_.figures["ece"]
    assert ece.low < 0 < ece.high


class OrderOfAppearance(ClassifierMixin, BaseEstimator):
    """A logistic regression whose `classes_` are not sorted."""

    def fit(self, X, y):
        self.model_ = LogisticRegression().fit(X, y)
        self.order_ = np.argsort(np.unique(y, return_index=True)[1])
        self.classes_ = self.model_.classes_[self.order_]
        return self

    def predict_proba(self, X):
        return self.model_.predict_proba(X)[:, self.order_]


@pytest.mark.parametrize("cv", [KFold(3), "prefit"])
def test_classes_of_an_estimator_in_another_order(cv):
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 3, 600)
    X, y = 2 * np.eye(3)[numbers] + rng.normal(size=(600, 3)), np.array(["c", "a", "b"])[numbers]
    own = OrderOfAppearance().fit(X[:400], y[:400])
    assert own.classes_.tolist() != sorted(own.classes_)
    model = CalibratedClassifier(own if cv == "prefit" else OrderOfAppearance(), cv=cv, keep_worse=True).fit(
        X[:400], y[:400]
    )
    sorted_model = CalibratedClassifier(LogisticRegression(), cv=KFold(3), keep_worse=True).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) == sorted_model.score(X[400:], y[400:]) > 0.8
    if cv != "prefit":
        assert model.predict_proba(X[400:]) == pytest.approx(sorted_model.predict_proba(X[400:]))


def test_grid_search_reaches_estimator_method_and_calibrator(digits):
    X, _, y, _ = digits
    grid = {"estimator__var_smoothing": [1e-9, 1e-2], "method__ridge": [0.1, 1.0]}
    model = CalibratedClassifier(GaussianNB(), CALIBRATORS["vector"](), cv=2, keep_worse=True)
    search = GridSearchCV(model, grid, scoring="neg_log_loss", cv=2).fit(X[:400], y[:400])
    assert search.best_params_["estimator__var_smoothing"] == 1e-2
    assert search.best_estimator_.calibrator_.ridge == search.best_params_["method__ridge"]


def test_data_frames_and_pickles(cancer):
    X, X_test, y, _ = cancer
    frame = pd.DataFrame(X, columns=[f"c{k}" for k in range(30)])
    model = CalibratedClassifier(GaussianNB(), cv=2).fit(frame, pd.Series(y))
    assert list(model.feature_names_in_) == list(frame.columns)
    again = pickle.loads(pickle.dumps(model))
    test = pd.DataFrame(X_test, columns=frame.columns)
    np.testing.assert_array_equal(again.predict_proba(test), model.predict_proba(test))


def test_the_calibrator_can_be_saved(cancer, tmp_path):
    X, X_test, y, _ = cancer
    model = CalibratedClassifier(GaussianNB(), cv=2).fit(X, y)
    model.calibrator_.save(tmp_path / "cal.json")
    scores = logits_from_probs(model.estimator_.predict_proba(X_test))
    again = Calibrator.load(tmp_path / "cal.json")
    np.testing.assert_array_equal(again.predict_proba(scores), model.predict_proba(X_test))


@pytest.mark.parametrize("method", ["unknown", 3, TemperatureScaling])
def test_unknown_methods(method, cancer):
    with pytest.raises(InputError, match="method must be a calibrator or one of temperature, cautious"):
        CalibratedClassifier(method=method).fit(cancer[0], cancer[2])


def test_one_class_is_refused(cancer):
    with pytest.raises(InputError, match="only one class"):
        CalibratedClassifier(DummyClassifier()).fit(cancer[0], ["benign"] * len(cancer[0]))


def test_a_regressor_is_refused(cancer):
    with pytest.raises(ValueError, match="Unknown label type"):
        CalibratedClassifier().fit(cancer[0], np.linspace(0, 1, len(cancer[0])))
    X, y = cancer[0][:50], (cancer[2][:50] == "benign").astype(int)
    with pytest.raises(InputError, match="LinearRegression has no classes_ after fit, so it is no classifier"):
        CalibratedClassifier(LinearRegression(), cv=2).fit(X, y)


@pytest.mark.parametrize("cv", [3, "prefit"])
def test_a_model_without_fit_is_refused(cv, cancer):
    """The native boosters of LightGBM and XGBoost have only `predict`."""

    class Booster:
        def predict(self, X):
            return X[:, 0]

    with pytest.raises(InputError, match=r"Booster is no scikit-learn estimator .*LGBMClassifier or XGBClassifier"):
        CalibratedClassifier(Booster(), cv=cv).fit(cancer[0], cancer[2])


def test_certain_probabilities_get_the_floor(cancer):
    """One neighbour says 0 or 1: without the floor the NLL would be infinite."""
    X, X_test, y, y_test = cancer
    model = CalibratedClassifier(KNeighborsClassifier(1)).fit(X, y)
    probs = model.predict_proba(X_test)
    assert np.isfinite(probs).all()
    accuracy = model.score(X_test, y_test)
    assert probs.max(1).mean() == pytest.approx(accuracy, abs=0.03)


def test_without_scikit_learn_one_line_names_the_extra(fresh_python):
    code = "import sys; sys.modules['sklearn'] = None\nimport avuc.sklearn"
    ran = fresh_python(code)
    assert ran.stderr.splitlines()[-1].startswith("avuc.core.errors.MissingExtra: avuc.sklearn needs 'sklearn'")
    assert "pip install 'avuc[sklearn]'" in ran.stderr


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("single", [False, True])
def test_the_command_applies_the_calibrator_of_numbered_classes(tmp_path, capsys, first, single):
    """The page says so; columns prob_0 … were refused, because the fit has the classes '0', '1', … too."""
    X, y = load_digits(n_class=2 if single else 4, return_X_y=True)
    model = CalibratedClassifier(GaussianNB(), method="vector", cv=3, keep_worse=True).fit(X[:200], y[:200] + first)
    model.calibrator_.save(tmp_path / "cal.json")
    probs = model.estimator_.predict_proba(X[200:])
    names = ["prob"] if single else [f"prob_{number}" for number in model.classes_]
    columns = probs[:, 1:] if single else probs
    np.savetxt(tmp_path / "a.csv", columns, delimiter=",", header=",".join(names), comments="", fmt="%.17g")
    words = ["apply", tmp_path / "cal.json", tmp_path / "a.csv", "--to", tmp_path / "b.csv"]
    assert main([str(word) for word in words]) == 0
    assert "note" not in capsys.readouterr().out
    written = np.loadtxt(tmp_path / "b.csv", delimiter=",", skiprows=1, ndmin=2)
    right = model.predict_proba(X[200:])
    np.testing.assert_allclose(written, right[:, 1:] if single else right, atol=1e-3 if single else 1e-5)

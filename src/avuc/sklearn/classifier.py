"""`CalibratedClassifier`: any scikit-learn classifier with calibrated probabilities."""

from __future__ import annotations

import inspect
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold, check_cv
from sklearn.utils import _safe_indexing, get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, get_routing_for_object, process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_method_params, _check_sample_weight, check_is_fitted, column_or_1d

from avuc.calibration import (
    CALIBRATORS,
    AutoCalibrator,
    CalibrationWarning,
    Calibrator,
    CalibratorCheck,
    TemperatureScaling,
    check_calibrator,
)
from avuc.core.caller import warn_caller
from avuc.core.errors import InputError
from avuc.core.frames import check_same_rows
from avuc.core.row_groups import group_array, group_numbers
from avuc.sklearn.scores import Array, check_decisions, class_numbers, classifier_logits, known_classes
from avuc.sklearn.shares import warn_of_class_shares


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier whose probabilities are calibrated on rows that it was not trained on.

    The rows are split into `cv` parts. Each part is scored by the estimator trained on the other parts, and one
    calibrator is fitted on all these scores. The estimator itself is then trained on all rows. A calibrator that makes
    held-out rows worse (`avuc.calibration.check_calibrator`) is not used: a `CalibrationWarning` gives the reason, and
    the probabilities stay those of the estimator.

    Args:
        estimator: a classifier with `predict_proba` (the calibrator gets log max(p, 1e-12)) or only
            `decision_function` (taken as logits). A `sklearn.frozen.FrozenEstimator` is trained already, and the rows
            of `fit` are used for the calibrator only. Default None: `LogisticRegression()`.
        method: a name in `avuc.calibration.CALIBRATORS`, such as "temperature", "vector" or "ets"; "auto", a
            mixture (`AutoCalibrator`); or a calibrator with other parameters, which `GridSearchCV` reaches as
            `method__ridge`.
        cv: number of stratified parts (default 5; fewer if a class has fewer rows; whole groups if `fit` gets
            `groups`), a splitter, pairs of row numbers (train, held out), or "prefit" for an estimator that is trained
            already.
        keep_worse: whether to use a calibrator that makes held-out rows worse.

    Learned attributes:
        estimator_: the estimator trained on all rows.
        calibrator_: the calibrator that is used; `calibrator_.save(path)` writes it for `avuc.deploy`.
        check_: a `CalibratorCheck`, the effect of the calibrator on held-out rows.
        classes_: the class labels, in the order of the columns of `predict_proba`.

    >>> from sklearn.datasets import load_digits
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_digits(return_X_y=True)
    >>> model = CalibratedClassifier(GaussianNB(), cv=3).fit(X[:800], y[:800])
    >>> model.calibrator_.temperature_ > 2  # naive Bayes is overconfident
    True
    >>> model.predict_proba(X[800:]).shape
    (997, 10)
    """

    def __init__(
        self,
        estimator: Any = None,
        method: str | Calibrator = "temperature",
        cv: Any = 5,
        *,
        keep_worse: bool = False,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.keep_worse = keep_worse

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Train the estimator and the calibrator.

        Args:
            X: (N, features), in any form that the estimator takes.
            y: (N,) class labels, numbers or text.
            sample_weight: (N,) weights of the rows, for the estimator (if it takes them) and for the calibrator.
            **fit_params: for the `fit` of the estimator, except `groups`: (N,) names or numbers. Rows of one group (a
                patient) are held out together, and the calibrator is judged by groups. With metadata routing,
                `groups` is for the splitter, if it asks for them.
        """
        if self.estimator is not None and not hasattr(self.estimator, "fit"):
            raise InputError(
                f"{type(self.estimator).__name__} is no scikit-learn estimator (it has no fit); give one, such as "
                "LGBMClassifier or XGBClassifier, or fit a calibrator of avuc.calibration on the scores of your model"
            )
        calibrator, estimator = self._calibrator(), self._estimator()
        if y is None:
            raise InputError("CalibratedClassifier requires y to be passed, but the target y is None")
        check_classification_targets(y)
        for name, values in {"y": y, "sample_weight": sample_weight, "groups": fit_params.get("groups")}.items():
            check_same_rows(X, values, ("X", name))
        X, y = indexable(X, y)
        labels = column_or_1d(y, warn=True)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=np.float64)
        if isinstance(estimator, FrozenEstimator):
            check_is_fitted(estimator)
            self.estimator_: Any = estimator
            self.classes_: Array = known_classes(estimator)
            self._need_two_classes()
            scores, numbers = classifier_logits(estimator, X, self.classes_), class_numbers(labels, self.classes_)
            check_decisions(estimator, X, scores, self.classes_)
            rows, groups = np.arange(len(labels)), fit_params.get("groups")
        else:
            self.classes_ = np.unique(labels)
            params, split_params = self._routed(estimator, sample_weight, fit_params)
            groups = split_params.get("groups")
            if len(self.classes_) > 1:
                scores, rows = self._held_out(estimator, X, labels, params, split_params)
            self.estimator_ = clone(estimator).fit(X, labels, **_check_method_params(X, params))
            # semi-supervised estimators do not learn -1 as a class
            learned = np.isin(self.classes_, known_classes(self.estimator_))
            self.classes_ = self.classes_[learned]
            self._need_two_classes()
            scores, numbers = scores[:, learned], class_numbers(labels[rows], self.classes_)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        weight = None if weight is None else weight[rows]
        if groups is None and len(np.unique(rows)) < len(rows):
            # a row that cv holds out several times (RepeatedKFold, ShuffleSplit) is one row, with several scores
            groups = np.arange(len(labels))
        self._fit_calibrator(calibrator, scores, numbers, weight, _group_numbers(groups, len(labels), rows))
        return self

    def _fit_calibrator(
        self, calibrator: Calibrator, scores: Array, numbers: Array, weight: Array | None, groups: Array | None
    ) -> None:
        used: dict[str, Any] = {"groups": groups} if isinstance(calibrator, AutoCalibrator) else {}
        self.calibrator_: Calibrator = calibrator.fit(scores, numbers, weight, **used)
        self.check_: CalibratorCheck = check_calibrator(
            calibrator, scores, numbers, sample_weight=weight, groups=groups
        )
        if self.check_.worse and not self.keep_worse:
            other = "" if isinstance(calibrator, AutoCalibrator) else "; method='auto' looks for one that helps"
            warn_caller(
                f"{self.check_.warnings[0]}; the probabilities stay uncalibrated (keep_worse=True keeps it{other})",
                CalibrationWarning,
            )
            self.calibrator_ = TemperatureScaling.identity(len(self.classes_), self.check_.figures["nll"].before)
        self.calibrator_.class_names_ = tuple(str(name) for name in self.classes_)
        warn_of_class_shares(self.calibrator_.predict_proba(scores), numbers, weight, groups, self.classes_)

    def _held_out(self, estimator: Any, X: Any, labels: Array, params: Any, split_params: Any) -> tuple[Array, Array]:
        """Return logits of rows that the estimator has not seen in training, and their row numbers."""
        scores, rows = [], []
        for train, test in self._splitter(labels, split_params.get("groups")).split(X, labels, **split_params):
            used = _check_method_params(X, params, indices=train)
            fitted = clone(estimator).fit(_safe_indexing(X, train), labels[train], **used)
            # nothing can be learned from a class that this fit has not seen
            known = np.flatnonzero(np.isin(labels, known_classes(fitted)))
            test = np.intersect1d(np.arange(len(labels))[test], known)
            if len(test):
                held_out = _safe_indexing(X, test)
                scores.append(classifier_logits(fitted, held_out, self.classes_))
                rows.append(test)
                check_decisions(fitted, held_out, scores[-1], self.classes_)
        if not rows:
            raise InputError("cv holds out no row of a class that it trains on; give each part rows of every class")
        return np.concatenate(scores), np.concatenate(rows)

    def _splitter(self, labels: Array, groups: Any) -> Any:
        cv = 5 if self.cv is None else self.cv
        if isinstance(cv, (int, np.integer)) and not isinstance(cv, bool):
            rarest = int(np.unique(labels, return_counts=True)[1].min())
            if rarest < 2:
                raise InputError(
                    "a class with one sample cannot be trained on and held out; give every class at least 2 samples"
                )
            cv = min(int(cv), rarest)
            numbers = _group_numbers(groups, len(labels), slice(None))
            if numbers is not None:
                group_count = int(numbers.max()) + 1
                if group_count < 2:
                    raise InputError("all rows are of one group, which cannot be trained on and held out; give others")
                cv = StratifiedGroupKFold(min(cv, group_count))
        return check_cv(cv, labels, classifier=True)

    def _routed(self, estimator: Any, sample_weight: Any, fit_params: dict[str, Any]) -> tuple[Any, Any]:
        """Return the parameters for the `fit` of the estimator, and for the `split` of the splitter."""
        import sklearn

        if sklearn.get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", sample_weight=sample_weight, **fit_params)
            return routed.estimator.fit, routed.splitter.split
        params = dict(fit_params)
        split_params = {"groups": params["groups"]} if params.get("groups") is not None else {}
        if "groups" not in inspect.signature(estimator.fit).parameters:
            params.pop("groups", None)
        if sample_weight is not None:
            if "sample_weight" in inspect.signature(estimator.fit).parameters:
                params["sample_weight"] = sample_weight
            else:
                warn_caller(
                    f"{type(estimator).__name__}.fit takes no sample_weight: only the calibrator uses the weights",
                    CalibrationWarning,
                )
        return params, split_params

    def predict_proba(self, X: Any) -> Array:
        """Return calibrated probabilities (N, C), with the columns in the order of `classes_`.

        Args:
            X: rows, as for the estimator.
        """
        check_is_fitted(self)
        probs: Array = self.calibrator_.predict_proba(classifier_logits(self.estimator_, X, self.classes_))
        return probs

    def predict(self, X: Any) -> Array:
        """Return the label of the most probable class, (N,).

        Args:
            X: rows, as for the estimator.
        """
        numbers = self.predict_proba(X).argmax(axis=1)  # raises if there was no fit
        return np.asarray(self.classes_[numbers])

    def get_metadata_routing(self) -> Any:
        """Return who gets which metadata: `sample_weight` is used here, and passed on if the estimator asks for it."""
        router = MetadataRouter(owner=self).add_self_request(self)
        router.add(estimator=self._estimator(), method_mapping=MethodMapping().add(caller="fit", callee="fit"))
        splitter = self.cv if hasattr(self.cv, "split") else check_cv(5)
        get_routing_for_object(splitter)
        return router.add(splitter=splitter, method_mapping=MethodMapping().add(caller="fit", callee="split"))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = get_tags(self._estimator()).input_tags.sparse
        return tags

    def _estimator(self) -> Any:
        estimator = LogisticRegression() if self.estimator is None else self.estimator
        if isinstance(self.cv, str):
            if self.cv != "prefit":
                raise InputError(f"cv must be a number, a splitter, pairs of rows or 'prefit'; found {self.cv!r}")
            return estimator if isinstance(estimator, FrozenEstimator) else FrozenEstimator(estimator)
        return estimator

    def _calibrator(self) -> Calibrator:
        if isinstance(self.method, Calibrator):
            calibrator: Calibrator = clone(self.method)
            return calibrator
        known: dict[str, type[Calibrator]] = {**CALIBRATORS, AutoCalibrator.name: AutoCalibrator}
        if not isinstance(self.method, str) or self.method not in known:
            raise InputError(f"method must be a calibrator or one of {', '.join(known)}; found {self.method!r}")
        return known[self.method]()

    def _need_two_classes(self) -> None:
        if len(self.classes_) < 2:
            raise InputError("y has only one class, and a calibrator needs at least two classes")


def _group_numbers(groups: Any, length: int, rows: Any) -> Array | None:
    """Return the number of the group of each of these rows."""
    if groups is None:
        return None
    names = group_array(groups)
    if names.shape != (length,):
        raise InputError(f"groups must have shape ({length},), one group for each row; found {names.shape}")
    return np.asarray(group_numbers(names)[rows])

"""Converts the output of a fitted classifier to logits, and labels of any kind to class numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import log_softmax

from avuc.calibration import logits_from_probs
from avuc.core.errors import InputError
from avuc.metrics.statistics import NLL_FLOOR

Array = np.ndarray[Any, np.dtype[Any]]


# with fewer rows, decisions and largest values may differ by chance
MANY_ROWS = 10


def known_classes(estimator: Any) -> Array:
    """Return the class labels of a fitted classifier, in its order."""
    if not hasattr(estimator, "classes_"):
        raise InputError(f"{type(estimator).__name__} has no classes_ after fit, so it is no classifier; use one")
    return np.asarray(estimator.classes_)


def classifier_logits(estimator: Any, X: Any, classes: Array) -> Array:
    """Return log-probabilities (N, C) in float64, with the columns in the order of `classes`.

    They are log max(p, 1e-12) of `predict_proba`, or log softmax of `decision_function` if there is no `predict_proba`.
    A class that the estimator does not know is given the floor 1e-12.

    Args:
        estimator: a fitted classifier.
        X: rows.
        classes: (C,) sorted class labels, those of the estimator among them; or those of the estimator, in its order.
    """
    own = known_classes(estimator)
    if hasattr(estimator, "predict_proba"):
        scores = logits_from_probs(np.asarray(estimator.predict_proba(X), dtype=np.float64))
    elif hasattr(estimator, "decision_function"):
        margins = np.asarray(estimator.decision_function(X), dtype=np.float64)
        if margins.ndim == 1:
            margins = np.stack((np.zeros_like(margins), margins), axis=1)
        if margins.shape[1] != len(own):
            raise InputError(
                f"{type(estimator).__name__}.decision_function has {margins.shape[1]} columns for {len(own)} classes; "
                "use one-vs-rest (decision_function_shape='ovr') or predict_proba"
            )
        scores = log_softmax(margins, axis=1)
    else:
        raise InputError(f"{type(estimator).__name__} has neither predict_proba nor decision_function; use another one")
    if np.array_equal(own, classes):
        return np.asarray(scores)
    every = np.full((len(scores), len(classes)), np.log(NLL_FLOOR))
    every[:, np.searchsorted(classes, own)] = scores
    return every


def check_decisions(estimator: Any, X: Any, scores: Array, classes: Array) -> None:
    """Raise if the three columns of a `decision_function` are pairs of classes, (0, 1), (0, 2), (1, 2).

    With any other number of classes, one-against-one has another number of columns than classes.

    Args:
        estimator: a fitted classifier.
        X: rows.
        scores: (N, C) what `classifier_logits` returned for them.
        classes: (C,) class labels, in the order of the columns.
    """
    if hasattr(estimator, "predict_proba") or len(estimator.classes_) != 3 or len(scores) < MANY_ROWS:
        return
    if np.mean(classes[scores.argmax(axis=1)] == np.asarray(estimator.predict(X))) < 0.5:
        raise InputError(
            f"the largest value of {type(estimator).__name__}.decision_function is rarely that of the predicted class, "
            "so its columns are pairs of classes; use one-vs-rest (decision_function_shape='ovr') or predict_proba"
        )


def class_numbers(labels: Any, classes: Array) -> Array:
    """Return the column of each label (N,) in `classes`, which need not be sorted.

    >>> class_numbers(["b", "a", "b"], np.array(["a", "b"])).tolist()
    [1, 0, 1]
    """
    values = np.asarray(labels)
    order = np.argsort(classes, kind="stable")
    try:
        position = np.minimum(np.searchsorted(classes[order], values), len(classes) - 1)
        numbers = order[position]
        wrong = classes[numbers] != values
    except TypeError as error:  # text and numbers cannot be compared
        raise InputError(f"labels and the classes of the estimator are of different kinds ({error})") from error
    if np.any(wrong):
        known = ", ".join(repr(name) for name in classes[:8].tolist()) + (", …" if len(classes) > 8 else "")
        raise InputError(f"label {values[wrong].tolist()[0]!r} is not a class of the estimator; it knows {known}")
    return numbers

"""Conformal sets in a study: fitted on validation data, their coverage and size on every other set with labels.

Both are stored as the curve "conformal" of an evaluation, as whole numbers:

    validation   {"fits": {method: ConformalClassifier as JSON}, "classes": names}
    other sets   {"wanted", "rows", "class_rows": [C], "methods": {method: {"covered", "size", "low", "high",
                 "class_covered": [C], "class_size": [C]}}}

`covered` is the number of rows whose set has the true class, and `size` the sum of the sizes of all sets. `low` and
`high` are the ends of the 95 % interval of `covered` without drift; null for pixels and tokens, which are not
independent. Lists by class are kept for up to `MOST_CLASSES` classes, and for clean data always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avuc.conformal import ConformalClassifier
from avuc.conformal.coverage import covered_interval
from avuc.conformal.scores import METHODS
from avuc.predictions import Predictions
from avuc.study.grid import CLEAN, VALIDATION, TestSet

NAME = "conformal"
COVERAGE, LEVEL = 0.9, 0.95
MOST_CLASSES = 100


def conformal_curve(
    predictions: Predictions, test_set: TestSet, fits: Mapping[str, str] | None, names: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the curves to add to an evaluation: {"conformal": …}, or none if there is nothing to store.

    Args:
        predictions: the predictions for a set, on the CPU.
        test_set: the set; conformal sets are fitted on validation data, and counted on other data.
        fits: the fits on validation data, as JSON by method; None if an older version evaluated them.
        names: names of the classes.
    """
    labels: NDArray[Any] = predictions.labels.numpy()
    if not len(labels) or (labels < 0).any():
        return {}
    if test_set == VALIDATION:
        fitted = {method: ConformalClassifier(method, COVERAGE).fit(predictions).to_json() for method in METHODS}
        return {NAME: {"fits": fitted, "classes": list(names)}}
    if fits is None:
        return {}
    every = predictions.num_classes <= MOST_CLASSES or test_set == CLEAN
    content: dict[str, Any] = {"wanted": COVERAGE, "rows": len(labels), "methods": {}}
    if every:
        content["class_rows"] = _sums(labels, None, predictions.num_classes)
    for method, text in fits.items():
        conformal = ConformalClassifier.from_json(text)
        sets = conformal.predict_sets(predictions).numpy()
        hit, size = sets[np.arange(len(labels)), labels], sets.sum(1)
        low = high = None
        if len(predictions.shape) == 1:
            low, high = covered_interval(
                np.array([len(labels)]),
                ranks=conformal.ranks,
                rows=conformal.rows_,
                exact=conformal.is_exact,
                level=LEVEL,
            )
        counts: dict[str, Any] = {"covered": int(hit.sum()), "size": int(size.sum()), "low": low, "high": high}
        if every:
            counts["class_covered"] = _sums(labels, hit, predictions.num_classes)
            counts["class_size"] = _sums(labels, size, predictions.num_classes)
        content["methods"][method] = counts
    return {NAME: content}


def _sums(labels: NDArray[Any], weights: NDArray[Any] | None, classes: int) -> list[int]:
    sums: list[int] = np.bincount(labels, weights, minlength=classes).astype(int).tolist()
    return sums

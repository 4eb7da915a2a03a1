"""Scorers for `cross_val_score`, `cross_validate` and `GridSearchCV`: metrics of `avuc`, higher is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from avuc import metrics
from avuc.core.errors import InputError
from avuc.sklearn.scores import class_numbers

# the metrics that are better if higher; all others get the sign − and the prefix neg_
HIGHER = ("accuracy", "avu_auc")
LOWER = ("ece", "adaptive_ece", "classwise_ece", "mce", "uce", "nll", "brier", "aurc")


@dataclass(frozen=True)
class ProbabilityScorer:
    """A scorer `(estimator, X, y) -> float` from `predict_proba` and class labels of any kind.

    Args:
        metric: name of a function in `avuc.metrics` of probabilities (N, C) and class numbers (N,).
        sign: −1 if a lower value of the metric is better.
    """

    metric: str
    sign: int

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        if not hasattr(estimator, "predict_proba"):
            raise InputError(f"{type(estimator).__name__} has no predict_proba, which this score needs")
        probs = np.asarray(estimator.predict_proba(X))
        function: Callable[..., float] = getattr(metrics, self.metric)
        return self.sign * float(function(probs, class_numbers(y, np.asarray(estimator.classes_))))


SCORERS: dict[str, ProbabilityScorer] = {name: ProbabilityScorer(name, 1) for name in HIGHER} | {
    f"neg_{name}": ProbabilityScorer(name, -1) for name in LOWER
}
"""Scorers by name, such as `SCORERS["neg_ece"]`; `cross_validate(..., scoring=SCORERS)` computes all of them."""

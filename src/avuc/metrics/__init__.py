"""Metrics of a classifier's predictions: pure functions of (probabilities, labels), NumPy arrays or tensors, sums in
float64. `evaluate` computes them all in one pass; `METRICS` lists them.

`avu` and `detection` are the functions here; their modules are reached by `from avuc.metrics.avu import …`.
"""

from avuc.metrics.avu import (
    AvuCurves,
    auto_threshold,
    avu,
    avu_auc,
    avu_curves,
    p_accurate_given_certain,
    p_uncertain_given_inaccurate,
)
from avuc.metrics.calibration import (
    Curve,
    adaptive_ece,
    classwise_ece,
    debiased_ece,
    ece,
    mce,
    reliability_curve,
    uce,
    uncertainty_reliability_curve,
)
from avuc.metrics.detection import detection, spearman
from avuc.metrics.intervals import (
    Interval,
    bootstrap,
    detection_intervals,
    intervals,
    paired_bootstrap,
    paired_intervals,
)
from avuc.metrics.proper import accuracy, brier, mean_entropy, nll
from avuc.metrics.selective import RiskCoverage, aurc, risk_coverage_curve
from avuc.metrics.suite import METRICS, evaluate

__all__ = [
    "METRICS",
    "AvuCurves",
    "Curve",
    "Interval",
    "RiskCoverage",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "auto_threshold",
    "avu",
    "avu_auc",
    "avu_curves",
    "bootstrap",
    "brier",
    "classwise_ece",
    "debiased_ece",
    "detection",
    "detection_intervals",
    "ece",
    "evaluate",
    "intervals",
    "mce",
    "mean_entropy",
    "nll",
    "p_accurate_given_certain",
    "p_uncertain_given_inaccurate",
    "paired_bootstrap",
    "paired_intervals",
    "reliability_curve",
    "risk_coverage_curve",
    "spearman",
    "uce",
    "uncertainty_reliability_curve",
]

"""Metrics of a classifier's predictions: functions of probabilities (N, C) and labels (N,), with sums in float64.

Dense (N, C, *spatial) and binary (N,) probabilities are taken, too (`avuc.core.tasks`).

`evaluate` computes all of them in one pass, `METRICS` lists them, `intervals` adds confidence intervals. Names are
loaded when they are first used, so the modules that need only NumPy (`detection`, `rank_correlation`, `binning`,
`resampling.percentile`) can be imported without torch.

proper.py            accuracy, NLL, Brier score, mean entropy
calibration.py       calibration errors and reliability curves
avu.py               accuracy versus uncertainty; threshold.py: the uncertainty threshold
selective.py         risk–coverage curve and its area; the generalised one
pavpu.py, iou.py     of segmentation: patches; intersection over union
smooth.py            SmoothECE;  more.py: MORE_METRICS, computed on request, and their intervals
detection.py         out-of-distribution detection;  rank_correlation.py: Spearman's ρ
suite.py             METRICS, evaluate;  multilabel.py: for each label of a multi-label model
intervals.py         bootstrap intervals;  detection_bootstrap.py: those of `detection`;  resampling/: the bootstrap
blockwise.py         the same metrics for data read in blocks
streaming/           metrics with a state of fixed size, mergeable over processes
statistics.py        the one pass over the probabilities;  few_classes.py: of few classes, on the CPU
checks.py, arrays.py what is accepted
binning.py, ties.py, sorted_samples.py, log_histogram.py    counts from which metrics are computed

`avu`, `detection`, `intervals` and `multilabel` are also names of modules here. The attribute of the package is always
the function; import from the modules with `from avuc.metrics.avu import …`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from avuc.metrics.avu import (
        AvuCurves as AvuCurves,
    )
    from avuc.metrics.avu import (
        avu,
        avu_auc,
        avu_curves,
        p_accurate_given_certain,
        p_uncertain_given_inaccurate,
    )
    from avuc.metrics.calibration import (
        Curve as Curve,
    )
    from avuc.metrics.calibration import (
        adaptive_ece,
        classwise_ece,
        debiased_ece,
        ece,
        mce,
        reliability_curve,
        uce,
        uncertainty_reliability_curve,
    )
    from avuc.metrics.detection import detection
    from avuc.metrics.detection_bootstrap import detection_intervals
    from avuc.metrics.intervals import (
        bootstrap,
        intervals,
        paired_bootstrap,
        paired_intervals,
    )
    from avuc.metrics.iou import iou
    from avuc.metrics.more import MORE_METRICS
    from avuc.metrics.more import overconfidence as overconfidence
    from avuc.metrics.more import underconfidence as underconfidence
    from avuc.metrics.multilabel import MultiLabelMetrics as MultiLabelMetrics
    from avuc.metrics.multilabel import multilabel
    from avuc.metrics.pavpu import pavpu
    from avuc.metrics.proper import accuracy, brier, mean_entropy, nll
    from avuc.metrics.rank_correlation import spearman
    from avuc.metrics.resampling.percentile import Interval
    from avuc.metrics.selective import RiskCoverage as RiskCoverage
    from avuc.metrics.selective import augrc as augrc
    from avuc.metrics.selective import aurc, risk_coverage_curve
    from avuc.metrics.smooth import smooth_ece as smooth_ece
    from avuc.metrics.streaming import StreamingDetection, StreamingMetrics
    from avuc.metrics.suite import METRICS, evaluate
    from avuc.metrics.threshold import auto_threshold

__all__ = [
    "METRICS",
    "MORE_METRICS",
    "Interval",
    "StreamingDetection",
    "StreamingMetrics",
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
    "iou",
    "mce",
    "mean_entropy",
    "multilabel",
    "nll",
    "p_accurate_given_certain",
    "p_uncertain_given_inaccurate",
    "paired_bootstrap",
    "paired_intervals",
    "pavpu",
    "reliability_curve",
    "risk_coverage_curve",
    "spearman",
    "uce",
    "uncertainty_reliability_curve",
]

_HOME = {
    "METRICS": "suite",
    "MORE_METRICS": "more",
    "AvuCurves": "avu",
    "Curve": "calibration",
    "Interval": "resampling.percentile",
    "MultiLabelMetrics": "multilabel",
    "RiskCoverage": "selective",
    "StreamingDetection": "streaming",
    "StreamingMetrics": "streaming",
    "accuracy": "proper",
    "adaptive_ece": "calibration",
    "augrc": "selective",
    "aurc": "selective",
    "auto_threshold": "threshold",
    "avu": "avu",
    "avu_auc": "avu",
    "avu_curves": "avu",
    "bootstrap": "intervals",
    "brier": "proper",
    "classwise_ece": "calibration",
    "debiased_ece": "calibration",
    "detection": "detection",
    "detection_intervals": "detection_bootstrap",
    "ece": "calibration",
    "evaluate": "suite",
    "intervals": "intervals",
    "iou": "iou",
    "mce": "calibration",
    "mean_entropy": "proper",
    "multilabel": "multilabel",
    "nll": "proper",
    "p_accurate_given_certain": "avu",
    "p_uncertain_given_inaccurate": "avu",
    "paired_bootstrap": "intervals",
    "paired_intervals": "intervals",
    "overconfidence": "more",
    "pavpu": "pavpu",
    "reliability_curve": "calibration",
    "risk_coverage_curve": "selective",
    "smooth_ece": "smooth",
    "spearman": "rank_correlation",
    "uce": "calibration",
    "uncertainty_reliability_curve": "calibration",
    "underconfidence": "more",
}


class _Package(ModuleType):
    """This package. Python sets a submodule as an attribute when it loads it; a function of that name must win."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


sys.modules[__name__].__class__ = _Package

"""Metrics that are computed on request: SmoothECE, over- and underconfidence apart, AUGRC; with their intervals.

They depend on the confidences and on which predictions are correct, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from avuc.metrics.arrays import Array
from avuc.metrics.binning import BinTable, bin_edges, digitise
from avuc.metrics.calibration import confidence_table
from avuc.metrics.checks import any_layout
from avuc.metrics.resampling.absolute_error import AbsoluteSum
from avuc.metrics.resampling.percentile import Errors, Interval, check_bootstrap, error_interval
from avuc.metrics.resampling.rows import resampled_rows
from avuc.metrics.selective import augrc, generalised_risk_area
from avuc.metrics.smooth import cosine_waves, grid_places, residual_masses, smooth_ece, smooth_error, smoothed
from avuc.metrics.statistics import Statistics, prediction_statistics


@any_layout
def overconfidence(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Return the part of ECE from bins whose confidence is above their accuracy.

        Σ_l n_l/N max(0, mean confidence_l − accuracy_l)

    Overconfidence and underconfidence add up to ECE. Lower is better.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        bins: number of bins of equal width.

    >>> round(overconfidence([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 6)
    0.3
    """
    return _sides(confidence_table(prediction_statistics(probs, labels), bins))[0]


@any_layout
def underconfidence(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Return the part of ECE from bins whose confidence is below their accuracy.

        Σ_l n_l/N max(0, accuracy_l − mean confidence_l)

    Overconfidence and underconfidence add up to ECE. Lower is better.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        bins: number of bins of equal width.

    >>> round(underconfidence([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 6)
    0.1
    """
    return _sides(confidence_table(prediction_statistics(probs, labels), bins))[1]


MORE_METRICS: dict[str, Callable[..., float]] = {
    "smooth_ece": smooth_ece,
    "overconfidence": overconfidence,
    "underconfidence": underconfidence,
    "augrc": augrc,
}
"""Metrics that `avuc evaluate --more` adds, by name."""


def _sides(table: BinTable) -> tuple[float, float]:
    """Return over- and underconfidence."""
    gap = (table.value - table.event) / table.rows.sum()
    return float(np.maximum(gap, 0).sum()), float(np.maximum(-gap, 0).sum())


def more_intervals(
    statistics: Statistics, *, replicates: int = 1000, level: float = 0.95, seed: int = 0, bins: int = 15
) -> dict[str, Interval]:
    """Return the value and the bootstrap interval of each of `MORE_METRICS`; without replicates the ends are NaN.

    Sums of absolute values get intervals as ECE does (`resampling.absolute_error`); SmoothECE at its bandwidth.

    Args:
        statistics: of the predictions.
        replicates: number of resamples.
        level: confidence level.
        seed: of the resamples.
        bins: number of bins of over- and underconfidence.
    """
    confidence, correct, rows = statistics.confidence, statistics.correct, len(statistics)
    residual = confidence - correct
    smooth, bandwidth = smooth_error(confidence, correct)
    over, under = _sides(confidence_table(statistics, bins))
    order = np.argsort(-confidence, kind="stable")
    starts = np.flatnonzero(np.diff(confidence[order], prepend=np.inf))  # first row of each group of equal scores
    area = float(generalised_risk_area(~correct[order], np.ones(rows), starts))
    values = {"smooth_ece": smooth, "overconfidence": over, "underconfidence": under, "augrc": area}
    if not replicates:
        return {name: Interval(value, float("nan"), float("nan")) for name, value in values.items()}
    check_bootstrap(replicates, level)
    cells, places = digitise(confidence, bin_edges(bins, statistics.dtype)), grid_places(confidence)

    def gaps(index: Array) -> Array:
        return np.bincount(cells[index], weights=residual[index], minlength=bins) / rows

    def masses(index: Array) -> Array:
        return residual_masses(places[0][index], places[1][index], residual[index])

    everything = np.arange(rows)
    binned = AbsoluteSum(gaps(everything))
    kernel = AbsoluteSum(smoothed(cosine_waves(masses(everything)), bandwidth))
    shift, areas = [], []
    for index in resampled_rows(rows, replicates, seed):
        drawn = gaps(index)
        binned.add(drawn[None])
        kernel.add(smoothed(cosine_waves(masses(index)), bandwidth)[None])
        shift.append(drawn.sum() - binned.estimate.sum())
        weights = np.bincount(index, minlength=rows)[order].astype(np.float64)
        areas.append(generalised_risk_area(~correct[order], weights, starts))
    total, moved, missed = binned.errors(), np.array(shift), area - np.array(areas)
    errors = {
        "smooth_ece": kernel.errors(),
        # max(0, g) = (|g| + g)/2
        "overconfidence": Errors((total.over + moved) / 2, (total.under + moved) / 2),
        "underconfidence": Errors((total.over - moved) / 2, (total.under - moved) / 2),
        "augrc": Errors(missed, missed),
    }
    found = {name: error_interval(value, errors[name], level) for name, value in values.items()}
    return {name: Interval(each.value, max(each.low, 0.0), min(each.high, 1.0)) for name, each in found.items()}

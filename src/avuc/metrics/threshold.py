"""The uncertainty threshold: the entropy up to which a prediction counts as certain.

The automatic threshold is the midpoint of two means (Krishnan & Tickoo 2020, §3.3, https://arxiv.org/abs/2012.07923):

    u_th = (ū_accurate + ū_inaccurate) / 2

ū_accurate and ū_inaccurate are the mean predictive entropies of correct and of wrong predictions. If all predictions
are correct, or all are wrong, u_th is the mean of all entropies. The formula is `avuc.uncertainty.midpoint_threshold`.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from avuc.core.errors import InputError
from avuc.metrics.arrays import Array
from avuc.metrics.checks import any_layout
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.uncertainty import midpoint_threshold

Threshold = float | Literal["auto"]
# thresholds under the area of AvU-AUC
POINTS = 21
# an entropy that is equal to a threshold may be above it by this share, because of the order of its sum
ROUNDING = 1e-12


@any_layout
def auto_threshold(probs: Any, labels: Any) -> float:
    """Return the midpoint of the mean entropies of correct and of wrong predictions, in nats.

        u_th = (ū_accurate + ū_inaccurate) / 2

    If all predictions are correct, or all are wrong, it is the mean of all entropies.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.

    >>> round(auto_threshold([[1.0, 0.0], [0.5, 0.5]], [0, 1]), 4)
    0.3466
    """
    return resolve_threshold(prediction_statistics(probs, labels), "auto")


def resolve_threshold(statistics: Statistics, threshold: Threshold) -> float:
    """Return the threshold as a number: the given one, or the midpoint for "auto"."""
    if threshold != "auto":
        return check_threshold(threshold)
    entropy, right = statistics.entropy, statistics.correct
    # products are faster than a selection
    sums = (entropy * right).sum(), (entropy * ~right).sum()
    hits = float(np.count_nonzero(right))
    return float(midpoint_threshold(*sums, hits, len(right) - hits, low=entropy.min(), high=entropy.max()))


def check_threshold(threshold: float | str) -> float:
    """Return the threshold as a float, or raise InputError for NaN."""
    value = float(threshold)
    if np.isnan(value):
        raise InputError("threshold is NaN; give an entropy in nats, or 'auto'")
    return value


def thresholds_between(low: Any, high: Any, points: int = POINTS) -> Array:
    """Return u_min + t (u_max − u_min) for `points` equally spaced t from 0 to 1, shape (..., points).

    The last one is exactly `high`, so that every prediction is certain at t = 1. The others are larger by `ROUNDING`:
    rows with the same probabilities in another order have entropies that differ in the last digit.

    Args:
        low: (...) smallest entropy u_min.
        high: (...) largest entropy u_max.
        points: number of thresholds, at least 2.

    >>> thresholds_between(0.0, 1.0, 3)
    array([0. , 0.5, 1. ])
    """
    if points < 2:
        raise InputError(f"points must be at least 2, found {points}")
    low, high = np.asarray(low)[..., None], np.asarray(high)[..., None]
    inner = (low + np.linspace(0, 1, points)[:-1] * (high - low)) * (1 + ROUNDING)
    return np.concatenate([np.minimum(inner, high), high], -1)

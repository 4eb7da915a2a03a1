"""Intervals of predictions that are all right, or all wrong: no resample has the other outcome, so it shows no noise.

At a level of 95 %, at most a share s of all rows has the outcome that none of n rows has, where (1 − s)^n = 0.025
(Clopper & Pearson 1934). For 300 rows that are all right, s is 1.2 %: the accuracy may be 98.8 %, and ECE may differ by
as much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from avuc.metrics.resampling.percentile import Interval

# a share s of rows with the other outcome changes these by about s at most; MCE has an interval of its own
CALIBRATION = {
    *("ece", "classwise_ece", "adaptive_ece", "debiased_ece", "uce"),
    *("smooth_ece", "overconfidence", "underconfidence"),
}
CHANGED = CALIBRATION | {"accuracy", "avu", "aurc", "augrc"}


def unseen_share(units: int, level: float) -> float:
    """Return the highest share of an outcome that none of so many rows, images or groups has.

    >>> round(unseen_share(300, 0.95), 4)
    0.0122
    """
    return float(1 - ((1 - level) / 2) ** (1 / units))


def widened(intervals: Mapping[str, Interval], accuracy: float, units: int, level: float) -> dict[str, Interval]:
    """Return the intervals, wider by `unseen_share` if all predictions are right or all are wrong.

    Args:
        intervals: of metrics by name.
        accuracy: share of right predictions.
        units: number of independent rows, images or groups.
        level: of the intervals.

    >>> widened({"accuracy": Interval(1.0, 1.0, 1.0)}, 1.0, 300, 0.95)["accuracy"].low < 0.99
    True
    """
    if accuracy not in (0, 1):
        return dict(intervals)
    share = unseen_share(units, level)
    known = {name for name, each in intervals.items() if name in CHANGED and not math.isnan(each.low)}
    return {
        name: Interval(each.value, max(0.0, each.low - share), min(1.0, each.high + share)) if name in known else each
        for name, each in intervals.items()
    }


def widened_difference(
    name: str, change: Interval, accuracies: tuple[float, float], units: int, level: float
) -> Interval:
    """Return the interval of the difference between two models, wider if both are right everywhere, or wrong.

    Args:
        name: of the metric; only calibration errors change, because the outcomes of both models are the same.
        change: the interval of the difference.
        accuracies: of the two models.
        units: number of independent rows, images or groups.
        level: of the interval.
    """
    one_outcome = accuracies[0] == accuracies[1] and accuracies[0] in (0, 1)
    if name not in CALIBRATION or not one_outcome or math.isnan(change.low):
        return change
    share = 2 * unseen_share(units, level)  # one error can rise by a share, and the other fall by it
    return Interval(change.value, max(-1.0, change.low - share), min(1.0, change.high + share))

"""Intervals of rows with one outcome: no resample has the other outcome, so a bootstrap shows no noise.

At a level of 95 %, at most a share s of all rows has the outcome that none of n rows has, where (1 − s)^n = 0.025
(Clopper & Pearson 1934). For 300 rows that are all right, s is 1.2 %: the accuracy may be 98.8 %, and ECE may differ by
as much. For p(accurate | certain), n counts the certain rows; for p(uncertain | inaccurate), the wrong ones.
`separated.py` has the rule for detection.

The Brier score of a row lies between 0 and 2, so a share s of rows that were not seen moves an end e of its interval to
e (1 − s) or e + s (2 − e) at most. NLL has no such bound: one row can be arbitrarily wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from avuc.metrics.arrays import Array
from avuc.metrics.resampling.percentile import Interval
from avuc.metrics.statistics import Statistics
from avuc.metrics.threshold import Threshold, resolve_threshold
from avuc.uncertainty import highest_certain

# a share s of rows with the other outcome changes these by about s at most; MCE has an interval of its own
CALIBRATION = {
    *("ece", "classwise_ece", "adaptive_ece", "debiased_ece", "uce"),
    *("smooth_ece", "overconfidence", "underconfidence"),
}
CHANGED = CALIBRATION | {"accuracy", "avu", "avu_auc", "aurc", "augrc"}
# ratios of counts that can be 0 or 1 although some predictions are right and some are wrong
RATIOS = ("avu", "p_accurate_given_certain", "p_uncertain_given_inaccurate")
# largest Brier score of a row
WORST_BRIER = 2.0
Condition = Callable[[], Mapping[str, int]]


def unseen_share(units: int, level: float) -> float:
    """Return the highest share of an outcome that none of so many rows, images or groups has.

    >>> round(unseen_share(300, 0.95), 4)
    0.0122
    """
    return float(1 - ((1 - level) / 2) ** (1 / max(units, 1)))


def units_within(statistics: Statistics, threshold: Threshold, groups: Array | None = None) -> dict[str, int]:
    """Return how many rows, or groups with such a row, the denominator of each of `RATIOS` counts.

    Args:
        statistics: of the predictions.
        threshold: entropy up to which a prediction is certain, or "auto".
        groups: (N,) numbers of the groups of dependent rows; None: rows are independent.
    """
    certain = statistics.entropy <= highest_certain(resolve_threshold(statistics, threshold))
    within = np.ones(len(statistics), bool), certain, ~statistics.correct
    counts = [int(rows.sum()) if groups is None else len(np.unique(groups[rows])) for rows in within]
    return dict(zip(RATIOS, counts, strict=True))


def widened(
    intervals: Mapping[str, Interval], accuracy: float, units: int, level: float, within: Condition | None = None
) -> dict[str, Interval]:
    """Return the intervals, wider by `unseen_share` where all predictions, or all in a condition, have one outcome.

    Args:
        intervals: of metrics by name.
        accuracy: share of right predictions.
        units: number of independent rows, images or groups.
        level: of the intervals.
        within: returns `units_within`; called only if a ratio is 0 or 1. None: there are no ratios.

    >>> widened({"accuracy": Interval(1.0, 1.0, 1.0)}, 1.0, 300, 0.95)["accuracy"].low < 0.99
    True
    """
    counted = dict.fromkeys(CHANGED, units) if accuracy in (0, 1) else {}
    if within is not None and any(name in RATIOS and each.value in (0, 1) for name, each in intervals.items()):
        counted |= {name: many for name, many in within().items() if _extreme(intervals.get(name))}
    found = {
        name: _wider(each, unseen_share(counted[name], level)) if name in counted else each
        for name, each in intervals.items()
    }
    if "brier" in found and accuracy in (0, 1):
        found["brier"] = _wider_brier(found["brier"], unseen_share(units, level))
    return found


def _wider_brier(interval: Interval, share: float) -> Interval:
    """Return the interval of the Brier score if it may be anything between 0 and 2 in a share of rows."""
    return Interval(interval.value, interval.low * (1 - share), interval.high + share * (WORST_BRIER - interval.high))


def _extreme(interval: Interval | None) -> bool:
    return interval is not None and interval.value in (0, 1)


def _wider(interval: Interval, share: float) -> Interval:
    if math.isnan(interval.low):
        return interval
    return Interval(interval.value, max(0.0, interval.low - share), min(1.0, interval.high + share))


def widened_difference(
    name: str,
    change: Interval,
    accuracies: tuple[float, float],
    units: int,
    level: float,
    ratios: Sequence[tuple[float, Condition]] = (),
) -> Interval:
    """Return the interval of the difference between two models, wider if outcomes that no row has may change it.

    Args:
        name: of the metric. If both models are right everywhere, or wrong, only calibration errors and the Brier score
            change, because the outcomes of both models are the same. p(accurate | certain) and
            p(uncertain | inaccurate) change if one of them is 0 or 1, because the rows of their conditions differ
            between the models.
        change: the interval of the difference a − b.
        accuracies: of the two models.
        units: number of independent rows, images or groups.
        level: of the interval.
        ratios: the metric of a and of b, each with a function that returns `units_within`.
    """
    less, more = 0.0, 0.0
    if name in CALIBRATION and accuracies[0] == accuracies[1] and accuracies[0] in (0, 1):
        less = more = 2 * unseen_share(units, level)  # one error can rise by a share, and the other fall by it
    if name == "brier" and accuracies[0] == accuracies[1] and accuracies[0] in (0, 1):
        # in rows with the other outcome the scores of the two models differ by at most 2
        share = unseen_share(units, level)
        less, more = (share * max(WORST_BRIER + sign * end, 0.0) for sign, end in ((1, change.low), (-1, change.high)))
    if name in RATIOS[1:]:
        for (value, within), first in zip(ratios, (True, False), strict=True):
            share = unseen_share(within()[name], level) if value in (0, 1) else 0.0
            # hidden outcomes make a ratio of 1 smaller
            less, more = (less + share, more) if (value == 1) == first else (less, more + share)
    if math.isnan(change.low) or less == more == 0:
        return change
    if name == "brier":
        return Interval(change.value, change.low - less, change.high + more)
    return Interval(change.value, max(-1.0, change.low - less), min(1.0, change.high + more))

"""Accuracy versus uncertainty: are right predictions certain, and wrong ones uncertain?

A prediction is certain when its entropy u ≤ threshold; differences that float32 rounding can make count as equal
(`avuc.uncertainty.highest_certain`), so that a prediction at its threshold is certain in the losses and in the metrics.
Counts of accurate-certain (AC), accurate-uncertain (AU), inaccurate-certain (IC) and inaccurate-uncertain (IU)
predictions give every number here.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from avuc.core.errors import InputError
from avuc.metrics.statistics import Array, Groups, Statistics, cumulative, group, summarise
from avuc.uncertainty import highest_certain

__all__ = [
    "AvuCurves",
    "Counts",
    "auto_threshold",
    "avu",
    "avu_auc",
    "avu_curves",
    "p_accurate_given_certain",
    "p_uncertain_given_inaccurate",
]

POINTS = 21
Threshold = float | Literal["auto"]


class Counts(NamedTuple):
    """The four cells."""

    ac: Array
    au: Array
    ic: Array
    iu: Array

    @property
    def avu(self) -> Array:
        return np.asarray((self.ac + self.iu) / (self.ac + self.au + self.ic + self.iu))

    @property
    def accurate_given_certain(self) -> Array:
        return _ratio(self.ac, self.ac + self.ic)

    @property
    def uncertain_given_inaccurate(self) -> Array:
        return _ratio(self.iu, self.ic + self.iu)


class AvuCurves(NamedTuple):
    """Everything against the threshold: t in [0, 1], the entropy it stands for, the three ratios, the certain share."""

    t: Array
    threshold: Array
    avu: Array
    p_accurate_given_certain: Array
    p_uncertain_given_inaccurate: Array
    certain: Array


def avu(probs: Any, labels: Any, *, threshold: Threshold = "auto") -> float:
    """(AC + IU)/N: the share of predictions that are right and certain, or wrong and uncertain.

    >>> avu([[0.9, 0.1], [0.5, 0.5]], [0, 1], threshold=0.5)
    1.0
    """
    return float(counts_at(summarise(probs, labels), threshold).avu)


def p_accurate_given_certain(probs: Any, labels: Any, *, threshold: Threshold = "auto") -> float:
    """AC/(AC + IC); NaN when no prediction is certain.

    >>> p_accurate_given_certain([[0.9, 0.1], [0.5, 0.5]], [0, 1], threshold=0.5)
    1.0
    """
    return float(counts_at(summarise(probs, labels), threshold).accurate_given_certain)


def p_uncertain_given_inaccurate(probs: Any, labels: Any, *, threshold: Threshold = "auto") -> float:
    """IU/(IC + IU); NaN when no prediction is wrong.

    >>> p_uncertain_given_inaccurate([[0.9, 0.1], [0.5, 0.5]], [0, 1], threshold=0.5)
    1.0
    """
    return float(counts_at(summarise(probs, labels), threshold).uncertain_given_inaccurate)


def avu_auc(probs: Any, labels: Any) -> float:
    """Area under AvU(u_min + t(u_max − u_min)), t in [0, 1], by the trapezoid rule over 21 points.

    >>> round(avu_auc([[0.9, 0.1], [0.5, 0.5]], [0, 1]), 4)
    0.9875
    """
    return float(area(curves_of(summarise(probs, labels)).avu))


def avu_curves(probs: Any, labels: Any, *, points: int = POINTS) -> AvuCurves:
    """AvU, p(accurate | certain), p(uncertain | inaccurate) and the certain share over thresholds.

    >>> avu_curves([[0.9, 0.1], [0.5, 0.5]], [0, 1], points=3).certain
    array([0.5, 0.5, 1. ])
    """
    return curves_of(summarise(probs, labels), points)


def auto_threshold(probs: Any, labels: Any) -> float:
    """Midpoint of the mean entropies of right and of wrong predictions; the overall mean when there are only one kind.

    >>> round(auto_threshold([[1.0, 0.0], [0.5, 0.5]], [0, 1]), 4)
    0.3466
    """
    return resolve_threshold(summarise(probs, labels), "auto")


# ---- functions of counts and sums, shared with the streaming forms and the bootstrap


def curves_of(statistics: Statistics, points: int = POINTS) -> AvuCurves:
    thresholds = thresholds_between(statistics.entropy.min(), statistics.entropy.max(), points)
    counts = cells(group(statistics.entropy, statistics.correct), thresholds)
    certain = (counts.ac + counts.ic) / len(statistics)
    ratios = counts.avu, counts.accurate_given_certain, counts.uncertain_given_inaccurate
    return AvuCurves(np.linspace(0, 1, points), thresholds, *ratios, certain)


def resolve_threshold(statistics: Statistics, threshold: Threshold) -> float:
    if threshold != "auto":
        return checked_threshold(threshold)
    entropy, right = statistics.entropy, statistics.correct
    sums = entropy[right].sum(), entropy[~right].sum()
    hits = float(right.sum())
    return float(midpoint(*sums, hits, len(right) - hits, entropy.min(), entropy.max()))


def checked_threshold(threshold: float | str) -> float:
    value = float(threshold)
    if np.isnan(value):
        raise InputError("threshold is NaN; give an entropy in nats, or 'auto'")
    return value


def midpoint(right_sum: Any, wrong_sum: Any, right: Any, wrong: Any, low: Any, high: Any) -> Array:
    """The auto threshold from the two groups' summed entropies and sizes.

    A mean lies between the extremes; saying so keeps equal entropies on the certain side of their own mean, which
    rounding can put one ulp below them.
    """
    right, wrong = np.asarray(right, np.float64), np.asarray(wrong, np.float64)
    middle = (right_sum / np.maximum(right, 1) + wrong_sum / np.maximum(wrong, 1)) / 2
    overall = (right_sum + wrong_sum) / (right + wrong)
    return np.asarray(np.clip(np.where((right > 0) & (wrong > 0), middle, overall), low, high))


def thresholds_between(low: Any, high: Any, points: int = POINTS) -> Array:
    """u_min + t(u_max − u_min) for t from 0 to 1, (..., points); exactly u_max at t = 1, where all are certain."""
    if points < 2:
        raise InputError(f"points must be at least 2, found {points}")
    low, high = np.asarray(low)[..., None], np.asarray(high)[..., None]
    return np.concatenate([np.minimum(low + np.linspace(0, 1, points)[:-1] * (high - low), high), high], -1)


def cells(groups: Groups, thresholds: Array) -> Counts:
    """The four cells at each threshold."""
    return cells_below(groups.values, cumulative(groups.right), cumulative(groups.wrong), thresholds)


def cells_below(values: Array, right: Array, wrong: Array, thresholds: Array, lowest: Array | None = None) -> Counts:
    """From right and wrong rows below each ascending value, (..., G + 1), and thresholds (..., T).

    With `lowest`, a group is a cell of rows spread evenly between `lowest` and its value, and a threshold inside it
    takes its share of them.
    """
    last = np.searchsorted(values, thresholds, side="right")
    ac, ic = np.take_along_axis(right, last, -1), np.take_along_axis(wrong, last, -1)
    if lowest is not None:
        cell = np.minimum(last, len(values) - 1)
        width = values[cell] - lowest[cell]
        share = np.clip((thresholds - lowest[cell]) / np.where(width > 0, width, 1), 0, 1)
        share = np.where((last < len(values)) & (width > 0), share, 0)
        ac = ac + share * (np.take_along_axis(right, cell + 1, -1) - np.take_along_axis(right, cell, -1))
        ic = ic + share * (np.take_along_axis(wrong, cell + 1, -1) - np.take_along_axis(wrong, cell, -1))
    return Counts(ac, right[..., -1:] - ac, ic, wrong[..., -1:] - ic)


def area(values: Array) -> Array:
    """Trapezoid rule over equally spaced points on [0, 1], along the last axis."""
    return np.asarray((values[..., 1:] + values[..., :-1]).sum(-1) / (2 * (values.shape[-1] - 1)))


def counts_at(statistics: Statistics, threshold: Threshold) -> Counts:
    certain = statistics.entropy <= highest_certain(resolve_threshold(statistics, threshold))
    right = statistics.correct
    four = right & certain, right & ~certain, ~right & certain, ~right & ~certain
    return Counts(*(np.asarray(np.count_nonzero(cell), np.float64) for cell in four))


def _ratio(part: Array, whole: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(whole > 0, np.divide(part, whole), np.nan))

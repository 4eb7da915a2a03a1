"""Accuracy versus uncertainty (AvU): are correct predictions certain, and wrong ones uncertain?

A prediction is certain if its predictive entropy u is at most the threshold u_th, and uncertain otherwise. Together
with correct or wrong this gives four counts (Krishnan & Tickoo 2020, https://arxiv.org/abs/2012.07923):

                   certain   uncertain
    accurate       n_AC      n_AU
    inaccurate     n_IC      n_IU

Differences that float32 rounding can cause count as equal (`avuc.uncertainty.highest_certain`), so a prediction at its
threshold is certain in the losses and in the metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from avuc._old_names import forward
from avuc.metrics.arrays import Array, cached_parts
from avuc.metrics.checks import any_layout
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.metrics.threshold import POINTS, Threshold, resolve_threshold, thresholds_between
from avuc.uncertainty import highest_certain

__getattr__: Callable[[str], object] = forward(__name__)


class QuadrantCounts(NamedTuple):
    """The four counts, each of shape (...): numbers, or one entry for each threshold or resample."""

    ac: Array  # accurate and certain
    au: Array  # accurate and uncertain
    ic: Array  # inaccurate and certain
    iu: Array  # inaccurate and uncertain

    @property
    def avu(self) -> Array:
        """(n_AC + n_IU) / (n_AC + n_AU + n_IC + n_IU)."""
        return np.asarray((self.ac + self.iu) / (self.ac + self.au + self.ic + self.iu))

    @property
    def accurate_given_certain(self) -> Array:
        """n_AC / (n_AC + n_IC); NaN if nothing is certain."""
        return _ratio(self.ac, self.ac + self.ic)

    @property
    def uncertain_given_inaccurate(self) -> Array:
        """n_IU / (n_IC + n_IU); NaN if nothing is wrong."""
        return _ratio(self.iu, self.ic + self.iu)


class AvuCurves(NamedTuple):
    """AvU and its parts as functions of the threshold, as `avu_curves` returns them; arrays of shape (points,).

    Args:
        t: position of the threshold, from 0 to 1.
        threshold: u_min + t (u_max − u_min), in nats.
        avu: AvU at that threshold.
        p_accurate_given_certain: NaN where nothing is certain.
        p_uncertain_given_inaccurate: NaN if nothing is wrong.
        certain: share of predictions that are certain.

    >>> avu_curves([[0.9, 0.1], [0.5, 0.5]], [0, 1], points=3).avu
    array([1. , 1. , 0.5])
    """

    t: Array
    threshold: Array
    avu: Array
    p_accurate_given_certain: Array
    p_uncertain_given_inaccurate: Array
    certain: Array


@any_layout
def avu(probs: Any, labels: Any, *, threshold: Threshold = "auto") -> float:
    """Return AvU: the share of predictions that are correct and certain, or wrong and uncertain. Higher is better.

        AvU = (n_AC + n_IU) / (n_AC + n_AU + n_IC + n_IU)

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        threshold: entropy in nats up to which a prediction is certain; "auto": see `auto_threshold`.

    >>> avu([[0.9, 0.1], [0.5, 0.5]], [0, 1], threshold=0.5)
    1.0
    """
    return float(quadrant_counts_at(prediction_statistics(probs, labels), threshold).avu)


@any_layout
def p_accurate_given_certain(probs: Any, labels: Any, *, threshold: Threshold = "auto") -> float:
    """Return p(accurate | certain) = n_AC / (n_AC + n_IC); NaN if no prediction is certain. Higher is better.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        threshold: entropy in nats up to which a prediction is certain; "auto": see `auto_threshold`.

    >>> p_accurate_given_certain([[0.9, 0.1], [0.5, 0.5]], [0, 1], threshold=0.5)
    1.0
    """
    return float(quadrant_counts_at(prediction_statistics(probs, labels), threshold).accurate_given_certain)


@any_layout
def p_uncertain_given_inaccurate(probs: Any, labels: Any, *, threshold: Threshold = "auto") -> float:
    """Return p(uncertain | inaccurate) = n_IU / (n_IC + n_IU); NaN if no prediction is wrong. Higher is better.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        threshold: entropy in nats up to which a prediction is certain; "auto": see `auto_threshold`.

    >>> p_uncertain_given_inaccurate([[0.9, 0.1], [0.5, 0.5]], [0, 1], threshold=0.5)
    1.0
    """
    return float(quadrant_counts_at(prediction_statistics(probs, labels), threshold).uncertain_given_inaccurate)


@any_layout
def avu_auc(probs: Any, labels: Any) -> float:
    """Return the area under AvU as a function of the threshold (AvU-AUC). Higher is better.

        AvU-AUC = ∫₀¹ AvU(u_min + t (u_max − u_min)) dt

    u_min and u_max are the smallest and the largest entropy. The trapezoid rule is used with 21 points. With more rows
    both are more extreme, so compare values, and read intervals, only for data sets of the same size.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.

    >>> round(avu_auc([[0.9, 0.1], [0.5, 0.5]], [0, 1]), 4)
    0.9875
    """
    return float(area(avu_curves_from_statistics(prediction_statistics(probs, labels)).avu))


@any_layout
def avu_curves(probs: Any, labels: Any, *, points: int = POINTS) -> AvuCurves:
    """Return AvU, p(accurate | certain), p(uncertain | inaccurate) and the certain share at `points` thresholds.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        points: number of equally spaced thresholds from the smallest to the largest entropy, at least 2.

    >>> avu_curves([[0.9, 0.1], [0.5, 0.5]], [0, 1], points=3).certain
    array([0.5, 0.5, 1. ])
    """
    return avu_curves_from_statistics(prediction_statistics(probs, labels), points)


# ---- functions of counts and sums, shared with the streaming metrics and the bootstrap


def avu_curves_from_statistics(statistics: Statistics, points: int = POINTS) -> AvuCurves:
    """Return `avu_curves` from the statistics of the predictions."""
    return avu_curves_from_counts(*quadrant_counts_between(statistics, points))


def avu_curves_from_counts(counts: QuadrantCounts, thresholds: Array) -> AvuCurves:
    """Return the curves from the counts at each of the thresholds, both of shape (points,)."""
    certain = (counts.ac + counts.ic) / (counts.ac + counts.au + counts.ic + counts.iu)
    ratios = counts.avu, counts.accurate_given_certain, counts.uncertain_given_inaccurate
    return AvuCurves(np.linspace(0, 1, len(thresholds)), thresholds, *ratios, certain)


def quadrant_counts_at(statistics: Statistics, threshold: Threshold) -> QuadrantCounts:
    """Return the four counts at one threshold."""
    certain = statistics.entropy <= highest_certain(resolve_threshold(statistics, threshold))
    right = statistics.correct
    masks = right & certain, right & ~certain, ~right & certain, ~right & ~certain
    return QuadrantCounts(*(np.asarray(np.count_nonzero(mask), np.float64) for mask in masks))


def quadrant_counts_between(statistics: Statistics, points: int = POINTS) -> tuple[QuadrantCounts, Array]:
    """Return the four counts at `points` thresholds from the smallest to the largest entropy, and the thresholds."""
    entropy, correct = statistics.entropy, statistics.correct
    low, high = entropy.min(), entropy.max()
    thresholds = thresholds_between(low, high, points)
    counts = np.zeros(2 * points)
    for part in cached_parts(len(entropy)):
        # wrong and correct predictions by the first threshold that is not below their entropy
        first = 2 * _first_not_below(entropy[part], thresholds) + correct[part]
        counts += np.bincount(first, minlength=2 * points)
    ic, ac = np.cumsum(counts.reshape(-1, 2), 0).T
    return QuadrantCounts(ac, ac[-1] - ac, ic, ic[-1] - ic), thresholds


def _first_not_below(values: Array, thresholds: Array) -> Array:
    """Return np.searchsorted(thresholds, values) for equally spaced thresholds; no value is outside of them."""
    low, high, steps = thresholds[0], thresholds[-1], len(thresholds) - 1
    if high - low <= 1e-9 * steps * high:  # rounding decides where these thresholds are
        return np.asarray(np.searchsorted(thresholds, values))
    # never too low: its rounding is smaller than what is added
    first = np.minimum((values - low) * (steps / (high - low)) + 1e-6, steps).astype(np.int32)
    first += values > thresholds.take(first)
    first -= values <= np.append(-np.inf, thresholds).take(first)
    return np.asarray(first)


def quadrant_counts_from_cumulative(
    values: Array, right: Array, wrong: Array, thresholds: Array, lowest: Array | None = None
) -> QuadrantCounts:
    """Return the four counts at each threshold, from cumulative counts of predictions ordered by entropy.

    Args:
        values: (G,) ascending entropies, one for each group of predictions.
        right: (..., G + 1) correct predictions in the groups before each group, and in all.
        wrong: (..., G + 1) wrong predictions in the groups before each group, and in all.
        thresholds: (..., T).
        lowest: (G,) smallest entropy of each group, `values` being the largest. The predictions of a group then count
            as spread evenly between the two, and a threshold inside a group takes its share of them. None: all
            predictions of a group have the entropy `values`.
    """
    last = np.searchsorted(values, thresholds, side="right")
    ac, ic = np.take_along_axis(right, last, -1), np.take_along_axis(wrong, last, -1)
    if lowest is not None:
        inside = np.minimum(last, len(values) - 1)
        width = values[inside] - lowest[inside]
        share = np.clip((thresholds - lowest[inside]) / np.where(width > 0, width, 1), 0, 1)
        share = np.where((last < len(values)) & (width > 0), share, 0)
        ac = ac + share * (np.take_along_axis(right, inside + 1, -1) - np.take_along_axis(right, inside, -1))
        ic = ic + share * (np.take_along_axis(wrong, inside + 1, -1) - np.take_along_axis(wrong, inside, -1))
    return QuadrantCounts(ac, right[..., -1:] - ac, ic, wrong[..., -1:] - ic)


def area(values: Array) -> Array:
    """Return the integral over [0, 1] by the trapezoid rule, along the last axis of equally spaced points."""
    return np.asarray((values[..., 1:] + values[..., :-1]).sum(-1) / (2 * (values.shape[-1] - 1)))


def _ratio(part: Array, whole: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(whole > 0, np.divide(part, whole), np.nan))

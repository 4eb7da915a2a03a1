"""Calibration errors: do stated probabilities match observed frequencies?

Predictions are put into bins of confidence, of class probability or of uncertainty. Each bin compares the mean stated
value with the observed rate. The public functions call functions of bin counts; the streaming metrics and the bootstrap
call the same ones with their own counts, with leading axes for many resamples.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from avuc.metrics.arrays import Array, cached_parts
from avuc.metrics.binning import BinTable, bin_edges, bin_table, check_bins, digitise
from avuc.metrics.checks import any_layout
from avuc.metrics.statistics import Statistics, prediction_statistics
from avuc.metrics.ties import TieGroups, cumulative, group_ties


class Curve(NamedTuple):
    """A reliability curve, as `reliability_curve` returns it; arrays of shape (bins,).

    Args:
        low: lower edge of each bin.
        high: upper edge of each bin.
        rows: number of predictions in each bin.
        stated: mean stated value: confidence, or normalised entropy; NaN in an empty bin.
        observed: observed rate: accuracy, or error rate; NaN in an empty bin.

    >>> reliability_curve([[0.8, 0.2], [0.6, 0.4]], [0, 1], bins=2).observed
    array([nan, 0.5])
    """

    low: Array
    high: Array
    rows: Array
    stated: Array
    observed: Array


@any_layout
def ece(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Return the expected calibration error (Guo et al. 2017, https://arxiv.org/abs/1706.04599). Lower is better.

        ECE = Σ_l n_l/N |acc_l − conf_l|

    Bin l of L holds the n_l predictions with confidence max_k p_k in ((l − 1)/L, l/L]; acc_l and conf_l are their
    accuracy and mean confidence.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        bins: number of bins.

    >>> round(ece([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 4)
    0.4
    """
    return float(expected_gap(confidence_table(prediction_statistics(probs, labels), bins)))


@any_layout
def mce(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Return the maximum calibration error (Guo et al. 2017, https://arxiv.org/abs/1706.04599). Lower is better.

        MCE = max_l |acc_l − conf_l|    over the bins that are not empty

    The bins are those of `ece`.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        bins: number of bins.

    >>> round(mce([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 4)
    0.6
    """
    return float(maximum_gap(confidence_table(prediction_statistics(probs, labels), bins)))


@any_layout
def debiased_ece(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Return the debiased L2 calibration error (Kumar et al. 2019, https://arxiv.org/abs/1909.10155). Lower is better.

        √ max(0, Σ_l n_l/N [(acc_l − conf_l)² − acc_l (1 − acc_l)/(n_l − 1)])

    The second term is what the noise of the labels alone adds to the squared gap. The bins are those of `ece`; a bin
    with one prediction has no estimate of its noise and contributes nothing.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        bins: number of bins.

    >>> debiased_ece([[0.7, 0.3]] * 10, [0] * 7 + [1] * 3)
    0.0
    """
    return float(debiased_gap(confidence_table(prediction_statistics(probs, labels), bins)))


@any_layout
def uce(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Return the uncertainty calibration error (Laves et al. 2019, https://arxiv.org/abs/1909.13550). Lower is better.

        UCE = Σ_l n_l/N |err_l − ũ_l|

    ũ = u / log C is the normalised predictive entropy. Bin l holds the n_l predictions with ũ in ((l − 1)/L, l/L];
    err_l is their error rate, ũ_l their mean normalised entropy.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        bins: number of bins.

    >>> round(uce([[0.5, 0.5], [1.0, 0.0]], [1, 0]), 4)
    0.0
    """
    return float(expected_gap(uncertainty_table(prediction_statistics(probs, labels), bins)))


@any_layout
def classwise_ece(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Return the class-wise calibration error (Kull et al. 2019, https://arxiv.org/abs/1910.12656). Lower is better.

        1/C Σ_k Σ_l n_kl/N |freq_kl − p̄_kl|

    For each class k, bin l holds the n_kl predictions with p_k in ((l − 1)/L, l/L]; freq_kl is the share of them whose
    label is k, p̄_kl their mean p_k.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        bins: number of bins.

    >>> round(classwise_ece([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 4)
    0.4
    """
    statistics = prediction_statistics(probs, labels, bins=bins)
    assert statistics.classwise is not None
    return float(classwise_gap(statistics.classwise, len(statistics)))


@any_layout
def adaptive_ece(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Return the calibration error over bins of equal size (Nguyen & O'Connor 2015). Lower is better.

        1/N Σ_l |D(lN/L) − D((l − 1)N/L)|

    D(m) is the sum of confidence − correct over the m least confident predictions, linear between whole m. Each bin
    therefore holds exactly N/L predictions, and an edge inside tied confidences takes its share of them: the result
    does not depend on the order of ties. It equals the usual definition if L divides N and there are no ties.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        bins: number of bins.

    >>> round(adaptive_ece([[0.8, 0.2], [0.6, 0.4]], [0, 1], bins=2), 4)
    0.4
    """
    statistics = prediction_statistics(probs, labels)
    groups = group_ties(statistics.confidence, statistics.correct)
    return float(equal_mass_gap(groups.right, groups.wrong, groups.values * (groups.right + groups.wrong), bins))


@any_layout
def reliability_curve(probs: Any, labels: Any, *, bins: int = 15) -> Curve:
    """Return mean confidence and accuracy for each bin of confidence: the points of a reliability diagram.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        bins: number of bins.

    >>> reliability_curve([[0.8, 0.2], [0.6, 0.4]], [0, 1], bins=2).stated
    array([nan, 0.7])
    """
    return curve_from_table(confidence_table(prediction_statistics(probs, labels), bins))


@any_layout
def uncertainty_reliability_curve(probs: Any, labels: Any, *, bins: int = 15) -> Curve:
    """Return mean normalised entropy u / log C and error rate for each bin of u / log C.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        bins: number of bins.

    >>> uncertainty_reliability_curve([[0.5, 0.5], [1.0, 0.0]], [1, 0], bins=2).observed
    array([0., 1.])
    """
    return curve_from_table(uncertainty_table(prediction_statistics(probs, labels), bins))


# ---- functions of counts, shared with the streaming metrics and the bootstrap; bins are the last axis


def confidence_table(statistics: Statistics, bins: int) -> BinTable:
    """Return predictions, summed confidence and correct predictions by bin of confidence."""
    return _table(statistics.confidence, statistics.correct, bin_edges(bins, statistics.dtype))


def uncertainty_table(statistics: Statistics, bins: int) -> BinTable:
    """Return predictions, summed u / log C and wrong predictions by bin of u / log C."""
    return _table(statistics.uncertainty, ~statistics.correct, bin_edges(bins))


def _table(values: Array, event: Array, edges: Array) -> BinTable:
    bins = len(edges) - 1
    parts = (
        bin_table(digitise(values[part], edges), values[part], event[part], bins) for part in cached_parts(len(values))
    )
    return BinTable(*np.sum(list(parts), axis=0))


def table_from_ties(groups: TieGroups, stated: Array, edges: Array) -> BinTable:
    """Return the table of confidences that are already sorted and grouped.

    Args:
        groups: predictions by confidence, ascending.
        stated: (G,) summed confidence of each group.
        edges: (bins + 1,) edges of the bins.
    """
    cuts = [0, *np.searchsorted(groups.values, edges[1:-1], side="right"), len(groups.values)]
    right, wrong, value = (
        np.array([column[a:b].sum() for a, b in pairwise(cuts)]) for column in (groups.right, groups.wrong, stated)
    )
    return BinTable(right + wrong, value, right)


def expected_gap(table: BinTable) -> Array:
    """Return Σ_l n_l/N |event rate_l − mean value_l|, in which n_l cancels."""
    return np.asarray(np.abs(table.event - table.value).sum(-1) / table.rows.sum(-1))


def maximum_gap(table: BinTable) -> Array:
    """Return the largest |event rate_l − mean value_l|."""
    return np.asarray((np.abs(table.event - table.value) / np.maximum(table.rows, 1)).max(-1))


def debiased_gap(table: BinTable) -> Array:
    """Return the square root of `debiased_square`, with negative values set to 0."""
    return np.asarray(np.sqrt(np.maximum(debiased_square(table), 0)))


def debiased_square(table: BinTable) -> Array:
    """Return an unbiased estimate of the mean squared gap; it can be negative."""
    rows = np.maximum(table.rows, 1)
    rate, stated = table.event / rows, table.value / rows
    noise = rate * (1 - rate) / np.maximum(rows - 1, 1)
    square = np.where(table.rows > 1, (rate - stated) ** 2 - noise, 0)
    return np.asarray((table.rows * square).sum(-1) / table.rows.sum(-1))


def classwise_gap(residual: Array, rows: float | Array) -> Array:
    """Return the class-wise error from the (..., C, bins) sums of p_k − 1[label = k]."""
    return np.asarray(np.abs(residual).sum((-2, -1)) / (residual.shape[-2] * rows))


def equal_mass_gap(right: Array, wrong: Array, stated: Array, bins: int) -> Array:
    """Return the adaptive error from groups of ascending confidence.

    Args:
        right: (G,) correct predictions.
        wrong: (G,) wrong predictions.
        stated: (G,) summed confidence.
        bins: number of bins.
    """
    check_bins(bins)
    total, before, done = float(right.sum() + wrong.sum()), 0.0, 0
    cuts, sums = np.arange(1, bins) / bins * total, np.zeros(bins)
    for some in cached_parts(len(right)):
        rows, gap = before + cumulative(right[some] + wrong[some]), stated[some] - right[some]
        last = int(np.searchsorted(cuts, rows[-1]))
        # the group of each cut in this part, and what of the group's gap is before the cut
        inside = cuts[done:last]
        group = np.searchsorted(rows, inside, side="right") - 1
        share = (inside - rows[group]) / np.maximum(rows[group + 1] - rows[group], 1) * gap[group]
        for k, (start, end) in enumerate(pairwise([0, *group.tolist(), len(gap)]), done):
            sums[k] += gap[start:end].sum()
        sums[done:last] += share
        sums[done + 1 : last + 1] -= share
        before, done = float(rows[-1]), last
    return np.asarray(np.abs(sums).sum() / total)


def equal_mass_terms(rows: Array, gap: Array, bins: int) -> Array:
    """Return the signed term of each bin of the adaptive error, (B, bins).

    Args:
        rows: (B, G + 1) cumulative number of predictions.
        gap: (B, G + 1) cumulative sum of confidence − correct.
        bins: number of bins.
    """
    check_bins(bins)
    share = np.arange(1, bins) / bins
    cuts = np.stack([np.interp(share * n[-1], n, g) for n, g in zip(rows, gap, strict=True)])
    ends = np.concatenate([np.zeros((len(cuts), 1)), cuts, gap[:, -1:]], -1)
    return np.asarray(np.diff(ends) / rows[:, -1:])


def curve_from_table(table: BinTable) -> Curve:
    """Return the reliability curve of a table."""
    edges = bin_edges(table.rows.shape[-1])
    with np.errstate(invalid="ignore"):
        return Curve(edges[:-1], edges[1:], table.rows, table.value / table.rows, table.event / table.rows)

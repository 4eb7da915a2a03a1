"""Does a stated confidence come true? Calibration errors by bins of confidence, of class probability, of uncertainty.

Each public function is a few lines around a function of bin counts; the streaming forms and the bootstrap use the same
one on their own counts, with leading axes where there are many.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from avuc.core.errors import InputError
from avuc.metrics.statistics import (
    Array,
    BinTable,
    Groups,
    Statistics,
    bin_edges,
    bin_index,
    cumulative,
    group,
    summarise,
)

__all__ = [
    "Curve",
    "adaptive_ece",
    "classwise_ece",
    "debiased_ece",
    "ece",
    "mce",
    "reliability_curve",
    "uce",
    "uncertainty_reliability_curve",
]


class Curve(NamedTuple):
    """A reliability curve: per bin its edges, rows, mean stated value and observed rate (NaN in an empty bin)."""

    low: Array
    high: Array
    rows: Array
    stated: Array
    observed: Array


def ece(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Expected calibration error Σ_l n_l/N |accuracy_l − mean confidence_l| over bins ((l−1)/L, l/L] of confidence.

    >>> round(ece([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 4)
    0.4
    """
    return float(expected_gap(confidence_table(summarise(probs, labels), bins)))


def mce(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Maximum calibration error: the largest |accuracy_l − mean confidence_l| of the bins that hold any row.

    >>> round(mce([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 4)
    0.6
    """
    return float(maximum_gap(confidence_table(summarise(probs, labels), bins)))


def debiased_ece(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Debiased L2 calibration error (Kumar, Liang, Ma 2019, arXiv 1909.10155) of the top label.

    √ max(0, Σ_l n_l/N [(accuracy_l − confidence_l)² − accuracy_l(1 − accuracy_l)/(n_l − 1)]): the plug-in root mean
    square gap, less the part of its square that sampling noise of the labels alone would produce. Same equal-width bins
    as `ece`; a bin with one row has no estimate of its noise and contributes nothing.

    >>> debiased_ece([[0.7, 0.3]] * 10, [0] * 7 + [1] * 3)
    0.0
    """
    return float(debiased_gap(confidence_table(summarise(probs, labels), bins)))


def uce(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Uncertainty calibration error Σ_l n_l/N |error rate_l − mean u_l/log C| over equal-width bins of u/log C.

    >>> round(uce([[0.5, 0.5], [1.0, 0.0]], [1, 0]), 4)
    0.0
    """
    return float(expected_gap(uncertainty_table(summarise(probs, labels), bins)))


def classwise_ece(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Mean over classes k of the calibration error of p_k as the probability of "the label is k".

    1/C Σ_k Σ_l n_kl/N |rate of label k − mean p_k|, over equal-width bins of p_k (Kull et al. 2019, arXiv 1910.12656).

    >>> round(classwise_ece([[0.8, 0.2], [0.6, 0.4]], [0, 1]), 4)
    0.4
    """
    statistics = summarise(probs, labels, bins=bins)
    assert statistics.classwise is not None
    return float(classwise_gap(statistics.classwise, len(statistics)))


def adaptive_ece(probs: Any, labels: Any, *, bins: int = 15) -> float:
    """Calibration error over bins of equal mass: each holds exactly N/L rows in order of confidence.

    1/N Σ_l |D(lN/L) − D((l−1)N/L)|, D(m) the sum of confidence − correct over the m least confident rows, linear in
    between; a bin border inside a row, or inside rows of equal confidence, takes its share of them. So the result does
    not depend on how equal confidences happen to be sorted, and equals the usual definition where L divides N and no
    confidences are equal.

    >>> round(adaptive_ece([[0.8, 0.2], [0.6, 0.4]], [0, 1], bins=2), 4)
    0.4
    """
    statistics = summarise(probs, labels)
    groups = group(statistics.confidence, statistics.correct)
    return float(equal_mass_gap(groups.right, groups.wrong, groups.values * (groups.right + groups.wrong), bins))


def reliability_curve(probs: Any, labels: Any, *, bins: int = 15) -> Curve:
    """Mean confidence and accuracy per bin of confidence.

    >>> reliability_curve([[0.8, 0.2], [0.6, 0.4]], [0, 1], bins=2).stated
    array([nan, 0.7])
    """
    return curve(confidence_table(summarise(probs, labels), bins))


def uncertainty_reliability_curve(probs: Any, labels: Any, *, bins: int = 15) -> Curve:
    """Mean u/log C and error rate per bin of u/log C.

    >>> uncertainty_reliability_curve([[0.5, 0.5], [1.0, 0.0]], [1, 0], bins=2).observed
    array([0., 1.])
    """
    return curve(uncertainty_table(summarise(probs, labels), bins))


# ---- functions of counts, shared with the streaming forms and the bootstrap; bins along the last axis


def confidence_table(statistics: Statistics, bins: int) -> BinTable:
    index = bin_index(statistics.confidence, bins, statistics.dtype)
    return bin_table(index, statistics.confidence, statistics.correct, bins)


def uncertainty_table(statistics: Statistics, bins: int) -> BinTable:
    uncertainty = statistics.uncertainty
    return bin_table(bin_index(uncertainty, bins), uncertainty, ~statistics.correct, bins)


def grouped_table(groups: Groups, event: Array, edges: Array) -> BinTable:
    """The same from rows already grouped by value, which lie in the bins one stretch after the other."""
    cuts = [0, *np.searchsorted(groups.values, edges[1:-1], side="right"), len(groups.values)]
    rows = groups.right + groups.wrong
    columns = (rows, rows * groups.values, event)
    return BinTable(*(np.array([column[a:b].sum() for a, b in pairwise(cuts)]) for column in columns))


def bin_table(index: Array, value: Array, event: Array, bins: int) -> BinTable:
    return BinTable(
        np.bincount(index, minlength=bins).astype(np.float64),
        np.bincount(index, weights=value, minlength=bins),
        np.bincount(index[event], minlength=bins).astype(np.float64),
    )


def expected_gap(table: BinTable) -> Array:
    """Σ_l n_l/N |event rate − mean value|; the bin's n cancels."""
    return np.asarray(np.abs(table.event - table.value).sum(-1) / table.rows.sum(-1))


def maximum_gap(table: BinTable) -> Array:
    return np.asarray((np.abs(table.event - table.value) / np.maximum(table.rows, 1)).max(-1))


def debiased_gap(table: BinTable) -> Array:
    return np.asarray(np.sqrt(np.maximum(debiased_square(table), 0)))


def debiased_square(table: BinTable) -> Array:
    """Unbiased for the mean square gap, and so sometimes negative."""
    rows = np.maximum(table.rows, 1)
    rate, stated = table.event / rows, table.value / rows
    noise = rate * (1 - rate) / np.maximum(rows - 1, 1)
    square = np.where(table.rows > 1, (rate - stated) ** 2 - noise, 0)
    return np.asarray((table.rows * square).sum(-1) / table.rows.sum(-1))


def classwise_gap(residual: Array, rows: float | Array) -> Array:
    """From the (..., C, L) sums of p_k − 1[label = k]."""
    return np.asarray(np.abs(residual).sum((-2, -1)) / (residual.shape[-2] * rows))


def equal_mass_gap(right: Array, wrong: Array, stated: Array, bins: int) -> Array:
    """From right and wrong rows and summed confidence per group of ascending confidence, (G)."""
    pieces = equal_mass_pieces(cumulative(right + wrong)[None], cumulative(stated - right)[None], bins)
    return np.asarray(np.abs(pieces).sum())


def equal_mass_pieces(mass: Array, gap: Array, bins: int) -> Array:
    """Each bin's signed share of the gap, (B, bins), from running sums (B, G + 1) of rows and of stated − right."""
    if bins < 1:
        raise InputError(f"bins must be at least 1, found {bins}")
    share = np.arange(1, bins) / bins
    cuts = np.stack([np.interp(share * m[-1], m, g) for m, g in zip(mass, gap, strict=True)])
    ends = np.concatenate([np.zeros((len(cuts), 1)), cuts, gap[:, -1:]], -1)
    return np.asarray(np.diff(ends) / mass[:, -1:])


def curve(table: BinTable) -> Curve:
    edges = bin_edges(table.rows.shape[-1])
    with np.errstate(invalid="ignore"):
        return Curve(edges[:-1], edges[1:], table.rows, table.value / table.rows, table.event / table.rows)

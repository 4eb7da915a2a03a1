"""Selective prediction: the error rate of the predictions that are kept if the least certain ones are rejected."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from avuc.core.errors import InputError
from avuc.metrics.arrays import Array, cached_parts
from avuc.metrics.checks import any_layout
from avuc.metrics.statistics import prediction_statistics
from avuc.metrics.ties import TieGroups, cumulative, group_ties

Score = Literal["confidence", "entropy"]
# A table of harmonic numbers may have this many times as many entries as are asked for; beyond that the digamma
# function is used.
TABLE = 8


class RiskCoverage(NamedTuple):
    """A risk–coverage curve, from the most certain predictions to all of them; arrays of shape (G,).

    Args:
        coverage: share of predictions that are kept.
        risk: error rate of the kept predictions.
        score: confidence (or entropy) of the least certain prediction that is kept.

    >>> risk_coverage_curve([[0.9, 0.1], [0.6, 0.4]], [0, 1]).coverage
    array([0.5, 1. ])
    """

    coverage: Array
    risk: Array
    score: Array


@any_layout
def risk_coverage_curve(probs: Any, labels: Any, *, score: Score = "confidence") -> RiskCoverage:
    """Return the error rate of the kept predictions as coverage grows, one point for each distinct score.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        score: what the predictions are ranked by, "confidence" or "entropy".

    >>> risk_coverage_curve([[0.9, 0.1], [0.6, 0.4]], [0, 1]).risk
    array([0. , 0.5])
    """
    return risk_curve(_ranked(probs, labels, score))


@any_layout
def aurc(probs: Any, labels: Any, *, score: Score = "confidence") -> float:
    """Return the area under the risk–coverage curve (Geifman & El-Yaniv 2017, https://arxiv.org/abs/1705.08500).

        AURC = 1/N Σ_n (errors among the n most certain predictions)/n

    Lower is better. For tied scores this is the mean over all orders of the ties.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        score: what the predictions are ranked by, "confidence" or "entropy".

    >>> aurc([[0.9, 0.1], [0.6, 0.4]], [0, 1])
    0.25
    """
    return float(risk_area(_ranked(probs, labels, score)))


@any_layout
def augrc(probs: Any, labels: Any, *, score: Score = "confidence") -> float:
    """Return the area under the generalised risk–coverage curve (Traub et al. 2024, https://arxiv.org/abs/2407.01032).

        AUGRC = ∫ (share of all predictions that are kept and wrong) d(share of predictions that are kept)

    It is the mean risk of an undetected error over all coverages, and equals (1 − AUROC) a (1 − a) + (1 − a)²/2 with
    the accuracy a and the AUROC of telling correct from wrong predictions. Lower is better; 0 to 0.5.

    Args:
        probs: (N, C) probabilities; list, NumPy array or tensor.
        labels: (N,) class numbers.
        score: what the predictions are ranked by, "confidence" or "entropy".

    >>> augrc([[0.9, 0.1], [0.6, 0.4]], [0, 1])
    0.125
    """
    groups = _ranked(probs, labels, score)
    wrong, rows = groups.wrong[::-1], (groups.right + groups.wrong)[::-1]
    return float(_area(np.cumsum(wrong) - wrong / 2, rows))


def generalised_risk_area(wrong: Array, weights: Array, starts: Array) -> float:
    """Return AUGRC from rows by descending score.

    Args:
        wrong: (N,) whether each prediction is wrong.
        weights: (N,) how often each row counts.
        starts: (G,) the first row of each group of equal scores.
    """
    rows, errors = np.add.reduceat(weights, starts), np.add.reduceat(weights * wrong, starts)
    return float(_area(np.cumsum(errors) - errors / 2, rows))


def generalised_risk_area_below(right: Array, wrong: Array) -> Array:
    """Return AUGRC from cumulative counts (..., G + 1) of correct and wrong predictions by ascending score.

    >>> generalised_risk_area_below(np.array([[0.0, 0.0, 1.0]]), np.array([[0.0, 1.0, 1.0]]))
    array([0.125])
    """
    surer = wrong[..., -1:] - (wrong[..., 1:] + wrong[..., :-1]) / 2
    return _area(surer, np.diff(right + wrong))


def _area(errors: Array, rows: Array) -> Array:
    """Return the trapezoids: errors half-way through each group, times its rows."""
    return np.asarray((errors * rows).sum(-1) / rows.sum(-1) ** 2)


def _ranked(probs: Any, labels: Any, score: Score) -> TieGroups:
    statistics = prediction_statistics(probs, labels)
    if score not in ("confidence", "entropy"):
        raise InputError(f"score must be 'confidence' or 'entropy', found {score!r}")
    return group_ties(statistics.confidence if score == "confidence" else -statistics.entropy, statistics.correct)


def risk_curve(groups: TieGroups) -> RiskCoverage:
    """Return the curve from groups of ascending score."""
    wrong, kept = np.cumsum(groups.wrong[::-1]), np.cumsum((groups.right + groups.wrong)[::-1])
    return RiskCoverage(kept / kept[-1], wrong / kept, np.abs(groups.values[::-1]))


def risk_area(groups: TieGroups) -> Array:
    """Return AURC from counts (..., G) by ascending score."""
    right, wrong = groups.right, groups.wrong
    if wrong.ndim > 1 or (rows := int(right.sum() + wrong.sum())) > TABLE * len(wrong):
        return risk_area_below(cumulative(right), cumulative(wrong))
    # An error in a group of m predictions after n surer ones adds 1/j for every later rank j. In its own group it adds
    # Σ_{j=1..m} (j/m)/(n + j) = 1 − n/m (H(n + m) − H(n)), with the harmonic numbers H.
    harmonic, parts, before = _harmonic_table(rows), [], 0
    for part in cached_parts(len(wrong)):
        m = (right[part] + wrong[part]).astype(np.int64)
        below = before + np.cumsum(m)
        n = rows - below
        last, first = harmonic.take(n + m), harmonic.take(n)
        # no ties: the difference of the harmonic numbers is 1/(n + 1), without a loss of digits
        own = np.where(m == 1, 1 / (n + 1), 1 - n / np.maximum(m, 1) * (last - first))
        parts.append(float((wrong[part] * (harmonic[rows] - last + own)).sum()))
        before = int(below[-1])
    return np.asarray(math.fsum(parts) / rows)


def risk_sum(groups: TieGroups, *, surer: float, errors: float) -> Array:
    """Return N times what a range of groups adds to AURC, for data that is read in parts.

    Args:
        groups: part of the predictions, by ascending score.
        surer: number of predictions with higher scores, all of them in other parts.
        errors: number of wrong ones among these.
    """
    return _risk_sum(cumulative(groups.right), cumulative(groups.wrong), surer, errors)


def risk_area_below(right: Array, wrong: Array) -> Array:
    """Return AURC from cumulative counts of correct and wrong predictions by ascending score, (..., G + 1)."""
    return np.asarray(_risk_sum(right, wrong, 0.0, 0.0) / (right[..., -1] + wrong[..., -1]))


def _risk_sum(right: Array, wrong: Array, surer_rows: float, surer_errors: float) -> Array:
    """Return N · AURC without a loop over predictions.

    A group of m tied predictions with k errors, after n surer ones with e errors, adds
    Σ_{j=1..m} (e + jk/m)/(n + j) = k + (e − kn/m)(H(n + m) − H(n)), with the harmonic numbers H.
    """
    below = right + wrong
    surer = below[..., -1:] - below
    surer += surer_rows
    harmonic = harmonic_numbers(surer)
    k, m = np.diff(wrong), np.diff(below)
    errors = wrong[..., -1:] - wrong[..., 1:]
    errors += surer_errors
    # in place, because these arrays are as large as a block of resamples
    k /= np.maximum(m, 1, out=m)
    k *= surer[..., 1:]
    errors -= k
    errors *= np.subtract(harmonic[..., :-1], harmonic[..., 1:], out=m)
    return np.asarray(wrong[..., -1] + errors.sum(-1))


def harmonic_difference(n: Array, m: Array) -> Array:
    """Return H(n + m) − H(n) for whole numbers stored as floats."""
    upper, lower = harmonic_numbers(np.stack([n + m, n]))
    return np.asarray(upper - lower)


def harmonic_numbers(n: Array) -> Array:
    """Return H(n) plus a constant that is the same for all entries of n."""
    smallest, largest = int(n.min()), int(n.max())
    if largest - smallest <= TABLE * n.size:
        # a range far from 0 has a table of its own
        begin = 0 if largest <= TABLE * n.size else smallest
        table = _harmonic_table(largest) if begin == 0 else _harmonic_sums(begin, largest)
        return np.asarray(table[(n - begin).astype(np.int64)])
    # H(n) = ψ(n + 1) + γ
    return np.asarray(torch.digamma(torch.from_numpy(n + 1)).numpy())


@lru_cache(maxsize=2)
def _harmonic_table(largest: int) -> Array:
    return _harmonic_sums(0, largest)


def _harmonic_sums(smallest: int, largest: int) -> Array:
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(smallest + 1, largest + 1))])

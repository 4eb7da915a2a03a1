"""What is gained by abstaining: risk against coverage, and its area."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from avuc.core.errors import InputError
from avuc.metrics.statistics import Array, Groups, cumulative, group, summarise

__all__ = ["RiskCoverage", "aurc", "risk_coverage_curve"]

Score = Literal["confidence", "entropy"]
# a table of harmonic numbers may have this many times as many entries as are asked for; beyond, the digamma function
TABLE = 8


class RiskCoverage(NamedTuple):
    """Keep the surest predictions: the share kept, the error rate among them, the score of the least sure one kept."""

    coverage: Array
    risk: Array
    score: Array


def risk_coverage_curve(probs: Any, labels: Any, *, score: Score = "confidence") -> RiskCoverage:
    """Error rate of the kept rows as the bar falls; one point for each distinct score.

    >>> risk_coverage_curve([[0.9, 0.1], [0.6, 0.4]], [0, 1]).risk
    array([0. , 0.5])
    """
    return risk_curve(_ranked(probs, labels, score))


def aurc(probs: Any, labels: Any, *, score: Score = "confidence") -> float:
    """Area under the risk–coverage curve, 1/N Σ_n (errors among the n surest)/n (Geifman & El-Yaniv 2017).

    Rows of equal score are taken in every order at once: the errors among them come in evenly, which is the mean over
    all orders and does not depend on the order of the rows.

    >>> aurc([[0.9, 0.1], [0.6, 0.4]], [0, 1])
    0.25
    """
    return float(risk_area(_ranked(probs, labels, score)))


def _ranked(probs: Any, labels: Any, score: Score) -> Groups:
    statistics = summarise(probs, labels)
    if score not in ("confidence", "entropy"):
        raise InputError(f"score must be 'confidence' or 'entropy', found {score!r}")
    return group(statistics.confidence if score == "confidence" else -statistics.entropy, statistics.correct)


def risk_curve(groups: Groups) -> RiskCoverage:
    """From groups of ascending score."""
    wrong, kept = np.cumsum(groups.wrong[::-1]), np.cumsum((groups.right + groups.wrong)[::-1])
    return RiskCoverage(kept / kept[-1], wrong / kept, np.abs(groups.values[::-1]))


def risk_area(groups: Groups) -> Array:
    """The area from counts (..., G) per group of ascending score, ties taken evenly."""
    return risk_area_below(cumulative(groups.right), cumulative(groups.wrong))


def risk_sum(groups: Groups, *, surer: float, errors: float) -> Array:
    """N times the part of the area that a stretch of groups adds, after `surer` rows with `errors` errors."""
    return _risk_sum(cumulative(groups.right), cumulative(groups.wrong), surer, errors)


def risk_area_below(right: Array, wrong: Array) -> Array:
    """The area from right and wrong rows below each ascending score, (..., G + 1)."""
    return np.asarray(_risk_sum(right, wrong, 0.0, 0.0) / (right[..., -1] + wrong[..., -1]))


def _risk_sum(right: Array, wrong: Array, surer_rows: float, surer_errors: float) -> Array:
    """A group of m rows with k errors after n surer rows with e errors adds Σ_{j=1..m} (e + jk/m)/(n + j)
    = k + (e − kn/m)(H(n+m) − H(n)), H the harmonic numbers: no loop over rows.
    """
    below = right + wrong
    surer = below[..., -1:] - below
    surer += surer_rows
    harmonic = harmonic_numbers(surer)
    k, m = np.diff(wrong), np.diff(below)
    errors = wrong[..., -1:] - wrong[..., 1:]
    errors += surer_errors
    # in place: these arrays are as large as a block of resamples
    k /= np.maximum(m, 1, out=m)
    k *= surer[..., 1:]
    errors -= k
    errors *= np.subtract(harmonic[..., :-1], harmonic[..., 1:], out=m)
    return np.asarray(wrong[..., -1] + errors.sum(-1))


def harmonic_difference(n: Array, m: Array) -> Array:
    """H(n + m) − H(n) for whole numbers held as floats."""
    upper, lower = harmonic_numbers(np.stack([n + m, n]))
    return np.asarray(upper - lower)


def harmonic_numbers(n: Array) -> Array:
    """H(n) up to a constant, the same for all of n."""
    smallest, largest = int(n.min()), int(n.max())
    if largest - smallest <= TABLE * n.size:
        # a stretch far from 0 begins its sum where it begins itself
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

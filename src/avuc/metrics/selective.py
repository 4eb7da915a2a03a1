"""What is gained by abstaining: risk against coverage, and its area."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from avuc.errors import InputError
from avuc.metrics.statistics import Array, Groups, group, summarise

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
    groups = surest_first(_ranked(probs, labels, score))
    wrong, kept = np.cumsum(groups.wrong), np.cumsum(groups.right + groups.wrong)
    return RiskCoverage(kept / kept[-1], wrong / kept, np.abs(groups.values))


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


def surest_first(groups: Groups) -> Groups:
    return Groups(groups.values[::-1], groups.right[..., ::-1], groups.wrong[..., ::-1])


def risk_area(groups: Groups) -> Array:
    """The area from counts (..., G) per group of ascending score, ties taken evenly.

    A group of m rows with k errors after n rows with e errors adds Σ_{j=1..m} (e + jk/m)/(n + j)
    = k + (e − kn/m)(H(n+m) − H(n)), H the harmonic numbers: no loop over rows.
    """
    groups = surest_first(groups)
    k, m = groups.wrong, groups.right + groups.wrong
    n, e = np.cumsum(m, -1) - m, np.cumsum(k, -1) - k
    added = k + (e - k * n / np.maximum(m, 1)) * harmonic_difference(n, m)
    return np.asarray(added.sum(-1) / m.sum(-1))


def harmonic_difference(n: Array, m: Array) -> Array:
    """H(n + m) − H(n) for whole numbers held as floats."""
    largest = int((n + m).max())
    if largest <= TABLE * n.size:
        harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, largest + 1))])
        return np.asarray(harmonic[(n + m).astype(np.int64)] - harmonic[n.astype(np.int64)])
    # H(n) = ψ(n + 1) + γ
    upper, lower = (torch.digamma(torch.from_numpy(x)).numpy() for x in (n + m + 1, n + 1))
    return np.asarray(upper - lower)

"""Intervals of rates near 0 or 1, such as an AUROC of 0.998: few mistakes decide, and a bootstrap repeats only those.

A sample with fewer mistakes than it should have has a higher AUROC and also less noise in its resamples, so the
percentile interval misses the truth on one side. The noise of logit(v) depends much less on v. Its standard error is
σ/(v (1 − v)), with the standard error σ of v from the bootstrap. The interval is

    logit(v) ± t_k σ/(v (1 − v)),  k = (min(v, 1 − v)/σ)²

A share of errors v from m independent mistakes has σ = v/√m, so k counts mistakes, or the mistakes that have as much
noise. Student's quantile t_k stands for what k mistakes leave unknown about σ itself. The result is the union of this
interval and the percentile interval. From 100 mistakes on the two hardly differ, and the percentile interval is kept.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from avuc.metrics.arrays import Array
from avuc.metrics.resampling.percentile import NORMAL, Interval, student_quantile

# mistakes from which on the percentile interval is kept
ENOUGH = 100


def with_few_mistakes(
    interval: Interval,
    errors: Array,
    level: float,
    bounds: tuple[float, float] = (0.0, 1.0),
    *,
    least: int = 0,
    factor: float = 1.0,
) -> Interval:
    """Return the union of the percentile interval of a rate and the interval at the top of this file.

    Args:
        interval: percentile interval of a rate between 0 and 1.
        errors: (replicates,) resampled errors, before they were scaled for few groups.
        level: confidence level.
        bounds: ends that are wide enough for any number of mistakes; the interval is not extended beyond them.
        least: degrees of freedom of Student's quantile, at least.
        factor: `few_groups_factor`. The larger of it and of Student's factor counts.

    >>> errors = 0.001 * np.linspace(-1.96, 1.96, 101)
    >>> found = with_few_mistakes(Interval(0.997, 0.99504, 0.99896), errors, 0.95)
    >>> round(found.low, 4), round(found.high, 4)
    (0.9924, 0.999)
    """
    value = interval.value
    spread = float(np.std(errors[~np.isnan(errors)])) if np.isfinite(interval.low) else 0.0
    if not 0 < value < 1 or spread == 0:
        return interval
    mistakes = (min(value, 1 - value) / spread) ** 2
    if mistakes >= ENOUGH:
        return interval
    student = student_quantile(max(int(mistakes), least)) / NORMAL
    reach = NormalDist().inv_cdf((1 + level) / 2) * max(student, factor) * spread / (value * (1 - value))
    odds = math.log(value) - math.log1p(-value)
    low, high = (_share(odds + way) for way in (-reach, reach))
    return Interval(value, min(interval.low, max(low, bounds[0])), max(interval.high, min(high, bounds[1])))


def _share(odds: float) -> float:
    """Return the share with these logarithmic odds."""
    return 0.5 * (1 + math.tanh(odds / 2))

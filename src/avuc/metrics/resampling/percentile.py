"""Confidence intervals from resampled estimation errors. NumPy only."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from avuc.core.errors import InputError
from avuc.metrics.arrays import Array

# metrics that can exceed 1; every other one lies in [0, 1]
UNBOUNDED = {"nll", "brier", "mean_entropy", "wasserstein"}
NORMAL = 1.959964  # 97.5 % quantile of the normal distribution


class Interval(NamedTuple):
    """An estimate and the ends of its confidence interval.

    Args:
        value: the estimate.
        low: lower end; NaN if it is not defined.
        high: upper end; NaN if it is not defined.

    >>> interval = Interval(0.5, 0.4, 0.6)
    >>> interval.low < interval.value < interval.high
    True
    """

    value: float
    low: float
    high: float


class Errors(NamedTuple):
    """Resampled errors, estimate − truth, each of shape (replicates,).

    over   for the lower end of the interval: at least as large as the error
    under  for the upper end of the interval: at most as large as the error

    The two are equal for metrics with percentile intervals; see absolute_error.py for the others.
    """

    over: Array
    under: Array


def error_interval(value: float, errors: Errors, level: float) -> Interval:
    """Return value − quantiles of the error; with error = value − resample this is the percentile interval.

    Resamples on which the metric is not defined (NaN) are left out. The interval always contains the value: resampling
    can shift a metric of few predictions so far that it would not.

    Args:
        value: the estimate.
        errors: resampled errors of it.
        level: confidence level, for example 0.95.

    >>> errors = np.linspace(-0.1, 0.1, 101)
    >>> interval = error_interval(0.5, Errors(errors, errors), 0.9)
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.41, 0.59)
    """
    over, under = (x[~np.isnan(x)] for x in errors)
    if np.isnan(value) or len(over) == 0 or len(under) == 0:
        return Interval(value, float("nan"), float("nan"))
    low, high = value - np.quantile(over, (1 + level) / 2), value - np.quantile(under, (1 - level) / 2)
    return Interval(value, min(float(low), value), max(float(high), value))


def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, from 3 on by the first terms of its expansion in 1/freedom."""
    if freedom < 3:
        return (math.inf, 12.706205, 4.302653)[max(freedom, 0)]
    z = NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def few_groups_factor(groups: int) -> float:
    """Return how much wider the interval of a bootstrap over few groups must be; NaN for one group, which gives none.

    A resample of n groups has (n − 1)/n of their variance, and normal quantiles instead of Student's (Hesterberg 2015,
    https://doi.org/10.1080/00031305.2015.1089789, section 5).

    >>> round(few_groups_factor(10), 2), round(few_groups_factor(1000), 3)
    (1.21, 1.002)
    """
    return student_quantile(groups - 1) / NORMAL * math.sqrt(groups / (groups - 1)) if groups > 1 else math.nan


def clip_to_range(name: str | None, interval: Interval) -> Interval:
    """Return the interval within the range of the named metric; None: a metric of unknown range."""
    if name is None or np.isnan(interval.low):
        return interval
    high = interval.high if name in UNBOUNDED else min(interval.high, 1.0)
    return Interval(interval.value, max(interval.low, 0.0), high)


def difference_interval(
    name: str | None, a: float, error_a: Errors, b: float, error_b: Errors, level: float
) -> Interval:
    """Return the interval of a − b from errors of both on the same resamples.

    Args:
        name: the metric, for its range; None: a metric of unknown range.
        a: estimate for the first model.
        error_a: its resampled errors.
        b: estimate for the second model.
        error_b: its resampled errors, from the same resamples.
        level: confidence level.
    """
    interval = error_interval(a - b, Errors(error_a.over - error_b.under, error_a.under - error_b.over), level)
    if name is None or name in UNBOUNDED or np.isnan(interval.low):
        return interval
    return Interval(interval.value, max(interval.low, -1.0), min(interval.high, 1.0))


def check_bootstrap(replicates: int, level: float) -> None:
    """Raise InputError unless there is at least one replicate and the level is between 0 and 1."""
    if replicates < 1 or not 0 < level < 1:
        raise InputError(f"need replicates ≥ 1 and 0 < level < 1, found {replicates} and {level}")

"""95 % intervals of a study's means over shifts and seeds, with the same random numbers for every method.

`avuc.metrics.intervals` resamples the rows of one prediction file. A study keeps one value per method, seed and shift.
Shifts are resampled (bootstrap). Seeds are too few for that: of three seeds, a bootstrap interval of 95 % contains the
mean in 72 % of all cases. Their mean therefore varies as Student's t-distribution says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from avuc.report.study.result_arrays import finite_mean

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
REPLICATES = 1000
SPREAD_REPLICATES = 4000  # with two seeds the ends of an interval lie far out
# the largest value of each metric that has another one than 1; the smallest is 0
LARGEST = {"nll": math.inf, "wasserstein": math.inf, "mean_entropy": math.inf, "brier": 2.0}
LEVEL = 0.95

_mean = partial(finite_mean, axis=-1)
# statistics over the last axis, which is the kinds of shift
STATISTICS: dict[str, Statistic] = {
    "lower quartile": lambda values: np.quantile(values, 0.25, axis=-1),
    "median": lambda values: np.quantile(values, 0.5, axis=-1),
    "mean": _mean,
    "upper quartile": lambda values: np.quantile(values, 0.75, axis=-1),
}


@dataclass(frozen=True)
class Spread:
    """A statistic of each method, (method), its replicates, (method, replicate), and the largest possible value."""

    value: Array
    replicates: Array
    largest: float = math.inf

    def interval(self, method: int) -> tuple[float, float]:
        """Return the 95 % interval of one method, within the range of the metric; NaN bounds if it is not defined."""
        low, high = self._interval(self.replicates[method])
        return (low, high) if math.isnan(low) else (max(low, 0.0), min(high, self.largest))

    def difference(self, method: int, other: int) -> tuple[float, float]:
        """Return the 95 % interval of method − other, computed on the same shifts and seeds."""
        return self._interval(self.replicates[method] - self.replicates[other])

    def best(self, lower: bool) -> int | None:
        """Return the method with the best value, or None if no method has a value."""
        if not np.isfinite(self.value).any():
            return None
        return int(np.nanargmin(self.value) if lower else np.nanargmax(self.value))

    def marked(self, lower: bool) -> set[int]:
        """Return the methods to print in bold: none of a single one, or if not all intervals are known."""
        known = np.isfinite(self.value)
        return self.ties(lower) if known.sum() > 1 and np.isfinite(self.replicates[known]).all() else set()

    def ties(self, lower: bool) -> set[int]:
        """Return the best method and every method that is not significantly different from it."""
        best = self.best(lower)
        if best is None:
            return set()
        equal = {best}
        for method in range(len(self.value)):
            low, high = self.difference(method, best)
            if self.value[method] == self.value[best] or low <= 0 <= high:
                equal.add(method)
        return equal

    @staticmethod
    def _interval(replicates: Array) -> tuple[float, float]:
        return percentile_interval(replicates) if np.isfinite(replicates).all() else (float("nan"), float("nan"))


def percentile_interval(replicates: Array) -> tuple[float, float]:
    """Return the 2.5 % and 97.5 % quantiles of replicates; NaN replicates are left out.

    >>> low, high = percentile_interval(np.arange(201.0))
    >>> round(low, 3), round(high, 3)
    (5.0, 195.0)
    """
    low, high = np.nanquantile(replicates, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)


def spread(values: Array, statistic: Statistic | None = None, *, metric: str = "nll") -> Spread:
    """Return a statistic over shifts of the means over seeds, with replicates that show how it varies.

    With one seed only the shifts vary, with one shift only the seeds. A method that has one seed on one shift has NaN
    replicates, because its data do not show how the value varies.

    Args:
        values: (method, seed, shift), at least 0; NaN where there is no value.
        statistic: function over the last axis; by default the mean.
        metric: of the values; its largest possible value limits the intervals.

    >>> spread(np.array([[[1.0, 2.0, 3.0]]])).value
    array([2.])
    """
    values = values[:, :, np.isfinite(values).any((0, 1))]  # without shifts that no method was evaluated on
    methods, seeds, shifts = values.shape
    statistic, largest = statistic or _mean, LARGEST.get(metric, 1.0)
    if not seeds or not shifts:
        nothing = np.full(methods, np.nan)
        return Spread(nothing, nothing[:, None], largest)
    value = statistic(finite_mean(values, axis=1))
    if seeds == 1 and shifts == 1:
        return Spread(value, np.full((methods, 1), np.nan), largest)
    noise, shift_index = _resamples(seeds, shifts)
    means = _seed_means(values, *noise)  # (method, replicate, shift)
    resampled = np.take_along_axis(means, np.broadcast_to(shift_index, means.shape), axis=2)
    replicates = statistic(resampled)
    if shifts == 1:
        replicates[np.isfinite(values).sum((1, 2)) < 2] = np.nan
    return Spread(value, replicates, largest)


def _seed_means(values: Array, normal: Array, squares: Array) -> Array:
    """Return (method, replicate, shift): the mean over seeds plus Student's t times its standard error.

    The same random numbers of a seed for every method and shift make the difference of two methods with the same seeds
    vary as in a paired t-test. With one seed there is nothing that shows how the mean varies, so it does not.

    Args:
        values: (method, seed, shift); seeds that a method does not have are NaN.
        normal: (replicate, seed), standard normal.
        squares: (replicate, seed): in column f, a chi-squared number of f + 1 degrees of freedom, divided by f + 1.
    """
    mean = finite_mean(values, axis=1)
    known = np.isfinite(values)
    count = known.sum(1)  # (method, shift)
    deviation = np.where(known, values - mean[:, None], 0.0)
    error = np.einsum("msj,rs->mrj", deviation, normal) / np.sqrt(np.maximum(count * (count - 1), 1))[:, None]
    means: Array = mean[:, None] + error / np.sqrt(squares.T[np.maximum(count - 2, 0)].transpose(0, 2, 1))
    return means


@lru_cache(maxsize=64)
def _resamples(seeds: int, shifts: int) -> tuple[tuple[Array, Array], NDArray[np.int64]]:
    """Return the random numbers of the seeds, see `_seed_means`, and the shifts, (1, replicate, shift).

    Half of the normal numbers are the other half with the opposite sign, so that intervals of one set are symmetric.
    """
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(SPREAD_REPLICATES // 2, seeds))
    freedom = np.arange(1, seeds + 1)
    squares = np.cumsum(rng.normal(size=(SPREAD_REPLICATES // 2, seeds)) ** 2, axis=1) / freedom
    shift_index = rng.integers(shifts, size=(1, SPREAD_REPLICATES, shifts))
    return (np.concatenate([normal, -normal]), np.concatenate([squares, squares])), shift_index

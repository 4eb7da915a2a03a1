"""95 % intervals of a study's means: a bootstrap over shifts and seeds, with the same resamples for every method.

`avuc.metrics.intervals` resamples the rows of one prediction file. A study keeps one value per method, seed and shift,
so here the shifts and the seeds are resampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from avuc.report.study.result_arrays import finite_mean

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
REPLICATES = 1000
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
    """A statistic of each method, (method), and its bootstrap replicates, (method, replicate)."""

    value: Array
    replicates: Array

    def interval(self, method: int) -> tuple[float, float]:
        """Return the 95 % interval of one method; NaN bounds if it is not defined."""
        return self._interval(self.replicates[method])

    def difference(self, method: int, other: int) -> tuple[float, float]:
        """Return the 95 % interval of method − other, computed on the same shifts and seeds."""
        return self._interval(self.replicates[method] - self.replicates[other])

    def best(self, lower: bool) -> int | None:
        """Return the method with the best value, or None if no method has a value."""
        if not np.isfinite(self.value).any():
            return None
        return int(np.nanargmin(self.value) if lower else np.nanargmax(self.value))

    def marked(self, lower: bool) -> set[int]:
        """Return the methods to print in bold: none if the intervals of the methods are not all known."""
        known = np.isfinite(self.value)
        return self.ties(lower) if known.sum() == 1 or np.isfinite(self.replicates[known]).all() else set()

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
    """Return the 2.5 % and 97.5 % quantiles of bootstrap replicates; NaN replicates are left out.

    >>> low, high = percentile_interval(np.arange(201.0))
    >>> round(low, 3), round(high, 3)
    (5.0, 195.0)
    """
    low, high = np.nanquantile(replicates, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)


def spread(values: Array, statistic: Statistic | None = None) -> Spread:
    """Return a statistic over shifts of the means over seeds, with bootstrap replicates.

    With one seed only the shifts are resampled, with one shift only the seeds. A method that has one seed on one shift
    has NaN replicates, because its data do not show how the value varies.

    Args:
        values: (method, seed, shift); NaN where there is no value.
        statistic: function over the last axis; by default the mean.

    >>> spread(np.array([[[1.0, 2.0, 3.0]]])).value
    array([2.])
    """
    values = values[:, :, np.isfinite(values).any((0, 1))]  # without shifts that no method was evaluated on
    methods, seeds, shifts = values.shape
    statistic = statistic or _mean
    if not seeds or not shifts:
        nothing = np.full(methods, np.nan)
        return Spread(nothing, nothing[:, None])
    value = statistic(_seed_means(values, np.ones((1, seeds)))[:, 0])
    if seeds == 1 and shifts == 1:
        return Spread(value, np.full((methods, 1), np.nan))
    seed_weights, shift_index = _resamples(seeds, shifts)
    means = _seed_means(values, seed_weights)  # (method, replicate, shift)
    resampled = np.take_along_axis(means, np.broadcast_to(shift_index, means.shape), axis=2)
    replicates = statistic(resampled)
    if shifts == 1:
        replicates[np.isfinite(values).sum((1, 2)) < 2] = np.nan
    return Spread(value, replicates)


def _seed_means(values: Array, weights: Array) -> Array:
    """Return (method, replicate, shift): means over seeds, weighted by how often a replicate has each seed.

    Seeds that a method does not have are left out. A replicate that has only such seeds uses all seeds of the method.
    """
    known = np.isfinite(values)
    total = np.einsum("msj,rs->mrj", np.where(known, values, 0.0), weights)
    count = np.einsum("msj,rs->mrj", known.astype(float), weights)
    fallback = np.broadcast_to(finite_mean(values, axis=1)[:, None], total.shape).copy()
    means: Array = np.divide(total, count, out=fallback, where=count > 0)
    return means


@lru_cache(maxsize=64)
def _resamples(seeds: int, shifts: int) -> tuple[Array, NDArray[np.int64]]:
    """Return how often each replicate has each seed, (replicate, seed), and its shifts, (1, replicate, shift)."""
    rng = np.random.default_rng(0)
    weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=REPLICATES).astype(float)
    return weights, rng.integers(shifts, size=(1, REPLICATES, shifts))

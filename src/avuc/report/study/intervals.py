"""How sure a study can be of a mean: resample shifts and seeds together, the same ones for every method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["Spread", "spread"]

Array = NDArray[np.float64]
REPLICATES = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Spread:
    """A statistic of each method, and its replicates: (method) and (method, replicate)."""

    value: Array
    replicates: Array

    def interval(self, method: int) -> tuple[float, float]:
        return self._quantiles(self.replicates[method])

    def difference(self, method: int, other: int) -> tuple[float, float]:
        """Of method − other, on the same shifts and seeds."""
        return self._quantiles(self.replicates[method] - self.replicates[other])

    def best(self, lower: bool) -> int | None:
        """The method with the best value; None where there are no values."""
        if not np.isfinite(self.value).any():
            return None
        return int(np.nanargmin(self.value) if lower else np.nanargmax(self.value))

    def marked(self, lower: bool) -> set[int]:
        """The methods to print in bold; none where nothing says how far the figures would vary."""
        known = np.isfinite(self.value)
        return self.ties(lower) if known.sum() == 1 or np.isfinite(self.replicates[known]).all() else set()

    def ties(self, lower: bool) -> set[int]:
        """The best method and those that are not significantly different from it."""
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
    def _quantiles(values: Array) -> tuple[float, float]:
        if not np.isfinite(values).all():
            return float("nan"), float("nan")
        low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return float(low), float(high)


def spread(values: Array, statistic: Callable[[Array], Array] | None = None) -> Spread:
    """Of values (method, seed, shift): the statistic over shifts of the means over seeds; None: the mean.

    With one seed, only shifts are resampled; with one shift, only seeds; with one of each, replicates are NaN: nothing
    here says how it would vary.

    >>> spread(np.array([[[1.0, 2.0, 3.0]]])).value
    array([2.])
    """
    values = values[:, :, np.isfinite(values).any((0, 1))]  # shifts that no method was judged on say nothing
    methods, seeds, shifts = values.shape
    chosen = statistic or _mean
    if not seeds or not shifts:
        nothing = np.full(methods, np.nan)
        return Spread(nothing, nothing[:, None])
    value = chosen(_seed_means(values, np.ones((1, seeds)))[:, 0])
    if seeds == 1 and shifts == 1:
        return Spread(value, np.full((methods, 1), np.nan))
    seed_weights, shift_index = _resamples(seeds, shifts)
    means = _seed_means(values, seed_weights)  # (method, replicate, shift)
    taken = np.take_along_axis(means, np.broadcast_to(shift_index, means.shape), axis=2)
    return Spread(value, chosen(taken))


def _mean(values: Array) -> Array:
    """Over the last axis, of what is there."""
    there = np.isfinite(values)
    count = there.sum(-1)
    total = np.where(there, values, 0.0).sum(-1)
    mean: Array = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return mean


def _seed_means(values: Array, weights: Array) -> Array:
    """(method, replicate, shift): weighted by how often a seed was drawn; a method's missing seeds do not count."""
    there = np.isfinite(values)
    # a replicate that drew only seeds that a method does not have falls back to all it has
    total = np.einsum("msj,rs->mrj", np.where(there, values, 0.0), weights)
    count = np.einsum("msj,rs->mrj", there.astype(float), weights)
    plain = np.where(there, values, 0.0).sum(1), there.sum(1)
    fallback = np.divide(plain[0], plain[1], out=np.full(plain[0].shape, np.nan), where=plain[1] > 0)
    fallen = np.broadcast_to(fallback[:, None], total.shape).copy()
    means: Array = np.divide(total, count, out=fallen, where=count > 0)
    return means


@lru_cache(maxsize=64)
def _resamples(seeds: int, shifts: int) -> tuple[Array, NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=REPLICATES).astype(float)
    return weights, rng.integers(shifts, size=(1, REPLICATES, shifts))

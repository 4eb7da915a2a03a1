"""How sure the difference of two rows is, also of two studies: on the same shifts, or from seed to seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from avuc.errors import require
from avuc.report.results import CLEAN, Results
from avuc.report.tables import rank_correlation

__all__ = ["Difference", "over_seeds", "over_shifts", "shift_values", "trend"]

Array = NDArray[np.float64]
REPLICATES = 1000
LEVEL = 0.95


class Difference(NamedTuple):
    """first − second with its 95 % interval; NaN bounds where nothing says how it would vary."""

    value: float
    low: float
    high: float

    def says(self, better: str) -> str:
        """Of the first, where `better` is "lower" or "higher": better, worse, or not told apart."""
        if math.isnan(self.low):
            return "one run each"
        if self.low <= 0 <= self.high:
            return "not told apart"
        return "better" if (self.value < 0) == (better == "lower") else "worse"


def shift_values(results: Results, method: str, metric: str) -> Array:
    """(seed, shift, intensity), the clean images as intensity 0 of every shift; only seeds that are complete."""
    place = results.names.index(method)
    clean = results.at(metric, CLEAN)[place][:, None].repeat(len(results.shifts), 1)
    values = np.stack([clean, *(results.shifted(metric, level)[place] for level in results.severities)], axis=2)
    complete: Array = values[np.isfinite(values).all((1, 2))]
    return complete


def over_shifts(first: Array, second: Array, statistic: Callable[[Array], float], seed: int = 0) -> Difference:
    """Of statistic(first) − statistic(second), both (seed, shift, …) over the same shifts.

    Both meet the same resampled shifts: the difference is paired. Seeds are resampled for each on its own, for the
    seeds of two methods have nothing to do with each other. `statistic` reads (shift, …), seeds averaged.
    """
    value = statistic(first.mean(0)) - statistic(second.mean(0))
    shifts = first.shape[1]
    if shifts < 2:
        return Difference(value, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    taken = rng.integers(shifts, size=(REPLICATES, shifts))
    resampled = []
    for values in (first, second):
        seeds = rng.integers(len(values), size=(REPLICATES, len(values)))
        means = values[seeds].mean(1)  # (replicate, shift, …)
        resampled.append([statistic(each[places]) for each, places in zip(means, taken, strict=True)])
    low, high = np.nanquantile(np.subtract(*resampled), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Difference(float(value), float(low), float(high))


def over_seeds(first: tuple[float, ...], second: tuple[float, ...]) -> Difference:
    """Of the means of two rows on one set of images: Welch's interval over seeds.

    >>> over_seeds((1.0,), (2.0,))
    Difference(value=-1.0, low=nan, high=nan)
    """
    value = float(np.mean(first) - np.mean(second))
    if min(len(first), len(second)) < 2:
        return Difference(value, math.nan, math.nan)
    errors = [float(np.var(each, ddof=1)) / len(each) for each in (first, second)]
    if not sum(errors):
        return Difference(value, value, value)
    freedom = sum(errors) ** 2 / sum(e**2 / (len(each) - 1) for e, each in zip(errors, (first, second), strict=True))
    student = require("scipy.stats", "study", "an interval over seeds").t
    half = float(student.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(sum(errors))
    return Difference(value, value - half, value + half)


def trend(values: Array) -> float:
    """Spearman's ρ of the mean over shifts with the intensity, of (shift, intensity)."""
    return rank_correlation(np.arange(values.shape[1], dtype=float), values.mean(0))

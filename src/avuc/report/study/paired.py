"""95 % intervals of the difference of two methods, of one study or of two studies.

`compare_over_shifts` and `compare_over_seeds` match the values of two methods by shift and by seed. `over_shifts`,
`over_seeds` and `over_images` are the intervals themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from avuc.core.errors import InputError, require
from avuc.report.study.intervals import LEVEL, REPLICATES, SPREAD_REPLICATES, percentile_interval
from avuc.report.study.paper_comparison import Figure
from avuc.report.study.result_arrays import CLEAN, Results, SetKey
from avuc.report.study.tables import rank_correlation

Array = NDArray[np.float64]
GROUPS = ("right", "wrong", "outside")


class Difference(NamedTuple):
    """first − second with its 95 % interval; NaN bounds if the data do not show how the difference varies."""

    value: float
    low: float
    high: float

    def says(self, better: str) -> str:
        """Return what the interval says of the first method; `better` is "lower" or "higher"."""
        if math.isnan(self.low):
            return "no interval"
        if self.low <= 0 <= self.high:
            return "not significant"
        return "better" if (self.value < 0) == (better == "lower") else "worse"


NOT_COMPARABLE = Difference(math.nan, math.nan, math.nan)


def complete_seeds(results: Results, method: str, metric: str) -> tuple[int, ...]:
    """Return the seeds for which a method has the metric on clean images and on every shift at every intensity."""
    values = _all_shift_values(results, method, metric, results.shifts)
    return tuple(seed for seed, each in zip(results.seed_numbers, values, strict=True) if np.isfinite(each).all())


def shift_values(results: Results, method: str, metric: str, shifts: Sequence[str] | None = None) -> Array:
    """Return (seed, shift, intensity), with clean images as intensity 0 of every shift.

    The seeds are those of `complete_seeds`. Two methods may have different ones, so compare them with
    `compare_over_shifts`, which matches seeds by their number.

    Args:
        results: a study's results.
        method: name of the method.
        metric: name of the metric.
        shifts: order of the shifts; by default that of the study.
    """
    values = _all_shift_values(results, method, metric, results.shifts if shifts is None else shifts)
    complete: Array = values[np.isfinite(values).all((1, 2))]
    return complete


def _all_shift_values(results: Results, method: str, metric: str, shifts: Sequence[str]) -> Array:
    index = results.names.index(method)
    order = [results.shifts.index(shift) for shift in shifts]
    clean = results.at(metric, CLEAN)[index][:, None].repeat(len(order), 1)
    levels = [results.shifted(metric, level, common=False)[index][:, order] for level in results.severities]
    return np.stack([clean, *levels], axis=2)


def compare_over_shifts(
    results: Results,
    method: str,
    other: Results,
    other_method: str,
    metric: str,
    statistic: Callable[[Array], float],
    *,
    same_networks: bool = False,
) -> Difference:
    """Return the difference of two methods on the same shifts, matched by name; NaN if the studies have other shifts.

    Args:
        results: study of the first method.
        method: name of the first method.
        other: study of the second method; may be the same study.
        other_method: name of the second method.
        metric: name of the metric.
        statistic: number of a (shift, intensity) array of means over seeds.
        same_networks: whether both methods start from the same trained networks. Then seeds are compared in pairs if
            both methods have the same complete seeds.
    """
    if set(results.shifts) != set(other.shifts) or results.severities != other.severities:
        return NOT_COMPARABLE
    first = shift_values(results, method, metric)
    second = shift_values(other, other_method, metric, results.shifts)
    if not len(first) or not len(second):
        return NOT_COMPARABLE
    seeds = complete_seeds(results, method, metric), complete_seeds(other, other_method, metric)
    return over_shifts(first, second, statistic, same_seeds=same_networks and seeds[0] == seeds[1])


def compare_over_seeds(first: Figure, second: Figure, *, same_networks: bool = False) -> Difference:
    """Return the difference of two numbers of a study; in pairs if both are of the same networks and the same seeds."""
    paired = same_networks and first.seed_numbers == second.seed_numbers
    return over_seeds(first.by_seed, second.by_seed, same_seeds=paired)


def pairs_by_seed(first: Figure, second: Figure) -> list[tuple[float, float]]:
    """Return the values of both figures for every seed that both have."""
    values = dict(zip(second.seed_numbers, second.by_seed, strict=True))
    pairs = zip(first.seed_numbers, first.by_seed, strict=True)
    return [(value, values[seed]) for seed, value in pairs if seed in values]


def over_shifts(
    first: Array, second: Array, statistic: Callable[[Array], float], seed: int = 0, *, same_seeds: bool = False
) -> Difference:
    """Return statistic(first) − statistic(second) with a 95 % interval over shifts and seeds.

    Shifts are resampled (bootstrap); both sides use the same ones, so the difference is paired. The mean over seeds
    varies as Student's t-distribution says, because a bootstrap of three seeds is too narrow (`intervals.py`).

    Args:
        first: (seed, shift, …).
        second: (seed, shift, …), with the same shifts in the same order.
        statistic: number of a (shift, …) array of means over seeds.
        seed: of the random numbers.
        same_seeds: whether `first` and `second` have the same seeds in the same order and come from the same networks.
            Then the means of both vary together; otherwise independently, with Welch's degrees of freedom.
    """
    _check_pairs(len(first), len(second), same_seeds)
    value = statistic(first.mean(0)) - statistic(second.mean(0))
    shifts = first.shape[1]
    if shifts < 2:
        return Difference(value, math.nan, math.nan)
    rng, half = np.random.default_rng(seed), SPREAD_REPLICATES // 2
    shift_index = rng.integers(shifts, size=(SPREAD_REPLICATES, shifts))
    by_seed = [np.array([statistic(each) for each in values]) for values in (first, second)]
    freedom = len(first) - 1 if same_seeds else _error(by_seed)[1]
    squares = np.tile(rng.chisquare(freedom, half) / freedom if freedom else np.ones(half), 2)
    replicates: list[Array] = []
    normal = None
    for values in (first, second):
        if normal is None or not same_seeds:
            normal = rng.normal(size=(half, len(values)))
        means = _varied_means(values, np.concatenate([normal, -normal]), squares)
        resampled = (each[index] for each, index in zip(means, shift_index, strict=True))
        replicates.append(np.array([statistic(each) for each in resampled]))
    return _difference(value, replicates[0] - replicates[1])


def _varied_means(values: Array, normal: Array, squares: Array) -> Array:
    """Return (replicate, shift, …): the mean over seeds plus Student's t times its standard error.

    Args:
        values: (seed, shift, …). The mean of one seed does not vary: nothing shows how.
        normal: (replicate, seed), standard normal.
        squares: (replicate): chi-squared numbers, divided by their degrees of freedom.
    """
    seeds = len(values)
    mean = values.mean(0)
    error = np.tensordot(normal, values - mean, 1) / math.sqrt(max(seeds * (seeds - 1), 1))
    means: Array = mean + error / np.sqrt(squares).reshape(-1, *[1] * mean.ndim)
    return means


def _error(samples: Sequence[Array]) -> tuple[float, float]:
    """Return the variance of a sum or difference of means, and Welch's degrees of freedom; 0 if nothing varies."""
    errors = [(float(np.var(each, ddof=1)) / len(each), len(each) - 1) for each in samples if len(each) > 1]
    total = sum(error for error, _ in errors)
    return total, total**2 / sum(error**2 / freedom for error, freedom in errors) if total else 0.0


def over_seeds(first: tuple[float, ...], second: tuple[float, ...], *, same_seeds: bool = False) -> Difference:
    """Return the difference of two means over seeds with Welch's interval.

    Args:
        first: one value per seed.
        second: one value per seed.
        same_seeds: whether the values are pairs, seed by seed. Then the interval is that of Student's paired t-test.

    >>> over_seeds((1.0,), (2.0,))
    Difference(value=-1.0, low=nan, high=nan)
    """
    _check_pairs(len(first), len(second), same_seeds)
    value = float(np.mean(first) - np.mean(second))
    if min(len(first), len(second)) < 2:
        return Difference(value, math.nan, math.nan)
    samples = (np.subtract(first, second),) if same_seeds else (np.array(first), np.array(second))
    error, freedom = _error(samples)
    if not error:
        return Difference(value, value, value)
    student = require("scipy.stats", "study", "an interval over seeds").t
    half = float(student.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(error)
    return Difference(value, value - half, value + half)


def _check_pairs(first: int, second: int, same_seeds: bool) -> None:
    if same_seeds and first != second:
        raise InputError(f"{first} and {second} seeds cannot be compared in pairs; give the same seeds")


def over_images(results: Results, method: str, other: Results, other_method: str, test_set: SetKey) -> Difference:
    """Return the difference of clean ECE, or of AUROC, with an interval for other test images.

    The images are resampled from the counts that a study keeps (reliability diagram, entropy histograms), for each
    method independently. The images are not paired, so the interval is rather wide. The bounds are NaN if a study does
    not have these counts.

    Args:
        results: study of the first method.
        method: name of the first method.
        other: study of the second method.
        other_method: name of the second method.
        test_set: `CLEAN` for ECE, out-of-distribution data for AUROC.
    """
    metric = "ece" if test_set == CLEAN else "auroc"
    rng = np.random.default_rng(0)
    values, resampled = [], []
    for study, name in ((results, method), (other, other_method)):
        index = study.names.index(name)
        values.append(float(study.mean(metric, test_set)[index]))
        resampled.append(_resampled_metric(study, index, test_set, rng))
    value = values[0] - values[1]
    if resampled[0] is None or resampled[1] is None:
        return Difference(value, math.nan, math.nan)
    # resampling and binning bias the metric a little, so only the deviation from the replicates' mean is used
    differences = resampled[0] - resampled[1]
    return _difference(value, value + differences - differences.mean())


def _resampled_metric(study: Results, method: int, test_set: SetKey, rng: np.random.Generator) -> Array | None:
    """Return the metric on resampled images, (replicate), or None without counts."""
    sets = (study.set_index[key] for key in (CLEAN, test_set) if key in study.set_index)
    curves = [study.curves.get((method, index), {}) for index in sets]
    if test_set == CLEAN:
        diagram = curves[0].get("reliability") if curves else None
        return None if diagram is None else _resampled_ece(diagram, rng)
    histograms = [each["entropy"] for each in curves if "entropy" in each]
    if len(histograms) < 2:
        return None
    inside, outside = (np.sum([each[key] for key in GROUPS if key in each], axis=0) for each in histograms)
    return _resampled_auroc(inside, outside, rng)


def _resampled_ece(diagram: Mapping[str, Any], rng: np.random.Generator) -> Array:
    rows, right = (np.array(diagram[key], float) for key in ("rows", "observed"))  # counts of all and of right images
    stated = np.divide(diagram["stated"], rows, out=np.zeros(len(rows)), where=rows > 0)
    total = int(rows.sum())
    shares = np.concatenate([right, rows - right]).clip(0) / total
    counts = rng.multinomial(total, shares / shares.sum(), size=REPLICATES)
    right_counts, wrong_counts = counts[:, : len(rows)], counts[:, len(rows) :]
    error: Array = np.abs(right_counts - stated * (right_counts + wrong_counts)).sum(1) / total
    return error


def _resampled_auroc(inside: Array, outside: Array, rng: np.random.Generator) -> Array:
    counts = [rng.multinomial(int(n.sum()), n / n.sum(), size=REPLICATES).astype(float) for n in (inside, outside)]
    below = counts[0].cumsum(1) - counts[0] / 2
    area: Array = (counts[1] * below).sum(1) / (counts[0].sum(1) * counts[1].sum(1))
    return area


def _difference(value: float, replicates: Array) -> Difference:
    return Difference(float(value), *percentile_interval(replicates))


def trend(values: Array) -> float:
    """Return Spearman's ρ between the intensity and the mean over shifts, of (shift, intensity)."""
    return rank_correlation(np.arange(values.shape[1], dtype=float), values.mean(0))

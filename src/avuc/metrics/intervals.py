"""How far a metric would move on other data of the same kind: bootstrap intervals over rows drawn with replacement.

Percentile intervals, except for the errors that sum or maximise absolute gaps (ECE, class-wise and adaptive ECE, UCE,
MCE), whose percentile intervals miss the truth for every well calibrated model: see `absolute.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, from_numpy

from avuc.core.errors import InputError
from avuc.metrics.absolute import Errors
from avuc.metrics.avu import Threshold
from avuc.metrics.cell_bootstrap import cell_detection_errors, cell_errors
from avuc.metrics.detection import detection, detection_of, from_counts, scores_of
from avuc.metrics.large import LargeStatistics
from avuc.metrics.ranking import Ranking
from avuc.metrics.resampling import BLOCK, Advance, Resampler, draws, replicate
from avuc.metrics.statistics import Array, Statistics, summarise
from avuc.metrics.suite import METRICS, HasProbabilities, from_statistics

__all__ = [
    "Bootstrap",
    "Compared",
    "Interval",
    "bootstrap",
    "compared_intervals",
    "detection_intervals",
    "intervals",
    "intervals_of",
    "large_detection_intervals",
    "large_intervals",
    "paired_bootstrap",
    "paired_intervals",
]

# no probability, score or error is below 0; nothing here but these is above 1
UNBOUNDED = {"nll", "brier", "mean_entropy"}


class Interval(NamedTuple):
    """An estimate and the bounds of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Bootstrap:
    """How to resample, and what the metrics need; `advance` is told how many resamples are done."""

    replicates: int = 1000
    level: float = 0.95
    seed: int = 0
    threshold: Threshold = "auto"
    bins: int = 15
    advance: Advance | None = None

    def __post_init__(self) -> None:
        _check(self.replicates, self.level)


def intervals(
    predictions: HasProbabilities,
    names: Iterable[str] | None = None,
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    threshold: Threshold = "auto",
    bins: int = 15,
) -> dict[str, Interval]:
    """Intervals of the named metrics of the suite (all by default), from the same resamples for all.

    >>> from avuc.predictions import Predictions
    >>> import torch
    >>> p = Predictions(torch.tensor([[0.8, 0.2], [0.6, 0.4]]).repeat(50, 1), torch.tensor([0, 1]).repeat(50))
    >>> intervals(p, ["accuracy"], replicates=200)["accuracy"].value
    0.5
    """
    statistics = summarise(predictions.probs, predictions.labels, bins=bins)
    return intervals_of(predictions.probs, statistics, names, Bootstrap(replicates, level, seed, threshold, bins))


def intervals_of(
    probs: Any, statistics: Statistics, names: Iterable[str] | None, how: Bootstrap
) -> dict[str, Interval]:
    """The same from statistics made with these bins."""
    wanted = _known(names)
    values = from_statistics(statistics, threshold=how.threshold, bins=how.bins)
    sampler = Resampler(probs, statistics, wanted, threshold=how.threshold, bins=how.bins)
    (errors,) = replicate([sampler], how.replicates, how.seed, how.advance)
    return {name: _within_range(name, _interval(values[name], errors[name], how.level)) for name in wanted}


def large_intervals(
    statistics: LargeStatistics, how: Bootstrap, values: Mapping[str, float] | None = None
) -> dict[str, Interval]:
    """Intervals of the whole suite for many rows, by the bootstrap over cells: its cost does not grow with the rows.

    `values` are the metrics, where they are known already.
    """
    values = statistics.metrics(threshold=how.threshold) if values is None else values
    errors = cell_errors(statistics, how.replicates, how.seed, threshold=how.threshold, advance=how.advance)
    return {name: _within_range(name, _interval(value, errors[name], how.level)) for name, value in values.items()}


def large_detection_intervals(
    entropies: Ranking, *, replicates: int, level: float = 0.95, seed: int = 0, advance: Advance | None = None
) -> dict[str, Interval]:
    """The same for the metrics of `detection`; both samples are drawn anew."""
    _check(replicates, level)
    values = detection_of(entropies)
    errors = cell_detection_errors(entropies, replicates, seed, advance)
    return {name: _interval(value, errors[name], level) for name, value in values.items()}


def paired_intervals(
    a: HasProbabilities,
    b: HasProbabilities,
    names: Iterable[str] | None = None,
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    threshold: Threshold = "auto",
    bins: int = 15,
) -> dict[str, Interval]:
    """Intervals of metric(a) − metric(b) for two models on the same rows, every metric from the same resamples.

    >>> from avuc.predictions import Predictions
    >>> import torch
    >>> labels = torch.tensor([0, 1]).repeat(50)
    >>> a, b = (Predictions(torch.tensor([[p, 1 - p], [0.5, 0.5]]).repeat(50, 1), labels) for p in (0.9, 0.6))
    >>> paired_intervals(a, b, ["nll"], replicates=200)["nll"].high < 0
    True
    """
    both = [summarise(one.probs, one.labels, bins=bins) for one in (a, b)]
    how = Bootstrap(replicates, level, seed, threshold, bins)
    found = compared_intervals((a.probs, b.probs), both, names, how)
    return {name: compared.difference for name, compared in found.items()}


class Compared(NamedTuple):
    """One metric of two models on the same rows."""

    a: Interval
    b: Interval
    difference: Interval  # a − b


def compared_intervals(
    probs: Sequence[Any], statistics: Sequence[Statistics], names: Iterable[str] | None, how: Bootstrap
) -> dict[str, Compared]:
    """Both models and their difference, from statistics made with these bins."""
    wanted = _known(names)
    if not np.array_equal(statistics[0].labels, statistics[1].labels):
        raise InputError("a paired bootstrap needs two models on the same rows; found different labels")
    options: dict[str, Any] = {"threshold": how.threshold, "bins": how.bins}
    first, second = (from_statistics(s, **options) for s in statistics)
    samplers = [Resampler(p, s, wanted, **options) for p, s in zip(probs, statistics, strict=True)]
    error_a, error_b = replicate(samplers, how.replicates, how.seed, how.advance)
    return {
        name: Compared(
            _within_range(name, _interval(first[name], error_a[name], how.level)),
            _within_range(name, _interval(second[name], error_b[name], how.level)),
            _difference(name, first[name], error_a[name], second[name], error_b[name], how.level),
        )
        for name in wanted
    }


def detection_intervals(
    in_entropy: Any,
    out_entropy: Any,
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    advance: Advance | None = None,
) -> dict[str, Interval]:
    """Percentile intervals of the metrics of `detection`; both samples are drawn anew, each from itself.

    >>> inside, outside = [0.1, 0.2, 0.3] * 20, [0.25, 0.8, 0.9] * 20
    >>> interval = detection_intervals(inside, outside, replicates=200)["auroc"]
    >>> interval.low < interval.value < interval.high
    True
    """
    _check(replicates, level)
    values = detection(in_entropy, out_entropy)
    sides = scores_of(in_entropy, "in_entropy"), scores_of(out_entropy, "out_entropy")
    distinct, where = np.unique(np.concatenate(sides), return_inverse=True)
    places = where[: len(sides[0])], where[len(sides[0]) :]
    # the two sides need resamples of their own
    drawn = zip(*(draws(len(side), replicates, seed + k) for k, side in enumerate(sides)), strict=True)
    errors: dict[str, list[Array]] = {name: [] for name in values}
    step = max(1, BLOCK // len(distinct))
    while resamples := list(islice(drawn, step)):
        counts = [
            np.stack([np.bincount(place[pair[k]], minlength=len(distinct)) for pair in resamples])
            for k, place in enumerate(places)
        ]
        for name, samples in from_counts(distinct, negative=counts[0], positive=counts[1]).items():
            errors[name].append(values[name] - samples)
        if advance is not None:
            advance(len(resamples))
    both = {name: np.concatenate(parts) for name, parts in errors.items()}
    return {name: _interval(values[name], Errors(error, error), level) for name, error in both.items()}


def bootstrap(
    metric: Callable[..., float], probs: Any, labels: Any, *, replicates: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Interval of any `metric(probs, labels)`; those of `METRICS` are resampled by weights, others by copying rows.

    >>> from avuc.metrics import accuracy
    >>> bootstrap(accuracy, [[0.8, 0.2], [0.6, 0.4]] * 50, [0, 1] * 50, replicates=200).value
    0.5
    """
    _check(replicates, level)
    interval = _interval(*_replicate(metric, probs, labels, replicates, seed), level)
    return _within_range(_name(metric), interval)


def paired_bootstrap(
    metric: Callable[..., float],
    probs_a: Any,
    probs_b: Any,
    labels: Any,
    *,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Interval of metric(a) − metric(b) for two models on the same rows, both on the same resamples.

    What the two share, the difficulty of the rows drawn, cancels: the interval is much narrower than that of two
    independent ones. If it does not contain 0, the models differ at this level.

    >>> from avuc.metrics import nll
    >>> a, b = [[0.8, 0.2]] * 40, [[0.7, 0.3]] * 40
    >>> paired_bootstrap(nll, a, b, [0] * 40, replicates=100).high < 0
    True
    """
    _check(replicates, level)
    (a, error_a), (b, error_b) = (_replicate(metric, probs, labels, replicates, seed) for probs in (probs_a, probs_b))
    return _difference(_name(metric), a, error_a, b, error_b, level)


def _replicate(
    metric: Callable[..., float], probs: Any, labels: Any, replicates: int, seed: int
) -> tuple[float, Errors]:
    value, name = float(metric(probs, labels)), _name(metric)
    if name is not None:
        sampler = Resampler(probs, summarise(probs, labels), [name], threshold="auto", bins=15)
        return value, replicate([sampler], replicates, seed)[0][name]
    indices = draws(len(summarise(probs, labels)), replicates, seed)
    samples = np.array([metric(_take(probs, index), _take(labels, index)) for index in indices], np.float64)
    return value, Errors(value - samples, value - samples)


def _name(metric: Callable[..., float]) -> str | None:
    return next((name for name, known in METRICS.items() if known is metric), None)


def _take(values: Any, index: Array) -> Tensor | Array:
    if isinstance(values, Tensor):
        return values[from_numpy(index).to(values.device)]
    return np.asarray(np.asarray(values)[index])


def _known(names: Iterable[str] | None) -> list[str]:
    wanted = list(METRICS if names is None else names)
    unknown = [name for name in wanted if name not in METRICS]
    if unknown:
        raise InputError(f"unknown metric {unknown[0]!r}; known: {', '.join(METRICS)}")
    return wanted


def _difference(name: str | None, a: float, error_a: Errors, b: float, error_b: Errors, level: float) -> Interval:
    found = _interval(a - b, Errors(error_a.over - error_b.under, error_a.under - error_b.over), level)
    if name is None or name in UNBOUNDED or np.isnan(found.low):
        return found
    return Interval(found.value, max(found.low, -1.0), min(found.high, 1.0))


def _interval(value: float, errors: Errors, level: float) -> Interval:
    """value − quantiles of the error; with error = value − resample this is the percentile interval.

    Resamples on which the metric is not defined (NaN) say nothing and are left out. The value is always inside: where
    resampling shifts a metric so far that it were not (a few rows, or an area between extremes), the end is the value.
    """
    over, under = (x[~np.isnan(x)] for x in errors)
    if np.isnan(value) or len(over) == 0 or len(under) == 0:
        return Interval(value, float("nan"), float("nan"))
    low, high = value - np.quantile(over, (1 + level) / 2), value - np.quantile(under, (1 - level) / 2)
    return Interval(value, min(float(low), value), max(float(high), value))


def _within_range(name: str | None, interval: Interval) -> Interval:
    if name is None or np.isnan(interval.low):
        return interval
    high = interval.high if name in UNBOUNDED else min(interval.high, 1.0)
    return Interval(interval.value, max(interval.low, 0.0), high)


def _check(replicates: int, level: float) -> None:
    if replicates < 1 or not 0 < level < 1:
        raise InputError(f"need replicates ≥ 1 and 0 < level < 1, found {replicates} and {level}")

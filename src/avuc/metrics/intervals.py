"""How far a metric would move on other data of the same kind: bootstrap intervals over rows drawn with replacement.

Percentile intervals, except for the errors that sum or maximise absolute gaps (ECE, class-wise and adaptive ECE, UCE,
MCE), whose percentile intervals miss the truth for every well calibrated model: see `absolute.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, from_numpy

from avuc.errors import InputError
from avuc.metrics.absolute import Errors
from avuc.metrics.avu import Threshold
from avuc.metrics.resampling import Resampler, draws
from avuc.metrics.statistics import Array, summarise
from avuc.metrics.suite import METRICS, HasProbabilities, from_statistics

__all__ = ["Interval", "bootstrap", "intervals", "paired_bootstrap"]

# no probability, score or error is below 0; nothing here but these is above 1
UNBOUNDED = {"nll", "brier", "mean_entropy"}


class Interval(NamedTuple):
    """An estimate and the bounds of its confidence interval."""

    value: float
    low: float
    high: float


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
    wanted = list(METRICS if names is None else names)
    unknown = [name for name in wanted if name not in METRICS]
    if unknown:
        raise InputError(f"unknown metric {unknown[0]!r}; known: {', '.join(METRICS)}")
    _check(replicates, level)
    probs, labels = predictions.probs, predictions.labels
    values = from_statistics(summarise(probs, labels, bins=bins), threshold=threshold, bins=bins)
    sampler = Resampler(probs, labels, wanted, threshold=threshold, bins=bins)
    errors = sampler.replicate(replicates, seed)
    return {name: _within_range(name, _interval(values[name], errors[name], level)) for name in wanted}


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
    error = Errors(error_a.over - error_b.under, error_a.under - error_b.over)
    return _interval(a - b, error, level)


def _replicate(
    metric: Callable[..., float], probs: Any, labels: Any, replicates: int, seed: int
) -> tuple[float, Errors]:
    value, name = float(metric(probs, labels)), _name(metric)
    if name is not None:
        return value, Resampler(probs, labels, [name], threshold="auto", bins=15).replicate(replicates, seed)[name]
    rows = len(summarise(probs, labels))
    indices = (row for block in draws(rows, replicates, seed) for row in block)
    samples = np.array([metric(_take(probs, index), _take(labels, index)) for index in indices], np.float64)
    return value, Errors(value - samples, value - samples)


def _name(metric: Callable[..., float]) -> str | None:
    return next((name for name, known in METRICS.items() if known is metric), None)


def _take(values: Any, index: Array) -> Tensor | Array:
    if isinstance(values, Tensor):
        return values[from_numpy(index).to(values.device)]
    return np.asarray(np.asarray(values)[index])


def _interval(value: float, errors: Errors, level: float) -> Interval:
    """value − quantiles of the error; with error = value − resample this is the percentile interval.

    Resamples on which the metric is not defined (NaN) say nothing and are left out.
    """
    over, under = (x[~np.isnan(x)] for x in errors)
    if np.isnan(value) or len(over) == 0 or len(under) == 0:
        return Interval(value, float("nan"), float("nan"))
    low, high = value - np.quantile(over, (1 + level) / 2), value - np.quantile(under, (1 - level) / 2)
    return Interval(value, float(low), float(high))


def _within_range(name: str | None, interval: Interval) -> Interval:
    if name is None or np.isnan(interval.low):
        return interval
    high = interval.high if name in UNBOUNDED else min(interval.high, 1.0)
    return Interval(interval.value, max(interval.low, 0.0), high)


def _check(replicates: int, level: float) -> None:
    if replicates < 1 or not 0 < level < 1:
        raise InputError(f"need replicates ≥ 1 and 0 < level < 1, found {replicates} and {level}")
